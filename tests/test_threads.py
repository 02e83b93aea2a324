from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from extremegp import threads
from extremegp.errors import SettingsError
from tests.estimators.small import small_classifier, small_data

ROOT = Path(__file__).parents[1]
FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot fork here")


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "KMP_", "OPENBLAS_"))}
    kept |= {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    return subprocess.run(
        [sys.executable, *words], env=kept | environment, capture_output=True, text=True, timeout=200, check=False
    )


@FORKS
@pytest.mark.parametrize("name", ["labels", "classes", "sequences", "trees"])
def test_servers_with_threads_and_forked_workers_answer_as_one_thread_does(name: str):
    done = run("-m", "tests.serving", name, OMP_NUM_THREADS="2", OMP_WAIT_POLICY="PASSIVE")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@FORKS
def test_where_helpers_cannot_be_ended_a_forked_process_does_without():
    program = (
        "import os, sys, torch; from extremegp import threads; torch.set_num_threads(2); torch.ones(10**6).exp();"
        "known = threads._openmp; threads._openmp = lambda name='': [object()] if name else known();"
        "child = os.fork();\n"
        "if not child: torch.ones(10**6).exp(); os._exit(torch.get_num_threads())\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 1 or torch.get_num_threads() != 2)"
    )
    done = run("-c", program)
    assert done.returncode == 0, done.stderr


@FORKS
def test_a_process_that_has_no_torch_forks_as_ever():
    program = (
        "import os, sys, extremegp; child = os.fork();\n"
        "if not child: os._exit(7)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 7 or 'torch' in sys.modules)"
    )
    assert run("-c", program).returncode == 0


# Processors


def cpus(monkeypatch: pytest.MonkeyPatch, folder: Path, own: str, files: dict[str, str], *, n: int = 8) -> int:
    for name, text in files.items():
        path = folder / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "own").write_text(own)
    monkeypatch.setattr(threads, "_CGROUP", folder / "cgroup")
    monkeypatch.setattr(threads, "_OWN_CGROUP", folder / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(n)), raising=False)
    return threads.usable_cpus()


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "200000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "20000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 8),
        ("0::/a/b\n", {"cpu.max": "max 100000\n", "a/cpu.max": "300000 100000\n", "a/b/cpu.max": "max 100000\n"}, 3),
        ("0::/docker/host/path\n", {"cpu.max": "400000 100000\n"}, 4),
        ("0::/\n", {"cpu.max": "nonsense\n"}, 8),
        ("0::/\n", {}, 8),
        (
            "7:memory:/m\n4:cpu,cpuacct:/a\n0::/\n",
            {"cpu,cpuacct/a/cpu.cfs_quota_us": "500000\n", "cpu,cpuacct/a/cpu.cfs_period_us": "100000\n"},
            5,
        ),
        ("1:cpu:/gone\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ("1:cpu:/gone\n", {"cpu/cpu.cfs_quota_us": "250000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ("0::/\n", {"unified/cpu.max": "100000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "6400000 100000\n"}, 8),
    ],
)
def test_processors_are_those_that_quotas_leave(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own: str, files: dict[str, str], expected: int
):
    assert cpus(monkeypatch, tmp_path, own, files) == expected


def test_where_no_groups_are_known_affinity_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(threads, "_OWN_CGROUP", tmp_path / "none")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 5, 7}, raising=False)
    assert threads.usable_cpus() == 3


@pytest.fixture
def quota_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "usable_cpus", lambda: 1)


@contextmanager
def torch_threads(n: int) -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(n)
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.usefixtures("quota_of_one")
def test_training_keeps_within_the_quota_and_leaves_threads_as_they_were(monkeypatch: pytest.MonkeyPatch):
    for name in threads._COUNTS:
        monkeypatch.delenv(name, raising=False)
    with torch_threads(2):
        with threads.within_quota():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        with pytest.raises(ZeroDivisionError), threads.within_quota():
            assert 1 // 0
        assert torch.get_num_threads() == 2
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        with threads.within_quota():
            assert torch.get_num_threads() == 2


# Waiting


