"""Covariances of weights, beside an inverse of the whole precision matrix."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import scipy.sparse
import torch
from tests.reference import weight_covariance as reference
from torch import Tensor

from extremegp.engine.sparse import Inputs, SparseRows
from extremegp.engine.weight_covariance import DenseCovariance, PointCovariance, WeightCovariance, covariance_part

N, F = 9, 6
RNG = np.random.default_rng(0)
PHI = RNG.normal(size=(N, F)) * (RNG.random((N, F)) < 0.7)
PHI[:, 4] = 0
CURVATURE = RNG.random(N)
NEW = np.concatenate([RNG.normal(size=(4, F)), np.eye(F)[[4]], np.zeros((1, F)), PHI[:2]])
PSI = PHI * np.sqrt(CURVATURE)[:, None]
S = reference.covariance(PHI, CURVATURE, 1.0)


def _dense(psi: np.ndarray) -> WeightCovariance:
    found = DenseCovariance(psi.shape[1]).double()
    found.fit(torch.from_numpy(psi).split(4))
    return found


def _points(psi: np.ndarray) -> WeightCovariance:
    found = PointCovariance(len(psi), None, psi.shape[1]).double()
    found.fit(torch.from_numpy(psi))
    return found


def _sparse_points(psi: np.ndarray) -> WeightCovariance:
    matrix = scipy.sparse.csr_matrix(psi)
    found = PointCovariance(len(psi), matrix.nnz, psi.shape[1]).double()
    found.fit(matrix)
    return found


def _inputs(x: np.ndarray, *, sparse: bool) -> Inputs:
    return SparseRows.from_scipy(scipy.sparse.csr_matrix(x), dtype=torch.float64) if sparse else torch.from_numpy(x)


FORMS = pytest.mark.parametrize("form", [_dense, _points, _sparse_points])
HELD = pytest.mark.parametrize("sparse", [False, True])


@FORMS
@HELD
def test_variances_and_covariances_are_those_of_the_inverse(
    form: Callable[[np.ndarray], WeightCovariance], sparse: bool
):
    covariance, phi = form(PSI), _inputs(NEW, sparse=sparse)
    expected = NEW @ S @ NEW.T
    np.testing.assert_allclose(covariance.variance(phi), expected.diagonal(), rtol=1e-9, atol=1e-12)
    root = covariance.root(phi).numpy()
    np.testing.assert_allclose(root @ root.T, expected, rtol=1e-7, atol=1e-7)
    assert float(covariance.divergence) == pytest.approx(reference.divergence(S, 1.0))


@FORMS
def test_a_weight_that_no_row_tells_of_keeps_its_prior(form: Callable[[np.ndarray], WeightCovariance]):
    np.testing.assert_allclose(form(PSI).variance(torch.from_numpy(3 * np.eye(F)[[4]])), [9.0])


@FORMS
@HELD
def test_draws_are_joint_in_a_sequence_and_independent_between_sequences(
    form: Callable[[np.ndarray], WeightCovariance], sparse: bool
):
    n_draws, lengths = 20_000, torch.tensor([3, 1])
    phi = NEW[[0, 1, 2, 0]]
    noise = form(PSI).noise(_inputs(phi, sparse=sparse), lengths, (n_draws, 2), torch.Generator().manual_seed(0))
    assert noise.shape == (n_draws, 4, 2)
    expected = phi @ S @ phi.T
    expected[:3, 3] = expected[3, :3] = 0
    for p in range(2):
        np.testing.assert_allclose(np.cov(noise[:, :, p].T.numpy()), expected, atol=0.05 * expected.max())
    across = (noise[:, :, 0].T @ noise[:, :, 1] / n_draws).numpy()
    np.testing.assert_allclose(across, 0, atol=0.05 * expected.max())


@pytest.mark.parametrize("seed", range(5))
def test_means_of_groups_of_rows_have_no_variance_below_the_exact_one(seed: int):
    rng = np.random.default_rng(seed)
    groups = rng.integers(3, size=N)
    totals = np.bincount(groups, CURVATURE, minlength=3)
    means = np.stack([CURVATURE[groups == g] @ PHI[groups == g] / totals[g] for g in range(3)])
    new = rng.normal(size=(50, F))
    exact = np.einsum("bf,fg,bg->b", new, S, new)
    found = _sparse_points(means * np.sqrt(totals)[:, None]).variance(torch.from_numpy(new)).numpy()
    assert (found >= exact - 1e-12).all()
    assert (found <= np.square(new).sum(1) + 1e-12).all()


@FORMS
def test_what_was_loaded_is_used_and_not_what_was_worked_out_of_other_values(
    form: Callable[[np.ndarray], WeightCovariance],
):
    phi: Tensor = torch.from_numpy(NEW)
    first, second = form(PSI), form(PSI * np.arange(1, N + 1)[:, None])
    first.variance(phi)
    first.load_state_dict(second.state_dict())
    assert torch.equal(first.variance(phi), second.variance(phi))


def test_sizes_make_the_same_form_again():
    for covariance in (_dense(PSI), _points(PSI), _sparse_points(PSI)):
        other = covariance_part(F, *covariance.sizes).double()
        other.load_state_dict(covariance.state_dict())
        assert torch.equal(other.variance(torch.from_numpy(NEW)), covariance.variance(torch.from_numpy(NEW)))
