from __future__ import annotations

import io

import pytest

from extremegp import progress
from extremegp.training import NoReporter, ProgressReporter


class _Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    fake = _Clock()
    monkeypatch.setattr(progress, "time", fake)
    return fake


def _run(reporter: ProgressReporter, clock: _Clock, seconds: int) -> None:
    for step in range(1, seconds + 1):
        clock.now += 1.0
        reporter.step(step, 100, -50.0)
        if step == 5:
            reporter.epoch({"epoch": 1.0, "elbo": -50.0, "validation_P@1": 0.4321})
    reporter.close()


def test_a_short_run_prints_nothing(clock: _Clock):
    for stream in (io.StringIO(), _Terminal()):
        _run(ProgressReporter(stream, patience=2.5), clock, 2)
        assert stream.getvalue() == ""


def test_without_a_terminal_there_is_a_line_per_interval(clock: _Clock):
    stream = io.StringIO()
    _run(ProgressReporter(stream, patience=2.0, interval=10.0), clock, 35)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert "10 %" in lines[0]
    assert "ELBO/row -50.000" in lines[0]
    assert "validation P@1 43.21" in lines[0]
    assert "1 min 30 s left" in lines[0]
    assert "\x1b" not in stream.getvalue()


def test_on_a_terminal_there_is_a_bar_that_goes_away(clock: _Clock, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = _Terminal()
    reporter = ProgressReporter(stream, patience=2.0)
    _run(reporter, clock, 20)
    assert "training" in stream.getvalue()
    length = len(stream.getvalue())
    reporter.close()
    assert len(stream.getvalue()) == length


def test_by_default_it_writes_to_standard_error(clock: _Clock, capsys: pytest.CaptureFixture[str]):
    _run(ProgressReporter(patience=0.0, interval=5.0), clock, 6)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "training" in captured.err


def test_the_time_left_is_that_until_patience_would_end_training(clock: _Clock):
    stream = io.StringIO()
    reporter = ProgressReporter(stream, interval=10.0, early_stopping=3)
    for step in range(1, 41):
        clock.now += 1.0
        if step == 11:
            reporter.epoch({"epoch": 1.0, "validation_accuracy": 0.5})
        if step == 21:
            reporter.epoch({"epoch": 2.0, "validation_accuracy": 0.4})
        reporter.step(step, 1000, -1.0)
    assert [line.rpartition("  ")[2] for line in stream.getvalue().splitlines()] == [
        "16 min left",
        "20 s left",
        "10 s left",
        "0 s left",
    ]


def test_the_time_left_is_never_more_than_the_budget(clock: _Clock):
    stream = io.StringIO()
    reporter = ProgressReporter(stream, interval=10.0, time_budget=60.0)
    for step in range(1, 21):
        clock.now += 1.0
        reporter.step(step, 1000, -1.0)
    assert [line.rpartition("  ")[2] for line in stream.getvalue().splitlines()] == ["51 s left", "41 s left"]


def test_silence(capsys: pytest.CaptureFixture[str]):
    reporter = NoReporter()
    reporter.step(1, 2, 0.0)
    reporter.epoch({"epoch": 1.0})
    reporter.close()
    assert capsys.readouterr() == ("", "")


def test_a_phase_is_announced_at_once():
    stream = io.StringIO()
    ProgressReporter(stream).phase("counting")
    assert stream.getvalue() == "counting ...\n"
    NoReporter().phase("counting")
