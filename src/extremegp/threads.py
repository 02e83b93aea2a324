"""How many threads compute, how they wait for each other, and what becomes of them where a process forks."""

from __future__ import annotations

import ctypes
import math
import os
import sys
import time
import warnings
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path

from extremegp.errors import SettingsError

_CGROUP, _OWN_CGROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0", "OPENBLAS_THREAD_TIMEOUT": "4"}
_SOFT_PAUSE = 1  # omp_pause_soft
_WATCHED_SECONDS = 30.0
# Of the processors' number: more threads than that which want to run are not this process's alone.
_CROWDED = 1.5
_BEYOND = 1.25


class CrowdedProcessorsWarning(UserWarning):
    """Threads that wait for each other use up processors that other work, or other threads of this process, wants."""


def usable_cpus() -> int:
    """Processors that this process may use: those it may run on, and no more than its control groups' quota is of.

    A quota of one and a half processors counts as two.
    """
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min([count, *map(math.ceil, _quotas())])


def _quotas() -> Iterator[float]:
    """Processors that every control group above this process may use at a time, of those with a limit."""
    try:
        own = _OWN_CGROUP.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in own:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        mounts = [_CGROUP / controllers, _CGROUP / "cpu"] if controllers else [_CGROUP, _CGROUP / "unified"]
        # Within a container the path may be that of the host: the container's own group is then at the top.
        groups = [Path(path.lstrip("/")), *Path(path.lstrip("/")).parents]
        for folder in (mount / group for mount in mounts for group in groups):
            try:
                if controllers:
                    quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
                else:
                    quota, period = (folder / "cpu.max").read_text().split()
                if quota != "max" and int(quota) > 0:
                    yield int(quota) / int(period)
            except (OSError, ValueError):
                continue


def let_waiting_threads_sleep(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the environment so that threads which wait for others sleep, and are no more than a quota of processors.

    Without, they spin: on processors that other work wants too, training then takes a multiple of the time. Variables
    that are set already stay. The command line calls this itself; in Python it must be called before `numpy` and
    `torch` are imported, for they look at their environment once.

    Args:
        environment: the variables.

    Raises:
        SettingsError: numpy or torch is loaded already.
    """
    loaded = [name for name in ("numpy", "torch") if environment is os.environ and name in sys.modules]
    if loaded:
        raise SettingsError(f"{loaded[0]} is loaded already: call let_waiting_threads_sleep() before it is imported")
    if "GOMP_SPINCOUNT" not in environment:
        for name, value in _WAITING.items():
            environment.setdefault(name, value)
    if not any(name in environment for name in _COUNTS) and usable_cpus() < (os.cpu_count() or 1):
        environment["OMP_NUM_THREADS"] = str(usable_cpus())


@contextmanager
def within_quota() -> Iterator[None]:
    """Let torch use no more threads in the block than a quota of processors, unless the environment says how many."""
    import torch

    before = torch.get_num_threads()
    lower = usable_cpus() < before and not any(name in os.environ for name in _COUNTS)
    if lower:
        torch.set_num_threads(usable_cpus())
    try:
        yield
    finally:
        if lower:
            torch.set_num_threads(before)


@contextmanager
def alone(little: bool) -> Iterator[None]:
    """Compute in this thread what the block computes, where that is so little that helpers would cost more."""
    import torch

    before = torch.get_num_threads() if little else 1
    if before > 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if before > 1:
            torch.set_num_threads(before)


def compute_alone() -> None:
    """Let what this thread computes be computed in it, without helpers: for a thread that works beside another."""
    import torch

    # Only then: at a thread's first question torch gives it as many as the others have.
    torch.get_num_threads()
    for library in _openmp():
        library.omp_set_num_threads(1)


class CrowdWatch:
    """Looks now and then whether threads get in the way of other work or of each other, and warns once."""

    def __init__(self) -> None:
        import torch

        # Beside those that compute, one reads ahead.
        self._threads = torch.get_num_threads()
        self._useful = self._threads + 1
        self._warned = False
        self._start()

    def _start(self) -> None:
        self._wall, self._cpu = time.monotonic(), time.process_time()

    def look(self) -> None:
        """Called often: it costs nothing but every half a minute.

        Warns:
            CrowdedProcessorsWarning: processors are crowded, and threads spin while they wait.
        """
        seconds = time.monotonic() - self._wall
        if self._warned or seconds < _WATCHED_SECONDS:
            return
        busy, load, n_cpus = (time.process_time() - self._cpu) / seconds, _load(), os.cpu_count() or 1
        self._start()
        if busy > _BEYOND * self._useful:
            problem = f"{busy:.1f} threads run on average where {self._useful} are of use"
        elif self._threads > 1 and load > _CROWDED * n_cpus and _waiting_threads_spin():
            problem = f"{load:.0f} threads and processes want to run on {n_cpus} processors"
        else:
            return
        self._warned = True
        warnings.warn(
            f"{problem}, and threads that wait for others use up processors: set OMP_WAIT_POLICY=PASSIVE before Python "
            "starts (or call extremegp.threads.let_waiting_threads_sleep() before numpy and torch are imported), or "
            "fewer threads with OMP_NUM_THREADS",
            CrowdedProcessorsWarning,
            stacklevel=2,
        )


def _load() -> float:
    """Threads of all processes that want to run, on average of the last minute; 0 where the system does not count."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def _waiting_threads_spin() -> bool:
    passive = os.environ.get("OMP_WAIT_POLICY", "").strip().upper() == "PASSIVE"
    return not passive and os.environ.get("GOMP_SPINCOUNT", "").strip() != "0"


def _openmp(name: str = "") -> list[ctypes.CDLL]:
    """The libraries of OpenMP in this process whose name starts so; there may be several copies of one."""
    from threadpoolctl import threadpool_info

    known = (info for info in threadpool_info() if info["user_api"] == "openmp" and info["prefix"].startswith(name))
    return [ctypes.CDLL(info["filepath"]) for info in known]


_left_behind = False


def _end_helpers() -> None:
    """Before a fork, end the threads that wait for this one's next parallel loop; they start again when it comes.

    The forked process has none of them, and GNU's OpenMP would wait for them for ever
    (https://gcc.gnu.org/bugzilla/show_bug.cgi?id=60035). Others see to forks themselves.
    """
    global _left_behind
    _left_behind = False
    if "torch" not in sys.modules:
        return
    for library in _openmp("libgomp"):
        pause = getattr(library, "omp_pause_resource_all", None)
        _left_behind |= pause is None or pause(_SOFT_PAUSE) != 0


def _do_without_helpers() -> None:
    """In a forked process, where they could not be ended before."""
    if _left_behind:
        import torch

        torch.set_num_threads(1)
        compute_alone()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_end_helpers, after_in_child=_do_without_helpers)
