"""The time that is left, in words, and the bar at every width."""

from __future__ import annotations

import io
import itertools
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from extremegp import progress
from extremegp.progress import ProgressBar, TimeLeft, _Line, spoken


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def answers(seconds_of_steps: list[float], total: int) -> list[float | None]:
    left, now, found = TimeLeft(), 0.0, []
    for step, seconds in enumerate(seconds_of_steps, 1):
        now += seconds
        left.observe(now, step)
        found.append(left.seconds(total))
    return found


def test_there_is_no_answer_before_a_basis():
    assert answers([1.0] * 20, 100)[:6] == [None] * 6
    # Steps that take no time to speak of say nothing within the first second.
    assert answers([0.001] * 500, 1000) == [None] * 500


def test_equal_steps_give_the_time_that_they_take():
    for step, left in enumerate(answers([2.0] * 100, 100), 1):
        assert left is None or left == pytest.approx(2.0 * (100 - step))


def test_slow_first_steps_do_not_count():
    found = answers([600.0, 300.0, 100.0, *[0.5] * 97], 100)
    assert all(left is None or left == pytest.approx(0.5 * (100 - step)) for step, left in enumerate(found, 1))
    assert found[-1] == 0


def test_the_answer_follows_steps_that_become_slower_without_a_jump():
    found = [left for left in answers([1.0] * 50 + [4.0] * 50, 100) if left is not None]
    jumps = [after - before for before, after in itertools.pairwise(found)]
    # From 50 s to 200 s, over many steps.
    assert max(jumps) < 20
    assert found[-25] == pytest.approx(4.0 * 24, rel=0.3)


def test_resumed_work_is_not_counted_as_done_now():
    left = TimeLeft()
    for second in range(10):
        left.observe(float(second), 500.0 + second)
    assert left.seconds(520.0) == pytest.approx(11.0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0.4 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (200, "3 min 20 s"),
        (599, "9 min 59 s"),
        (1836, "31 min"),
        (3599, "1 h"),
        (4800, "1 h 20 min"),
        (91313, "1 d 1 h"),
        (86399, "1 d"),
    ],
)
def test_times_are_said_as_people_say_them(seconds: float, text: str):
    assert spoken(seconds) == text


TEXT = "ELBO/row -123.456  validation accuracy 98.76"


@pytest.mark.parametrize("width", [40, 50, 60, 80, 120, 200])
def test_the_bar_and_the_time_left_are_there_at_every_width(width: int):
    console = Console(file=io.StringIO(), width=width, legacy_windows=False)
    console.print(_Line("training", 0.5, TEXT, ("2 h 30 min so far, 1 h 20 min left", "1 h 20 min left")))
    (line,) = console.file.getvalue().rstrip("\n").split("\n")  # type: ignore[attr-defined]
    assert len(line) <= width
    assert line.startswith("training ━━")
    assert "50 %" in line
    assert line.rstrip().endswith("1 h 20 min left")
    assert ("ELBO/row" in line) == (width >= 60)
    assert ("validation" in line) == (width > 80)
    assert ("so far" in line) == (width >= 120)


def test_a_long_name_leaves_room_for_the_time():
    console = Console(file=io.StringIO(), width=40)
    console.print(_Line("a name of very many characters indeed", 0.5, TEXT, ("5 s left",)))
    assert console.file.getvalue().rstrip("\n").endswith(" 50 %  5 s left")  # type: ignore[attr-defined]


def test_a_terminal_without_box_characters_has_a_bar_too():
    line = _Line("training", 0.5, "", ("5 s left",))
    console = Console(file=io.TextIOWrapper(io.BytesIO(), encoding="ascii"), width=40)
    options = console.options
    assert options.ascii_only
    (text,) = line.__rich_console__(console, options)
    assert text.plain == "training ########-------  50 %  5 s left"
    text.plain.encode("ascii")


def test_work_that_is_restarted_is_timed_anew(clock: Clock):
    stream = io.StringIO()
    bar = ProgressBar(stream, patience=0.0, interval=5.0)
    for second in range(10):
        clock.now = float(second)
        bar.show("reading", second, 10, "reading, ")
    bar.restart()
    for second in range(10, 17):
        clock.now = 10.0 * second
        bar.show("writing", second - 10, 10, "writing, ")
    assert stream.getvalue().splitlines()[-1] == "writing, 40 s left"


def test_a_notebook_has_one_output_that_changes(clock: Clock, monkeypatch: pytest.MonkeyPatch):
    shown: list[dict[str, str]] = []
    handle = SimpleNamespace(update=lambda data, raw: shown.append(data))

    def display(data: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        assert not shown
        shown.append(data)
        return handle

    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    bar = ProgressBar(patience=0.0)
    for second in range(1, 11):
        clock.now = float(second)
        bar.show("training <b>", second, 10, "", "ELBO/row -1")
    bar.close()
    assert len(shown) > 5
    assert shown[-1]["text/plain"] == "training <b>  100 %  ELBO/row -1  10 s so far, 0 s left"
    assert '<progress value="1.0000" max="1"' in shown[-1]["text/html"]
    assert "training &lt;b&gt;" in shown[-1]["text/html"]


def test_a_stream_of_one_s_own_is_written_to_in_a_notebook_too(clock: Clock, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    stream = io.StringIO()
    bar = ProgressBar(stream, patience=0.0, interval=0.0)
    bar.show("reading", 1, 10, "reading, ")
    clock.now = 1.0
    bar.show("reading", 2, 10, "reading, ")
    assert stream.getvalue() == "reading, 1 s so far\n"
