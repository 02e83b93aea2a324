"""Sample weights and soft labels at the estimators' door."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from tests.estimators.small import small_classifier, small_data
from tests.estimators.small_sequences import small_tagger, sticky
from tests.extension.poisson import Poisson
from tests.label_tree.small import small_classifier as small_tree
from tests.label_tree.small import small_data as tree_data

import extremegp
from extremegp import MultiClassGPClassifier
from extremegp.errors import DataError, ExtremeGPError, ModelFormatError
from extremegp.training import NoReporter, TrainingInterrupted, TrainingSettings, World
from extremegp.training.shards import Shards
from extremegp.training.steps import Steps


def class_data() -> tuple[np.ndarray, np.ndarray]:
    x, y = small_data()
    return x, np.array(["a", "b", "c"])[(2 * y[:, 0] + y[:, 1]) % 3]


def small_classes(**changes: Any) -> MultiClassGPClassifier:
    small = {"mean_function": "zero", "n_inducing": 5, "epochs": 3, "batch_size": 16, "verbose": False}
    return MultiClassGPClassifier(**{**small, "random_state": 0, **changes})


def probabilities() -> np.ndarray:
    x, _ = small_data()
    scores = np.exp(3 * x[:, :3])
    return scores / scores.sum(1, keepdims=True)


Data = tuple[Any, Any]
KINDS: dict[str, tuple[Callable[..., Any], Callable[[], Data]]] = {
    "labels": (small_classifier, small_data),
    "labels beside a regression": (lambda **k: small_classifier(mean_function="regression", **k), small_data),
    "names": (small_classifier, lambda: (small_data()[0], [["a", "b"], ["b"], ["c"], []] * 10)),
    "texts": (
        lambda **k: small_classifier(features="text", **k),
        lambda: ([f"red {i} apple" if i % 3 else f"car {i}" for i in range(40)], small_data()[1]),
    ),
    "scaled frames": (
        lambda **k: small_classes(features="standard", **k),
        lambda: (pd.DataFrame(small_data()[0], columns=[*"abcdef"]), pd.Series(class_data()[1])),
    ),
    "classes": (small_classes, class_data),
    "soft classes": (small_classes, lambda: (small_data()[0], probabilities())),
    "sequences": (small_tagger, sticky),
    "trees": (small_tree, tree_data),
}


def n_units(y: Any) -> int:
    return len(y)


def state(estimator: Any) -> dict[str, torch.Tensor]:
    return estimator.model_.state_dict()


def assert_same(a: Any, b: Any) -> None:
    assert state(a).keys() == state(b).keys()
    for name, tensor in state(a).items():
        assert torch.equal(tensor, state(b)[name]), name
    np.testing.assert_array_equal(a.label_counts_, b.label_counts_)
    assert a.n_rows_ == b.n_rows_


def some(data: Any, kept: np.ndarray) -> Any:
    if isinstance(data, list):
        return [data[i] for i in kept]
    return data.iloc[kept] if hasattr(data, "iloc") else data[kept]


@pytest.mark.parametrize("name", KINDS)
def test_rows_of_weight_one_count_as_always_and_those_of_weight_zero_are_not_there(name: str):
    make, data = KINDS[name]
    x, y = data()
    n = n_units(y)
    assert_same(make().fit(x, y, sample_weight=np.ones(n)), make().fit(x, y))
    weights = np.where(np.arange(n) % 5 == 3, 0.0, 1.0)
    kept = np.flatnonzero(weights)
    assert_same(make().fit(x, y, sample_weight=weights.tolist()), make().fit(some(x, kept), some(y, kept)))
    weights[kept] = 0.5 + np.arange(len(kept)) % 3
    fewer = make().fit(some(x, kept), some(y, kept), weights[kept])
    assert_same(make().fit(x, y, weights), fewer)
    weighted, plain = state(fewer), state(make().fit(some(x, kept), some(y, kept)))
    moved = [key for key in plain if not torch.equal(weighted[key], plain[key])]
    assert moved


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(
    ("weights", "problem"),
    [
        (lambda n: np.ones(n - 1), "sample_weight must be .* numbers, one for each"),
        (lambda n: np.ones((n, 1)), "its shape is"),
        (lambda n: np.where(np.arange(n) == 2, np.nan, 1), "finite and not negative, but is nan at .* 2"),
        (lambda n: -np.arange(n), "but is -1 at .* 1"),
        (lambda n: np.zeros(n), "zero for every"),
    ],
)
def test_what_are_no_weights_is_refused(name: str, weights: Callable[[int], Any], problem: str):
    make, data = KINDS[name]
    x, y = data()
    with pytest.raises(DataError, match=problem):
        make().fit(x, y, weights(n_units(y)))


def test_weights_and_rows_that_do_not_fit_are_refused():
    x, y = small_data()
    with pytest.raises(DataError, match="X has 39 rows and y has 40"):
        small_classifier().fit(x[1:], y, np.arange(40))


def test_a_class_that_only_rows_of_weight_zero_have_is_none():
    x, y = class_data()
    found = small_classes().fit(x, y, (y != "c").astype(float))
    assert found.classes_.tolist() == ["a", "b"]
    with pytest.raises(DataError, match="only one class"):
        small_classes().fit(x, y, (y == "c").astype(float))


def always_the_same(y: Any) -> Any:
    """Targets of one label, the rarest, in the form of others."""
    if isinstance(y, list):
        return [["label 0"] * len(labels) for labels in y]
    if y.ndim == 1:
        names, counts = np.unique(y, return_counts=True)
        return np.full_like(y, names[counts.argmin()])
    return np.tile((np.arange(y.shape[1]) == y.sum(0).argmin()).astype(y.dtype), (len(y), 1))


@pytest.mark.parametrize("name", ["labels", "classes", "sequences", "trees"])
def test_of_rows_that_contradict_each_other_those_that_weigh_more_are_followed(name: str):
    make, data = KINDS[name]
    x, y = data()
    same, n = always_the_same(y), n_units(y)
    twice = (
        scipy.sparse.vstack([x, x]).tocsr()
        if name == "trees"
        else [*x, *x]
        if name == "sequences"
        else np.tile(x, (2, 1))
    )
    both = [*y, *same] if name == "sequences" else np.concatenate([y, same])
    options = {} if name == "trees" else {"epochs": 60}
    scores = []
    for weights in ([20.0, 0.05], [0.05, 20.0]):
        scores.append(make(**options).fit(twice, both, np.repeat(weights, n)).score(x, same))
    assert scores[0] < 0.8
    assert scores[1] > 0.9


def test_scores_are_weighted():
    for make, data in (KINDS["labels"], KINDS["classes"], KINDS["trees"]):
        x, y = data()
        fitted, weights = make().fit(x, y), np.arange(float(n_units(y)))
        right = np.array([fitted.score(some(x, np.array([i])), some(y, np.array([i]))) for i in range(n_units(y))])
        assert fitted.score(x, y, weights) == pytest.approx(np.average(right, weights=weights))
        with pytest.raises(DataError, match="sample_weight"):
            fitted.score(x, y, weights[1:])
    x, y = sticky()
    fitted = small_tagger().fit(x, y)
    weights = np.eye(len(y))[3]
    assert fitted.score(x, y, weights) == pytest.approx(fitted.score(x[3:4], y[3:4]))


@pytest.mark.parametrize("name", ["labels", "soft classes", "sequences"])
def test_validation_is_weighted(name: str):
    make, data = KINDS[name]
    x, y = data()
    n = n_units(y)
    history = []
    for seed in range(2):
        weights = np.random.default_rng(seed).random(n)
        history.append(make(validation_fraction=0.4).fit(x, y, weights).history_[0])
    (score,) = [key for key in history[0] if key.startswith("validation")]
    assert history[0][score] != history[1][score]


def test_of_soft_labels_scores_are_expected_ones():
    x, y = small_data()
    soft = 0.1 + 0.7 * y
    fitted = small_classifier().fit(x, soft)
    best = fitted.predict_topk(x, 1).labels[:, 0]
    assert fitted.score(x, soft) == pytest.approx(soft[np.arange(40), best].mean(), rel=1e-6)
    with pytest.raises(DataError, match="soft labels mean nothing here"):
        fitted.encode_labels(soft)
    given = max(record["validation_P@1"] for record in fitted.fit(x, y, validation=(x, soft)).history_)
    means = fitted.predict_topk(x, 1, by="utility").labels[:, 0]
    assert given == pytest.approx(soft[np.arange(40), means].mean(), rel=1e-6)


def test_soft_classes_are_scored_and_named():
    x, p = small_data()[0], probabilities()
    frame = pd.DataFrame(p, columns=["z", "y", "x"])
    fitted = small_classes().fit(x, frame, validation=(x, frame))
    assert fitted.classes_.tolist() == ["x", "y", "z"]
    own = p[:, ::-1]
    best = fitted.predict_topk(x, 1).labels[:, 0]
    assert fitted.score(x, frame) == pytest.approx(own[np.arange(40), best].mean(), rel=1e-6)
    np.testing.assert_array_equal(fitted.label_counts_, np.rint(own.sum(0)))
    assert set(fitted.predict(x)) <= {"x", "y", "z"}


def test_certain_soft_classes_are_classes():
    x, y = small_data()[0], np.arange(40) % 3
    assert_same(small_classes().fit(x, np.eye(3)[y]), small_classes().fit(x, y))


def test_soft_labels_are_learnt():
    x, _ = small_data()
    teacher = np.stack([0.9 * (x[:, 0] > 0) + 0.05, np.full(40, 0.3)], axis=1)
    found = small_classifier(epochs=150, n_inducing=30).fit(x, teacher).predict_proba(x)
    assert np.abs(found[:, 1] - 0.3).max() < 0.1
    assert np.corrcoef(found[:, 0], teacher[:, 0])[0, 1] > 0.8
    sampled = small_classifier(n_sampled_labels=1, label_sampling="hard", propensity="auto").fit(x, teacher)
    assert np.isfinite(sampled.predict_proba(x)).all()
    np.testing.assert_array_equal(sampled.label_counts_, np.rint(teacher.sum(0)))


def test_labels_known_beside_soft_training_labels_move_the_others():
    x, y = small_data()
    fitted = small_classifier().fit(x, 0.05 + 0.9 * y, np.linspace(0.5, 2, 40))
    assert fitted.instance_noise_ is not None
    given = np.zeros((40, y.shape[1]))
    given[:, 0] = 1
    assert not np.array_equal(fitted.predict_proba(x, given=given)[:, 1:], fitted.predict_proba(x)[:, 1:])


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "trees of soft labels": (
        lambda: small_tree().fit(tree_data()[0], 0.5 * tree_data()[1]),
        "only 0 and 1, but has 0.5 .*soft labels mean nothing here",
    ),
    "sequences of soft labels": (
        lambda: small_tagger().fit(sticky()[0], [np.full((len(labels), 3), 1 / 3) for labels in sticky()[1]]),
        r"y\[0\] has several numbers for each token.*sample_weight",
    ),
    "sequences of lists of numbers": (
        lambda: small_tagger().fit(sticky()[0], [[[0.5, 0.5]] * len(labels) for labels in sticky()[1]]),
        r"y\[0\] has several numbers for each token",
    ),
    "stored": (
        lambda: small_classes(likelihood="ar-softmax", local="stored").fit(small_data()[0], probabilities()),
        "local='stored' keeps parameters of the one class",
    ),
    "pairs": (
        lambda: small_classes(likelihood="one-vs-each", class_sampling="pair").fit(small_data()[0], probabilities()),
        "class_sampling='pair' takes the rows of one class",
    ),
    "a likelihood without weights": (
        lambda: small_classifier(likelihood=Poisson()).fit(*small_data(), np.arange(40)),
        "Poisson takes no sample_weight.*batch.weights",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_meaning_is_refused_in_one_line(name: str):
    fit, message = REFUSED[name]
    with pytest.raises(ExtremeGPError, match=message) as caught:
        fit()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_weights_of_pairs_and_stored_parameters_count():
    x, y = class_data()
    for options in ({"class_sampling": "pair"}, {"likelihood": "ar-softmax", "local": "stored"}):
        options = {"likelihood": "one-vs-each", **options}
        first, second = (small_classes(**options).fit(x, y, 1 + np.arange(40) % k) for k in (2, 3))
        assert not np.array_equal(first.predict_proba(x), second.predict_proba(x))


def test_a_model_of_weighted_rows_is_saved_and_loaded(tmp_path: Path):
    x, y = tree_data()
    weights = np.linspace(0.1, 3, len(y))
    tree = small_tree().fit(x, y, weights)
    tree.save(tmp_path / "tree")
    loaded = extremegp.load(tmp_path / "tree")
    np.testing.assert_array_equal(loaded.predict_proba(x), tree.predict_proba(x))
    assert "weighted" not in small_tree().fit(x, y).settings_.to_config()


def test_a_checkpoint_of_other_weights_is_not_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    x, y = small_data()
    options = {"checkpoint": str(tmp_path / "run"), "checkpoint_seconds": 0}
    weights = np.linspace(0.5, 2, 40)
    whole = small_classifier().fit(x, y, weights)

    def stop(self: Any, step: int, total_steps: int, elbo: float) -> None:
        if step == 4:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(NoReporter, "step", stop)
        with pytest.raises(TrainingInterrupted):
            small_classifier(**options).fit(x, y, weights)
    with pytest.raises(ModelFormatError, match="other data or settings"):
        small_classifier(**options).fit(x, y, weights[::-1])
    with pytest.raises(ModelFormatError, match="other data or settings"):
        small_classifier(**options).fit(x, y)
    assert_same(small_classifier(**options).fit(x, y, weights), whole)


def steps_of(estimator: Any, x: Any, y: Any, weights: np.ndarray, lengths: Any = None) -> Steps:
    settings = TrainingSettings(epochs=1, batch_size=4, learning_rate=0.1)
    model = estimator.model_.double().requires_grad_(True)
    return Steps(x, y, settings, lengths=lengths, mean_logits=None, weights=weights, shards=Shards(model, World()))


@pytest.mark.parametrize("name", ["labels", "classes", "sequences"])
def test_over_all_batches_of_a_partition_the_mean_is_the_bound_of_all_rows(name: str):
    make, data = KINDS[name]
    x, y = data()
    n = 12 if name == "sequences" else 40
    weights, lengths = np.random.default_rng(0).gamma(1.0, size=n), None
    fitted = make(**({"latents": "linear-point", "transitions": "point"} if name == "sequences" else {})).fit(x, y)
    if name == "sequences":
        x, lengths = fitted.features_.transform(x[:n])
        y = scipy.sparse.csr_matrix(np.eye(3)[np.array([int(label[-1]) for labels in y[:n] for label in labels])])
    else:
        y = scipy.sparse.csr_matrix(y if y.ndim == 2 else np.eye(3)[np.unique(y, return_inverse=True)[1]])
    steps = steps_of(fitted, x, y, weights, lengths)
    order = np.random.default_rng(1).permutation(n)

    def bound(units: np.ndarray) -> float:
        return float(steps.gradients(steps.load(units, 0), n_draws=1).bound.detach())

    parts = [bound(units) for units in np.split(order, n // 4)]
    assert np.mean(parts) == pytest.approx(bound(np.arange(n)), rel=1e-6)
    assert np.std(parts) > 1e-2


def test_weights_change_nothing_of_a_regression_but_its_own_weighing():
    """A scale of all weights leaves the mean function as it is."""
    x, y = small_data()
    make = KINDS["labels beside a regression"][0]
    means = [make(epochs=1).fit(x, y, np.full(40, scale)).model_.mean_function for scale in (1.0, 8.0)]
    torch.testing.assert_close(means[0].coefficients, means[1].coefficients, rtol=1e-2, atol=1e-2)
