"""What models say of their training rows without them is what they say once they have forgotten them."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from tests.estimators.test_learning_closed import classes, labelled
from tests.label_tree.small import small_classifier, small_data

from extremegp import MultiClassGPClassifier, MultiLabelGPClassifier
from extremegp.errors import DataError, SettingsError
from extremegp.training import landmarks


@pytest.fixture(scope="module")
def many() -> MultiLabelGPClassifier:
    x, y = labelled(400)
    ids = [f"row {i}" for i in range(400)]
    return MultiLabelGPClassifier(n_inducing=60, epochs=20, random_state=0, verbose=False).fit(x, y, ids=ids)


@pytest.fixture(scope="module")
def one() -> MultiClassGPClassifier:
    return MultiClassGPClassifier(n_inducing=50, random_state=0, verbose=False).fit(*classes(200))


def dense(best: Any, n_labels: int) -> np.ndarray:
    p = np.zeros((len(best.labels), n_labels))
    rows, ranks = np.nonzero(best.labels >= 0)
    p[rows, best.labels[rows, ranks]] = best.scores[rows, ranks]
    return p


def forgotten(model: Any, name: str, x: Any) -> np.ndarray:
    return copy.deepcopy(model).forget([name]).predict_proba(x)[0]


def test_a_regression_alone_says_what_it_does_once_the_row_is_forgotten(one: MultiClassGPClassifier) -> None:
    x, y = classes(200)
    # Landmarks that are forgotten change the variance, which goes through them.
    others = [str(name) for name in np.flatnonzero(~np.isin(np.arange(200), one._landmarks))[:6]]
    left_out = one.predict_left_out(others, k=5)
    assert left_out.ids == others
    p = dense(left_out.best, 5)
    for row, name in enumerate(others):
        place = int(name)
        np.testing.assert_allclose(p[row], forgotten(one, name, x[place : place + 1]), atol=2e-3)
        assert one.classes_[left_out.recorded[row].indices[0]] == y[place]
    np.testing.assert_allclose(left_out.probabilities.data, p[np.arange(6), left_out.recorded.indices], atol=1e-6)
    means = one._changes.left_out(np.arange(200), one._held.all()).mean.numpy()
    for name in others:
        other = copy.deepcopy(one).forget([name])
        other._catch_up()
        t = other.model_.latents.mean.regressed
        # To 1e-6 but for the frequencies, which are those of one row less.
        row = one._inputs()[int(name) : int(name) + 1]
        again = t(_tensor(row))[0].detach().numpy()
        changes = other._changes
        rest = 1 - changes.votes(row, other._held.all()).sum()
        moved = rest * (one._changes.frequencies - changes.frequencies)
        np.testing.assert_allclose(means[int(name)], again + moved, atol=1e-5)


def _tensor(x: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(np.asarray(x, np.float32))


def test_landmarks_leave_the_regression_of_a_row_out_exactly(many: MultiLabelGPClassifier) -> None:
    assert many._has_regression()
    held = many._held.all()
    changes = many._working()
    others = np.flatnonzero(~np.isin(np.arange(400), many._landmarks))[:5]
    found = changes.features.left_out(changes.features.of_rows(held.some(others)), _double(changes.frequencies)).numpy()
    for place, row in enumerate(others.tolist()):
        other = copy.deepcopy(many).forget([f"row {row}"])
        features, frequencies = other._working().features, changes.frequencies
        solution = features.ridge.solution().numpy()
        a = features.landmarks.exactly(held.x[row : row + 1]).numpy()
        again = frequencies + (a @ (solution[:, :-1] - np.outer(solution[:, -1], frequencies)))[0]
        np.testing.assert_allclose(found[place], again, atol=1e-6)


def _double(values: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(values)


def log_loss(p: np.ndarray, labels: np.ndarray) -> float:
    return float(-np.log(np.where(labels > 0, p, 1 - p).clip(1e-9)).sum(axis=1).mean())


def test_probabilities_of_rows_left_out_are_honest(many: MultiLabelGPClassifier) -> None:
    """Their log-loss is about that of new rows, and not that of rows that the model has seen; they are calibrated."""
    (x, y), (new, truth) = labelled(400), labelled(400, 1)
    p = dense(many.predict_left_out(k=12).best, 12)
    seen, of_new = log_loss(many.predict_proba(x), y), log_loss(many.predict_proba(new), truth)
    assert seen < of_new - 0.3
    assert abs(log_loss(p, y) - of_new) < 0.5 * (of_new - seen)
    assert abs(p.sum() / y.sum() - 1) < 0.02


def test_functions_alone_say_about_what_those_trained_without_the_row_do(monkeypatch: pytest.MonkeyPatch) -> None:
    choose = landmarks.choose
    monkeypatch.setattr(landmarks, "choose", lambda *data, **how: choose(*data, **how)._replace(with_mean=False))
    x, y = labelled(100)
    settings: dict[str, Any] = {"n_inducing": 40, "epochs": 40, "random_state": 0, "verbose": False}
    model = MultiLabelGPClassifier(**settings).fit(x, y)
    assert not model._has_regression()
    p = dense(model.predict_left_out(k=12).best, 12)
    seen = model.predict_proba(x)
    errors, without = [], []
    for row in (3, 77):
        again = copy.deepcopy(model).forget([str(row)]).refit().predict_proba(x[row])[0]
        errors.append(np.abs(p[row] - again).mean())
        without.append(np.abs(seen[row] - again).mean())
    assert np.mean(errors) < 0.9 * np.mean(without)


def test_label_trees_say_it_without_trees() -> None:
    x, y = small_data(n_rows=200)
    model = small_classifier().fit(x, y)
    left_out = model.predict_left_out(k=24)
    places = [5, 40, 120]
    assert model.predict_left_out(["120", "5"], k=3).ids == ["120", "5"]
    evidence = [*model._left_out_predictor().candidates(np.array(places))]
    for row, place in enumerate(places):
        other = copy.deepcopy(model).forget([str(place)])
        again = other.model_.evidence(model._inputs()[place], of_trees=False)
        mine = evidence[0][1]
        of_row = mine.rows == row
        np.testing.assert_array_equal(mine.labels[of_row], again.labels)
        last = again.values.shape[1] - (model.settings_.n_excluded > 0)
        # Frequencies of other labels are those of one row more.
        np.testing.assert_allclose(mine.values[of_row], again.values[:, 1:last], atol=0.1)
        own = np.isin(mine.labels[of_row], np.flatnonzero(y[place]))
        np.testing.assert_allclose(mine.values[of_row][own], again.values[own, 1:last], atol=1e-4)
    # A label that no other row has is no candidate.
    assert left_out.recorded.nnz == y.sum()
    p = dense(left_out.best, 24)
    of_own = p[np.repeat(np.arange(200), np.diff(left_out.recorded.indptr)), left_out.recorded.indices]
    found = of_own > 0
    np.testing.assert_allclose(left_out.probabilities.data[found], of_own[found], atol=1e-7)
    assert (left_out.probabilities.data[~found] < 0.1).all()


def test_bad_input_is_refused(one: MultiClassGPClassifier) -> None:
    with pytest.raises(DataError, match="'nobody'"):
        one.predict_left_out(["nobody"])
    with pytest.raises(DataError, match="comes twice"):
        one.predict_left_out(["1", "1"])
    with pytest.raises(DataError, match="no row"):
        one.predict_left_out([])
    with pytest.raises(SettingsError, match="k must"):
        one.predict_left_out(k=0)
    x, y = labelled(60)
    by_steps = MultiLabelGPClassifier(latents="gp", n_inducing=5, epochs=1, verbose=False).fit(x, y)
    with pytest.raises(SettingsError, match="trained by steps"):
        by_steps.predict_left_out()
