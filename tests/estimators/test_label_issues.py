"""Planted errors of labels are found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.label_tree.small import small_classifier

from extremegp import MultiClassGPClassifier
from extremegp.errors import DataError, SettingsError
from extremegp.prediction.label_issues import LabelPairs, NoiseRates

COLOURS, THINGS = ("red", "green", "blue", "grey"), ("apple", "car", "house")
TEXTS = [f"{a} {b} number{i}" for i in range(12) for a in COLOURS for b in THINGS]
LABELS = [text.split()[:2] for text in TEXTS]


@pytest.fixture(scope="module")
def model() -> Any:
    labels = [[*own] for own in LABELS]
    labels[5] = ["green"]  # of "green house number0", "house" is missing
    labels[40] = [*labels[40], "blue" if "blue" not in labels[40] else "red"]
    return small_classifier(features="text").fit([*TEXTS, TEXTS[7]], [*labels, []])


def test_planted_errors_come_first(model: Any) -> None:
    issues = model.find_label_issues(kinds=("missing", "wrong"), n=6)
    assert [issue.probability for issue in issues] == sorted((i.probability for i in issues), reverse=True)
    found = {(issue.row, issue.label, issue.kind) for issue in issues}
    assert (5, "house", "missing") in found
    assert any(row == 40 and kind == "wrong" for row, _, kind in found)
    for issue in issues:
        assert issue.recorded == (issue.kind == "wrong")
        assert issue.id == str(issue.row)
        if issue.kind == "missing":
            assert issue.near
            assert all(issue.label in (*LABELS, [])[int(name)] for name in issue.near if int(name) not in (5, 40))


def test_rows_that_are_alike_are_told(model: Any) -> None:
    issues = model.find_label_issues(kinds="duplicate", n=10)
    assert {issue.row for issue in issues} == {7, len(TEXTS)}
    assert {issue.label for issue in issues} == set(LABELS[7])
    by_label = {label: [i.probability for i in issues if i.label == label] for label in LABELS[7]}
    assert all(len(pair) == 2 for pair in by_label.values())


def test_training_rows_are_recognised_by_what_they_are(model: Any) -> None:
    kept = model.find_label_issues(kinds="wrong", n=3, least=0.01)
    rows = [issue.row for issue in kept]
    space = model.classes_
    y = model.model_.rows.indicator()
    labels = [[space[k] for k in y[row].indices] for row in range(y.shape[0])]
    texts = [*TEXTS, TEXTS[7]]
    again = model.find_label_issues(texts, labels, kinds="wrong", n=3, least=0.01)
    assert [issue.row for issue in again] == rows
    (other, *_) = model.find_label_issues(["red car unheard"], [["green", "car"]], n=1)
    assert other.id is None


def test_wrong_classes_are_found() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=(30, 2)) + centre for centre in ((0, 0), (8, 0), (0, 8))]).astype(np.float32)
    y = np.repeat(["a", "b", "c"], 30)
    y[3] = "b"
    classifier = MultiClassGPClassifier(n_inducing=20, random_state=0, verbose=False).fit(x, y)
    first = classifier.find_label_issues(kinds=("wrong", "missing"))[0]
    assert (first.row, first.label, first.suggested, first.kind) == (3, "b", "a", "wrong")


def test_probabilities_follow_bayes_rule() -> None:
    pairs = LabelPairs(np.zeros(2, np.int64), np.arange(2), np.array([0.2, 0.9], np.float32))
    rates, q = NoiseRates(0.1, 0.02), pairs.p.astype(float)
    wrong, applies = 0.02 * (1 - q), (1 - 0.1) * q
    np.testing.assert_allclose(rates.of_recorded(pairs), wrong / (wrong + applies), rtol=1e-6)
    missing, absent = 0.1 * q, 0.98 * (1 - q)
    np.testing.assert_allclose(rates.of_absent(pairs), missing / (missing + absent), rtol=1e-6)


def test_bad_input_is_refused(model: Any) -> None:
    with pytest.raises(DataError, match="both X and Y"):
        model.find_label_issues(TEXTS)
    with pytest.raises(SettingsError, match="kinds"):
        model.find_label_issues(kinds=("odd",))
    with pytest.raises(SettingsError, match="n must"):
        model.find_label_issues(n=0)
    with pytest.raises(SettingsError, match="least"):
        model.find_label_issues(least=2)
    with pytest.raises(DataError, match="rows"):
        model.find_label_issues(TEXTS[:2], LABELS[:1])
