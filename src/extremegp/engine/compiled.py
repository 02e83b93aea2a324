"""Loops over sparse rows, compiled to machine code: what array libraries have no primitive for.

Compiled functions check no bounds: whoever calls them has checked indices, above all those that come from files.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cached_property
from types import FunctionType
from typing import Any, TypeVar, cast, no_type_check

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray

from extremegp._lazy import importing

T = TypeVar("T")
_pool: ThreadPoolExecutor | None = None


class _Lazy:
    """A function whose machine code is made at the first call, which loads numba, and runs without Python's lock.

    What it calls in its turn are functions of numba and others of this kind. Machine code is kept on disk between
    processes where a folder can be written for it, and made in every process elsewhere.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(cast(Any, self), function)
        self._function = function

    @cached_property
    def machine_code(self) -> Callable[..., Any]:
        """The function as numba has it."""
        source = self._function
        named = {name: source.__globals__.get(name) for name in source.__code__.co_names}
        called = {name: value.machine_code for name, value in named.items() if isinstance(value, _Lazy)}
        function = FunctionType(source.__code__, {**source.__globals__, **called}, source.__name__)
        return _to_machine_code(functools.update_wrapper(function, source))


class Compiled(_Lazy):
    """A compiled function."""

    def __call__(self, *arguments: Any) -> Any:
        return self.machine_code(*arguments)


class InLanes(_Lazy):
    """A compiled function work(lane, n_lanes, ...) of every n-th part of some work, run for all lanes at once."""

    def __call__(self, n_parts: int, *arguments: Any, lanes: int | None = None) -> None:
        """Do the work of all parts.

        Args:
            n_parts: how many there are; no more lanes than that are of use.
            arguments: what the function takes after its lane and the number of lanes.
            lanes: how many there may be; as many as torch has threads by default.
        """
        n_lanes = max(1, min(n_parts, torch.get_num_threads() if lanes is None else lanes))
        work = self.machine_code
        others = [_threads().submit(work, lane, n_lanes, *arguments) for lane in range(1, n_lanes)]
        try:
            work(0, n_lanes, *arguments)
        finally:
            wait(others)
        for other in others:
            other.result()


compiled, in_lanes = Compiled, InLanes


def begun(call: Callable[[], T], n_parts: int) -> Callable[[], T]:
    """What gives the result of a call: begun at once on another thread, unless lanes use the threads that there are.

    Args:
        call: mostly machine code.
        n_parts: of the work that it does in lanes.
    """
    return _threads().submit(call).result if n_parts == 1 < torch.get_num_threads() else call


def _to_machine_code(function: Callable[..., Any]) -> Callable[..., Any]:
    with importing():
        import numba

    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    try:
        code: Callable[..., Any] = numba.njit(cache=True, **options)(function)
    except RuntimeError:
        # There is no folder that it could be kept in.
        code = numba.njit(**options)(function)
    return code


def _threads() -> ThreadPoolExecutor:
    """The threads of all lanes but the first: one pool, however many threads of the caller predict at once."""
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="extremegp")
    return _pool


def _forget_threads() -> None:
    """In a forked process, which has none of them."""
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


def matmul(matrix: scipy.sparse.csr_matrix, dense: NDArray[np.float32]) -> NDArray[np.float32]:
    """A B for CSR A (N x D, float32) and an array B (D x R)."""
    if dense.shape[1] == 1:
        return np.asarray(matrix @ dense.ravel(), dtype=np.float32)[:, None]
    out = np.empty((matrix.shape[0], dense.shape[1]), dtype=np.float32)
    dense = np.ascontiguousarray(dense, dtype=np.float32)
    starts, ends = matrix.indptr[:-1], matrix.indptr[1:]
    times_dense(matrix.shape[0], starts, ends, matrix.indices, matrix.data, dense, out)
    return out


@in_lanes
@no_type_check
def times_dense(
    lane: int, n_lanes: int, starts: Any, ends: Any, indices: Any, data: Any, dense: Any, out: Any
) -> None:  # fmt: skip
    """Of out = A B the rows of a lane, for an array B and A by rows, each from its start to its end."""
    for i in range(lane, len(starts), n_lanes):
        out[i] = 0
        for j in range(starts[i], ends[i]):
            value, column = data[j], indices[j]
            for k in range(dense.shape[1]):
                out[i, k] += value * dense[column, k]


@compiled
@no_type_check
def keep_best(scores: Any, items: Any, n_items: int, best: Any, best_scores: Any) -> int:
    """Leave the items with the largest scores in `best` and `best_scores`, as a heap; returns how many there are.

    Of equal scores the smaller item is better.
    """
    size, room = 0, len(best)
    for t in range(n_items):
        item = items[t]
        score = scores[item]
        if size < room:
            place = size
            size += 1
            while place > 0:
                above = (place - 1) >> 1
                if best_scores[above] > score or (best_scores[above] == score and best[above] < item):
                    best_scores[place], best[place] = best_scores[above], best[above]
                    place = above
                else:
                    break
            best_scores[place], best[place] = score, item
        elif score > best_scores[0] or (score == best_scores[0] and item < best[0]):
            place = 0
            while True:
                child = 2 * place + 1
                if child >= room:
                    break
                right = child + 1
                if right < room and (
                    best_scores[right] < best_scores[child]
                    or (best_scores[right] == best_scores[child] and best[right] > best[child])
                ):
                    child = right
                if best_scores[child] < score or (best_scores[child] == score and best[child] > item):
                    best_scores[place], best[place] = best_scores[child], best[child]
                    place = child
                else:
                    break
            best_scores[place], best[place] = score, item
    return size
