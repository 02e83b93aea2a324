from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.estimators.small import small_classifier, small_data
from tests.estimators.small_sequences import small_tagger, sticky
from tests.label_tree.small import small_classifier as small_trees
from tests.label_tree.small import small_data as tree_data

from extremegp import MultiClassGPClassifier, load
from extremegp.estimators.kept import Kept
from extremegp.prediction import predictor as prediction


def many_labels() -> tuple[Any, Any]:
    x, y = small_data()
    return small_classifier().fit(x, y), x


def one_class() -> tuple[Any, Any]:
    x, y = small_data()
    return MultiClassGPClassifier(n_inducing=5, epochs=2, verbose=False, random_state=0).fit(x, y[:, 0]), x


def sequences() -> tuple[Any, Any]:
    X, y = sticky()
    return small_tagger().fit(X, y), X


def trees() -> tuple[Any, Any]:
    x, y = tree_data()
    return small_trees().fit(x, y), x


ALL = pytest.mark.parametrize("made", [many_labels, one_class, sequences, trees])


def answers(classifier: Any, X: Any) -> list[np.ndarray]:
    if hasattr(classifier, "predict_marginals"):
        return classifier.predict_marginals(X)
    return [classifier.predict_proba(X)]


def assert_answers(classifier: Any, X: Any, expected: list[np.ndarray]) -> None:
    for found, wanted in zip(answers(classifier, X), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.fixture
def conditioned(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The models that predictors were made of."""
    made: list[Any] = []
    init = prediction.Predictor.__init__

    def counted(self: Any, model: Any, *args: Any, **options: Any) -> None:
        made.append(model)
        init(self, model, *args, **options)

    monkeypatch.setattr(prediction.Predictor, "__init__", counted)
    return made


@ALL
def test_a_model_is_conditioned_once_for_all_predictions(made: Callable[[], Any], conditioned: list[Any]):
    classifier, X = made()
    conditioned.clear()
    expected = answers(classifier, X)
    classifier.predict(X)
    assert_answers(classifier, X, expected)
    assert len(conditioned) == 1


@ALL
def test_a_changed_model_is_conditioned_anew(made: Callable[[], Any]):
    """Whatever way its parameters change, predictions are those of an estimator that never predicted before."""
    classifier, X = made()

    def in_place(model: Any) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.9)

    def replaced(model: Any) -> None:
        for module in model.modules():
            for name, parameter in [*module.named_parameters(recurse=False)]:
                setattr(module, name, torch.nn.Parameter(parameter * 0.95, requires_grad=False))

    def loaded(model: Any) -> None:
        model.load_state_dict({name: tensor.clone() for name, tensor in before.items()})

    def elsewhere(model: Any) -> None:
        for parameter in model.parameters():
            parameter.data = parameter.data * 0.9

    model = classifier.model_.combiner if hasattr(classifier.model_, "combiner") else classifier.model_
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    last = first = answers(classifier, X)
    for change in (in_place, replaced, elsewhere, loaded):
        change(model)
        expected = answers(pickle.loads(pickle.dumps(classifier)), X)
        assert not np.array_equal(expected[0], last[0])
        assert_answers(classifier, X, expected)
        last = expected
    assert_answers(classifier, X, first)


@ALL
def test_refitting_copying_and_loading_start_anew(made: Callable[[], Any], conditioned: list[Any], tmp_path: Path):
    classifier, X = made()
    expected = answers(classifier, X)
    classifier.save(tmp_path / "model")
    conditioned.clear()
    for other in (copy.deepcopy(classifier), pickle.loads(pickle.dumps(classifier)), load(tmp_path / "model")):
        assert_answers(other, X, expected)
    assert len({id(model) for model in conditioned}) == len(conditioned) == 3
    again, _ = made()
    classifier.model_, classifier.instance_noise_ = again.model_, again.instance_noise_
    assert_answers(classifier, X, expected)
    assert conditioned[-1] in (again.model_, getattr(again.model_, "combiner", None))


def test_another_number_of_draws_counts_at_once():
    classifier, X = sequences()
    few = answers(classifier, X)
    many = answers(classifier.set_params(n_draws=64), X)
    assert not np.array_equal(few[0], many[0])
    assert_answers(classifier.set_params(n_draws=4), X, few)


def test_what_known_labels_do_to_the_variance_conditions_nothing_anew(conditioned: list[Any]):
    classifier, x = many_labels()
    conditioned.clear()
    given = np.zeros((len(x), 5))
    given[:, 0] = 1
    reduced, left = (classifier.predict_proba(x, given=given, given_variance=name) for name in ("laplace", "map"))
    assert np.abs(reduced - left).max() > 0
    np.testing.assert_array_equal(classifier.predict_proba(x, given=given), reduced)
    assert len(conditioned) == 1


def test_threads_that_ask_at_once_wait_for_the_one_that_makes_it():
    made, begun, go_on = [], threading.Event(), threading.Event()
    kept, model = Kept(), torch.nn.Linear(2, 2)

    def make() -> object:
        begun.set()
        assert go_on.wait(10)
        made.append(object())
        return made[-1]

    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(kept.get, "thing", make, model) for _ in range(4)]
        assert begun.wait(10)
        go_on.set()
        found = {id(each.result()) for each in asked}
    assert (len(made), len(found)) == (1, 1)


def test_a_model_made_in_inference_mode_is_kept_too():
    with torch.inference_mode():
        model = torch.nn.Linear(2, 2)
    kept = Kept()
    assert kept.get("thing", object, model) is kept.get("thing", object, model)


def test_a_model_that_failed_to_condition_is_tried_again():
    kept, model = Kept(), torch.nn.Linear(2, 2)
    with pytest.raises(ZeroDivisionError):
        kept.get("thing", lambda: 1 // 0, model)
    assert kept.get("thing", lambda: 3, model) == 3
