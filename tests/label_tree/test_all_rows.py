from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch
from numpy.typing import NDArray
from tests.label_tree.small import D, N, small_classifier, small_data

from extremegp.label_tree import LabelTreeModel, all_rows, training
from extremegp.label_tree.all_rows import AllRowsRegression, directions_of_rows, sums_over_rows
from extremegp.label_tree.columns import ColumnLists
from extremegp.label_tree.evidence import LEAST_REGRESSED
from extremegp.label_tree.evidence_gain import Gain

NOISE = 0.3
Array = NDArray[np.float64]


def rows(seed: int, n_rows: int, n_features: int = 30) -> scipy.sparse.csr_matrix:
    return scipy.sparse.random(n_rows, n_features, 0.3, "csr", np.float32, np.random.default_rng(seed))


def regression(z: scipy.sparse.csr_matrix, n_directions: int = 8) -> AllRowsRegression:
    basis = np.linalg.qr(np.random.default_rng(5).normal(size=(z.shape[1], n_directions)))[0]
    made = AllRowsRegression(z.shape[0], n_directions)
    made.load_state_dict(directions_of_rows(np.asarray(z @ basis, dtype=np.float32)))
    made.noise.fill_(NOISE)
    return made


def solved(
    made: AllRowsRegression, x: scipy.sparse.csr_matrix, own: NDArray[np.int64], z: scipy.sparse.csr_matrix,
    counts: NDArray[np.float32],
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:  # fmt: skip
    parts = list(made.of(x, own, z, ColumnLists.of(z), counts))
    return np.concatenate([part.weights for part in parts]), np.concatenate([part.variance for part in parts])


def exact(
    x: NDArray[np.float64], z: NDArray[np.float64], noises: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float]:
    weights = np.linalg.solve(z @ z.T + np.diag(noises), z @ x)
    return weights, float(x @ x - weights @ z @ x)


@pytest.mark.parametrize("block", [3, 64])
@pytest.mark.parametrize("weighted", [False, True])
def test_with_steps_enough_it_is_the_regression_of_dense_algebra(
    monkeypatch: pytest.MonkeyPatch, block: int, weighted: bool
):
    monkeypatch.setattr(all_rows, "_STEPS", 60)
    monkeypatch.setattr(all_rows, "_BLOCK", block)
    z, x = rows(1, 50), rows(2, 7)
    x = scipy.sparse.csr_matrix(x.multiply((np.arange(7) != 3)[:, None]), dtype=np.float32)
    counts = (0.3 + 2 * np.random.default_rng(4).random(50) if weighted else np.ones(50)).astype(np.float32)
    weights, variance = solved(regression(z), x, np.full(7, -1), z, counts)
    dense, noises = z.toarray().astype(float), NOISE / counts.astype(float)
    for i in range(7):
        expected, v = exact(x[i].toarray()[0].astype(float), dense, noises)
        np.testing.assert_allclose(weights[i], expected, atol=2e-4)
        assert variance[i] == pytest.approx(v, abs=2e-3)
    assert not weights[3].any()
    assert variance[3] == 0


def test_a_training_row_is_left_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(all_rows, "_STEPS", 60)
    z, counts = rows(1, 50), np.linspace(0.5, 2, 50).astype(np.float32)
    own = np.array([4, 0, 49])
    weights, variance = solved(regression(z), z[own], own, z, counts)
    dense, noises = z.toarray().astype(float), NOISE / counts.astype(float)
    for i, row in enumerate(own):
        others = np.arange(50) != row
        expected, v = exact(dense[row], dense[others], noises[others])
        np.testing.assert_allclose(weights[i, others], expected, atol=2e-4)
        assert weights[i, row] == 0
        assert variance[i] == pytest.approx(v, abs=2e-3)


def test_few_steps_do_where_the_directions_are_those_of_the_rows():
    z = rows(1, 50, 8)
    x = rows(2, 7, 8)
    weights, _ = solved(regression(z), x, np.full(7, -1), z, np.ones(50, np.float32))
    for i in range(7):
        expected, _ = exact(x[i].toarray()[0].astype(float), z.toarray().astype(float), np.full(50, NOISE))
        np.testing.assert_allclose(weights[i], expected, atol=1e-4)


@pytest.mark.parametrize("lanes", [1, 3])
def test_sums_over_rows_are_those_of_all_rows(lanes: int):
    rng = np.random.default_rng(0)
    y, weights = rng.random((40, 9)) < 0.3, rng.normal(size=(5, 40)).astype(np.float32)
    stored, mu = scipy.sparse.csr_matrix(y), rng.random(9).astype(np.float32)
    ends, labels = np.array([0, 2, 2, 5, 6, 9]), rng.integers(0, 9, 9).astype(np.int32)
    found = np.zeros(9, np.float32)
    sums_over_rows(5, weights, stored.indptr, stored.indices, mu, ends, labels, found, lanes=lanes)
    expected = mu + weights @ (y - mu)
    np.testing.assert_allclose(found, expected[np.repeat(np.arange(5), np.diff(ends)), labels], atol=0.02)


def test_the_evidence_has_what_it_says(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(all_rows, "_STEPS", 80)
    x, y = small_data()
    model: LabelTreeModel = small_classifier(all_rows=True, features="unit").fit(x, y).model_
    assert model.all_rows is not None
    inputs, labels = model.rows.inputs(), scipy.sparse.csr_matrix(y).toarray()
    own = np.array([5, -1])
    evidence = model.evidence(inputs[[5, 9]], own=own)
    dense, mu, noise = inputs.toarray().astype(float), model.frequencies(), float(model.all_rows.noise)
    for i, (row, others) in enumerate(((5, np.arange(N) != 5), (9, np.ones(N, bool)))):
        weights, variance = exact(dense[row], dense[others], np.full(others.sum(), noise))
        said = mu + weights @ (labels[others] - mu)
        pairs = evidence.rows == i
        found = evidence.values[pairs][:, model.settings.of_all_rows]
        expected = np.log(np.maximum(said[evidence.labels[pairs]], 0) + LEAST_REGRESSED)
        np.testing.assert_allclose(np.exp(found[:, 0]), np.exp(expected), atol=0.01)
        np.testing.assert_allclose(found[:, 1], variance, atol=2e-3)


def test_a_model_that_does_without_it_is_one_that_never_had_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(training, "gain_of_all_rows", lambda *_: Gain(0.1, 0.06))
    tried = small_classifier().fit(*small_data()).model_
    never = small_classifier(all_rows=False).fit(*small_data()).model_
    assert tried.settings == never.settings
    for (name, mine), (other, expected) in zip(tried.state_dict().items(), never.state_dict().items(), strict=True):
        assert name == other
        assert torch.equal(mine, expected), name


@pytest.mark.parametrize(("limit", "value"), [("MOST_ROWS", N - 1), ("MOST_FEATURES", D - 1), ("MOST_ENTRIES", 10)])
def test_it_is_not_tried_on_many_rows(monkeypatch: pytest.MonkeyPatch, limit: str, value: int):
    monkeypatch.setattr(training, limit, value)
    monkeypatch.setattr(training, "gain_of_all_rows", lambda *_: pytest.fail("it was tried"))
    assert small_classifier().fit(*small_data()).settings_.n_directions == 0
    assert small_classifier(all_rows=True).fit(*small_data()).settings_.n_directions > 0
