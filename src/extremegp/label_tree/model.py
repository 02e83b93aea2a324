"""The model of very many labels: trees of linear Gaussian processes, nearest rows, and a Gaussian process of both.

The utility of label k is f_k(x) = h(e_k(x)) with h a sparse Gaussian process on a few numbers e_k(x) that speak for the
label (`evidence`): its probability by trees whose nodes are label-specific linear Gaussian processes (`nodes`), its
shares among the nearest training rows, and the regression of the labels on these (`regression`). Labels that neither
trees nor neighbours find have one small probability in common.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, cast

import numpy as np
import scipy.sparse
import scipy.special
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from extremegp.engine.model import VariationalModel
from extremegp.engine.selection import Selection
from extremegp.label_tree.all_rows import AllRowsRegression, sums_over_rows
from extremegp.label_tree.columns import ColumnLists
from extremegp.label_tree.evidence import (
    BEST_OF_EACH,
    LEAST_OF_TREES,
    LEAST_REGRESSED,
    N_EVIDENCE,
    N_FINDERS,
    N_OF_REGRESSION,
    gather_evidence,
)
from extremegp.label_tree.exclusions import Exclusions
from extremegp.label_tree.neighbours import MOST_READ, NearestRows, nearest_of, unexplained_rows
from extremegp.label_tree.prior import N_NEAREST, UtilityPrior
from extremegp.label_tree.regression import LEAST_NOISE, LocalRegression, Neighbourhoods, RowWeights
from extremegp.label_tree.tree import LabelTree, LevelSizes, are_starts
from extremegp.settings.model import ModelSettings
from extremegp.storage.tensors import copy_state

_BLOCK_ROWS = 1024
_CHOOSING_ROWS = 64
# Labels that a tree finds, at least: more than those that it makes candidates, as trees are averaged.
_BEST_OF_TREE = 100
_LEAST_LENGTH = 1e-12
# Features of what a regression leaves unexplained of an input.
_MOST_DIFFERENT = 300


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
        n_regressed: rows that the regression of the labels is on; 0 for no regression.
        prior: whether utilities have a prior far from the rows.
        n_pursued: of the rows that the regression is on, those that are taken for what the nearest leave unexplained.
        n_excluded: pairs of a feature and a label that it speaks against.
        n_directions: of the rows, for the regression on all of them; 0 for none.
        weight_variances: whether the trees' weights have a posterior.
        n_best: labels that trees, and each of two shares of neighbours, make candidates; 0 for `BEST_OF_EACH`.
    """

    n_features: int
    n_labels: int
    n_rows: int
    n_stored: int
    n_positives: int
    trees: tuple[tuple[LevelSizes, ...], ...]
    n_inducing: int
    beam: int = 10
    most_read: int = MOST_READ
    weighted: bool = False
    n_regressed: int = 0
    prior: bool = False
    n_pursued: int = 0
    n_excluded: int = 0
    n_directions: int = 0
    weight_variances: bool = False
    n_best: int = 0

    def to_config(self) -> dict[str, Any]:
        """All of it as JSON; what earlier versions do not know only where it is not as theirs."""
        return {name: value for name, value in asdict(self).items() if name not in LATER or value}

    @property
    def n_evidence(self) -> int:
        """Numbers that speak for a label."""
        return int(self.of_all_rows.stop) + (self.n_excluded > 0)

    @property
    def of_all_rows(self) -> slice:
        """Which of these are of the regression on all rows."""
        first = N_EVIDENCE + (N_OF_REGRESSION if self.n_regressed else 0)
        return slice(first, first + (N_OF_REGRESSION if self.n_directions else 0))

    @property
    def regressions(self) -> list[int]:
        """Which of these are what regressions say; after each of them comes its variance."""
        firsts = [N_EVIDENCE] if self.n_regressed else []
        return [*firsts, self.of_all_rows.start] if self.n_directions else firsts

    @property
    def n_candidates(self) -> int:
        """Labels of a row that can be ranked, at most."""
        return N_FINDERS * (self.n_best or BEST_OF_EACH)

    @property
    def n_first(self) -> int:
        """Nearest rows that the regression is on."""
        return self.n_regressed - self.n_pursued

    def build(self) -> LabelTreeModel:
        """A model with tensors of these shapes."""
        return LabelTreeModel(self)


LATER = ("weighted", "n_regressed", "prior", "n_pursued", "n_excluded", "n_directions", "weight_variances", "n_best")
LATER_FLAGS = ("weighted", "prior", "weight_variances")
"""Settings that models of earlier versions do not have, and those of them that are flags."""


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


