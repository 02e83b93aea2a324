"""Families of kernels: beside scikit-learn's, and chosen by what predicts rows left out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import scipy.sparse
import torch
from sklearn.gaussian_process.kernels import RBF, Kernel, Matern, RationalQuadratic

from extremegp.engine import kernel_choice
from extremegp.engine.blocks import Block
from extremegp.engine.families import FAMILIES, covariances_of
from extremegp.engine.kept_rows import KeptRows
from extremegp.engine.kernel_choice import learn_kernel
from extremegp.engine.lengthscales import Learnt, learn_lengthscales

OF_SCIKIT_LEARN: dict[str, Kernel] = {
    "squared exponential": RBF(1.0),
    "matern 5/2": Matern(1.0, nu=2.5),
    "matern 3/2": Matern(1.0, nu=1.5),
    "matern 1/2": Matern(1.0, nu=0.5),
    "rational quadratic": RationalQuadratic(1.0, 1.0),
}
D = 3


def _x(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, D)).astype(np.float32)


def _learnt(family: int) -> Learnt:
    return Learnt(np.log([0.3, 1.0, 2.0]).astype(np.float32), 0.1, np.ones(1, np.float32), family)


@pytest.mark.parametrize("family", range(len(FAMILIES)))
@pytest.mark.parametrize("sparse", [False, True])
def test_covariances_of_kept_rows_are_those_of_scikit_learn(family: int, sparse: bool):
    points, x = _x(9), _x(5, seed=1)
    kept = KeptRows(9, points.size if sparse else None, D)
    kept.keep(scipy.sparse.csr_matrix(points) if sparse else points)
    kept.set_kernel(_learnt(family))
    scale = np.sqrt([0.3, 1.0, 2.0])
    expected = OF_SCIKIT_LEARN[FAMILIES[family]]
    found = torch.cat(list(kept.covariances(scipy.sparse.csr_matrix(x) if sparse else x)))
    np.testing.assert_allclose(found, expected(x * scale, points * scale), atol=2e-5)
    np.testing.assert_allclose(kept.gram(), expected(points * scale), atol=2e-3 if sparse else 1e-3)


@pytest.mark.parametrize("family", range(len(FAMILIES)))
def test_rows_at_distance_zero_have_a_finite_gradient(family: int):
    exponent = torch.tensor([0.0, -1e-20, -0.5, -400.0], requires_grad=True)
    covariances_of(exponent, family).sum().backward()
    assert exponent.grad is not None
    assert torch.isfinite(exponent.grad).all()


def _drawn(family: str, n: int = 500, n_labels: int = 20) -> tuple[np.ndarray, scipy.sparse.csr_matrix]:
    rng = np.random.default_rng(2)
    x = (2 * rng.uniform(-1, 1, size=(n, D))).astype(np.float32)
    f = np.linalg.cholesky(OF_SCIKIT_LEARN[family](1.5 * x) + 1e-6 * np.eye(n)) @ rng.normal(size=(n, n_labels))
    return x, scipy.sparse.csr_matrix((f - f.min()).astype(np.float32))


@pytest.mark.parametrize("name", ["squared exponential", "matern 1/2"])
def test_the_family_that_labels_were_drawn_from_is_found(name: str):
    x, y = _drawn(name)
    learnt = learn_kernel(x, y, rng=np.random.default_rng(0))
    assert learnt.tried is not None
    assert FAMILIES[learnt.family] == learnt.tried.chosen["family"]
    if name == "squared exponential":
        assert FAMILIES[learnt.family] == name
    else:
        assert FAMILIES[learnt.family] in ("matern 1/2", "matern 3/2")
    errors = {str(each["family"]): float(each["score"]) for each in reversed(learnt.tried.tried)}
    assert set(errors) == set(FAMILIES)


def test_from_a_start_on_lengthscales_are_learnt_further_for_its_family():
    x, y = _drawn("matern 3/2")
    start = learn_lengthscales(x, y, rng=np.random.default_rng(0))._replace(family=2)
    more = learn_lengthscales(x, y, rng=np.random.default_rng(0), start=start)
    assert more.family == 2
    assert not np.array_equal(more.log_weights, start.log_weights)
    np.testing.assert_allclose(more.log_weights, start.log_weights, atol=1.5)


@pytest.mark.parametrize("layout", [(), (Block(1, dense=True), Block(2, dense=True))])
def test_weights_of_rows_and_blocks_are_taken_into_account(layout: Sequence[Block]):
    x, y = _drawn("squared exponential", n=80, n_labels=3)
    learnt = learn_kernel(x, y, rng=np.random.default_rng(0), weights=np.full(80, 4.0), blocks=layout)
    plain = learn_kernel(x, y, rng=np.random.default_rng(0), blocks=layout)
    assert learnt.tried is not None
    assert plain.tried is not None
    for one, other in zip(learnt.tried.tried, plain.tried.tried, strict=True):
        assert one["score"] == pytest.approx(other["score"], rel=1e-2)
    assert learnt.noise == pytest.approx(4 * plain.noise, rel=5e-2)


def test_what_more_rows_take_from_a_family_counts(monkeypatch: pytest.MonkeyPatch):
    assert kernel_choice._with_all([(1000, 0.02)], 1000) == 0.02
    assert kernel_choice._with_all([(1000, 0.02), (3000, 0.01)], 9000) == pytest.approx(0.0)
    assert kernel_choice._with_all([(1000, 0.02), (3000, 0.015)], 9000) == pytest.approx(0.01)
    x, y = _drawn("matern 1/2")
    for few, falls in ((200, False), (200, True)):
        monkeypatch.setattr(kernel_choice, "_FEW_ROWS", few)
        monkeypatch.setattr(kernel_choice, "_with_all", lambda gains, n_rows, falls=falls: -1.0 if falls else 1.0)
        learnt = learn_kernel(x, y, rng=np.random.default_rng(0))
        assert learnt.tried is not None
        assert (FAMILIES[learnt.family] == FAMILIES[0]) == falls
        assert learnt.tried.chosen["rows"] == len(x)
