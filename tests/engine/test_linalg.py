from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from extremegp.engine import linalg
from extremegp.engine.linalg import (
    JitterWarning,
    NotPositiveDefiniteError,
    inverse_cholesky,
    inverse_diagonal,
    lower_triangular,
)


def _covariance(size: int, rank: int | None = None) -> torch.Tensor:
    root = torch.from_numpy(np.random.default_rng(0).normal(size=(size, rank or size)))
    return root @ root.T


def test_the_factor_inverts_the_covariance_with_jitter():
    covariance = _covariance(6)
    factor = inverse_cholesky(covariance, relative_jitter=1e-3)
    jittered = covariance.numpy() + 1e-3 * np.trace(covariance.numpy()) / 6 * np.eye(6)
    np.testing.assert_allclose(factor.T @ factor, np.linalg.inv(jittered), rtol=1e-9, atol=1e-12)
    assert torch.equal(factor, factor.tril())
    assert (factor.diagonal() > 0).all()


@pytest.mark.parametrize("size", [1, 6, 13])
def test_the_diagonal_of_the_inverse_is_that_of_numpy(size: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(linalg, "_BLOCK_ROWS", 3)
    covariance = _covariance(size)
    factor = torch.linalg.cholesky(covariance)
    expected = np.linalg.inv(covariance.numpy()).diagonal()
    np.testing.assert_allclose(inverse_diagonal(factor), expected, rtol=1e-8, atol=1e-10)


def test_its_gradient_passes_gradcheck():
    root = torch.from_numpy(np.random.default_rng(1).normal(size=(4, 4))).requires_grad_()
    # The jitter follows the covariance but is treated as a constant: without it the numerical gradient is the same.
    assert gradcheck(lambda r: inverse_cholesky(r @ r.T + torch.eye(4, dtype=r.dtype), relative_jitter=0.0), (root,))


def test_jitter_grows_with_a_warning_only_when_factorisation_fails():
    singular = torch.ones(3, 3, dtype=torch.float64) - 5e-6 * torch.eye(3, dtype=torch.float64)
    with pytest.warns(JitterWarning, match=r"from 1e-06 to 1e-05"):
        factor = inverse_cholesky(singular, relative_jitter=1e-6)
    assert torch.isfinite(factor).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        inverse_cholesky(_covariance(3), relative_jitter=0.0)


def test_zero_jitter_may_grow_too():
    with pytest.warns(JitterWarning):
        inverse_cholesky(torch.ones(3, 3, dtype=torch.float64), relative_jitter=0.0)


@pytest.mark.parametrize(
    ("covariance", "message"),
    [
        (-torch.eye(3, dtype=torch.float64), "not positive definite"),
        (torch.zeros(3, 3, dtype=torch.float64), "not positive definite"),
        (torch.full((3, 3), float("nan"), dtype=torch.float64), "not finite"),
        (torch.full((3, 3), float("inf"), dtype=torch.float64), "not finite"),
    ],
)
def test_a_hopeless_covariance_is_refused(covariance: torch.Tensor, message: str):
    with pytest.raises(NotPositiveDefiniteError, match=message):
        inverse_cholesky(covariance)


def test_lower_triangular_keeps_the_strict_part_and_makes_the_diagonal_positive():
    raw = torch.randn(2, 3, 3)
    factor = lower_triangular(raw)
    for p in range(2):
        for i in range(3):
            for j in range(3):
                expected = raw[p, i, j] if i > j else raw[p, i, j].exp() if i == j else 0.0
                assert factor[p, i, j] == pytest.approx(float(expected))