def untrained(settings: LabelTreeSettings) -> dict[str, Tensor]:
    """The tensors of all that is learnt on the rows held out, as they are before."""
    n = settings.n_evidence
    state = {"centre": torch.zeros(n), "scale": torch.ones(n), "background": torch.tensor(0.5)}
    parts: dict[str, nn.Module] = {"combiner": combiner_settings(settings).build()}
    if settings.n_regressed:
        parts["regression"] = LocalRegression(settings.n_regressed)
    if settings.prior:
        parts["prior"] = UtilityPrior()
    for name, part in parts.items():
        state |= {f"{name}.{key}": tensor for key, tensor in part.state_dict().items()}
    return state


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
        self._columns: ColumnLists | None = None
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

    def columns(self) -> ColumnLists:
        """X by columns, made once."""
        if self._columns is None:
            self._columns = ColumnLists.of(self.inputs())
        return self._columns

    def pursued(self, near: Neighbourhoods, own: NDArray[np.int64], first: RowWeights) -> Neighbourhoods:
        """The rows of a regression, and those that it leaves unexplained; see `unexplained_rows`.

        Args:
            near: inputs with their nearest rows.
            own: the training rows that they are, -1 of new ones.
            first: the regression on the first of these rows.
        """
        x, n_first, columns = near.x, first.weights.shape[1], self.columns()
        rows = np.zeros((x.shape[0], n_first + self.settings.n_pursued), np.int32)
        rows[:, :n_first] = near.nearest[:, :n_first]
        sizes = np.minimum(near.sizes, n_first)
        unexplained_rows(
            x.shape[0], x.indptr, x.indices, x.data, near.rows.indptr, near.rows.indices, near.rows.data,
            *columns.arrays(), own, first.weights, _MOST_DIFFERENT,
            self.settings.most_read // 4, rows, sizes,
        )  # fmt: skip
        return near._replace(nearest=rows, sizes=sizes)

    def nearest(self, x: scipy.sparse.csr_matrix, own: NDArray[np.int64]) -> NearestRows:
        """The nearest rows of B inputs."""
        return nearest_of(x, self.columns(), own, self.settings.most_read)

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
            if not are_starts(self.array(indptr), len(self.array(indices))):
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
        trees = (LabelTree(levels, d, k, weight_variances=settings.weight_variances) for levels in settings.trees)
        self.trees = cast("Sequence[LabelTree]", nn.ModuleList(trees))
        self.rows = Rows(settings)
        self.combiner: VariationalModel = combiner_settings(settings).build()
        self.regression = LocalRegression(settings.n_regressed) if settings.n_regressed else None
        self.all_rows = AllRowsRegression(settings.n_rows, settings.n_directions) if settings.n_directions else None
        self.prior = UtilityPrior() if settings.prior else None
        self.exclusions = Exclusions(settings.n_excluded, d, k) if settings.n_excluded else None
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
        width = self.settings.n_candidates
        n_found = max(_BEST_OF_TREE, width // N_FINDERS)
        found = [tree.search(x, self.settings.beam, n_found) for tree in self.trees]
        labels, scores, sizes = (np.stack(parts) for parts in zip(*found, strict=True))
        nearest = self.rows.nearest(x, own)
        near = self._neighbourhoods(x, nearest)
        regressed = RowWeights(np.zeros((n, 0), np.float32), np.ones(n, np.float32))
        if self.regression is not None:
            if self.settings.n_pursued:
                near = self.rows.pursued(near, own, self.regression.of(near, self.settings.n_first))
            regressed = self.regression.of(near)
        candidates = np.zeros((n, width), np.int32)
        values = np.zeros((n, width, self.settings.n_evidence), np.float32)
        counts = np.zeros(n, np.int64)
        gather_evidence(
            n, labels, scores, sizes, *nearest, self.rows.row_weights(), self.rows.array("label_indptr"),
            self.rows.array("labels"), self.log_counts.numpy(), near.nearest, near.sizes, *regressed,
            self.frequencies(), candidates, values, counts,
        )  # fmt: skip
        taken = np.arange(width) < counts[:, None]
        evidence = Evidence(
            np.repeat(np.arange(n), counts), candidates[taken], values[taken], self.rows.closeness(x, nearest)
        )
        if self.all_rows is not None:
            self._regress_on_all(x, own, evidence)
        if self.exclusions is not None:
            evidence.values[:, -1] = self.exclusions.pairs().lowest(x, evidence.rows, evidence.labels)
        return evidence

    def _regress_on_all(self, x: scipy.sparse.csr_matrix, own: NDArray[np.int64], evidence: Evidence) -> None:
        """Fill in what the regression on all rows says of candidates."""
        assert self.all_rows is not None
        first, rows = self.settings.of_all_rows.start, self.rows
        labels, frequencies = (rows.array("label_indptr"), rows.array("labels")), self.frequencies()
        for solved in self.all_rows.of(x, own, rows.inputs(), rows.columns(), rows.row_weights()):
            ends = np.searchsorted(evidence.rows, np.arange(solved.inputs.start, solved.inputs.stop + 1))
            pairs, n = slice(ends[0], ends[-1]), len(ends) - 1
            said = np.zeros(ends[-1] - ends[0], np.float32)
            sums_over_rows(n, solved.weights, *labels, frequencies, ends - ends[0], evidence.labels[pairs], said)
            evidence.values[pairs, first] = np.log(np.maximum(said, 0) + LEAST_REGRESSED)
            evidence.values[pairs, first + 1] = solved.variance[evidence.rows[pairs] - solved.inputs.start]

    def evidence_deviations(self, x: scipy.sparse.csr_matrix, evidence: Evidence) -> dict[int, NDArray[np.float32]]:
        """How sure the model is of evidence: posterior standard deviations of some of its columns, by their numbers.

        Of a logarithm log(p + c), with p of variance s^2, it is s / (p + c). What a regression says of a label has the
        variance v t (1 - t): v is that of a function with prior variance 1, which y_k has t (1 - t) times where t of
        the rows that count have the label. Trees learn from the same rows, so that their errors are one.

        Args:
            x: the inputs, with ascending columns.
            evidence: of their candidates.
        """
        found: dict[int, NDArray[np.float32]] = {}
        if self.settings.weight_variances:
            parts = [tree.log_probabilities(x, evidence.rows, evidence.labels) for tree in self.trees]
            scores, variances = (np.stack(part) for part in zip(*parts, strict=True))
            shares, chances = scipy.special.softmax(scores, axis=0), np.exp(scores).mean(axis=0)
            found[0] = np.sqrt((shares * variances).sum(axis=0)) * chances / (chances + LEAST_OF_TREES)
        for column in self.settings.regressions:
            shifted, variance = np.exp(evidence.values[:, column]), evidence.values[:, column + 1]
            said = np.clip(shifted - LEAST_REGRESSED, self.frequencies()[evidence.labels], 0.5)
            found[column] = np.sqrt(np.maximum(variance, 0) * said * (1 - said)) / (said + LEAST_REGRESSED)
        return found

    def without_all_rows(self) -> LabelTreeModel:
        """The same model without the regression on all rows, its Gaussian process of the evidence untrained."""
        settings = replace(self.settings, n_directions=0)
        with torch.device("meta"):
            model = settings.build()
        changed = "combiner", "all_rows", "centre", "scale"
        kept = {name: part for name, part in self.state_dict().items() if name.split(".")[0] not in changed}
        copy_state(model, untrained(settings) | kept, source="trees")
        return model

    def choose_regression(
        self, x: scipy.sparse.csr_matrix, y: scipy.sparse.csr_matrix, own: NDArray[np.int64]
    ) -> list[Selection]:
        """Choose kernel and noise of the regressions by what they say of some training rows, each left out.

        Args:
            x: inputs of the training rows, N x D.
            y: their labels, N x K.
            own: the rows to look at.

        Returns:
            What was tried.
        """
        selections = []
        if self.regression is not None:
            rows = x[own]
            near = self._neighbourhoods(rows, self.rows.nearest(rows, own))
            selections.append(self.regression.choose(near, own, y, self.frequencies()))
        if self.all_rows is not None:
            some = own[np.linspace(0, len(own) - 1, min(len(own), _CHOOSING_ROWS)).round().astype(np.int64)]
            mean_square = float(np.square(x.data, dtype=np.float64).sum() / x.shape[0])

            def error() -> float:
                evidence = self.evidence(x[some], own=some)
                present = np.asarray(y[some][evidence.rows, evidence.labels]).ravel() > 0
                said = np.exp(evidence.values[:, self.settings.of_all_rows.start]) - LEAST_REGRESSED
                counts = self.rows.row_weights()[some][evidence.rows]
                return float(counts @ np.square(said - present, dtype=np.float64))

            selections.append(self.all_rows.choose(mean_square, error))
        return selections

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
        if self.exclusions is not None:
            in_domain &= self.exclusions.is_sound()
        if self.all_rows is not None:
            in_domain &= self.all_rows.is_sound()
        return in_domain and self.rows.is_sound() and all(tree.is_sound() for tree in self.trees)


def _norms(x: scipy.sparse.csr_matrix) -> NDArray[np.float64]:
    """Lengths of the rows."""
    return np.sqrt(np.asarray(x.multiply(x).sum(axis=1), dtype=np.float64).ravel())


def row_blocks(n_rows: int) -> Iterator[slice]:
    """Blocks of rows that evidence is gathered for at once."""
    for start in range(0, n_rows, _BLOCK_ROWS):
        yield slice(start, min(start + _BLOCK_ROWS, n_rows))
