"""Models with a regression in closed form take rows in and let go of them, and are then what a fit to these makes."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from tests.label_tree.small import change_tensor

import extremegp
from extremegp import MultiClassGPClassifier, MultiLabelGPClassifier
from extremegp.errors import DataError, ModelFormatError, SettingsError
from extremegp.storage.tensors import read_tensors

D, K = 40, 12


def labelled(n_rows: int, seed: int = 0) -> tuple[scipy.sparse.csr_matrix, np.ndarray]:
    """Rows of words, and labels that depend on them."""
    rng, truth = np.random.default_rng(seed), np.random.default_rng(5).normal(size=(D, K))
    x = rng.normal(size=(n_rows, D)) * (rng.random((n_rows, D)) < 0.4)
    x[:, 0] = 1
    y = x @ truth + rng.normal(size=(n_rows, K)) > 2.5
    return scipy.sparse.csr_matrix(x.astype(np.float32)), y.astype(np.int64)


def classes(n_rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng, truth = np.random.default_rng(seed), np.random.default_rng(5).normal(size=(8, 5))
    x = rng.normal(size=(n_rows, 8)).astype(np.float32)
    return x, np.array([f"c{k}" for k in (x @ truth + rng.normal(size=(n_rows, 5))).argmax(1)])


def names_of(y: np.ndarray) -> list[list[str]]:
    return [[f"label {k}" for k in np.flatnonzero(row)] for row in y]


def fresh(model: Any) -> Any:
    return copy.deepcopy(model)


def fitted_anew(model: Any) -> Any:
    """The same with its regression fitted, in one go, to the rows that it has."""
    other = copy.deepcopy(model)
    other._changes = None
    other._working()
    return other


@pytest.fixture(scope="module")
def many() -> MultiLabelGPClassifier:
    x, y = labelled(900)
    model = MultiLabelGPClassifier(n_inducing=120, epochs=20, random_state=0, verbose=False)
    model.fit(x, names_of(y), ids=[f"row {i}" for i in range(900)])
    assert model.settings_.latents == "landmarks"
    assert not model.model_.mean_function.is_left_out
    return model


@pytest.fixture(scope="module")
def one() -> MultiClassGPClassifier:
    model = MultiClassGPClassifier(n_inducing=50, random_state=0, verbose=False).fit(*classes(200))
    assert model.settings_.latents == "regression"
    return model


def changed_often(model: Any, rng: np.random.Generator, n_changes: int, new: Any) -> Any:
    """Learn rows and forget others, one at a time, and add labels."""
    for turn in range(n_changes):
        if turn % 250 == 100:
            model.add_labels([f"added at {turn}"])
        elif rng.random() < 0.55:
            model.learn(*new(turn))
        else:
            model.forget([rng.choice(model.ids_.names)])
        if turn % 7 == 0:
            model.predict_proba(new(turn)[0])
    return model


def test_after_a_thousand_changes_probabilities_are_those_of_a_fit_to_the_rows(many: Any):
    (x, y), rng = labelled(1000, 1), np.random.default_rng(0)
    names = names_of(y)
    model = changed_often(
        fresh(many),
        rng,
        1000,
        lambda turn: (x[turn], [names[turn] + ["added at 100"] * (turn > 100 and turn % 5 == 0)]),
    )
    anew, (test, _) = fitted_anew(model), labelled(50, 2)
    assert (model._landmarks < 0).sum() > 20, "no landmark was forgotten"
    np.testing.assert_allclose(model.predict_proba(test), anew.predict_proba(test), atol=1e-6)
    before = many.predict_proba(test)
    assert np.abs(model.predict_proba(test)[:, :K] - before).max() > 0.05


def test_after_many_changes_classes_too(one: Any):
    (x, y), rng = classes(1000, 1), np.random.default_rng(0)
    model = changed_often(fresh(one), rng, 1000, lambda turn: (x[turn : turn + 1], [y[turn]]))
    model.rename_label("c1", "renamed").learn(x[:3], ["renamed", "added at 100", "c0"])
    assert model.classes_.tolist() == sorted(model.classes_.tolist())
    anew, (test, _) = fitted_anew(model), classes(50, 2)
    p = model.predict_proba(test)
    np.testing.assert_allclose(p, anew.predict_proba(test), atol=1e-6)
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-5)
    for mine, other in zip(model.predict_uncertainty(test), anew.predict_uncertainty(test), strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-5)


def test_classes_are_known_by_the_rows_that_were_learnt(one: Any):
    (x, y), (test, of_test) = classes(400, 3), classes(300, 4)
    few = fresh(one).forget(one.ids_.names[20:])
    more = fresh(few).learn(x, y)
    assert more.score(test, of_test) > few.score(test, of_test) + 0.02
    assert abs(more.score(test, of_test) - one.score(test, of_test)) < 0.05


@pytest.mark.parametrize("kind", ["many", "one"])
def test_a_row_that_is_learnt_and_forgotten_again_leaves_nothing(kind: str, request: pytest.FixtureRequest):
    model = fresh(request.getfixturevalue(kind))
    x, y = labelled(9, 5) if kind == "many" else classes(9, 5)
    before = model.predict_proba(x)
    model.learn(x, names_of(y) if kind == "many" else y, ids=[f"new {row}" for row in range(9)])
    assert np.abs(model.predict_proba(x) - before).max() > 0.01
    model.forget([f"new {row}" for row in range(9)])
    np.testing.assert_allclose(model.predict_proba(x), before, atol=1e-6)


@pytest.mark.parametrize("kind", ["many", "one"])
def test_a_saved_model_goes_on_where_it_was(kind: str, request: pytest.FixtureRequest, tmp_path: Path):
    model = fresh(request.getfixturevalue(kind))
    x, y = labelled(40, 5) if kind == "many" else classes(40, 5)
    y = names_of(y) if kind == "many" else y.tolist()
    model.learn(x[:20], y[:20]).forget(model.ids_.names[:9])
    model.save(tmp_path / "model")
    again = extremegp.load(tmp_path / "model")
    assert (again.ids_.names, again.settings_) == (model.ids_.names, model.settings_)
    np.testing.assert_array_equal(again.predict_proba(x), model.predict_proba(x))
    np.testing.assert_allclose(again.staleness(), model.staleness(), rtol=1e-5)
    kept, gone = again.keep_journal(tmp_path / "model"), model.ids_.names[5:9]
    for each in (model, again):
        each.learn(x[20:], y[20:]).forget(gone)
    kept.close()
    replayed = extremegp.load(tmp_path / "model")
    for each in (again, replayed):
        assert each.ids_.names == model.ids_.names
        np.testing.assert_allclose(each.predict_proba(x), model.predict_proba(x), atol=1e-6)
        np.testing.assert_allclose(each.predict_novelty(x), model.predict_novelty(x))


def test_nothing_of_a_forgotten_row_is_in_the_files(tmp_path: Path):
    texts = [f"word{a} word{b} word{a + b}" for a in range(20) for b in range(10)]
    labels = [[f"label{a % 4}", f"other{b % 3}"] for a in range(20) for b in range(10)]
    texts[7], labels[7] = "zebra quagga word1", ["savanna"]
    texts[150], labels[150] = "zebra quagga word2", ["savanna"]
    names = [f"name of {row}" for row in range(200)]
    model = MultiLabelGPClassifier(features="text", n_inducing=200, epochs=10, random_state=0, verbose=False)
    model.fit(texts, labels, ids=names)
    values = [set(map(float, model._held.row(row).x.data)) for row in range(200)]
    own = (values[7] | values[150]) - set().union(*(values[row] for row in range(200) if row not in (7, 150)))
    assert own
    model.forget([names[7], names[150]])
    model.save(tmp_path / "model")
    stored = (tmp_path / "model" / "tensors.safetensors").read_bytes()
    assert not any(part.encode() in stored for part in ("zebra", "quagga", "name of 7\n", "name of 150\n"))
    tensors, _ = read_tensors(tmp_path / "model" / "tensors.safetensors")
    for name in ("model.features.kept.values", "learning.x.values", "novelty.0.values"):
        assert not own & set(tensors[name].tolist()), name
    again = extremegp.load(tmp_path / "model")
    assert (again.n_rows_, again.label_counts_[again.classes_.tolist().index("savanna")]) == (198, 0)
    assert again.predict_proba(["word1"])[0, again.classes_.tolist().index("savanna")] < 0.05


def test_nothing_of_a_label_that_no_row_has_any_more_is_in_the_files(many: Any, tmp_path: Path):
    column = many.classes_.tolist().index("label 3")
    having = [name for place, name in enumerate(many.ids_.names) if many._held.row(place).y[0, column]]
    model, before = fresh(many), many.model_.latents.posterior.q_mean[column].clone()
    assert before.abs().max() > 0.01
    model.forget(having)
    model.save(tmp_path / "model")
    tensors, _ = read_tensors(tmp_path / "model" / "tensors.safetensors")
    assert not tensors["model.latents.posterior.q_mean"][column].any()
    assert not tensors["model.mean_function.coefficients"][column].equal(many.model_.mean_function.coefficients[column])
    again, test = extremegp.load(tmp_path / "model"), labelled(40, 3)[0]
    assert again.predict_proba(test)[:, column].max() < 0.05
    again.learn(test[0], [["label 3"]])
    assert again.label_counts_[column] == 1


def test_nothing_of_a_landmark_that_was_forgotten_is_in_the_files(many: Any, tmp_path: Path):
    model = fresh(many)
    place = int(many._landmarks[50])
    values, own = model._held.row(place).x.data.tolist(), model.model_.features.basis[50].tolist()
    model.forget([f"row {place}"])
    model.save(tmp_path / "model")
    tensors, _ = read_tensors(tmp_path / "model" / "tensors.safetensors")
    assert not tensors["model.features.basis"][50].any()
    assert not tensors["learning.basis"][50].any()
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.numel() > 1:
            found = set(tensor.float().ravel().tolist())
            # The first feature of every row is the same.
            assert not set(values[1:]) & found, name
            assert not set(own) & found, name


def test_a_new_label_is_suggested_for_a_near_copy_of_its_one_document():
    rng = np.random.default_rng(0)
    x = scipy.sparse.random(600, 500, 0.02, format="csr", dtype=np.float32, random_state=1)
    x.data[:] = 1
    y = [[f"label {k}" for k in {int(word) % 9 for word in x[row].indices[:3]}] for row in range(600)]
    model = MultiLabelGPClassifier(n_inducing=500, epochs=15, random_state=0, verbose=False).fit(x[:560], y[:560])
    assert not model.model_.mean_function.is_left_out
    of_copies, of_others = [], []
    for row in range(560, 600):
        found = fresh(model).learn(x[row], [["brand new"]], ids=["its document"])
        near = x[row].copy()
        near.data[rng.integers(near.nnz)] = 0
        near.eliminate_zeros()
        column = found.classes_.tolist().index("brand new")
        of_copies.append(found.predict_proba(near)[0, column])
        of_others.append(found.predict_proba(x[:40])[:, column].mean())
        if row == 560:
            np.testing.assert_allclose(found.predict_proba(x), fitted_anew(found).predict_proba(x), atol=1e-6)
            found.forget(["its document"])
            assert found.predict_proba(near)[0, column] < 0.01
    assert np.median(of_copies) > max(0.1, 20 * np.median(of_others)), (of_copies, of_others)


def test_labels_that_many_rows_brought_are_as_probable_as_they_are_frequent():
    x = scipy.sparse.random(900, 300, 0.04, format="csr", dtype=np.float32, random_state=1)
    x.data[:] = 1
    rng = np.random.default_rng(0)
    old = [{f"label {int(word) % 9}" for word in x[row].indices[:3]} for row in range(900)]
    # Half of it chance, so that nobody can be sure.
    new = [{f"new {k}" for k in range(5) if 20 * k in x[row].indices and rng.random() < 0.5} for row in range(900)]
    names = [sorted(a | b) for a, b in zip(old, new, strict=True)]
    model = MultiLabelGPClassifier(n_inducing=200, epochs=15, random_state=0, verbose=False)
    model.fit(x[:200], [sorted(a) for a in old[:200]])
    assert not model.model_.mean_function.is_left_out
    model.learn(x[200:700], names[200:700])
    came = np.flatnonzero([str(name).startswith("new") for name in model.classes_])
    probable = model.predict_proba(x[700:])[:, came].sum()
    frequent = sum(map(len, new[700:]))
    assert 0.6 * frequent < probable < 1.7 * frequent, (probable, frequent)


def test_a_new_class_is_known_by_a_few_rows(one: Any):
    x, _ = classes(20, 8)
    elsewhere = x[:1] + 6
    model = fresh(one).learn(elsewhere + np.linspace(0, 0.2, 8)[:, None].astype(np.float32), ["new"] * 8)
    column = model.classes_.tolist().index("new")
    there, others = model.predict_proba(elsewhere + 0.02)[0, column], model.predict_proba(x)[:, column]
    assert there > max(0.3, 20 * others.mean())


def test_many_rows_at_once_are_as_one_by_one(many: Any, one: Any):
    x, y = labelled(150, 5)
    each, whole = fresh(many), fresh(many).learn(x, names_of(y))
    for row in range(150):
        each.learn(x[row], [names_of(y)[row]])
    np.testing.assert_allclose(each.predict_proba(x), whole.predict_proba(x), atol=1e-6)
    x, y = classes(150, 5)
    each, whole = fresh(one), fresh(one).learn(x, y)
    for row in range(150):
        each.learn(x[row : row + 1], y[row : row + 1])
    np.testing.assert_allclose(each.predict_proba(x), whole.predict_proba(x), atol=1e-6)


def test_a_row_that_counts_twice_is_as_two(one: Any, many: Any):
    for model, (x, y) in ((many, labelled(6, 5)), (one, classes(6, 5))):
        y = names_of(y) if model is many else y
        weighed = fresh(model).learn(x, y, sample_weight=[1, 2, 0, 1, 1, 1])
        rows = [0, 1, 1, 3, 4, 5]
        plain = fresh(model).learn(x[rows], [y[row] for row in rows])
        np.testing.assert_allclose(weighed.predict_proba(x), plain.predict_proba(x), atol=2e-6)
        assert weighed.n_rows_ == plain.n_rows_ - 1
        weighed.forget(weighed.ids_.names[-5:])
        np.testing.assert_allclose(weighed.predict_proba(x), model.predict_proba(x), atol=1e-6)


def test_functions_without_a_regression_are_trained_again():
    x, y = labelled(120)
    model = MultiLabelGPClassifier(n_inducing=40, epochs=15, random_state=0, verbose=False).fit(x, names_of(y))
    assert model.model_.mean_function.is_left_out
    test = labelled(40, 2)[0]
    more, of_more = labelled(60, 3)
    before = model.predict_proba(test)
    model.learn(more, names_of(of_more)).forget(["3"]).add_labels(["later"])
    assert (model.n_rows_, model.predict_proba(test).shape) == (179, (40, K + 1))
    assert np.abs(model.predict_proba(test)[:, :K] - before).max() > 0.02
    assert model.staleness()[:2] == (60, 1)


def test_staleness_tells_rows_of_another_kind(many: Any, one: Any):
    x, y = labelled(100, 5)
    assert many.staleness()[:2] == (0, 0)
    same, odd = (fresh(many).learn(x, names_of(labels)).staleness() for labels in (y, np.roll(y, 1, axis=0)))
    assert (same.n_learnt, abs(same.drift) < 0.3 < odd.drift) == (100, True)
    x, y = classes(100, 5)
    same, odd = (fresh(one).learn(x, labels).staleness() for labels in (y, np.roll(y, 1)))
    assert (same.n_learnt, abs(same.drift) < 0.3 < odd.drift) == (100, True)


def test_a_refit_keeps_hyper_parameters_and_knows_all_rows(many: Any, one: Any):
    x, y = labelled(100, 5)
    model = fresh(many).learn(x, names_of(y)).forget(["row 0", "row 899"]).add_labels(["never"])
    model.refit()
    assert (model.n_rows_, model.staleness()[:2]) == (998, (0, 0))
    torch.testing.assert_close(model.model_.features.kept.weights, many.model_.features.kept.weights)
    assert (model.ids_.names[0], model.classes_[-1]) == ("row 1", "never")
    test, of_test = labelled(200, 6)
    names = names_of(of_test)
    assert abs(model.score(test, names) - many.score(test, names)) < 0.06
    model.forget(["row 1"]).learn(x[0], [["never"]])
    x, y = classes(100, 5)
    model = fresh(one).learn(x, y).refit()
    assert (model.n_rows_, float(model.model_.latents.mean.noise)) == (300, float(one.model_.latents.mean.noise))


def test_partial_fit_begins_and_goes_on():
    x, y = classes(120)
    model = MultiClassGPClassifier(n_inducing=30, random_state=0, verbose=False)
    model.partial_fit(x[:80], y[:80], classes=["c0", "c9"])
    assert model.classes_.tolist()[-1] == "c9"
    model.partial_fit(x[80:], y[80:])
    assert model.n_rows_ == 120
    by_steps = MultiClassGPClassifier(latents="gp", n_inducing=5, epochs=1, random_state=0, verbose=False)
    assert not hasattr(by_steps, "partial_fit")
    by_steps.fit(x, y)
    for call in (lambda: by_steps.learn(x, y), lambda: by_steps.forget(["1"]), by_steps.staleness, by_steps.refit):
        with pytest.raises(SettingsError, match="trained by steps"):
            call()


BAD = {
    "soft": (lambda m, x, y: m.learn(x[:2], np.full((2, 5), 0.2)), DataError, "soft"),
    "kind": (lambda m, x, y: m.learn(x[:2], [1, 2]), DataError, "kind"),
    "unknown": (lambda m, x, y: m.learn(x[:2], ["c1", "odd"], new_labels="error"), DataError, "'odd'"),
    "ignore": (lambda m, x, y: m.learn(x[:2], ["c1", "odd"], new_labels="ignore"), SettingsError, "new_labels"),
    "lengths": (lambda m, x, y: m.learn(x[:2], y[:3]), DataError, "rows"),
    "NaN": (lambda m, x, y: m.learn(x[:2] * np.nan, y[:2]), DataError, "NaN"),
    "known id": (lambda m, x, y: m.learn(x[:2], y[:2], ids=["new", "17"]), DataError, "'17'"),
    "no such row": (lambda m, x, y: m.forget(["1", "nobody"]), DataError, "'nobody'"),
    "all rows": (lambda m, x, y: m.forget(range(200)), DataError, "fewer than two"),
    "a class twice": (lambda m, x, y: m.add_labels(["c1"]), DataError, "twice"),
    "rename": (lambda m, x, y: m.rename_label("c1", "c2"), DataError, "twice"),
    "no such class": (lambda m, x, y: m.rename_label("odd", "c9"), DataError, "'odd'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_calls_change_nothing(one: Any, case: str):
    call, error, match = BAD[case]
    model, (x, y) = fresh(one), classes(6, 5)
    before = model.predict_proba(x)  # of this copy: products round by where arrays lie in memory
    with pytest.raises(error, match=match):
        call(model, x, y)
    assert model.ids_.names == one.ids_.names
    np.testing.assert_array_equal(model.predict_proba(x), before)


@pytest.mark.parametrize("name", ["learning.ids", "learning.landmarks", "learning.y.columns", "learning.weights"])
@pytest.mark.parametrize("change", [lambda t: t[:-1], lambda t: torch.full_like(t, 255), lambda t: t.to(torch.int8)])
def test_altered_files_are_refused(one: Any, tmp_path: Path, name: str, change: Any):
    if name == "learning.weights" and change(torch.ones(9)).max() == 255:
        change = lambda t: -t  # noqa: E731
    one.save(tmp_path / "model")
    change_tensor(tmp_path / "model", name, change)
    with pytest.raises(ModelFormatError):
        extremegp.load(tmp_path / "model")


def test_features_in_blocks_and_arrays_learn_too():
    x, y = labelled(150)
    dense = classes(150)[0]
    X = {"words": x, "numbers": dense}
    model = MultiLabelGPClassifier(
        features={"words": "unit", "numbers": "standard"}, n_inducing=30, epochs=10, random_state=0, verbose=False
    ).fit(X, names_of(y))
    more, (of_more, numbers) = labelled(30, 3)[1], (labelled(30, 3)[0], classes(30, 3)[0])
    model.learn({"words": of_more, "numbers": numbers}, names_of(more)).forget(["0", "149", "170"])
    assert (model.n_rows_, model.predict_proba({"words": of_more, "numbers": numbers}).shape) == (177, (30, K))
    array = MultiClassGPClassifier(
        features={"words": "unit", "numbers": "standard"}, n_inducing=30, random_state=0, verbose=False
    ).fit(X, y.argmax(axis=1))
    array.learn({"words": of_more, "numbers": numbers}, more.argmax(axis=1)).forget(["0", "149", "170"])
    anew, test = fitted_anew(array), {"words": labelled(30, 4)[0], "numbers": classes(30, 4)[0]}
    np.testing.assert_allclose(array.predict_proba(test), anew.predict_proba(test), atol=1e-6)
