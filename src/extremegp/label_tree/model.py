"""The model of very many labels: trees of linear Gaussian processes, nearest rows, and a Gaussian process of both.

The utility of label k is f_k(x) = h(e_k(x)) with h a sparse Gaussian process on a few numbers e_k(x) that speak for the
label (`evidence`): its probability by trees whose nodes are label-specific linear Gaussian processes (`nodes`), its
shares among the nearest training rows, and the regression of the labels on these (`regression`). Labels that neither
trees nor neighbours find have one small probability in common.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from extremegp.engine.model import VariationalModel
from extremegp.label_tree.evidence import N_CANDIDATES, N_EVIDENCE, N_NEIGHBOURS, N_OF_REGRESSION, gather_evidence
from extremegp.label_tree.neighbours import NearestRows, nearest_rows
from extremegp.label_tree.prior import N_NEAREST, UtilityPrior
from extremegp.label_tree.regression import LEAST_NOISE, LocalRegression, Neighbourhoods, RowWeights
from extremegp.label_tree.search import search_level
from extremegp.settings.model import ModelSettings

_BLOCK_ROWS = 1024
_BLOCK_ENTRIES = 1 << 22  # looked at together when a model is checked
_BEST_OF_TREE = 100
_LEAST_LENGTH = 1e-12


class LevelSizes(NamedTuple):
    """How large a level of a tree is: nodes above it, its nodes, features of all blocks, weights."""

    above: int
    nodes: int
    features: int
    weights: int


@dataclass(frozen=True)
class LabelTreeSettings:
    """Everything that decides the shapes of a model's tensors, and how it searches.

    Attributes:
        n_features: D.
        n_labels: K.
        n_rows: N, training rows, which are the neighbours.
        n_stored: stored entries of their inputs.
        n_positives: of their labels.
        trees: the levels of every tree, from the root down.
        n_inducing: inducing inputs of the Gaussian process of the evidence.
        beam: W, nodes of a level that a search goes on from.
        most_read: entries of lists of rows that a search for neighbours reads, see `nearest_rows`.
        weighted: whether the rows have weights.
        n_regressed: nearest rows that the regression of the labels is on; 0 for no regression.
        prior: whether utilities have a prior far from the rows.
    """

    n_features: int
    n_labels: int
    n_rows: int
    n_stored: int
    n_positives: int
    trees: tuple[tuple[LevelSizes, ...], ...]
    n_inducing: int
    beam: int = 10
    most_read: int = 1_000_000
    weighted: bool = False
    n_regressed: int = 0
    prior: bool = False

    def to_config(self) -> dict[str, Any]:
        """All of it as JSON; what earlier versions do not know only where it is not as theirs."""
        return {name: value for name, value in asdict(self).items() if name not in LATER or value}

    @property
    def n_evidence(self) -> int:
        """Numbers that speak for a label."""
        return N_EVIDENCE + (N_OF_REGRESSION if self.n_regressed else 0)

    def build(self) -> LabelTreeModel:
        """A model with tensors of these shapes."""
        return LabelTreeModel(self)


LATER = ("weighted", "n_regressed", "prior")
"""Settings that models of earlier versions do not have."""


def combiner_settings(settings: LabelTreeSettings) -> ModelSettings:
    """The Gaussian process of the evidence: one function, one label."""
    return ModelSettings(
        settings.n_evidence,
        1,
        1,
        settings.n_inducing,
        "ard+linear",
        "full",
        inducing="free",
        normalise_inducing=False,
        mixing="identity",
    )


class TreeLevel(nn.Module):
    """The nodes of a level with their weights, in the order that `search_level` reads them in."""

    def __init__(self, sizes: LevelSizes, n_features: int) -> None:
        super().__init__()
        self.register_buffer("first_children", torch.zeros(sizes.above + 1, dtype=torch.int64))
        self.register_buffer("blocks", torch.zeros(sizes.above + 1, dtype=torch.int64))
        self.register_buffer("features", torch.zeros(sizes.features, dtype=torch.int32))
        self.register_buffer("entries", torch.zeros(sizes.features + 1, dtype=torch.int64))
        self.register_buffer("targets", torch.zeros(sizes.weights, dtype=torch.int32))
        self.weights = nn.Parameter(torch.zeros(sizes.weights), requires_grad=False)
        self.biases = nn.Parameter(torch.zeros(sizes.nodes), requires_grad=False)
        self.index_limits = {
            "first_children": sizes.nodes + 1,
            "blocks": sizes.features + 1,
            "features": n_features,
            "entries": sizes.weights + 1,
            "targets": sizes.nodes,
        }

    def arrays(self) -> list[NDArray[Any]]:
        """What `search_level` takes of a level."""
        names = ("first_children", "blocks", "features", "entries", "targets", "weights", "biases")
        return [getattr(self, name).numpy() for name in names]

    def is_sound(self) -> bool:
        """Whether every block has features in ascending order, and weights of its own children only."""
        children, blocks, features, entries, targets, *_ = self.arrays()
        ends = ((children, len(self.biases)), (blocks, len(features)), (entries, len(targets)))
        if not all(_are_starts(array, end) for array, end in ends):
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
    """A tree over the labels: its leaves' labels in order, and the levels down to the labels themselves."""

    def __init__(self, levels: tuple[LevelSizes, ...], n_features: int, n_labels: int) -> None:
        super().__init__()
        self.order: Tensor
        self.register_buffer("order", torch.zeros(n_labels, dtype=torch.int32))
        self.levels = cast("Sequence[TreeLevel]", nn.ModuleList(TreeLevel(sizes, n_features) for sizes in levels))
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

    def is_sound(self) -> bool:
        """Whether the levels fit each other and the order has every label once."""
        above = [1, *(len(level.biases) for level in self.levels)]
        fit = all(len(level.arrays()[0]) == n + 1 for level, n in zip(self.levels, above[:-1], strict=True))
        once = np.all(np.bincount(self.order.numpy(), minlength=len(self.order)) == 1)
        return bool(fit and once and above[-1] == len(self.order) and all(level.is_sound() for level in self.levels))


