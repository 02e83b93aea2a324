"""Guarantees of estimators: kept on other rows, of names that nobody has seen, saved, read and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.estimators.small_sequences import small_tagger, sticky
from tests.label_tree.small import small_classifier, small_data

from extremegp import MultiClassGPClassifier, MultiLabelGPClassifier
from extremegp.errors import DataError, SettingsError
from extremegp.estimators.guarantees import Guarantee


@pytest.fixture(scope="module")
def trees() -> Any:
    return small_classifier().fit(*small_data(n_rows=300))


def named(y: np.ndarray) -> list[list[str]]:
    return [[f"label {k}" for k in np.flatnonzero(row)] for row in y]


def recall(found: np.ndarray, truth: np.ndarray) -> float:
    n = truth.sum(axis=1)
    return float(((found * truth).sum(axis=1) / np.maximum(n, 1))[n > 0].mean())


def test_recall_is_as_promised_and_sets_grow_with_it(trees: Any):
    x, y = small_data(7, 1200)
    sizes = []
    for level in (0.5, 0.7, 0.85):
        promise = trees.guarantee(x[:600], y[:600], "recall", level)
        found = trees.decide(x[600:], promise)
        assert not found.abstained.any()
        assert abs(recall(found.labels, y[600:]) - level) < 0.05
        sizes.append(found.labels.sum())
    assert sizes[0] < sizes[1] < sizes[2]


def test_every_band_has_its_promise(trees: Any):
    x, y = small_data(8, 1600)
    promise = trees.guarantee(x[:800], y[:800], "recall", 0.7, per="band")
    assert len(promise.cuts) > 1
    found = trees.decide(x[800:], promise).labels
    for band in range(len(promise.cuts)):
        of_band = promise.groups == band
        assert abs(recall(found[:, of_band], y[800:, of_band]) - 0.7) < 0.1
    assert all("70 %" in line for line in promise.told())


def test_precision_and_all(trees: Any):
    x, y = small_data(9, 1200)
    found = trees.decide(x[600:], trees.guarantee(x[:600], y[:600], "precision", 0.5)).labels
    given = found.sum(axis=1)
    assert (found * y[600:]).sum(axis=1)[given > 0].sum() / given.sum() > 0.47
    everything = trees.guarantee(x[:600], y[:600], "all", 0.6)
    found = trees.decide(x[600:], everything).labels
    labelled = y[600:].sum(axis=1) > 0
    assert abs(((found >= y[600:]).all(axis=1))[labelled].mean() - 0.6) < 0.08


def test_names_that_training_never_saw_are_missed():
    x, y = small_data(n_rows=150)
    model = MultiLabelGPClassifier(latents="regression", random_state=0, verbose=False).fit(x, named(y))
    x, y = small_data(3, 400)
    plain = model.guarantee(x, named(y), "recall", 0.6)
    unknown = model.guarantee(x, [[*names, "new"] for names in named(y)], "recall", 0.6)
    assert unknown.cuts[0].attainable < plain.cuts[0].attainable
    assert unknown.cuts[0].threshold < plain.cuts[0].threshold
    with pytest.raises(DataError, match=r"99 % cannot be promised on \d+ held-out rows"):
        model.guarantee(x, [[*names, "new"] for names in named(y)], "all", 0.99)


def test_what_is_asked_for_is_checked(trees: Any):
    x, y = small_data(3, 50)
    for wrong in ({"promise": "luck"}, {"level": 0}, {"level": 1.5}, {"per": "label"}, {"confidence": 0}):
        with pytest.raises(SettingsError):
            trees.guarantee(x, y, **wrong)
    with pytest.raises(DataError):
        trees.guarantee(x, y[:10])
    promise = trees.guarantee(x, y, "recall", 0.5)
    other = Guarantee("recall", 0.5, promise.groups[:-1], promise.cuts)
    with pytest.raises(SettingsError, match="guarantee again"):
        trees.decide(x, other)
    with pytest.raises(SettingsError, match="promises tokens"):
        trees.decide(x, Guarantee("tokens", 0.5, promise.groups, promise.cuts))


def test_a_guarantee_is_a_file(trees: Any, tmp_path: Path):
    x, y = small_data(3, 300)
    promise = trees.guarantee(x, y, "recall", 0.6, per="band")
    promise.save(tmp_path / "promise.json")
    read = Guarantee.load(tmp_path / "promise.json")
    assert read.cuts == promise.cuts
    np.testing.assert_array_equal(trees.decide(x, read).labels, trees.decide(x, promise).labels)
    content = json.loads((tmp_path / "promise.json").read_text())
    broken: list[Any] = [[], {}, {**content, "extremegp_guarantee": 2}, {**content, "cuts": []}]
    broken += [{**content, "groups": [-1]}, {**content, "groups": [[0]]}, {**content, "groups": [9]}]
    broken += [{**content, "level": 7}, {**content, "promise": "x"}, {**content, "cuts": [{"threshold": 1}]}]
    broken += [{**content, "cuts": [{**content["cuts"][0], "threshold": "a"}] * 5}]
    for wrong in broken:
        (tmp_path / "wrong.json").write_text(json.dumps(wrong))
        with pytest.raises(DataError, match=r"wrong.json: is no guarantee"):
            Guarantee.load(tmp_path / "wrong.json")
    for text in (b"{", b"\xff\xfe", b"[" * 100_000):
        (tmp_path / "wrong.json").write_bytes(text)
        with pytest.raises(DataError, match="is no guarantee"):
            Guarantee.load(tmp_path / "wrong.json")
    with pytest.raises(DataError, match="cannot be read"):
        Guarantee.load(tmp_path / "none.json")


def classes(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.choice(4, size=n, p=[0.4, 0.3, 0.2, 0.1])
    return rng.normal(size=(n, 3)) + np.eye(4, 3)[y] * 1.5, np.array(["a", "b", "c", "d"])[y]


@pytest.fixture(scope="module")
def of_classes() -> Any:
    return MultiClassGPClassifier(latents="regression", random_state=0, verbose=False).fit(*classes(200, 0))


def test_sets_of_classes_hold_the_class(of_classes: Any):
    x, y = classes(3000, 1)
    for per in ("all", "class", "band"):
        promise = of_classes.guarantee(x[:1500], y[:1500], 0.9, per=per)
        found = of_classes.decide(x[1500:], promise)
        hit = np.array([label in own for label, own in zip(y[1500:], found.labels, strict=True)])
        assert abs(hit.mean() - 0.9) < 0.03
        if per == "class":
            for name in "abcd":
                assert abs(hit[y[1500:] == name].mean() - 0.9) < 0.06
    # Classes with too few rows for it are promised something together.
    few = np.concatenate([np.flatnonzero(y == name)[:n] for name, n in (("a", 12), ("b", 9), ("c", 3), ("d", 2))])
    promise = of_classes.guarantee(x[few], y[few], 0.9, per="class")
    np.testing.assert_array_equal(promise.groups, [1, 2, 0, 0])


def test_classes_are_decided_by_cost_and_left_to_people(of_classes: Any):
    x, _ = classes(100, 2)
    likeliest = of_classes.decide(x)
    np.testing.assert_array_equal(np.concatenate(likeliest.labels), of_classes.predict(x))
    p = of_classes.predict_proba(x)
    np.testing.assert_allclose(likeliest.probability, p.max(axis=1), rtol=1e-5)
    costs = np.random.default_rng(0).random((4, 5))
    costs[:, 4] = 0.3
    found = of_classes.decide(x, "cost", costs=costs)
    best = (p @ costs).argmin(axis=1)
    np.testing.assert_array_equal(found.abstained, best == 4)
    assert 0 < found.abstained.sum() < 100
    for own, column in zip(found.labels, best, strict=True):
        assert own.tolist() == ([] if column == 4 else ["abcd"[column]])
    assert [len(own) for own in of_classes.decide(x, "size", size=2).labels] == [2] * 100
    sure = of_classes.decide(x, least_probability=0.7)
    np.testing.assert_array_equal(sure.abstained, p.max(axis=1) < 0.7)
    for wrong in ({"by": "f1"}, {"by": "cost"}, {"by": "cost", "costs": np.eye(3)}, {"least_probability": 2}):
        with pytest.raises(SettingsError):
            of_classes.decide(x, **wrong)
    with pytest.raises(DataError, match="100 %"):
        of_classes.guarantee(*classes(30, 0), 1.0, per="class")


def test_sets_of_sequences_hold_their_labels():
    tagger = small_tagger(epochs=8).fit(*sticky(40))
    X, y = sticky(500, seed=5)
    promise = tagger.guarantee(X[:250], y[:250], "tokens", 0.85)
    found = tagger.decide(X[250:], promise)
    shares = [
        np.mean([label in own for label, own in zip(truth, sets, strict=True)])
        for truth, sets in zip(y[250:], found.labels, strict=True)
    ]
    assert abs(np.mean(shares) - 0.85) < 0.05
    promise = tagger.guarantee(X[:250], y[:250], "labelling", 0.9)
    found = tagger.decide(X[250:], promise)
    held = [any(own.tolist() == truth for own in sets) for truth, sets in zip(y[250:], found.labels, strict=True)]
    assert abs(np.mean(np.array(held)[~found.abstained]) - 0.9) < 0.06
    with pytest.raises(SettingsError):
        tagger.guarantee(X, y, "recall")
    # A label that nobody has seen cannot be in a set.
    strange = [["new"] * len(labels) for labels in y]
    with pytest.raises(DataError, match="cannot be promised"):
        tagger.guarantee(X, strange)
