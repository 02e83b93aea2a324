"""Models of label trees take rows in and let go of them, and are then what they would be had they had just these."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from tests.label_tree.small import K, change_tensor, small_classifier, small_data

import extremegp
from extremegp import LabelTreeGPClassifier
from extremegp.errors import DataError, ModelFormatError, SettingsError
from extremegp.label_tree import LabelTreeModel
from extremegp.storage.tensors import copy_state, read_tensors

TEXTS = [f"word{a} word{b} word{a + b}" for a in range(12) for b in range(12)]
LABELS = [[f"label{a % 4}", f"other{b % 3}"] for a in range(12) for b in range(12)]


@pytest.fixture(scope="module")
def of_rows() -> LabelTreeGPClassifier:
    return small_classifier(all_rows=True, n_regressed=20).fit(*small_data(n_rows=260))


@pytest.fixture(scope="module")
def of_texts() -> LabelTreeGPClassifier:
    return small_classifier(features="text").fit(TEXTS, LABELS)


def fresh(model: Any) -> Any:
    return copy.deepcopy(model)


def built_anew(model: LabelTreeModel, x: scipy.sparse.csr_matrix, y: scipy.sparse.csr_matrix) -> LabelTreeModel:
    """A model of the same parts whose rows are these from the start."""
    settings = copy.deepcopy(model.settings)
    assert (settings.n_rows, settings.n_stored, settings.n_positives) == (x.shape[0], x.nnz, y.nnz)
    with torch.device("meta"):
        other = settings.build()
    state = model.state_dict() | {
        "rows.indptr": torch.from_numpy(x.indptr.astype(np.int64)),
        "rows.indices": torch.from_numpy(x.indices.astype(np.int32)),
        "rows.values": torch.from_numpy(x.data.astype(np.float32)),
        "rows.label_indptr": torch.from_numpy(y.indptr.astype(np.int64)),
        "rows.labels": torch.from_numpy(y.indices.astype(np.int32)),
    }
    copy_state(other, state, source="test")
    return other


def rows_of(model: LabelTreeModel) -> tuple[np.ndarray, np.ndarray]:
    starts, labels = model.rows.array("label_indptr"), model.rows.array("labels")
    y = scipy.sparse.csr_matrix(
        (np.ones(len(labels)), labels, starts), shape=(len(starts) - 1, model.settings.n_labels)
    )
    return model.rows.inputs().toarray(), y.toarray()


@pytest.mark.parametrize("seed", range(3))
def test_after_many_changes_predictions_are_those_of_a_model_with_these_rows(of_rows: Any, seed: int):
    model, rng = fresh(of_rows), np.random.default_rng(seed)
    x, y = small_data(11 + seed, 80)
    features = of_rows.features_.transform(x).toarray()
    known = dict(zip(of_rows.ids_.names, zip(*rows_of(of_rows.model_), strict=True), strict=True))
    left = list(range(80))
    for step in range(60):
        if rng.random() < 0.5 and left:
            taken = [left.pop() for _ in range(min(len(left), int(rng.integers(1, 4))))]
            names = [f"new {seed} {row}" for row in taken]
            model.learn(x[taken], y[taken], ids=names)
            known |= {name: (features[row], y[row]) for name, row in zip(names, taken, strict=True)}
        else:
            gone = rng.choice([*known], 2, replace=False).tolist()
            model.forget(gone)
            for name in gone:
                del known[name]
        if step % 20 == 10:
            # As a new process has it.
            model.predict_proba(x[:3])
    assert model.ids_.names == [*known]
    found = rows_of(model.model_)
    np.testing.assert_allclose(found[0], [row for row, _ in known.values()], rtol=1e-6)
    np.testing.assert_array_equal(found[1], [labels for _, labels in known.values()])
    np.testing.assert_array_equal(model.label_counts_, found[1].sum(axis=0))
    model.model_.settle()
    anew = fresh(model)
    anew.model_ = built_anew(model.model_, *(scipy.sparse.csr_matrix(part) for part in found))
    test = small_data(31, 50)[0]
    np.testing.assert_allclose(model.predict_proba(test), anew.predict_proba(test), atol=1e-6)
    one, other = (each.predict_topk(test, 5) for each in (model, anew))
    np.testing.assert_allclose(one.scores, other.scores, atol=1e-6)


def test_after_a_thousand_changes_too():
    x, y = small_data(n_rows=200)
    names = [[f"label {k}" for k in np.flatnonzero(row)] for row in y]
    model, rng = small_classifier(n_regressed=20).fit(x, names), np.random.default_rng(0)
    more, of_more = small_data(9, 700)
    next_row = 0
    for turn in range(1000):
        if turn % 250 == 0:
            model.add_labels([f"added at {turn}"])
        elif rng.random() < 0.55 and next_row < 700:
            labels = [f"label {k}" for k in np.flatnonzero(of_more[next_row])] + (
                ["added at 0"] if turn % 7 == 0 else []
            )
            model.learn(more[next_row], [labels])
            next_row += 1
        else:
            model.forget([rng.choice(model.ids_.names)])
    anew = fresh(model)
    anew.model_ = built_anew(model.model_, *(scipy.sparse.csr_matrix(part) for part in rows_of(model.model_)))
    test = small_data(31, 50)[0]
    np.testing.assert_allclose(model.predict_proba(test), anew.predict_proba(test), atol=1e-6)


def test_what_was_learnt_and_forgotten_again_leaves_predictions_as_they_were(of_rows: Any):
    model, x = fresh(of_rows), small_data(5, 40)
    before = model.predict_proba(x[0])
    model.learn(*x, ids=[f"new {row}" for row in range(40)])
    assert np.abs(model.predict_proba(x[0]) - before).max() > 0.05
    model.forget([f"new {row}" for row in range(40)])
    np.testing.assert_allclose(model.predict_proba(x[0]), before, atol=1e-5)
    assert model.n_rows_ == of_rows.n_rows_


def test_a_saved_model_goes_on_where_it_was(of_rows: Any, tmp_path: Path):
    model, (x, y) = fresh(of_rows), small_data(5, 40)
    model.learn(x[:20], y[:20]).forget(["3", "265"])
    model.save(tmp_path / "model")
    again = extremegp.load(tmp_path / "model")
    assert (again.ids_.names, again.n_rows_, again.settings_) == (model.ids_.names, 278, model.settings_)
    assert again.staleness() == model.staleness()
    for each in (model, again):
        each.learn(x[20:], y[20:]).forget(["7", "281"])
    assert again.ids_.names == model.ids_.names
    np.testing.assert_allclose(again.predict_proba(x), model.predict_proba(x), atol=1e-6)
    np.testing.assert_allclose(again.predict_novelty(x), model.predict_novelty(x))
    assert again.model_.is_sound()


def test_a_new_label_is_suggested_for_a_near_copy_of_its_one_document(of_texts: Any):
    model = fresh(of_texts).learn(["word1 word2 word5 word7"], [["brand new"]])
    best = model.predict_topk(["word1 word2 word5"], 4).labels[0]
    assert "brand new" in [model.classes_[label] for label in best]
    model.forget(["144"])
    best = model.predict_topk(["word1 word2 word5"], 5).labels[0]
    assert "brand new" not in [model.classes_[label] for label in best if label >= 0]


def test_labels_are_added_and_renamed(of_texts: Any, tmp_path: Path):
    model = fresh(of_texts).add_labels(["later", "never"]).rename_label("label0", "first")
    assert model.classes_[-2:].tolist() == ["later", "never"]
    assert (model.settings_.n_labels, len(model.label_counts_)) == (9, 9)
    model.learn(["word3 word4"], [["later", "first"]])
    model.save(tmp_path / "model")
    again = extremegp.load(tmp_path / "model")
    assert again.classes_.tolist() == model.classes_.tolist()
    np.testing.assert_array_equal(again.predict_proba(TEXTS[:9]), model.predict_proba(TEXTS[:9]))
    assert again.predict_uncertainty(TEXTS[:9]).total.shape == (9,)
    for wrong in (["first"], ["new", "new"], [1.5]):
        with pytest.raises(DataError):
            model.add_labels(wrong)
    with pytest.raises(DataError, match="no label 'label0'"):
        model.rename_label("label0", "x")
    with pytest.raises(DataError, match="twice"):
        model.rename_label("first", "later")


def test_nothing_of_a_forgotten_row_is_in_the_files(tmp_path: Path):
    rng = np.random.default_rng(0)
    odd = "zebra quagga okapi"
    texts = [*TEXTS, f"{odd} word1", f"{odd} word2"]
    labels = [*LABELS, ["savanna"], ["savanna"]]
    order = rng.permutation(len(texts))
    names = [f"name of {row}" for row in order]
    model = small_classifier(features="text", held_out=0.05).fit(
        [texts[row] for row in order], [labels[row] for row in order], ids=names
    )
    gone = [f"name of {row}" for row in (144, 145)]
    kept_inputs = model.model_.rows.inputs()
    values = {float(v) for name in gone for v in kept_inputs[model.ids_.place(name)].data}
    others = {float(v) for name in set(names) - {*gone} for v in kept_inputs[model.ids_.place(name)].data}
    label = model.classes_.tolist().index("savanna")
    model.forget(gone)
    model.save(tmp_path / "model")
    stored = (tmp_path / "model" / "tensors.safetensors").read_bytes()
    assert not any(part.encode() in stored for part in ("zebra", "okapi", *(f"{name}\n" for name in gone)))
    tensors, _ = read_tensors(tmp_path / "model" / "tensors.safetensors")
    for name in ("model.rows.values", "novelty.0.values"):
        assert not (values - others) & {float(v) for v in tensors[name].tolist()}
    again = extremegp.load(tmp_path / "model")
    columns = np.flatnonzero(np.bincount(again.model_.rows.array("indices"), minlength=again.settings_.n_features) == 0)
    assert len(columns) == 3
    for tree in again.model_.trees:
        for level in tree.levels:
            _, _, features, entries, targets, weights, _ = level.arrays()
            of_gone = np.repeat(np.isin(features, columns), np.diff(entries))
            assert not weights[of_gone].any()
        assert not weights[targets == np.flatnonzero(tree.order.numpy() == label)[0]].any()
    assert again.model_.log_counts[label] == 0
    assert again.n_rows_ == 144
    assert again.novelty_.n_rows == 144


def test_staleness_tells_rows_of_another_kind(of_rows: Any):
    assert of_rows.staleness()[:2] == (0, 0)
    x, y = small_data(5, 60)
    same = fresh(of_rows).learn(x, y).staleness()
    odd = fresh(of_rows).learn(x, np.roll(y, 1, axis=0)).staleness()
    assert same.n_learnt == odd.n_learnt == 60
    assert abs(same.drift) < 0.3 < odd.drift


def test_refit_knows_all_rows_and_labels(of_texts: Any):
    model = fresh(of_texts).learn(["word1 word9 word20"] * 6, [["late"]] * 6).forget(["0", "1"])
    model.refit()
    assert (model.n_rows_, model.staleness()[:2]) == (148, (0, 0))
    assert model.ids_.names[:2] == ["2", "3"]
    assert len(model.model_.trees[0].order) == 8
    best = model.predict_topk(["word1 word9 word20"], 3).labels[0]
    assert model.classes_.tolist().index("late") in best
    model.forget(["149"]).learn(["word1"], [["late"]])


def test_partial_fit_begins_and_goes_on():
    model = small_classifier(features="text")
    model.partial_fit(TEXTS[:100], LABELS[:100], classes=["label0", "unheard"])
    assert model.classes_.tolist()[-1] == "unheard"
    model.partial_fit(TEXTS[100:], LABELS[100:])
    assert model.n_rows_ == 144


def test_weights_of_learnt_rows_count(of_rows: Any):
    x, y = small_data(5, 6)
    weighed = fresh(of_rows).learn(x, y, sample_weight=[1, 2, 0, 1, 1, 1], ids=[*"abcdef"])
    assert weighed.ids_.names[-5:] == ["a", "b", "d", "e", "f"]
    assert weighed.model_.rows.row_weights()[-5:].tolist() == [1, 2, 1, 1, 1]
    plain = fresh(of_rows).learn(x[[0, 1, 3, 4, 5]], y[[0, 1, 3, 4, 5]])
    assert np.abs(weighed.predict_proba(x) - plain.predict_proba(x)).max() > 1e-3


BAD = {
    "lengths": (lambda m, x, y: m.learn(x[:2], y[:3]), DataError, "rows"),
    "labels": (lambda m, x, y: m.learn(x[:2], y[:2, :5]), DataError, "5 labels"),
    "columns": (lambda m, x, y: m.learn(x[:2, :7], y[:2]), DataError, "7"),
    "NaN": (lambda m, x, y: m.learn(x[:2] * np.nan, y[:2]), DataError, "NaN"),
    "known id": (lambda m, x, y: m.learn(x[:2], y[:2], ids=["new", "17"]), DataError, "'17'"),
    "id twice": (lambda m, x, y: m.learn(x[:2], y[:2], ids=["a", "a"]), DataError, "twice"),
    "ids": (lambda m, x, y: m.learn(x[:2], y[:2], ids=["a"]), DataError, "1 ids for 2"),
    "id of lines": (lambda m, x, y: m.learn(x[:2], y[:2], ids=["a", "b\nc"]), DataError, "one line"),
    "one string": (lambda m, x, y: m.learn(x[:2], y[:2], ids="ab " * 3), DataError, "id"),
    "weight": (lambda m, x, y: m.learn(x[:2], y[:2], sample_weight=[1, -1]), DataError, "weight"),
    "choice": (lambda m, x, y: m.learn(x[:2], y[:2], new_labels="maybe"), SettingsError, "new_labels"),
    "no such row": (lambda m, x, y: m.forget(["1", "nobody"]), DataError, "'nobody'"),
    "row twice": (lambda m, x, y: m.forget(["1", 1]), DataError, "twice"),
    "all rows": (lambda m, x, y: m.forget(range(260)), DataError, "fewer than two"),
    "no names": (lambda m, x, y: m.add_labels(["a"]), DataError, "no names"),
    "rename": (lambda m, x, y: m.rename_label(1, 2), DataError, "no names"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_calls_change_nothing(of_rows: Any, case: str):
    call, error, match = BAD[case]
    model, (x, y) = fresh(of_rows), small_data(5, 6)
    with pytest.raises(error, match=match):
        call(model, x, y)
    assert model.ids_.names == of_rows.ids_.names
    np.testing.assert_array_equal(model.predict_proba(x), of_rows.predict_proba(x))


def test_unknown_labels_may_be_refused_or_left_out(of_texts: Any):
    model = fresh(of_texts)
    with pytest.raises(DataError, match="'novel'"):
        model.learn(["word1"], [["novel", "label1"]], new_labels="error")
    model.learn(["word1"], [["novel", "label1"]], new_labels="ignore")
    assert (model.n_rows_, "novel" in model.classes_) == (145, False)


@pytest.mark.parametrize("name", ["learning.ids", "learning.novelty_rows", "learning.novelty_left_out"])
@pytest.mark.parametrize("change", [lambda t: t[:-1], lambda t: torch.full_like(t, 255), lambda t: t.float()])
def test_altered_files_are_refused(of_rows: Any, tmp_path: Path, name: str, change: Any):
    if name != "learning.ids" and change(torch.arange(300)).max() == 255:
        change = lambda t: torch.full_like(t, 10**6)  # noqa: E731
    of_rows.save(tmp_path / "model")
    change_tensor(tmp_path / "model", name, change)
    with pytest.raises(ModelFormatError):
        extremegp.load(tmp_path / "model")


def test_ids_of_training_rows_are_kept(tmp_path: Path):
    x, y = small_data()
    names = [f"row {i}" for i in range(150)]
    model = small_classifier().fit(x, y, ids=names)
    assert model.ids_.names == names
    with pytest.raises(DataError, match="twice"):
        small_classifier().fit(x, y, ids=["a"] * 150)
    with pytest.raises(DataError, match="2 ids"):
        small_classifier().fit(x, y, ids=["a", "b"])
    assert y.shape[1] == K
