from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from numpy.typing import NDArray
from tests.label_tree.small import N, small_classifier, small_data
from tests.reference.label_tree import local_regression as reference

from extremegp.label_tree import LabelTreeModel, regression
from extremegp.label_tree.evidence import N_EVIDENCE
from extremegp.label_tree.regression import LocalRegression, Neighbourhoods

M = 12


def rows(seed: int, n_rows: int, n_features: int = 30) -> scipy.sparse.csr_matrix:
    return scipy.sparse.random(n_rows, n_features, 0.3, "csr", np.float32, np.random.default_rng(seed))


def made(precision: float = 0.7, noise: float = 0.3) -> LocalRegression:
    found = LocalRegression(M)
    found.precision.fill_(precision)
    found.noise.fill_(noise)
    return found


@pytest.mark.parametrize("piece", [1, 10**6])
@pytest.mark.parametrize("weighted", [False, True])
def test_weights_and_variance_are_those_of_the_definition(monkeypatch: pytest.MonkeyPatch, piece: int, weighted: bool):
    monkeypatch.setattr(regression, "_ENTRIES", piece)
    rng = np.random.default_rng(0)
    x, z = rows(1, 7), rows(2, 40)
    counts = (0.2 + 3 * rng.random(40) if weighted else np.ones(40)).astype(np.float32)
    nearest = np.stack([rng.permutation(40)[: M + 3] for _ in range(7)]).astype(np.int32)
    sizes = np.array([M + 3, M, 5, 0, 1, M + 1, M - 1])
    found = made().of(Neighbourhoods(x, nearest, sizes, z, counts))
    assert found.weights.shape == (7, M)
    for i in range(7):
        near = nearest[i, : min(sizes[i], M)]
        weights, variance = reference(
            x[i].toarray()[0], z[near].toarray(), precision=0.7, noises=0.3 / counts[near].astype(np.float64)
        )
        np.testing.assert_allclose(found.weights[i, : len(near)], weights, rtol=1e-4, atol=1e-5)
        assert not found.weights[i, len(near) :].any()
        assert found.variance[i] == pytest.approx(variance, abs=1e-5)
    assert found.variance[3] == 1


def test_no_inputs_have_no_weights():
    none = np.zeros((0, M), np.int32)
    found = made().of(Neighbourhoods(rows(1, 0), none, np.zeros(0, np.int64), rows(2, 4), np.ones(4, np.float32)))
    assert (found.weights.shape, found.variance.shape) == ((0, M), (0,))


def test_rows_that_are_all_alike_can_be_solved():
    z = scipy.sparse.csr_matrix(np.ones((30, 3), np.float32))
    nearest = np.arange(M, dtype=np.int32)[None]
    near = Neighbourhoods(z[:1], nearest, np.array([M]), z, np.ones(30, np.float32))
    found = made(noise=regression.LEAST_NOISE).of(near)
    np.testing.assert_allclose(found.weights.sum(), 1, atol=1e-3)
    assert 0 <= found.variance[0] < 1e-3


def test_the_kernel_that_predicts_rows_left_out_is_chosen():
    x, y = small_data()
    x = scipy.sparse.csr_matrix(x / np.sqrt(x.multiply(x).sum(axis=1)).clip(1), dtype=np.float32)
    y, counts = scipy.sparse.csr_matrix(y, dtype=np.float32), np.linspace(0.5, 2, N).astype(np.float32)
    mu = np.asarray(y.mean(axis=0), dtype=np.float32).ravel()
    own = np.arange(0, N, 3)
    order = np.argsort(-(x[own] @ x.T).toarray(), axis=1, kind="stable")
    nearest = np.stack([row[row != i] for row, i in zip(order, own, strict=True)])[:, : M + 1].astype(np.int32)
    sizes = np.full(len(own), M + 1)
    found = LocalRegression(M)
    found.choose(Neighbourhoods(x[own], nearest, sizes, x, counts), own, y, mu)
    dense, labels = x.toarray().astype(np.float64), y.toarray()
    scale = 1 / (np.square(dense).sum(axis=1).mean() - np.square(dense.mean(axis=0)).sum())

    def error(precision: float, noise: float) -> float:
        total = 0.0
        for i, near in zip(own, nearest[:, :M], strict=True):
            weights, _ = reference(dense[i], dense[near], precision=precision, noises=noise / counts[near])
            total += counts[i] * np.square(labels[i] - mu - weights @ (labels[near] - mu)).sum()
        return total

    grid = {(scale * p, s): error(scale * p, s) for p in regression.PRECISIONS for s in regression.NOISES}
    best = min(grid, key=lambda pair: grid[pair])
    assert (float(found.precision), float(found.noise)) == pytest.approx(best, rel=1e-4)


def regressed_evidence(model: LabelTreeModel, x: scipy.sparse.csr_matrix, own: NDArray[np.int64] | None):
    evidence = model.evidence(x, own=own)
    return evidence, np.exp(evidence.values[:, N_EVIDENCE]) - 1e-2, evidence.values[:, N_EVIDENCE + 1]


def test_the_evidence_of_a_training_row_is_that_of_a_model_without_it():
    """And so its labels do not give themselves away."""
    x, y = small_data()
    # On all other rows: those that share a feature, and by what these leave unexplained those that do not.
    model = small_classifier(n_regressed=2 * N).fit(x, y).model_
    assert model.regression is not None
    z = model.rows.inputs()
    own = np.array([4, 50, 149])
    evidence, t, v = regressed_evidence(model, z[own], own)
    mu = model.frequencies()
    for place, row in enumerate(own):
        order = [i for i in range(N) if i != row and z[i].nnz]
        weights, variance = reference(
            z[row].toarray()[0],
            z[order].toarray(),
            precision=float(model.regression.precision),
            noises=np.full(len(order), float(model.regression.noise)),
        )
        of_row = evidence.rows == place
        labels = evidence.labels[of_row]
        expected = mu[labels] + weights @ (y[order][:, labels] - mu[labels])
        np.testing.assert_allclose(t[of_row], np.maximum(expected, 0), atol=2e-4)
        np.testing.assert_allclose(v[of_row], variance, atol=1e-4)


@pytest.mark.parametrize(("n_regressed", "n_pursued"), [(200, 0), (250, 50)])
def test_rows_beyond_the_nearest_200_are_those_that_these_leave_unexplained(n_regressed: int, n_pursued: int):
    settings = small_classifier(n_regressed=n_regressed).fit(*small_data()).settings_
    assert (settings.n_first, settings.n_pursued) == (200, n_pursued)
    assert ("n_pursued" in settings.to_config()) == (n_pursued > 0)


def test_without_a_regression_there_are_six_numbers_of_evidence(tmp_path):
    x, y = small_data()
    classifier = small_classifier(n_regressed=0, all_rows=False).fit(x, y)
    assert classifier.model_.regression is None
    assert classifier.model_.evidence(scipy.sparse.csr_matrix(x)).values.shape[1] == N_EVIDENCE
    assert "n_regressed" not in classifier.settings_.to_config()


@pytest.mark.parametrize("value", [-1, 401, 1.5])
def test_no_more_rows_than_are_looked_for_can_be_regressed_on(value: float):
    with pytest.raises(ValueError, match="n_regressed"):
        small_classifier(n_regressed=value).fit(*small_data())
