"""The levels of a tree over the labels: where the labels stand, and which rows every node learns from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from extremegp.label_tree.clustering import balanced_leaves

# A level splits every node of the level above into so many parts, as a power of two.
_LEVEL_BITS = 4
# Rows that all nodes of a batch read: what a person waits for at most after Ctrl-C, some seconds.
_BATCH_WORK, _BATCH_NODES = 2_000_000, 4096


class Level(NamedTuple):
    """A level to be fitted: `parents` of its nodes, the rows below each parent and each node, by columns."""

    parents: NDArray[np.int32]
    above: scipy.sparse.csc_matrix
    below: scipy.sparse.csc_matrix


class NodeBatch(NamedTuple):
    """Nodes of a level from `first` to before `last`, all children of some parents, and the `work` that they are."""

    first: int
    last: int
    work: int


@dataclass(frozen=True)
class TreeShape:
    """Where the labels stand in a tree.

    Attributes:
        order: the labels in the order of the leaves (K).
        leaf_of: the leaf of each label (K).
        depths: of the levels above the labels, from the root down; one at depth d has 2^d nodes.
    """

    order: NDArray[np.int32]
    leaf_of: NDArray[np.int64]
    depths: list[int]

    @classmethod
    def grown(cls, vectors: NDArray[np.float32], leaf_size: int, rng: np.random.Generator) -> TreeShape:
        """A tree over labels with these vectors, K x R, whose leaves have `leaf_size` labels at most."""
        depth = max(0, math.ceil(math.log2(len(vectors) / leaf_size)))
        order, bounds = balanced_leaves(vectors, depth, rng=rng)
        leaf_of = np.empty(len(vectors), dtype=np.int64)
        leaf_of[order] = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
        return cls(order, leaf_of, list(range(depth, 0, -_LEVEL_BITS))[::-1])

    def parents(self) -> list[NDArray[np.int32]]:
        """The parents of the nodes of every level, from the root down; those of the last are the labels in order."""
        inner = [np.arange(1 << depth) >> (depth - above) for above, depth in pairwise([0, *self.depths])]
        return [level.astype(np.int32) for level in (*inner, self.leaf_of[self.order])]

    def levels(self, y: scipy.sparse.csr_matrix, rows: NDArray[np.int64]) -> Iterator[Level]:
        """From the root down. A row is below a node where it has a label there; all rows are below the root.

        Args:
            y: the labels of the rows that the tree sees, N x K; the other rows have none.
            rows: which these are, ascending.
        """
        n_rows, n_labels = y.shape
        ends = np.array([0, len(rows)])
        above = scipy.sparse.csc_matrix((np.ones(len(rows), np.float32), rows, ends), shape=(n_rows, 1))
        *inner, of_labels = self.parents()
        for depth, parents in zip(self.depths, inner, strict=True):
            node_of = self.leaf_of >> (self.depths[-1] - depth)
            groups = scipy.sparse.csr_matrix(
                (np.ones(n_labels, np.float32), (np.arange(n_labels), node_of)), shape=(n_labels, 1 << depth)
            )
            below = scipy.sparse.csc_matrix(y @ groups)
            yield Level(parents, above, below)
            above = below
        yield Level(of_labels, above, y.tocsc()[:, self.order])


def node_batches(level: Level) -> Iterator[NodeBatch]:
    """All nodes of a level, in batches."""
    below_parent = np.diff(level.above.indptr)
    ends = np.searchsorted(level.parents, np.arange(len(below_parent)), side="right")
    first, work = 0, 0
    for parent, end in enumerate(ends):
        start = ends[parent - 1] if parent else 0
        work += int(below_parent[parent] * (end - start))
        if end == len(level.parents) or work > _BATCH_WORK or end - first > _BATCH_NODES:
            yield NodeBatch(int(first), int(end), work + 1)
            first, work = end, 0