class Rows(nn.Module):
    """The training rows: inputs and labels, CSR, and what the rows count."""

    def __init__(self, settings: LabelTreeSettings) -> None:
        super().__init__()
        self.settings = settings
        n, stored, positives = settings.n_rows, settings.n_stored, settings.n_positives
        self.register_buffer("indptr", torch.zeros(n + 1, dtype=torch.int64))
        self.register_buffer("indices", torch.zeros(stored, dtype=torch.int32))
        self.register_buffer("values", torch.zeros(stored))
        self.register_buffer("label_indptr", torch.zeros(n + 1, dtype=torch.int64))
        self.register_buffer("labels", torch.zeros(positives, dtype=torch.int32))
        if settings.weighted:
            self.register_buffer("weights", torch.zeros(n))
        self.index_limits = {
            "indptr": stored + 1,
            "indices": settings.n_features,
            "label_indptr": positives + 1,
            "labels": settings.n_labels,
        }
        self._columns: scipy.sparse.csc_matrix | None = None
        self._ones: NDArray[np.float32] | None = None

    def array(self, name: str) -> NDArray[Any]:
        """A buffer as an array."""
        return np.asarray(getattr(self, name).numpy())

    def row_weights(self) -> NDArray[np.float32]:
        """What each row counts, N."""
        if self.settings.weighted:
            return self.array("weights")
        if self._ones is None:
            self._ones = np.ones(self.settings.n_rows, np.float32)
        return self._ones

    def inputs(self) -> scipy.sparse.csr_matrix:
        """X, N x D."""
        parts = (self.array("values"), self.array("indices"), self.array("indptr"))
        return scipy.sparse.csr_matrix(parts, shape=(self.settings.n_rows, self.settings.n_features))

    def nearest(self, x: scipy.sparse.csr_matrix, own: NDArray[np.int64]) -> NearestRows:
        """The nearest rows; see `nearest_rows`."""
        if self._columns is None:
            self._columns = self.inputs().tocsc()
        columns, n = self._columns, x.shape[0]
        rows, similarities = np.zeros((n, N_NEIGHBOURS + 1), np.int32), np.zeros((n, N_NEIGHBOURS + 1), np.float32)
        sizes = np.zeros(n, np.int64)
        nearest_rows(
            n, x.indptr, x.indices, x.data, columns.indptr, columns.indices, columns.data, columns.shape[0], own,
            self.settings.most_read, rows, similarities, sizes,
        )  # fmt: skip
        return NearestRows(rows, similarities, sizes)

    def closeness(self, x: scipy.sparse.csr_matrix, nearest: NearestRows) -> NDArray[np.float32]:
        """Mean cosines of B inputs with the nearest rows, up to `N_NEAREST`; 0 with those that were not found."""
        m = max(1, min(N_NEAREST, self.settings.n_rows - 1))
        lengths = np.outer(_norms(x), np.ones(m)) * _norms(self.inputs()[nearest.rows[:, :m].ravel()]).reshape(-1, m)
        cosines = nearest.similarities[:, :m] / np.maximum(lengths, _LEAST_LENGTH)
        return np.asarray(np.where(np.arange(m) < nearest.sizes[:, None], cosines, 0).mean(axis=1), dtype=np.float32)

    def exchanged(self, x: scipy.sparse.csr_matrix, rng: np.random.Generator) -> NDArray[np.float32]:
        """Closeness of B inputs whose features were exchanged for each other, the same way in all of them."""
        columns = rng.permutation(self.settings.n_features)[x.indices]
        changed = scipy.sparse.csr_matrix((x.data, columns, x.indptr), shape=x.shape).sorted_indices()
        return self.closeness(changed, self.nearest(changed, np.full(x.shape[0], -1)))

    def label_counts(self) -> NDArray[np.float64]:
        """What the rows with each label count together, K."""
        of_entries = np.repeat(self.row_weights(), np.diff(self.array("label_indptr")))
        counts = np.bincount(self.array("labels"), of_entries, minlength=self.settings.n_labels)
        return np.asarray(counts, dtype=np.float64)

    def is_sound(self) -> bool:
        """Whether both matrices are CSR matrices, and no row counts less than nothing."""
        if not (self.row_weights() >= 0).all():
            return False
        for indptr, indices in (("indptr", "indices"), ("label_indptr", "labels")):
            if not _are_starts(self.array(indptr), len(self.array(indices))):
                return False
        return True


