"""Sets of labels of estimators: chosen, thresholded, left to people."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from tests.label_tree.small import small_classifier, small_data

from extremegp import MultiLabelGPClassifier
from extremegp.errors import DataError, SettingsError
from extremegp.estimators.decisions import best_thresholds
from extremegp.prediction.decisions import Candidates


@pytest.fixture(scope="module")
def trees() -> Any:
    return small_classifier().fit(*small_data(n_rows=300))


@pytest.fixture(scope="module")
def factor() -> Any:
    x, y = small_data(n_rows=200)
    names = [[f"label {k}" for k in np.flatnonzero(row)] for row in y]
    return MultiLabelGPClassifier(latents="regression", n_inducing=50, random_state=0, verbose=False).fit(x, names)


def example_f1(found: np.ndarray, truth: np.ndarray) -> float:
    both = found.sum(axis=1) + truth.sum(axis=1)
    return float(np.where(both > 0, 2 * (found * truth).sum(axis=1) / np.maximum(both, 1), 1).mean())


@pytest.mark.parametrize("kind", ["trees", "factor"])
def test_sets_are_in_the_form_of_predictions(kind: str, request: pytest.FixtureRequest):
    model, (x, _) = request.getfixturevalue(kind), small_data(3, 30)
    for by in ("f1", "cost", "size", "threshold"):
        found = model.decide(x, by, size=3)
        assert type(found.labels) is type(model.predict(x))
        assert (found.expected_f1 >= 0).all()
        assert (found.expected_f1 <= 1 + 1e-9).all()
        assert not found.abstained.any()
    half = model.decide(x, "threshold").labels
    expected = model.predict(x)
    assert half == expected if isinstance(expected, list) else np.array_equal(half, expected)
    same = model.decide(x, "cost", cost_wrong=2, cost_missed=2).labels
    assert same == expected if isinstance(expected, list) else np.array_equal(same, expected)


def test_the_best_sets_have_more_f1_than_a_threshold(trees: Any):
    x, y = small_data(3, 400)
    best, half = trees.decide(x), trees.decide(x, "threshold")
    assert (best.expected_f1 >= half.expected_f1 - 1e-9).all()
    assert example_f1(best.labels, y) > example_f1(half.labels, y)
    # They are about as good as they are expected to be.
    assert abs(example_f1(best.labels, y) - best.expected_f1.mean()) < 0.06


def test_rows_are_left_to_people(trees: Any):
    x, y = small_data(3, 300)
    everything, sure = trees.decide(x), trees.decide(x, least_f1=0.6)
    np.testing.assert_array_equal(sure.abstained, everything.expected_f1 < 0.6)
    assert 0 < sure.abstained.sum() < 300
    assert not sure.labels[sure.abstained].any()
    kept = ~sure.abstained
    np.testing.assert_array_equal(sure.labels[kept], everything.labels[kept])
    assert example_f1(sure.labels[kept], y[kept]) > example_f1(everything.labels, y)
    np.testing.assert_array_equal(trees.decide(x, least_novelty=0.3).abstained, trees.predict_novelty(x) < 0.3)


def test_thresholds_are_the_best_of_labelled_rows(trees: Any):
    x, y = small_data(5, 400)
    counts = {}
    for per in ("all", "band", "label"):
        thresholds = trees.best_thresholds(x, y, per)
        assert thresholds.shape == (y.shape[1],)
        counts[per] = len(np.unique(thresholds))
        found = trees.decide(x, "threshold", threshold=thresholds).labels
        assert example_f1(found, y) > example_f1(trees.decide(x, "threshold").labels, y) - 0.02
    assert counts["all"] == 1 < counts["band"] <= 5 < counts["label"]


def test_thresholds_of_known_probabilities():
    rng = np.random.default_rng(0)
    p = np.stack([rng.random(4000), rng.random(4000) * 0.2], axis=1)
    y = scipy.sparse.csr_matrix((rng.random((4000, 2)) < p).astype(np.float32))
    order = np.argsort(-p, axis=1)
    blocks = [(slice(0, 4000), Candidates(order, np.take_along_axis(p, order, axis=1), np.zeros(4000)))]
    found = best_thresholds(iter(blocks), y, np.array([4000, 3000]), "label")
    for label, threshold in enumerate(found):

        def of(cut: float, label: int = label) -> float:
            taken, truth = p[:, label] >= cut, np.asarray(y[:, [label]].todense()).ravel()
            return 2 * (taken * truth).sum() / (taken.sum() + truth.sum())

        assert of(threshold) >= max(of(cut) for cut in np.linspace(0.01, 0.9, 90)) - 0.003


@pytest.mark.parametrize(
    "wrong",
    [{"by": "best"}, {"size": 0}, {"threshold": 0}, {"threshold": [0.5, 0.5]}, {"cost_wrong": 0}, {"cost_missed": -1},
     {"least_f1": 2}, {"least_novelty": -0.1}],
)  # fmt: skip
def test_bad_arguments_are_refused(trees: Any, wrong: dict[str, Any]):
    with pytest.raises(SettingsError):
        trees.decide(small_data(3, 5)[0], **wrong)
    with pytest.raises(SettingsError):
        trees.best_thresholds(*small_data(3, 5), "row")  # type: ignore[arg-type]


def test_thresholds_can_be_those_of_the_training_rows_left_out(trees: Any, factor: Any):
    x, y = small_data(3, 300)
    for model in (trees, factor):
        found = model.decide(x, "threshold", threshold=model.best_thresholds(per="all")).labels
        plain = model.decide(x, "threshold").labels
        if isinstance(found, list):
            names = model.classes_.tolist()
            found, plain = (np.array([[name in row for name in names] for row in rows]) for rows in (found, plain))
        columns = [int(str(name).split()[-1]) for name in model.classes_]
        assert example_f1(found, y[:, columns]) > example_f1(plain, y[:, columns])
        assert len(np.unique(model.best_thresholds(per="band"))) <= 5
    with pytest.raises(DataError, match="both X and Y"):
        trees.best_thresholds(x)


def test_other_labels_of_a_row_go_with_those_that_are_found(trees: Any, monkeypatch: pytest.MonkeyPatch):
    x, _ = small_data(3, 200)
    n_labels = trees.settings_.n_labels
    monkeypatch.setattr(trees.model_, "background", torch.tensor(0.02))
    parts = [part for _, part in trees.predictor().likeliest(x, 3)]
    others = np.concatenate([part.others for part in parts])
    found = np.concatenate([part.probabilities.sum(axis=1) for part in parts])
    left = 0.02 * (n_labels - np.concatenate([(part.labels >= 0).sum(axis=1) for part in parts]))
    mean = trees.label_counts_.sum() / trees.n_rows_
    # In proportion to what is found, and where that is as much as a row has on average, what the background says.
    np.testing.assert_allclose(others, left * found / (mean - left), rtol=1e-5)
    assert (mean > 2 * left).all()
    assert others.std() > 0
