"""A tree over the labels: its levels, and the search of the most probable labels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from sklearn.utils.extmath import row_norms
from torch import Tensor, nn

from extremegp.label_tree.path_variance import add_level
from extremegp.label_tree.search import search_level

NOWHERE = -1e4
"""The logarithm of the probability of a label that stands in no leaf."""
_BLOCK_ENTRIES = 1 << 22  # looked at together when a model is checked


class LevelSizes(NamedTuple):
    """How large a level of a tree is: nodes above it, its nodes, features of all blocks, weights."""

    above: int
    nodes: int
    features: int
    weights: int


class TreeLevel(nn.Module):
    """The nodes of a level with their weights, in the order that `search_level` reads them in.

    Args:
        sizes: how large it is.
        n_features: D.
        weight_variances: whether weights and biases have a posterior, see `add_level`.
    """

    def __init__(self, sizes: LevelSizes, n_features: int, *, weight_variances: bool) -> None:
        super().__init__()
        self.register_buffer("first_children", torch.zeros(sizes.above + 1, dtype=torch.int64))
        self.register_buffer("blocks", torch.zeros(sizes.above + 1, dtype=torch.int64))
        self.register_buffer("features", torch.zeros(sizes.features, dtype=torch.int32))
        self.register_buffer("entries", torch.zeros(sizes.features + 1, dtype=torch.int64))
        self.register_buffer("targets", torch.zeros(sizes.weights, dtype=torch.int32))
        self.weights = nn.Parameter(torch.zeros(sizes.weights), requires_grad=False)
        self.biases = nn.Parameter(torch.zeros(sizes.nodes), requires_grad=False)
        if weight_variances:
            self.register_buffer("precisions", torch.zeros(sizes.weights, dtype=torch.uint8))
            self.register_buffer("bias_variances", torch.zeros(sizes.nodes))
            self.value_limits = {"bias_variances": (0.0, math.inf)}
        self.index_limits = {
            "first_children": sizes.nodes + 1,
            "blocks": sizes.features + 1,
            "features": n_features,
            "entries": sizes.weights + 1,
            "targets": sizes.nodes,
            "precisions": 256,
        }

    def arrays(self) -> list[NDArray[Any]]:
        """What `search_level` takes of a level."""
        names = ("first_children", "blocks", "features", "entries", "targets", "weights", "biases")
        return [getattr(self, name).numpy() for name in names]

    def posterior(self) -> list[NDArray[Any]]:
        """What `add_level` takes beyond that."""
        return [getattr(self, name).numpy() for name in ("precisions", "bias_variances")]

    def is_sound(self) -> bool:
        """Whether every block has features in ascending order, and weights of its own children only."""
        children, blocks, features, entries, targets, *_ = self.arrays()
        ends = ((children, len(self.biases)), (blocks, len(features)), (entries, len(targets)))
        if not all(are_starts(array, end) for array, end in ends):
            return False
        for start, part in _overlapping(features):
            falls = start + 1 + np.flatnonzero(part[1:] <= part[:-1])
            if not np.isin(falls, blocks).all():
                return False
        starts = entries[blocks]
        filled = np.flatnonzero(np.diff(starts))
        # Of every block in one pass over its targets, without an array of their number.
        least, most = (extreme.reduceat(targets, starts[filled]) for extreme in (np.minimum, np.maximum))
        return bool(np.all((least >= children[filled]) & (most < children[filled + 1])))


class LabelTree(nn.Module):
    """A tree over the labels: its leaves' labels in order, and the levels down to the labels themselves.

    Args:
        levels: how large they are.
        n_features: D.
        n_labels: K; labels that were added later stand in no leaf.
        weight_variances: whether the weights have a posterior.
    """

    def __init__(
        self, levels: tuple[LevelSizes, ...], n_features: int, n_labels: int, *, weight_variances: bool = False
    ) -> None:
        super().__init__()
        self.order: Tensor
        self.register_buffer("order", torch.zeros(levels[-1].nodes, dtype=torch.int32))
        self.levels = cast("Sequence[TreeLevel]", _levels(levels, n_features, weight_variances))
        self.prior_variance: Tensor | None
        self.register_buffer("prior_variance", torch.zeros(()) if weight_variances else None)
        self.value_limits = {"prior_variance": (0.0, math.inf)}
        self.index_limits = {"order": n_labels}

    def search(
        self, x: scipy.sparse.csr_matrix, beam: int, n_best: int
    ) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int64]]:
        """Labels with the largest log-probabilities that a beam search finds, both B x n_best, and how many there are.

        Args:
            x: inputs, B x D, with ascending columns.
            beam: W.
            n_best: how many labels.
        """
        n = x.shape[0]
        nodes, scores, sizes = np.zeros((n, 1), np.int32), np.zeros((n, 1), np.float32), np.ones(n, np.int64)
        for number, level in enumerate(self.levels, start=1):
            width = n_best if number == len(self.levels) else beam
            best, best_scores = np.zeros((n, width), np.int32), np.zeros((n, width), np.float32)
            found = np.zeros(n, np.int64)
            arguments = (x.indptr, x.indices, x.data, nodes, scores, sizes, *level.arrays())
            search_level(n, *arguments, best, best_scores, found)
            nodes, scores, sizes = best, best_scores, found
        return self.order.numpy()[nodes], scores, sizes

    def log_probabilities(
        self, x: scipy.sparse.csr_matrix, rows: NDArray[np.int64], labels: NDArray[np.int32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Logarithms of the probabilities of some labels at the mode of the weights, and their posterior variances.

        Weights of different nodes are independent, and Laplace's approximation of a node has a diagonal precision.

        Args:
            x: inputs, B x D, with ascending columns.
            rows: of the pairs of an input and a label, ascending.
            labels: of the pairs.
        """
        assert self.prior_variance is not None
        n_pairs, place = len(labels), np.full(max(len(self.order), labels.max(initial=-1) + 1), -1)
        place[self.order.numpy()] = np.arange(len(self.order))
        in_order = np.lexsort((place[labels], rows))
        in_order = in_order[place[labels][in_order] >= 0]
        ends = np.searchsorted(rows[in_order], np.arange(x.shape[0] + 1))
        squares = row_norms(x, squared=True)
        nodes, (scores, variances) = place[labels][in_order], np.zeros((2, len(in_order)), np.float32)
        for level in reversed(self.levels):
            arrays = level.arrays()
            parents = np.searchsorted(arrays[0], nodes, side="right") - 1
            add_level(
                x.shape[0], x.indptr, x.indices, x.data, squares, ends, nodes, parents, *arrays, *level.posterior(),
                float(self.prior_variance), scores, variances,
            )  # fmt: skip
            nodes = parents
        of_pairs = np.full(n_pairs, NOWHERE, np.float32), np.zeros(n_pairs, np.float32)
        of_pairs[0][in_order], of_pairs[1][in_order] = scores, variances
        return of_pairs

    def scrub(self, features: NDArray[np.int64], labels: NDArray[np.int64]) -> None:
        """Leave no weight of features that no row has any more, and none of labels that no row has."""
        places = np.flatnonzero(np.isin(self.order.numpy(), labels))
        for level in self.levels:
            _, _, of_block, entries, targets, weights, biases = level.arrays()
            gone, last = np.repeat(np.isin(of_block, features), np.diff(entries)), level is self.levels[-1]
            if last:
                gone |= np.isin(targets, places)
                biases[places] = biases.min()
            weights[gone] = 0
            if self.prior_variance is not None:
                precisions, bias_variances = level.posterior()
                precisions[gone] = 0
                if last:
                    bias_variances[places] = float(self.prior_variance)

    def is_sound(self) -> bool:
        """Whether the levels fit each other and the order has every label once."""
        above = [1, *(len(level.biases) for level in self.levels)]
        fit = all(len(level.arrays()[0]) == n + 1 for level, n in zip(self.levels, above[:-1], strict=True))
        once = np.all(np.bincount(self.order.numpy()) <= 1)
        return bool(fit and once and above[-1] == len(self.order) and all(level.is_sound() for level in self.levels))


def _levels(sizes: Sequence[LevelSizes], n_features: int, weight_variances: bool) -> nn.ModuleList:
    return nn.ModuleList(TreeLevel(level, n_features, weight_variances=weight_variances) for level in sizes)


def _overlapping(array: NDArray[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
    """The array in blocks, each with the first entry of the next one, and where they start: it may be mapped."""
    for start in range(0, len(array), _BLOCK_ENTRIES):
        yield start, array[start : start + _BLOCK_ENTRIES + 1]


def are_starts(array: NDArray[Any], end: int) -> bool:
    """Whether they ascend from 0 to the end."""
    ascend = all((part[1:] >= part[:-1]).all() for _, part in _overlapping(array))
    return bool(array[0] == 0 and array[-1] == end and ascend)
