"""Estimators and what they are given as data frames and columns, of texts and of labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.estimators.small import label_lists, small_classifier, small_data

import extremegp
from extremegp import LabelTreeGPClassifier, MultiClassGPClassifier, MultiLabelGPClassifier, SequenceGPClassifier
from extremegp.errors import DataError

X, Y = small_data()
NAMES = [f"label {k}" for k in range(Y.shape[1])]
FRAME = pd.DataFrame(Y, columns=NAMES)
TEXTS = ["red apple", "green apple", "red car", "green car"] * 10
QUICK: dict[str, Any] = {"n_inducing": 4, "epochs": 2, "mean_function": "zero", "verbose": False, "random_state": 0}


@pytest.fixture(scope="module")
def named() -> MultiLabelGPClassifier:
    return small_classifier().fit(X, FRAME)


def _trees(**changes: Any) -> LabelTreeGPClassifier:
    return LabelTreeGPClassifier(leaf_size=2, n_inducing=5, verbose=False, random_state=0, **changes)


def test_the_columns_of_a_data_frame_name_the_labels(named: MultiLabelGPClassifier, tmp_path: Path) -> None:
    assert named.classes_.tolist() == NAMES
    same = small_classifier().fit(X, Y, label_names=NAMES)
    np.testing.assert_array_equal(named.predict(X), same.predict(X))
    named.save(tmp_path / "model")
    assert extremegp.load(tmp_path / "model").classes_.tolist() == NAMES
    assert _trees().fit(X, FRAME).classes_.tolist() == NAMES
    sparse = small_classifier().fit(X, FRAME.astype(pd.SparseDtype(int, 0)))
    assert sparse.classes_.tolist() == NAMES
    np.testing.assert_array_equal(sparse.predict(X).toarray(), named.predict(X))


def test_names_that_are_given_go_before_those_of_the_data_frame() -> None:
    assert small_classifier().fit(X, FRAME, label_names=list("vwxyz")).classes_.tolist() == list("vwxyz")


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        (FRAME[NAMES[::-1]], r"not the labels that training had, in their order.*Y\[classes_\]"),
        (FRAME.rename(columns={"label 3": "other"}), "only one of the two has 'label 3', 'other'"),
        (Y.tolist(), "looks like an indicator matrix written as nested lists"),
        (Y[:, :-1], "has 4 labels, but the model was trained with 5"),
    ],
)
def test_labels_of_other_columns_are_refused(named: MultiLabelGPClassifier, other: Any, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        named.score(X, other)
    for classifier in (small_classifier(), _trees()):
        with pytest.raises(DataError, match=problem):
            classifier.fit(X, FRAME, validation=(X, other))
    if not isinstance(other, np.ndarray):
        with pytest.raises(DataError, match=problem):
            named.predict_proba(X, given=other)


def test_lists_are_scored_as_the_columns_that_they_name(named: MultiLabelGPClassifier) -> None:
    lists = label_lists(Y)
    score = named.score(X, Y)
    assert named.score(X, FRAME) == named.score(X, lists) == named.score(X, pd.Series(lists)) == score
    trained_on_lists = small_classifier().fit(X, pd.Series(lists))
    assert trained_on_lists.score(X, pd.Series(lists)) == trained_on_lists.score(X, lists)
    given = named.predict_proba(X, given=lists)
    np.testing.assert_array_equal(named.predict_proba(X, given=pd.Series(lists)), given)
    np.testing.assert_array_equal(named.predict_proba(X, given=FRAME), given)


def test_validation_is_the_same_in_every_form() -> None:
    every = [
        small_classifier().fit(X, FRAME, validation=(X, held)).history_[-1]["validation_P@1"]
        for held in (Y, FRAME, label_lists(Y), pd.Series(label_lists(Y)))
    ]
    assert len(set(every)) == 1
    lists = label_lists(Y)
    on_lists = [
        small_classifier().fit(X, lists, validation=(X, held)).history_[-1]["validation_P@1"] for held in (lists, Y)
    ]
    assert len(set(on_lists)) == 1


ESTIMATORS = (
    (MultiLabelGPClassifier(**QUICK, features="unit"), [["a"], ["a", "b"]] * 20),
    (MultiClassGPClassifier(**QUICK, features="raw"), ["a", "b"] * 20),
    (_trees(features="unit"), [["a"], ["a", "b"]] * 20),
)


@pytest.mark.parametrize(("classifier", "y"), ESTIMATORS)
def test_texts_without_features_for_them_are_refused_in_training_and_prediction(classifier: Any, y: Any) -> None:
    for texts in (TEXTS, pd.DataFrame({"body": TEXTS})):
        with pytest.raises(DataError, match=r'X holds texts.*features="text"') as refused:
            classifier.fit(texts, y)
        assert "apple" not in str(refused.value)
    classifier.fit(X, y)
    for method in ("predict", "predict_proba", "decision_function", "predict_topk"):
        with pytest.raises(DataError, match=r'X holds texts.*features="text"'):
            getattr(classifier, method)(pd.Series(TEXTS))


@pytest.mark.parametrize(("classifier", "y"), ESTIMATORS)
def test_a_data_frame_of_one_column_of_texts_is_read_as_the_column(classifier: Any, y: Any, tmp_path: Path) -> None:
    frame = pd.DataFrame({"body": TEXTS}, index=range(40, 0, -1))
    classifier.set_params(features="text")
    try:
        expected = classifier.fit(TEXTS, y, validation=(TEXTS, y)).predict_proba(TEXTS)
        classifier.fit(frame, y, validation=(frame.rename(columns={"body": "text"}), y)).save(tmp_path / "model")
        loaded = extremegp.load(tmp_path / "model")
        for texts in (frame, frame["body"], frame.rename(columns={"body": "text"}), TEXTS):
            np.testing.assert_allclose(loaded.predict_proba(texts), expected, atol=1e-6)
        with pytest.raises(DataError, match=r"takes one column of texts.*\(40, 2\).*'body'"):
            loaded.predict(frame.assign(n=1)[["n", "body"]])
    finally:
        classifier.set_params(features=type(classifier)().features)


@pytest.mark.parametrize("values", [pd.Categorical(list("ab") * 20), pd.Series(list("ab") * 20, dtype="category")])
def test_categories_are_classes(values: Any) -> None:
    classifier = MultiClassGPClassifier(**QUICK).fit(X, values)
    assert classifier.classes_.tolist() == ["a", "b"]
    assert classifier.score(X, values) == classifier.score(X, list("ab") * 20)


def test_a_missing_category_is_named() -> None:
    with pytest.raises(DataError, match="NaN or None at row 1"):
        MultiClassGPClassifier(**QUICK).fit(X, pd.Series(["a", None, "b", "a"] * 10, dtype="category"))


def test_sequences_may_be_a_column_of_lists_and_a_data_frame_each() -> None:
    sequences = [[["the"], ["cat"]], [["a"], ["dog"]]] * 4
    tags = [["DT", "NN"]] * 8
    tagger = SequenceGPClassifier(epochs=2, n_random_features=10, verbose=False, random_state=0)
    expected = tagger.fit(sequences, tags).predict_marginals(sequences)
    again = tagger.fit(pd.Series(sequences), pd.Series(tags)).predict_marginals(pd.Series(sequences))
    np.testing.assert_array_equal(again, expected)
    with pytest.raises(DataError, match="not one data frame"):
        tagger.fit(pd.DataFrame({"word": ["the", "cat"]}), tags)
    numbers = [pd.DataFrame({"x": [0.0, 1.0], "y": [1.0, 0.0]})] * 8
    of_frames = tagger.fit(numbers, tags).predict_marginals(numbers)
    np.testing.assert_array_equal(of_frames, tagger.predict_marginals([frame.to_numpy() for frame in numbers]))
