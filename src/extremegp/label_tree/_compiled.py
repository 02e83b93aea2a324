"""Loops over sparse rows, compiled to machine code: what array libraries have no primitive for.

Compiled functions check no bounds: whoever calls them has checked indices, above all those that come from files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast, no_type_check

import numba
import numpy as np
import torch
from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """The function in machine code, kept on disk between processes, running without Python's lock."""
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy")(function))


def in_lanes(function: F) -> F:
    """The same, with `numba.prange` loops over several threads."""
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy", parallel=True)(function))


def n_lanes() -> int:
    """How many threads to share work among: as many as torch uses."""
    lanes: int = max(1, min(torch.get_num_threads(), cast(Any, numba.config).NUMBA_NUM_THREADS))
    numba.set_num_threads(lanes)
    return lanes


@in_lanes
@no_type_check
def times_dense(indptr: Any, indices: Any, data: Any, dense: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """out = A B for CSR A and an array B."""
    for i in numba.prange(len(indptr) - 1):
        out[i] = 0
        for j in range(indptr[i], indptr[i + 1]):
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
