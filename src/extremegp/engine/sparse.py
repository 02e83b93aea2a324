"""Minibatches of inputs, dense tensors or the rows of a CSR matrix as tensors, and their products with matrices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class SparseRows:
    """B rows of a sparse matrix in compressed-row form.

    Attributes:
        offsets: where each row starts in `columns` and `values`, with the total count last.
        columns: column index of every stored entry.
        values: the stored entries.
        n_columns: D, the width of the matrix.
    """

    offsets: Int[Tensor, " starts"]
    columns: Int[Tensor, " nnz"]
    values: Float[Tensor, " nnz"]
    n_columns: int

    @classmethod
    def from_scipy(
        cls,
        matrix: scipy.sparse.csr_matrix,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> SparseRows:
        """Copy a SciPy CSR matrix (B x D) to tensors of `dtype` on `device`."""
        return cls(
            torch.from_numpy(matrix.indptr.astype(np.int64)).to(device),
            torch.from_numpy(matrix.indices.astype(np.int64)).to(device),
            # What is mapped from a file is read-only, which tensors cannot be.
            torch.from_numpy(np.require(matrix.data, requirements="W")).to(device=device, dtype=dtype),
            int(matrix.shape[1]),
        )

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.offsets) - 1, self.n_columns

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        return self.values.device

    def part(self, rows: slice) -> SparseRows:
        """Consecutive rows of these."""
        offsets = self.offsets[rows.start : rows.stop + 1]
        entries = slice(int(offsets[0]), int(offsets[-1]))
        return SparseRows(offsets - offsets[0], self.columns[entries], self.values[entries], self.n_columns)

    def between(self, start: int, stop: int, *, dense: bool = False) -> Inputs:
        """The columns from `start` to before `stop`, as sparse rows or as an array."""
        key = (start, stop, dense)
        if key not in self._between:
            inside = (self.columns >= start) & (self.columns < stop)
            columns, values = self.columns[inside] - start, self.values[inside]
            if dense:
                array = values.new_zeros(self.shape[0], stop - start)
                array[self.rows[inside], columns] = values
                self._between[key] = array
            else:
                ends = torch.cat([self.offsets.new_zeros(1), inside.cumsum(0)])[self.offsets]
                self._between[key] = SparseRows(ends, columns, values, stop - start)
        return self._between[key]

    @cached_property
    def _between(self) -> dict[tuple[int, int, bool], Inputs]:
        return {}

    @cached_property
    def rows(self) -> Int[Tensor, " nnz"]:
        """Row index of every stored entry."""
        return torch.repeat_interleave(torch.arange(self.shape[0], device=self.device), self.offsets.diff())

    @cached_property
    def transposed(self) -> SparseRows:
        """The D x B transpose, in compressed-row form too."""
        order = torch.argsort(self.columns, stable=True)
        counts = torch.bincount(self.columns, minlength=self.n_columns)
        offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        return SparseRows(offsets, self.rows[order], self.values[order], self.shape[0])


Inputs: TypeAlias = Tensor | SparseRows
Matrix: TypeAlias = scipy.sparse.csr_matrix | NDArray[Any]
"""N x D inputs of a whole data set."""


def _bag_product(x: SparseRows, weight: Float[Tensor, "D M"]) -> Float[Tensor, "B M"]:
    return torch.nn.functional.embedding_bag(
        x.columns, weight, x.offsets, mode="sum", per_sample_weights=x.values, include_last_offset=True
    )


class _SparseProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, x: SparseRows) -> Tensor:
        ctx.x = x
        return _bag_product(x, weight.contiguous())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _bag_product(ctx.x.transposed, grad.contiguous()), None


def matmul(x: Inputs, weight: Float[Tensor, "D M"]) -> Float[Tensor, "B M"]:
    """The product x @ weight, differentiable in `weight`, at a cost of nnz(x) M for sparse rows."""
    if isinstance(x, SparseRows):
        product: Tensor = _SparseProduct.apply(weight, x)
        return product
    return x @ weight


class _RowSparseProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, x: SparseRows) -> Tensor:
        ctx.x, ctx.shape = x, weight.shape
        return _bag_product(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        used, positions = torch.unique(ctx.x.columns, return_inverse=True)
        compact = replace(ctx.x, columns=positions, n_columns=len(used))
        rows = _bag_product(compact.transposed, grad.contiguous())
        return torch.sparse_coo_tensor(used[None], rows, ctx.shape, is_coalesced=True, check_invariants=False), None


def row_sparse_matmul(x: Inputs, weight: Float[Tensor, "D M"]) -> Float[Tensor, "B M"]:
    """`matmul`, but for sparse rows the gradient of `weight` is a sparse tensor of the rows that count."""
    if isinstance(x, SparseRows):
        product: Tensor = _RowSparseProduct.apply(weight, x)
        return product
    return x @ weight


def weighted_square_norms(x: Inputs, weights: Float[Tensor, " D"]) -> Float[Tensor, " B"]:
    """sum_d weights_d x_d^2 of every row; `weights` of length one stands for D equal weights."""
    if isinstance(x, SparseRows):
        # The gradient of index_select adds in a fixed order; that of brackets does not.
        scale = weights.index_select(0, x.columns) if len(weights) > 1 else weights
        return weights.new_zeros(x.shape[0]).index_add(0, x.rows, x.values.square() * scale)
    return x.square() @ weights if len(weights) > 1 else x.square().sum(-1) * weights


def mean_square_distance(x: Inputs) -> float:
    """The mean of the squared distances between all pairs of rows: twice the variance of all columns together."""
    norms = weighted_square_norms(x, torch.ones(1, dtype=x.dtype, device=x.device))
    sums = x.values.new_zeros(x.n_columns).index_add(0, x.columns, x.values) if isinstance(x, SparseRows) else x.sum(0)
    return max(0.0, 2 * float(norms.mean() - (sums / x.shape[0]).square().sum()))


def squared(x: Inputs) -> Inputs:
    """Every entry squared."""
    return replace(x, values=x.values.square()) if isinstance(x, SparseRows) else x.square()


def row_block(
    matrix: Matrix,
    rows: slice | NDArray[Any],
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Inputs:
    """Some rows of a matrix held by SciPy or NumPy, as a minibatch."""
    block = matrix[rows]
    if scipy.sparse.issparse(block):
        return SparseRows.from_scipy(block, dtype=dtype, device=device)
    # What is mapped from a file is read-only, which tensors cannot be.
    return torch.from_numpy(np.require(block, requirements=["C", "W"])).to(device=device, dtype=dtype)


@torch.no_grad()
def fill(parameter: Tensor, values: NDArray[Any]) -> None:
    """Overwrite a tensor by an array of its shape, in its own type."""
    parameter.copy_(torch.from_numpy(np.ascontiguousarray(values)))
