from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, no_type_check

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st

from extremegp.engine.compiled import Compiled, InLanes, begun, compiled, in_lanes, keep_best, times_dense


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=40), st.integers(1, 12), st.randoms(use_true_random=False))
def test_the_best_are_those_that_sorting_finds(values: list[int], room: int, random: object):
    scores, items = np.array(values, np.float32), np.arange(len(values), dtype=np.int32)
    random.shuffle(items)
    n_items = (len(items) + 1) // 2
    best, best_scores = np.full(room, -1, np.int32), np.zeros(room, np.float32)
    size = keep_best(scores, items, n_items, best, best_scores)
    expected = sorted((-scores[item], item) for item in items[:n_items])[:room]
    assert sorted(zip(-best_scores[:size], best[:size], strict=True)) == expected


def test_the_product_is_that_of_scipy():
    rng = np.random.default_rng(0)
    a = scipy.sparse.random(7, 5, 0.4, format="csr", dtype=np.float32, random_state=0)
    b = rng.normal(size=(5, 3)).astype(np.float32)
    out = np.full((7, 3), np.nan, np.float32)
    times_dense(7, a.indptr[:-1], a.indptr[1:], a.indices, a.data, b, out)
    np.testing.assert_allclose(out, a @ b, rtol=1e-5, atol=1e-6)


@compiled
@no_type_check
def double(value: float) -> float:
    return 2 * value


@in_lanes
@no_type_check
def double_all(lane: int, n_lanes: int, values: Any, found: Any) -> None:
    for i in range(lane, len(values), n_lanes):
        found[i] += double(values[i])


@pytest.mark.parametrize("lanes", [1, 2, 7])
def test_every_part_of_the_work_is_done_once_whatever_the_lanes(lanes: int):
    values, found = np.arange(5.0), np.zeros(5)
    double_all(5, values, found, lanes=lanes)
    np.testing.assert_array_equal(found, 2 * values)


def test_there_are_as_many_lanes_as_torch_has_threads_and_parts():
    seen: list[tuple[int, int]] = []
    work = InLanes(lambda lane, n_lanes: None)
    work.machine_code = lambda lane, n_lanes: seen.append((lane, n_lanes))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        for n_parts in (0, 2, 9):
            work(n_parts)
    finally:
        torch.set_num_threads(before)
    assert sorted(seen) == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]


def test_an_error_of_any_lane_comes_once_all_have_ended():
    ended, start = [], threading.Event()

    def machine_code(lane: int, n_lanes: int) -> None:
        if lane == 0:
            start.set()
        else:
            assert start.wait(10)
        ended.append(lane)
        if lane == 1:
            raise ZeroDivisionError

    work = InLanes(machine_code)
    work.machine_code = machine_code
    with pytest.raises(ZeroDivisionError):
        work(3, lanes=3)
    assert sorted(ended) == [0, 1, 2]


@pytest.mark.parametrize("n_parts", [1, 5])
def test_what_is_begun_on_another_thread_gives_its_result_or_its_error(n_parts: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    assert (begun(threading.current_thread, n_parts)() is threading.current_thread()) == (n_parts > 1)
    with pytest.raises(ZeroDivisionError):
        begun(lambda: 1 / 0, n_parts)()


def test_a_model_without_compiled_loops_does_not_load_numba():
    program = "import sys; import extremegp.estimators; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_compiled_functions_run_where_no_cache_can_be_written(tmp_path: Path):
    """A package whose folders take no cache, and no home: a container's user without one."""
    source = Path(sys.modules[Compiled.__module__].__file__ or "")
    room = tmp_path / "extremegp" / "engine"
    shutil.copytree(source.parents[1], tmp_path / "extremegp", ignore=shutil.ignore_patterns("__pycache__"))
    (room / "__pycache__").touch()
    program = (
        "import numpy as np; from extremegp.engine.compiled import keep_best as f; best = np.zeros(1, np.int32);"
        "f(np.ones(2, np.float32), np.arange(2, dtype=np.int32), 2, best, np.zeros(1, np.float32));"
        "assert f.__module__ and not f.machine_code.stats.cache_path, f.machine_code.stats"
    )
    environment = {"HOME": "/dev/null", "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
