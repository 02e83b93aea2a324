"""Sums of kernels over blocks of the features, against sums of dense kernels."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse
import torch
from scipy.special import logit
from tests.models import fit_regression, random_inputs, randomise, sparse_rows

from extremegp.engine.block_shares import block_factors
from extremegp.engine.blocks import Block
from extremegp.engine.kernels import Kernel
from extremegp.engine.latents import SumLatents
from extremegp.engine.lengthscales import learn_lengthscales
from extremegp.engine.mean import RegressionMean
from extremegp.engine.part import TrainingData
from extremegp.engine.sparse import SparseRows
from extremegp.errors import SettingsError
from extremegp.settings.model import ModelSettings

BLOCKS = (Block(4, dense=False, unit=True), Block(3, dense=True), Block(2, dense=False))
RANGES = (slice(0, 4), slice(4, 7), slice(7, 9))
D, N, K, M = 9, 30, 4, 5


def settings(**changes: object) -> ModelSettings:
    values = {"n_features": D, "n_labels": K, "n_latent": 3, "n_inducing": M, "kernel": "ard", "blocks": BLOCKS}
    return ModelSettings(**{**values, **changes}).checked()  # type: ignore[arg-type]


def data() -> tuple[np.ndarray, np.ndarray]:
    x = random_inputs(N, D, density=0.7, seed=3).astype(np.float32)
    x[:, 4:7] = np.random.default_rng(5).normal(size=(N, 3))
    y = (x @ np.random.default_rng(4).normal(size=(D, K)) > 0.3).astype(np.float32)
    return x, y


def csr(matrix: np.ndarray) -> scipy.sparse.csr_matrix:
    return scipy.sparse.csr_matrix(matrix.astype(np.float32))


def se(a: np.ndarray, b: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return np.exp(-0.5 * ((a[:, None] - b[None]) ** 2 * weights).sum(-1))


def terms(kernel: Kernel) -> list[Kernel]:
    return terms(kernel.left) + terms(kernel.right) if hasattr(kernel, "left") else [kernel]


@pytest.mark.parametrize("form", ["sparse", "dense"])
@pytest.mark.parametrize(("inducing", "support_size"), [("free", 0), ("sparse", 2), ("subspace", 0)])
def test_a_kernel_of_blocks_is_the_weighted_sum_of_their_kernels(form: str, inducing: str, support_size: int) -> None:
    n_subspace = 4 if inducing == "subspace" else 0
    gp = settings(inducing=inducing, support_size=support_size, n_subspace=n_subspace).build_latents().double()
    x, y = data()
    torch.manual_seed(0)
    gp.inducing.start(TrainingData(csr(x), csr(y), np.random.default_rng(0)))
    randomise(gp.kernel)
    z = gp.inducing().detach().numpy()
    expected, own, diagonal = np.zeros((N, M)), np.zeros((M, M)), 0.0
    for term, columns in zip(terms(gp.kernel), RANGES, strict=True):
        weights = term.kernel.log_weights.exp().detach().numpy()
        variance = float((term.log_variance + term.kernel.log_variance).detach().exp())
        assert len(weights) == columns.stop - columns.start
        expected += variance * se(x[:, columns].astype(float), z[:, columns], weights)
        own += variance * se(z[:, columns], z[:, columns], weights)
        diagonal += variance
    rows = sparse_rows(x.astype(np.float64)) if form == "sparse" else torch.from_numpy(x).double()
    with torch.no_grad():
        at = gp.kernel.at(gp.inducing.points())
        cross, variances = at(rows)
        np.testing.assert_allclose(cross, expected, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(at.gram(), own, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(variances, diagonal, rtol=1e-9)


def test_latents_start_at_the_scale_of_every_block_and_keep_unit_norm_where_a_block_has_it() -> None:
    x, y = data()
    x[:, :4] += 0.1
    x[:, :4] /= np.linalg.norm(x[:, :4], axis=1, keepdims=True)
    x[:, 4:7] *= 1000
    model = settings().build()
    model.start(TrainingData(csr(x), csr(y), np.random.default_rng(0)))
    kernel, z = model.latents.kernel, model.latents.inducing().detach().numpy()
    for term, columns in zip(terms(kernel), RANGES, strict=True):
        part = x[:, columns].astype(float)
        weights = term.kernel.log_weights.exp().detach().numpy()
        distances = ((part[:, None] - part[None]) ** 2 * weights).sum(-1)
        np.testing.assert_allclose(distances.mean(), 2, rtol=1e-4)
    np.testing.assert_allclose(np.linalg.norm(z[:, :4], axis=1), 1, rtol=1e-5)
    assert np.linalg.norm(z[:, 4:7], axis=1).min() > 50


@pytest.mark.parametrize("latents", ["linear", "linear-mean-field"])
def test_linear_functions_of_blocks_are_sums_with_a_variance_each(latents: str) -> None:
    functions = settings(latents=latents, kernel="linear").build_latents().double()
    assert isinstance(functions, SumLatents)
    randomise(functions)
    x, _ = data()
    mean = np.concatenate([term.latents.q_mean.detach().numpy() for term in functions.members])
    with torch.no_grad():
        for rows in (sparse_rows(x.astype(np.float64)), torch.from_numpy(x).double()):
            np.testing.assert_allclose(functions.condition().marginals(rows).mean, x @ mean, rtol=1e-5, atol=1e-6)
    assert len({float(term.latents.log_prior_variance.detach()) for term in functions.members}) == 3


def test_a_linear_term_beside_kernels_of_blocks_has_one_for_each() -> None:
    model = settings(linear_term=True).build_latents()
    assert isinstance(model, SumLatents)
    assert len(model.members) == 4


@pytest.mark.parametrize("form", ["sparse", "dense"])
def test_the_regression_of_blocks_is_that_of_the_sum_of_their_kernels_with_each_row_left_out(form: str) -> None:
    x, y = data()
    blocks = BLOCKS if form == "sparse" else tuple(block._replace(dense=True) for block in BLOCKS)
    matrix = csr(x) if form == "sparse" else x
    fitted = fit_regression(matrix, csr(y), rng=np.random.default_rng(0), blocks=blocks)
    learnt = learn_lengthscales(matrix, csr(y), rng=np.random.default_rng(0), blocks=blocks)
    mean, noise, weights = fitted.mean, learnt.noise, np.exp(learnt.log_weights.astype(float))
    np.testing.assert_allclose(mean.shares, learnt.shares)
    np.testing.assert_allclose(learnt.shares.sum(), 1, rtol=1e-6)

    def covariance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        parts = [se(a[:, c].astype(float), b[:, c], weights[c]) for c in RANGES]
        return sum(share * part for share, part in zip(learnt.shares.astype(float), parts, strict=True))

    new, mu = random_inputs(7, D, seed=9), y.mean(0)
    solved = np.linalg.solve(covariance(x, x) + noise * np.eye(N), y - mu)
    expected = logit(np.clip(mu + covariance(new, x) @ solved, 5e-3, 1 - 5e-3))
    with torch.no_grad():
        for rows in (sparse_rows(new, torch.float32), torch.from_numpy(new).float()):
            np.testing.assert_allclose(mean.logits(rows), expected, atol=2e-3)
    for i in (0, 7):
        others = np.arange(N) != i
        k = covariance(x[others], x[others]) + noise * np.eye(N - 1)
        t = mu + covariance(x[i : i + 1], x[others])[0] @ np.linalg.solve(k, y[others] - mu)
        np.testing.assert_allclose(fitted.logits[i], logit(np.clip(t, 5e-3, 1 - 5e-3)), atol=2e-3)


def test_a_regression_keeps_dense_blocks_as_an_array_and_is_restored_with_them() -> None:
    x, y = data()
    mean = fit_regression(csr(x), csr(y), rng=np.random.default_rng(0), blocks=BLOCKS).mean
    assert mean.points.shape == (N, 3)
    assert len(mean.values) == csr(x[:, :4]).nnz + csr(x[:, 7:]).nnz
    again = RegressionMean(N, len(mean.values), D, K, blocks=BLOCKS)
    again.load_state_dict(mean.state_dict())
    new = torch.from_numpy(random_inputs(7, D, seed=9)).float()
    with torch.no_grad():
        torch.testing.assert_close(again.logits(new), mean.logits(new))


def test_shares_follow_the_block_that_says_something() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 8)).astype(np.float32)
    y = csr(x[:, :4] @ rng.normal(size=(4, 3)) > 0)
    blocks = (Block(4, dense=True), Block(4, dense=True))
    learnt = learn_lengthscales(x, y, rng=np.random.default_rng(0), blocks=blocks)
    assert learnt.shares[0] > 2 * learnt.shares[1]
    first, second = block_factors(csr(x), y, blocks, rng=np.random.default_rng(0))
    assert first > 3 * second
    norms = [(x[:, :4] ** 2).sum(1).mean(), (x[:, 4:] ** 2).sum(1).mean()]
    np.testing.assert_allclose(first**2 * norms[0] + second**2 * norms[1], 1, rtol=1e-5)


def test_columns_of_sparse_rows_are_those_of_the_matrix() -> None:
    x = random_inputs(6, D, density=0.4, seed=1)
    x[2] = 0
    rows = sparse_rows(x)
    for columns in RANGES:
        array, kept = (rows.between(columns.start, columns.stop, dense=dense) for dense in (True, False))
        assert isinstance(kept, SparseRows)
        np.testing.assert_array_equal(array, x[:, columns])
        values = kept.values, kept.columns, kept.offsets
        np.testing.assert_array_equal(scipy.sparse.csr_matrix(values, shape=kept.shape).toarray(), x[:, columns])


@pytest.mark.parametrize(
    "changes", [{"n_features": 8}, {"lengthscales_in": "subspace", "inducing": "subspace", "n_subspace": 3}]
)
def test_settings_of_blocks_that_contradict_each_other_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match="blocks"):
        settings(**changes)


def test_settings_with_blocks_are_restored_from_json() -> None:
    config = json.loads(json.dumps(settings().to_config()))
    assert ModelSettings.from_config(config) == settings()
    for wrong in (
        3,
        [[4, False]],
        [[4, 1, False], [5, True, False]],
        [["4", True, True], [5, True, True]],
        [[1, 2, 3, 4]],
    ):
        with pytest.raises(SettingsError):
            ModelSettings.from_config(config | {"blocks": wrong})
