"""Explanations add up to what they explain, and name the documents that matter."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from tests.estimators.test_learning_closed import classes, labelled, names_of

from extremegp import LabelTreeGPClassifier, MultiClassGPClassifier, MultiLabelGPClassifier
from extremegp.errors import DataError, SettingsError

TEXTS = [f"word{a} word{b} word{a + b}" for a in range(12) for b in range(12)]
LABELS = [[f"label{a % 4}", f"other{b % 3}"] for a in range(12) for b in range(12)]


@pytest.fixture(scope="module")
def landmarks() -> Any:
    x, y = labelled(900)
    model = MultiLabelGPClassifier(n_inducing=120, epochs=15, random_state=0, verbose=False)
    return model.fit(x, names_of(y), ids=[f"row {i}" for i in range(900)])


@pytest.fixture(scope="module")
def regression() -> Any:
    return MultiClassGPClassifier(n_inducing=50, random_state=0, verbose=False).fit(
        *classes(200), sample_weight=np.linspace(0.5, 2, 200)
    )


@pytest.fixture(scope="module")
def trees() -> Any:
    small: dict[str, Any] = {"n_trees": 2, "leaf_size": 4, "n_inducing": 8, "random_state": 0, "verbose": False}
    return LabelTreeGPClassifier(features="text", **small).fit(TEXTS, LABELS)


INPUTS = {
    "landmarks": lambda: labelled(6, 3)[0],
    "regression": lambda: classes(6, 3)[0],
    "trees": lambda: ["word1 word2 word3", "word5 word9", "word0", "word11 word3 word14 word2"],
}


@pytest.mark.parametrize("kind", INPUTS)
def test_shares_add_up(kind: str, request: pytest.FixtureRequest):
    model, X = request.getfixturevalue(kind), INPUTS[kind]()
    found = model.explain(X, k=3, n=4)
    p, means = model.predict_proba(X), model.decision_function(X)
    assert len(found) == len(p)
    names = model.classes_.tolist()
    for row, of_row in enumerate(found):
        assert [each.label for each in of_row] == [names[k] for k in np.argsort(-p[row], kind="stable")[: len(of_row)]]
        for each in of_row:
            column = names.index(each.label)
            np.testing.assert_allclose(each.probability, p[row, column], atol=1e-5)
            for shares in (each.documents, each.features):
                total = sum(share.share for share in shares)
                np.testing.assert_allclose(total, each.regression - each.frequency, atol=1e-5)
                assert shares[-1].name == "others"
                sizes = [abs(share.share) for share in shares[:-1]]
                assert sizes == sorted(sizes, reverse=True)
                assert len(sizes) <= 4
            if kind != "trees":
                np.testing.assert_allclose(sum(each.parts.values()), means[row, column], atol=1e-4)


@pytest.mark.parametrize("kind", ["landmarks", "regression"])
def test_the_regression_is_that_of_the_model(kind: str, request: pytest.FixtureRequest):
    model, X = request.getfixturevalue(kind), INPUTS[kind]()
    x = model._transform(X)
    if kind == "landmarks":
        t = model.model_.mean_function.regressed(model.model_.features(x))
    else:
        t = model.model_.latents.mean.regressed(torch.from_numpy(x))
    for row, of_row in enumerate(model.explain(X, labels=model.classes_.tolist())):
        np.testing.assert_allclose([each.regression for each in of_row], t[row].numpy(), atol=1e-5)


def test_named_documents_matter_more_than_the_nearest(landmarks: Any):
    model, X = landmarks, INPUTS["landmarks"]()
    by_named, by_nearest = [], []
    for row, (best,) in enumerate(model.explain(X, k=1, n=5)):
        column = model.classes_.tolist().index(best.label)
        named = [share.name for share in best.documents[:-1] if share.share > 0]
        x = X[row : row + 1]
        rows, own = model._inputs(), model._transform(x)
        cosines = (rows @ own.T).ravel() / np.linalg.norm(rows, axis=1)
        nearest = [model.ids_.names[place] for place in np.argsort(-cosines, kind="stable")[: len(named)]]
        before = model.decision_function(x)[0, column]
        for names, drops in ((named, by_named), (nearest, by_nearest)):
            drops.append(before - copy.deepcopy(model).forget(names).decision_function(x)[0, column])
    assert np.mean(by_named) > max(0, np.mean(by_nearest))


def test_features_have_their_names(trees: Any):
    (best, *_) = trees.explain(["word1 word2 unheard"])[0]
    assert {share.name for share in best.features} <= {"word1", "word2", "others"}
    blocks = MultiClassGPClassifier(
        features={"text": "text", "numbers": "raw"}, n_inducing=20, random_state=0, verbose=False
    ).fit({"text": TEXTS, "numbers": np.eye(144, 3, dtype=np.float32)}, [labels[0] for labels in LABELS])
    (best,) = blocks.explain({"text": ["word1 word2"], "numbers": np.ones((1, 3), np.float32)}, k=1, n=20)[0]
    assert {"text: word1", "numbers: 2"} <= {share.name for share in best.features}


def test_bad_arguments_are_refused(regression: Any):
    x = classes(2)[0]
    with pytest.raises(DataError, match="'odd'"):
        regression.explain(x, ["odd"])
    for wrong in ({"k": 0}, {"n": 0}, {"k": 1.5}):
        with pytest.raises(SettingsError):
            regression.explain(x, **wrong)
    by_steps = MultiClassGPClassifier(latents="gp", n_inducing=5, epochs=1, random_state=0, verbose=False)
    with pytest.raises(SettingsError, match="trained by steps"):
        by_steps.fit(*classes(60)).explain(x)
