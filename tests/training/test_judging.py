"""A regression with a noise of its own, which judges the labels of its rows."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch
from sklearn.metrics import average_precision_score

from extremegp import MultiLabelGPClassifier
from extremegp.training.exact_changes import LandmarkChanges
from extremegp.training.judging import JudgingRegression, planted


@pytest.fixture(scope="module")
def noisy():
    """A model of rows with planted errors, and where these are."""
    rng = np.random.default_rng(0)
    x = scipy.sparse.random(500, 500, 0.02, format="csr", dtype=np.float32, random_state=1)
    x.data[:] = 1
    truth = np.zeros((500, 9), np.bool_)
    for row in range(500):
        truth[row, x[row].indices[:3] % 9] = True
    recorded, errors = planted(truth, rng)
    weights = rng.integers(1, 3, 500)
    model = MultiLabelGPClassifier(n_inducing=500, epochs=5, random_state=0, verbose=False)
    return model.fit(x, scipy.sparse.csr_matrix(recorded, dtype=np.float32), sample_weight=weights), errors


def test_rows_are_left_out_as_by_a_regression_without_them(noisy):
    model, _ = noisy
    changes, rows = model._working(), model._held.all()
    assert isinstance(changes, LandmarkChanges)
    mu = changes.frequencies
    judging = JudgingRegression(changes.features, rows, torch.from_numpy(mu))
    a, y, w = changes.features.landmarks.exactly(rows.x).numpy(), rows.y.toarray(), rows.weights
    found = judging.left_out(rows.some(np.arange(20))).numpy()
    for row in range(20):
        others = np.arange(500) != row
        weighed = a[others] * w[others, None]
        gram = weighed.T @ a[others] + judging.noise * np.eye(a.shape[1])
        by_hand = mu + a[row] @ np.linalg.solve(gram, weighed.T @ (y[others] - mu))
        np.testing.assert_allclose(found[row], by_hand, atol=1e-8)


def test_errors_are_told_better_than_by_the_noise_that_predicts_best(noisy):
    model, errors = noisy
    scores = {}
    for name, blocks in (("predicts", model._left_out_blocks), ("judges", model._judged_blocks)):
        of_recorded, wrong = [], []
        for block in blocks(np.arange(500), 5):
            entries = block.recorded.tocsr()
            at = np.repeat(np.arange(entries.shape[0]), np.diff(entries.indptr))
            of_recorded.append(block.probabilities)
            wrong.append(errors[block.rows][at, entries.indices])
        scores[name] = average_precision_score(np.concatenate(wrong), -np.concatenate(of_recorded))
    assert scores["judges"] > scores["predicts"], scores


def test_as_many_errors_are_taken_away_as_added():
    truth = np.random.default_rng(0).random((100, 10)) < 0.2
    recorded, errors = planted(truth, np.random.default_rng(1))
    assert (truth & errors).sum() == (~truth & errors).sum() == int(0.05 * truth.sum())
    np.testing.assert_array_equal(recorded, truth ^ errors)
    recorded, errors = planted(np.zeros((3, 2), np.bool_), np.random.default_rng(0))
    assert not recorded.any()
    assert not errors.any()