def test_the_environment_makes_waiting_threads_sleep_and_keeps_what_is_set(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(threads, "usable_cpus", lambda: 8)
    waiting = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0", "OPENBLAS_THREAD_TIMEOUT": "4"}
    for given, expected in (
        ({}, waiting),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, waiting | {"OMP_WAIT_POLICY": "ACTIVE"}),
        ({"GOMP_SPINCOUNT": "9"}, {"GOMP_SPINCOUNT": "9"}),
    ):
        environment = dict(given)
        threads.let_waiting_threads_sleep(environment)
        assert environment == expected
    monkeypatch.setattr(threads, "usable_cpus", lambda: 3)
    for given, count in (({}, "3"), ({"OMP_NUM_THREADS": "7"}, "7")):
        environment = dict(given)
        threads.let_waiting_threads_sleep(environment)
        assert environment["OMP_NUM_THREADS"] == count
    environment = {"MKL_NUM_THREADS": "7"}
    threads.let_waiting_threads_sleep(environment)
    assert "OMP_NUM_THREADS" not in environment


def test_it_is_too_late_once_libraries_have_looked():
    with pytest.raises(SettingsError, match="numpy is loaded already: call let_waiting_threads_sleep"):
        threads.let_waiting_threads_sleep()


def test_the_command_line_lets_waiting_threads_sleep_before_libraries_look():
    program = (
        "import sys, os; sys.argv = ['extremegp', '--version']; from extremegp.cli import main\n"
        "assert not {'numpy', 'torch'} & sys.modules.keys()\n"
        "try: main()\nfinally: print(os.environ['OMP_WAIT_POLICY'], os.environ['OPENBLAS_THREAD_TIMEOUT'])"
    )
    assert run("-c", program).stdout.split()[-2:] == ["PASSIVE", "4"]
    assert run("-c", program, OMP_WAIT_POLICY="ACTIVE").stdout.split()[-2:] == ["ACTIVE", "4"]


def test_a_thread_that_computes_alone_leaves_the_others_their_helpers():
    if not threads._openmp():
        pytest.skip("there is no OpenMP here")
    with torch_threads(2), ThreadPoolExecutor(1, initializer=threads.compute_alone) as pool:
        assert pool.submit(torch.get_num_threads).result() == 1
        assert torch.get_num_threads() == 2


# Crowds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Seconds and seconds of computing, a load, and nothing that says how threads wait."""
    now = SimpleNamespace(wall=0.0, cpu=0.0, load=0.0)
    monkeypatch.setattr(time, "monotonic", lambda: now.wall)
    monkeypatch.setattr(time, "process_time", lambda: now.cpu)
    monkeypatch.setattr(os, "getloadavg", lambda: (now.load, 0, 0), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    return now


def looks(clock: Any, watch: threads.CrowdWatch, seconds: float, cpu: float) -> list[str]:
    clock.wall, clock.cpu = clock.wall + seconds, clock.cpu + cpu
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        watch.look()
    assert all(issubclass(warning.category, threads.CrowdedProcessorsWarning) for warning in seen)
    return [str(warning.message) for warning in seen]


def test_what_is_little_is_computed_alone():
    before = torch.get_num_threads()
    with threads.alone(True):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
    with threads.alone(False):
        assert torch.get_num_threads() == before


def test_a_crowd_is_warned_of_once_with_the_remedy(clock: SimpleNamespace):
    with torch_threads(2):
        watch = threads.CrowdWatch()
    clock.load = 9.0
    assert looks(clock, watch, 29, 58) == []
    (message,) = looks(clock, watch, 2, 4)
    assert message.startswith("9 threads and processes want to run on 4 processors")
    assert "OMP_WAIT_POLICY=PASSIVE" in message
    assert looks(clock, watch, 60, 120) == []


def test_more_threads_than_are_of_use_are_warned_of(clock: SimpleNamespace):
    with torch_threads(1):
        watch = threads.CrowdWatch()
    assert looks(clock, watch, 40, 80) == []
    (message,) = looks(clock, watch, 40, 140)
    assert message.startswith("3.5 threads run on average where 2 are of use")


@pytest.mark.parametrize(
    ("load", "n_threads", "environment"),
    [(5.0, 2, {}), (9.0, 1, {}), (9.0, 2, {"OMP_WAIT_POLICY": "passive"}), (9.0, 2, {"GOMP_SPINCOUNT": "0"})],
)
def test_nothing_is_said_where_threads_are_in_nobodys_way(
    clock: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    load: float,
    n_threads: int,
    environment: dict[str, str],
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with torch_threads(n_threads):
        watch = threads.CrowdWatch()
    clock.load = load
    assert looks(clock, watch, 40, 40 * n_threads) == []


def test_training_looks_for_a_crowd_after_every_step(monkeypatch: pytest.MonkeyPatch):
    looked = []
    monkeypatch.setattr(threads.CrowdWatch, "look", lambda self: looked.append(self))
    small_classifier(epochs=2).fit(*small_data())
    assert len(looked) >= 2
    assert len(set(looked)) == 1