class Evidence(NamedTuple):
    """Candidate labels of rows, row after row, with the numbers that speak for them.

    Attributes:
        rows: of the pairs.
        labels: of the pairs, ascending in a row.
        values: pairs x `n_evidence` of the settings.
        closeness: of the B inputs to the training rows, see `Rows.closeness`.
    """

    rows: NDArray[np.int64]
    labels: NDArray[np.int32]
    values: NDArray[np.float32]
    closeness: NDArray[np.float32]


class LabelTreeModel(nn.Module):
    """Trees, training rows, and the Gaussian process of what they say.

    Args:
        settings: the shapes.
    """

    def __init__(self, settings: LabelTreeSettings) -> None:
        super().__init__()
        self.settings = settings
        d, k = settings.n_features, settings.n_labels
        self.trees = cast("Sequence[LabelTree]", nn.ModuleList(LabelTree(levels, d, k) for levels in settings.trees))
        self.rows = Rows(settings)
        self.combiner: VariationalModel = combiner_settings(settings).build()
        self.regression = LocalRegression(settings.n_regressed) if settings.n_regressed else None
        self.prior = UtilityPrior() if settings.prior else None
        self.centre: Tensor
        self.scale: Tensor
        self.background: Tensor
        self.log_counts: Tensor
        self.register_buffer("centre", torch.zeros(settings.n_evidence))
        self.register_buffer("scale", torch.ones(settings.n_evidence))
        self.register_buffer("background", torch.zeros(()))
        self.register_buffer("log_counts", torch.zeros(k))

    def evidence(self, x: scipy.sparse.csr_matrix, own: NDArray[np.int64] | None = None) -> Evidence:
        """Candidates and evidence of B inputs; `own` are the training rows that they are, of those that are."""
        n = x.shape[0]
        if not x.has_sorted_indices:
            x = x.sorted_indices()
        own = np.full(n, -1, dtype=np.int64) if own is None else own
        found = [tree.search(x, self.settings.beam, _BEST_OF_TREE) for tree in self.trees]
        labels, scores, sizes = (np.stack(parts) for parts in zip(*found, strict=True))
        nearest = self.rows.nearest(x, own)
        regressed = RowWeights(np.zeros((n, 0), np.float32), np.ones(n, np.float32))
        if self.regression is not None:
            regressed = self.regression.of(self._neighbourhoods(x, nearest))
        candidates = np.zeros((n, N_CANDIDATES), np.int32)
        values = np.zeros((n, N_CANDIDATES, self.settings.n_evidence), np.float32)
        counts = np.zeros(n, np.int64)
        gather_evidence(
            n, labels, scores, sizes, *nearest, self.rows.row_weights(), self.rows.array("label_indptr"),
            self.rows.array("labels"), self.log_counts.numpy(), *regressed, self.frequencies(), candidates, values,
            counts,
        )  # fmt: skip
        taken = np.arange(N_CANDIDATES) < counts[:, None]
        closeness = self.rows.closeness(x, nearest)
        return Evidence(np.repeat(np.arange(n), counts), candidates[taken], values[taken], closeness)

    def choose_regression(self, x: scipy.sparse.csr_matrix, y: scipy.sparse.csr_matrix, own: NDArray[np.int64]) -> None:
        """Choose the kernel of the regression by what it says of some training rows, each left out.

        Args:
            x: inputs of the training rows, N x D.
            y: their labels, N x K.
            own: the rows to look at.
        """
        if self.regression is not None:
            rows = x[own]
            near = self._neighbourhoods(rows, self.rows.nearest(rows, own))
            self.regression.choose(near, own, y, self.frequencies())

    def _neighbourhoods(self, x: scipy.sparse.csr_matrix, nearest: NearestRows) -> Neighbourhoods:
        return Neighbourhoods(x, nearest.rows, nearest.sizes, self.rows.inputs(), self.rows.row_weights())

    def frequencies(self) -> NDArray[np.float32]:
        """Shares of the training rows with each label that is among those that trees have seen, K."""
        return np.asarray(np.expm1(self.log_counts.numpy()) / max(float(self.rows.row_weights().sum()), 1e-9))

    def scaled(self, evidence: Evidence) -> Tensor:
        """The evidence as the Gaussian process takes it."""
        return (torch.from_numpy(evidence.values) - self.centre) / self.scale

    def is_sound(self) -> bool:
        """Whether all indices are such that compiled code stays within bounds: to be asked of tensors from a file."""
        in_domain = bool((self.scale > 0).all()) and 0 < float(self.background) < 1
        if self.regression is not None:
            in_domain &= float(self.regression.precision) > 0 and float(self.regression.noise) >= LEAST_NOISE
        if self.prior is not None:
            in_domain &= self.prior.is_sound()
        return in_domain and self.rows.is_sound() and all(tree.is_sound() for tree in self.trees)


def _norms(x: scipy.sparse.csr_matrix) -> NDArray[np.float64]:
    """Lengths of the rows."""
    return np.sqrt(np.asarray(x.multiply(x).sum(axis=1), dtype=np.float64).ravel())


def _overlapping(array: NDArray[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
    """The array in blocks, each with the first entry of the next one, and where they start: it may be mapped."""
    for start in range(0, len(array), _BLOCK_ENTRIES):
        yield start, array[start : start + _BLOCK_ENTRIES + 1]


def _are_starts(array: NDArray[Any], end: int) -> bool:
    """Whether they ascend from 0 to the end."""
    ascend = all((part[1:] >= part[:-1]).all() for _, part in _overlapping(array))
    return bool(array[0] == 0 and array[-1] == end and ascend)


def row_blocks(n_rows: int) -> Iterator[slice]:
    """Blocks of rows that evidence is gathered for at once."""
    for start in range(0, n_rows, _BLOCK_ROWS):
        yield slice(start, min(start + _BLOCK_ROWS, n_rows))
