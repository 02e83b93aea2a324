"""The training rows, which the model keeps: the nearest of them to an input, and what their labels say."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from sklearn.utils.extmath import row_norms
from torch import Tensor, nn

from extremegp.label_tree.columns import ColumnLists
from extremegp.label_tree.growing import Growing
from extremegp.label_tree.neighbours import NearestRows, nearest_of, unexplained_rows
from extremegp.label_tree.prior import N_NEAREST
from extremegp.label_tree.regression import Neighbourhoods, RowWeights
from extremegp.label_tree.settings import LabelTreeSettings
from extremegp.label_tree.tree import are_starts

_LEAST_LENGTH = 1e-12
# Features of what a regression leaves unexplained of an input.
_MOST_DIFFERENT = 300


class Rows(nn.Module):
    """The training rows: inputs and labels, CSR, and what the rows count.

    Attributes:
        version: how often rows have come or gone.
    """

    indptr: Tensor
    indices: Tensor
    labels: Tensor
    seen: Tensor

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
        if settings.marked:
            self.register_buffer("seen", torch.zeros(n, dtype=torch.uint8))
        self.index_limits = {
            "indptr": stored + 1,
            "indices": settings.n_features,
            "label_indptr": positives + 1,
            "labels": settings.n_labels,
            "seen": 2,
        }
        self.version = 0
        self._growing: dict[str, Growing] = {}
        self._inputs: scipy.sparse.csr_matrix | None = None
        self._columns: ColumnLists | None = None
        self._ones: NDArray[np.float32] | None = None
        self._norms: NDArray[np.float64] | None = None

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
        """X, N x D, made once."""
        if self._inputs is None:
            parts = (self.array("values"), self.array("indices"), self.array("indptr"))
            shape = self.settings.n_rows, self.settings.n_features
            self._inputs = scipy.sparse.csr_matrix(parts, shape=shape)
        return self._inputs

    def indicator(self) -> scipy.sparse.csr_matrix:
        """The labels of the rows, N x K."""
        labels, starts = self.array("labels"), self.array("label_indptr")
        ones, shape = np.ones(len(labels), np.float32), (len(starts) - 1, self.settings.n_labels)
        return scipy.sparse.csr_matrix((ones, labels, starts), shape=shape)

    def columns(self) -> ColumnLists:
        """X by columns, made once."""
        if self._columns is None:
            self._columns = ColumnLists.of(self.inputs())
        return self._columns

    def norms(self) -> NDArray[np.float64]:
        """Lengths of the rows, made once."""
        if self._norms is None:
            self._norms = _norms(self.inputs())
        return self._norms

    def labels_of(self, row: int) -> NDArray[np.int32]:
        """The labels of a row."""
        starts = self.array("label_indptr")
        return np.asarray(self.array("labels")[starts[row] : starts[row + 1]])

    def features_of(self, row: int) -> NDArray[np.int32]:
        """The features that a row has."""
        starts = self.array("indptr")
        return np.asarray(self.array("indices")[starts[row] : starts[row + 1]])

    def add(self, x: scipy.sparse.csr_matrix, y: scipy.sparse.csr_matrix, weights: NDArray[np.float32] | None) -> None:
        """Add rows after all others, which the trees have not learnt from.

        Args:
            x: inputs, B x D, with ascending columns.
            y: labels that are 1, B x K.
            weights: what each of them counts; None for 1.
        """
        self._mark()
        if weights is not None and not self.settings.weighted:
            self.register_buffer("weights", torch.from_numpy(self.row_weights()))
            self.settings = replace(self.settings, weighted=True)
        if self.settings.weighted:
            self._grown("weights").extend(np.ones(x.shape[0], np.float32) if weights is None else weights)
        self._grown("seen").extend(np.zeros(x.shape[0], np.uint8))
        for matrix, starts, indices in ((x, "indptr", "indices"), (y, "label_indptr", "labels")):
            self._grown(starts).extend(matrix.indptr[1:] + self.array(starts)[-1])
            self._grown(indices).extend(matrix.indices)
        self._grown("values").extend(x.data)
        if self._norms is not None:
            self._norms = np.append(self._norms, _norms(x))
        if self._columns is not None:
            for start, end in pairwise(x.indptr):
                self._columns.append(x.indices[start:end], x.data[start:end])
        self._changed()

    def remove(self, row: int) -> None:
        """Take a row out, and leave nothing of it; those after it have the numbers before theirs from then on."""
        self._mark()
        for starts, others in (("indptr", ("indices", "values")), ("label_indptr", ("labels",))):
            start, end = self.array(starts)[row : row + 2].tolist()
            for name in others:
                self._grown(name).cut(start, end)
            self._grown(starts).cut(row, row + 1)
            self._grown(starts).array[row:] -= end - start
        for name in ("weights", "seen") if self.settings.weighted else ("seen",):
            self._grown(name).cut(row, row + 1)
        if self._norms is not None:
            self._norms = np.delete(self._norms, row)
        if self._columns is not None:
            self._columns.remove(row)
        self._changed()

    def _mark(self) -> None:
        """Know of every row whether the trees have learnt from it: of models that do not, from all."""
        if not self.settings.marked:
            self.register_buffer("seen", torch.ones(self.settings.n_rows, dtype=torch.uint8))
            self.settings = replace(self.settings, marked=True)

    def _grown(self, name: str) -> Growing:
        if name not in self._growing:
            self._growing[name] = Growing(self.array(name))
        return self._growing[name]

    def _changed(self) -> None:
        """Have tensors, and sizes, of what there is now."""
        for name, growing in self._growing.items():
            setattr(self, name, torch.from_numpy(growing.array))
        self._inputs = self._ones = None
        self.settings = replace(
            self.settings, n_rows=len(self.indptr) - 1, n_stored=len(self.indices), n_positives=len(self.labels)
        )
        self.index_limits |= {"indptr": len(self.indices) + 1, "label_indptr": len(self.labels) + 1}
        self.version += 1

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
        lengths = _norms(x)[:, None] * self.norms()[nearest.rows[:, :m]]
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


def _norms(x: scipy.sparse.csr_matrix) -> NDArray[np.float64]:
    """Lengths of the rows."""
    return np.asarray(np.sqrt(row_norms(x, squared=True), dtype=np.float64))
