from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from extremegp.engine.sparse import SparseRows, matmul, row_block, row_sparse_matmul, weighted_square_norms


def _matrix(n_rows: int, n_columns: int, density: float, seed: int) -> scipy.sparse.csr_matrix:
    rng = np.random.default_rng(seed)
    return scipy.sparse.random(n_rows, n_columns, density, format="csr", rng=rng, data_rvs=rng.standard_normal)


@given(
    st.integers(1, 6), st.integers(1, 7), st.integers(1, 5), st.sampled_from([0.0, 0.3, 1.0]), st.integers(0, 2**32 - 1)
)
def test_the_product_and_its_gradient_equal_those_of_the_dense_matrix(n_rows, n_columns, width, density, seed):
    matrix = _matrix(n_rows, n_columns, density, seed)
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(n_columns, width, dtype=torch.float64, generator=generator, requires_grad=True)
    upstream = torch.randn(n_rows, width, dtype=torch.float64, generator=generator)

    product = matmul(SparseRows.from_scipy(matrix, dtype=torch.float64), weight)
    (gradient,) = torch.autograd.grad((product * upstream).sum(), weight)

    np.testing.assert_allclose(product.detach(), matrix @ weight.detach().numpy(), atol=1e-13)
    np.testing.assert_allclose(gradient, matrix.T @ upstream.numpy(), atol=1e-13)


@given(st.integers(1, 6), st.integers(1, 7), st.sampled_from([0.0, 0.3, 1.0]), st.integers(0, 2**32 - 1))
def test_the_row_sparse_product_is_the_product_with_a_gradient_of_the_columns_that_are_stored(
    n_rows, n_columns, density, seed
):
    rows = SparseRows.from_scipy(_matrix(n_rows, n_columns, density, seed), dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(n_columns, 3, dtype=torch.float64, generator=generator, requires_grad=True)
    upstream = torch.randn(n_rows, 3, dtype=torch.float64, generator=generator)
    product, whole = row_sparse_matmul(rows, weight), matmul(rows, weight)
    assert torch.equal(product, whole)
    (sparse,), (dense,) = (torch.autograd.grad((part * upstream).sum(), weight) for part in (product, whole))
    assert sparse.is_sparse
    assert sparse.is_coalesced()
    assert sparse.indices()[0].tolist() == sorted(set(rows.columns.tolist()))
    torch.testing.assert_close(sparse.to_dense(), dense, rtol=1e-13, atol=1e-13)


def test_the_row_sparse_product_of_dense_rows_has_a_dense_gradient():
    x, weight = torch.randn(3, 4), torch.randn(4, 2, requires_grad=True)
    product = row_sparse_matmul(x, weight)
    torch.testing.assert_close(product, x @ weight)
    (gradient,) = torch.autograd.grad(product.sum(), weight)
    torch.testing.assert_close(gradient, x.sum(0).unsqueeze(1).expand(4, 2))


def test_empty_rows_at_both_ends_give_zeros():
    matrix = scipy.sparse.csr_matrix(np.array([[0.0, 0.0], [2.0, 3.0], [0.0, 0.0]]))
    product = matmul(SparseRows.from_scipy(matrix), torch.tensor([[1.0], [10.0]]))
    assert product.tolist() == [[0.0], [32.0], [0.0]]


def test_a_column_stored_twice_counts_twice():
    matrix = scipy.sparse.csr_matrix((np.array([1.0, 2.0]), np.array([1, 1]), np.array([0, 2])), shape=(1, 2))
    weight = torch.tensor([[5.0], [7.0]], dtype=torch.float64, requires_grad=True)
    product = matmul(SparseRows.from_scipy(matrix, dtype=torch.float64), weight)
    product.sum().backward()
    assert product.detach().item() == 21.0
    assert weight.grad is not None
    assert weight.grad.flatten().tolist() == [0.0, 3.0]


def test_a_weight_that_is_not_contiguous_gives_the_same_product():
    matrix = _matrix(4, 6, 0.5, 0)
    weight = torch.randn(3, 6, dtype=torch.float64).T
    product = matmul(SparseRows.from_scipy(matrix, dtype=torch.float64), weight)
    np.testing.assert_allclose(product, matrix @ weight.numpy(), atol=1e-13)


def test_first_and_second_derivatives_of_the_product_pass_gradcheck():
    rows = SparseRows.from_scipy(_matrix(3, 4, 0.6, 1), dtype=torch.float64)
    weight = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda w: matmul(rows, w), (weight,))
    assert torch.autograd.gradgradcheck(lambda w: matmul(rows, w).pow(3), (weight,))


def test_the_transpose_of_the_transpose_is_the_matrix():
    matrix = _matrix(5, 8, 0.4, 2)
    rows = SparseRows.from_scipy(matrix, dtype=torch.float64)
    transposed = rows.transposed
    assert transposed.shape == (8, 5)
    as_scipy = scipy.sparse.csr_matrix(
        (transposed.values.numpy(), transposed.columns.numpy(), transposed.offsets.numpy()), shape=transposed.shape
    )
    np.testing.assert_array_equal(as_scipy.toarray(), matrix.toarray().T)
    again = transposed.transposed
    for name in ("offsets", "columns", "values"):
        assert torch.equal(getattr(again, name), getattr(rows, name)), name


@pytest.mark.parametrize("n_weights", [1, 7])
def test_weighted_square_norms_equal_the_sums_for_sparse_and_dense_rows(n_weights: int):
    matrix = _matrix(5, 7, 0.5, 3)
    weights = torch.rand(n_weights, dtype=torch.float64) + 0.5
    expected = (matrix.toarray() ** 2 * weights.numpy()).sum(axis=1)
    for x in (SparseRows.from_scipy(matrix, dtype=torch.float64), torch.from_numpy(matrix.toarray())):
        np.testing.assert_allclose(weighted_square_norms(x, weights), expected, atol=1e-14)
        variable = weights.clone().requires_grad_()
        assert gradcheck(lambda w, x=x: weighted_square_norms(x, w), (variable,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_row_block_takes_the_rows_asked_for_in_order(dtype: torch.dtype):
    matrix = _matrix(6, 4, 0.5, 4)
    rows = np.array([4, 0, 4])
    sparse = row_block(matrix, rows, dtype=dtype)
    dense = row_block(matrix.toarray(), rows, dtype=dtype)
    assert isinstance(sparse, SparseRows)
    assert isinstance(dense, torch.Tensor)
    assert sparse.shape == tuple(dense.shape) == (3, 4)
    assert sparse.dtype == dense.dtype == dtype
    identity = torch.eye(4, dtype=dtype)
    np.testing.assert_allclose(matmul(sparse, identity), matrix.toarray()[rows], rtol=1e-6)
    np.testing.assert_allclose(dense, matrix.toarray()[rows], rtol=1e-6)
    assert torch.equal(
        matmul(row_block(matrix, slice(1, 3), dtype=dtype), identity),
        matmul(row_block(matrix, np.array([1, 2]), dtype=dtype), identity),
    )
