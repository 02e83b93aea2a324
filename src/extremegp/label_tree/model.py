"""The model of very many labels: trees of linear Gaussian processes, nearest rows, and a Gaussian process of both.

The utility of label k is f_k(x) = h(e_k(x)) with h a sparse Gaussian process on a few numbers e_k(x) that speak for the
label (`evidence`): its probability by trees whose nodes are label-specific linear Gaussian processes (`nodes`), its
shares among the nearest training rows, and the regression of the labels on these (`regression`). Labels that neither
trees nor neighbours find have one small probability in common.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, cast

import numpy as np
import scipy.sparse
import scipy.special
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from extremegp.engine.compiled import begun
from extremegp.engine.model import VariationalModel
from extremegp.engine.selection import Selection
from extremegp.label_tree.all_rows import AllRowsRegression, sums_over_rows
from extremegp.label_tree.evidence import (
    LEAST_OF_TREES,
    LEAST_REGRESSED,
    N_FINDERS,
    gather_evidence,
)
from extremegp.label_tree.exclusions import Exclusions
from extremegp.label_tree.neighbours import NearestRows
from extremegp.label_tree.prior import UtilityPrior
from extremegp.label_tree.regression import LEAST_NOISE, LocalRegression, Neighbourhoods, RowWeights
from extremegp.label_tree.rows import Rows
from extremegp.label_tree.settings import LabelTreeSettings
from extremegp.label_tree.tree import LabelTree
from extremegp.settings.model import ModelSettings
from extremegp.storage.tensors import copy_state

_BLOCK_ROWS = 1024
_CHOOSING_ROWS = 64
# Labels that a tree finds, at least: more than those that it makes candidates, as trees are averaged.
_BEST_OF_TREE = 100


def combiner_settings(settings: LabelTreeSettings, n_evidence: int | None = None) -> ModelSettings:
    """The Gaussian process of the evidence, or of so much of it: one function, one label."""
    return ModelSettings(
        settings.n_evidence if n_evidence is None else n_evidence,
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


class Evidence(NamedTuple):
    """Candidate labels of rows, row after row, with the numbers that speak for them.

    Attributes:
        rows: of the pairs.
        labels: of the pairs, ascending in a row.
        values: pairs x `n_evidence` of the settings.
        closeness: of the B inputs to the training rows, see `Rows.closeness`.
        rests: how much the frequencies count in each regression, 1 - sum_i w_i, B x regressions.
    """

    rows: NDArray[np.int64]
    labels: NDArray[np.int32]
    values: NDArray[np.float32]
    closeness: NDArray[np.float32]
    rests: NDArray[np.float32]


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

    def evidence(
        self, x: scipy.sparse.csr_matrix, own: NDArray[np.int64] | None = None, *, of_trees: bool = True
    ) -> Evidence:
        """Candidates and evidence of B inputs.

        Args:
            x: inputs.
            own: the training rows that they are, of those that are; -1 for others.
            of_trees: whether trees find candidates, and they and exclusions speak: both have learnt from all rows.
        """
        n = x.shape[0]
        if not x.has_sorted_indices:
            x = x.sorted_indices()
        own = np.full(n, -1, dtype=np.int64) if own is None else own
        width = self.settings.n_candidates
        n_found = max(_BEST_OF_TREE, width // N_FINDERS)
        searches = [begun(partial(tree.search, x, self.settings.beam, n_found), n) for tree in self.trees if of_trees]
        nearest = self.rows.nearest(x, own)
        near, regressed = self._regressed(x, own, nearest)
        if searches:
            found = [search() for search in searches]
            labels, scores, sizes = (np.stack(parts) for parts in zip(*found, strict=True))
        else:
            labels, scores = np.zeros((1, n, 1), np.int32), np.zeros((1, n, 1), np.float32)
            sizes = np.zeros((1, n), np.int64)
        candidates = np.zeros((n, width), np.int32)
        values = np.zeros((n, width, self.settings.n_evidence), np.float32)
        counts = np.zeros(n, np.int64)
        gather_evidence(
            n, labels, scores, sizes, *nearest, self.rows.row_weights(), self.rows.array("label_indptr"),
            self.rows.array("labels"), self.log_counts.numpy(), near.nearest, near.sizes, *regressed,
            self.frequencies(), candidates, values, counts,
        )  # fmt: skip
        taken = np.arange(width) < counts[:, None]
        rests = np.zeros((n, len(self.settings.regressions)), np.float32)
        if self.regression is not None:
            rests[:, 0] = 1 - regressed.weights.sum(axis=1)
        evidence = Evidence(
            np.repeat(np.arange(n), counts), candidates[taken], values[taken], self.rows.closeness(x, nearest), rests
        )
        if self.all_rows is not None:
            self._regress_on_all(x, own, evidence)
        if self.exclusions is not None and of_trees:
            evidence.values[:, -1] = self.exclusions.pairs().lowest(x, evidence.rows, evidence.labels)
        return evidence

    def voting(self, x: scipy.sparse.csr_matrix) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
        """Of B inputs, with ascending columns, the rows of the regression on those that are near, and their weights."""
        near, regressed = self._regressed(x, np.full(x.shape[0], -1, dtype=np.int64), None)
        for row in range(x.shape[0]):
            size = min(int(near.sizes[row]), regressed.weights.shape[1])
            yield near.nearest[row, :size].astype(np.int64), regressed.weights[row, :size].astype(np.float64)

    def _regressed(
        self, x: scipy.sparse.csr_matrix, own: NDArray[np.int64], nearest: NearestRows | None
    ) -> tuple[Neighbourhoods, RowWeights]:
        """The rows of the regression on those that are near, and what they count."""
        near = self._neighbourhoods(x, self.rows.nearest(x, own) if nearest is None else nearest)
        n = x.shape[0]
        if self.regression is None:
            return near, RowWeights(np.zeros((n, 0), np.float32), np.ones(n, np.float32))
        if self.settings.n_pursued:
            near = self.rows.pursued(near, own, self.regression.of(near, self.settings.n_first))
        return near, self.regression.of(near)

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
            evidence.rests[solved.inputs, -1] = 1 - solved.weights.sum(axis=1)

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

    def add(self, x: scipy.sparse.csr_matrix, y: scipy.sparse.csr_matrix, weights: NDArray[np.float32] | None) -> None:
        """Know more rows: as neighbours and in the regressions, at once. Trees and the last stage stay as they are.

        Args:
            x: inputs, B x D, with ascending columns.
            y: labels that are 1, B x K.
            weights: what each of them counts; None for 1.
        """
        if self.all_rows is not None:
            self.all_rows.add(x, self.rows.columns())
        self.rows.add(x, y, weights)
        self.settings = self.rows.settings

    def remove(self, row: int) -> None:
        """Forget a row; those after it have the numbers before theirs from then on."""
        if not self.rows.settings.marked or self.rows.seen[row]:
            # Of labels without such a row to the bit what they would be had there been none.
            labels, count = self.rows.labels_of(row), float(self.rows.row_weights()[row])
            left = np.expm1(self.log_counts.numpy()[labels].astype(np.float64)) - count
            self.log_counts[labels] = torch.from_numpy(np.log1p(np.where(left > 1e-3 * count, left, 0))).float()
        self.rows.remove(row)
        if self.all_rows is not None:
            self.all_rows.remove(row)
        self.settings = self.rows.settings

    def settle(self) -> None:
        """Have tensors that are those of the rows that there are now: before they are saved."""
        if self.all_rows is not None:
            self.all_rows.settle()

    def add_labels(self, n: int) -> None:
        """Have more labels, which no row has yet and no tree finds."""
        self.log_counts = torch.cat([self.log_counts, torch.zeros(n)])
        self.settings = self.rows.settings = replace(self.rows.settings, n_labels=self.settings.n_labels + n)
        self.rows.index_limits["labels"] += n
        self.rows.version += 1

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


def row_blocks(n_rows: int) -> Iterator[slice]:
    """Blocks of rows that evidence is gathered for at once."""
    for start in range(0, n_rows, _BLOCK_ROWS):
        yield slice(start, min(start + _BLOCK_ROWS, n_rows))
