"""Learning rate and data order as pure functions of the step, so that a resumed run needs no hidden state."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_WINDOW = 16  # blocks whose rows are mixed


def one_cycle(progress: float, *, warmup: float = 0.3, start: float = 0.04, end: float = 1e-4) -> float:
    """The one-cycle factor on the peak learning rate: cosine up over `warmup`, cosine down after (Smith 2018).

    Args:
        progress: share of all steps already made, in [0, 1].
        warmup: share of the steps that the rise takes.
        start: factor at the first step.
        end: factor at the last step.
    """
    if progress < warmup:
        return start + (1 - start) * 0.5 * (1 - math.cos(math.pi * progress / warmup))
    fall = (progress - warmup) / max(1e-12, 1 - warmup)
    return end + (1 - end) * 0.5 * (1 + math.cos(math.pi * min(1.0, fall)))


def epoch_batches(
    n_rows: int, batch_size: int, *, seed: int, epoch: int, block: int | None = None
) -> list[NDArray[np.int64]]:
    """A random partition of the rows into batches whose sizes differ by at most one; the same for equal arguments.

    Args:
        n_rows: N.
        batch_size: the most rows of a batch.
        seed: decides the order, together with the epoch.
        epoch: number of the pass.
        block: for rows that are read from a disk, how many consecutive ones stay near each other: blocks of them come
            in random order, and rows in random order within every few blocks. None permutes all rows.
    """
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(n_rows) if block is None else _order_in_blocks(n_rows, block, rng)
    return np.array_split(order, batches_per_epoch(n_rows, batch_size))


def _order_in_blocks(n_rows: int, block: int, rng: np.random.Generator) -> NDArray[np.int64]:
    starts = block * rng.permutation(math.ceil(n_rows / block))
    order = (starts[:, None] + np.arange(block)).ravel()
    order = order[order < n_rows]
    for first in range(0, n_rows, _WINDOW * block):
        rng.shuffle(order[first : first + _WINDOW * block])
    return order


def batches_per_epoch(n_rows: int, batch_size: int) -> int:
    """How many batches of at most `batch_size` make one pass over the rows."""
    return math.ceil(n_rows / batch_size)
