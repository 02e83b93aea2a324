from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from numpy.typing import NDArray
from tests.label_tree.small import D, K, N, small_classifier, small_data

import extremegp
from extremegp import LabelTreeGPClassifier
from extremegp.errors import BudgetWarning, ModelFormatError, SettingsError
from extremegp.label_tree import LabelTreeModel, combiner, levels, parts_folder, training
from extremegp.label_tree.evidence import SHARES
from extremegp.label_tree.model import Evidence
from extremegp.storage.tensors import read_tensors, write_tensors
from extremegp.training import TrainingInterrupted
from extremegp.training.interrupts import GracefulInterrupt

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "_BATCH_WORK", 200)


class InterruptAfter(GracefulInterrupt):
    """A person who presses Ctrl-C while the n-th block is fitted."""

    blocks = 3

    def __init__(self, **_: Any) -> None:
        self.asked = 0

    def __enter__(self) -> InterruptAfter:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def requested(self) -> bool:
        self.asked += 1
        return self.asked >= self.blocks


def interrupt(monkeypatch: pytest.MonkeyPatch, classifier: LabelTreeGPClassifier, blocks: int) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(InterruptAfter, "blocks", blocks)
        patch.setattr(training, "GracefulInterrupt", InterruptAfter)
        with pytest.raises(TrainingInterrupted) as caught:
            classifier.fit(*small_data())
    assert caught.value.saved == str(classifier.checkpoint)


def state(classifier: LabelTreeGPClassifier) -> dict[str, torch.Tensor]:
    return classifier.model_.state_dict()


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The blocks that were fitted."""
    done: list[tuple[int, int]] = []
    fit = training._Growth._fit

    def counted(self: Any, level: Any, first: int, last: int, width: int) -> Any:
        done.append((first, last))
        return fit(self, level, first, last, width)

    monkeypatch.setattr(training._Growth, "_fit", counted)
    return done


def test_blocks_and_lanes_make_no_difference(monkeypatch: pytest.MonkeyPatch, fits: list[tuple[int, int]]):
    many = state(small_classifier().fit(*small_data()))
    n_many = len(fits)
    monkeypatch.setattr(levels, "_BATCH_WORK", 10**9)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        few = small_classifier().fit(*small_data()).model_
    finally:
        torch.set_num_threads(before)
    # A block for each of the two levels of two trees.
    assert (n_many > 8, len(fits) - n_many) == (True, 4)
    for tree in range(2):
        assert_same(few.trees[tree].state_dict(), {
            name.removeprefix(f"trees.{tree}."): tensor for name, tensor in many.items() if f"trees.{tree}." in name
        })  # fmt: skip


def test_trees_do_not_see_the_labels_of_rows_held_out(monkeypatch: pytest.MonkeyPatch):
    x, y = small_data()
    runs = []
    init = training._Growth.__init__

    def kept(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        runs.append(self)

    monkeypatch.setattr(training._Growth, "__init__", kept)
    first = state(small_classifier().fit(x, y))
    held_out = runs[0].held_out
    assert len(held_out) == max(0.2 * N, N // 4)
    changed = y.copy()
    changed[held_out] = np.roll(changed[held_out], 1, axis=0)
    second = state(small_classifier().fit(x, changed))
    assert not torch.equal(first["rows.labels"], second["rows.labels"])
    for name, tensor in first.items():
        if name.startswith("trees."):
            assert torch.equal(second[name], tensor), name


def held_out_rows() -> NDArray[np.int64]:
    """Those of the small classifier on the small data."""
    seed = np.random.RandomState(0).randint(2**31 - 1)
    return np.sort(np.random.default_rng([seed, 1]).choice(N, N // 4, replace=False))


def test_label_counts_of_the_evidence_are_those_of_the_rows_that_trees_have_seen():
    x, y = small_data()
    classifier = small_classifier().fit(x, y)
    seen = np.delete(y, held_out_rows(), axis=0).sum(axis=0)
    assert np.any(seen < y.sum(axis=0))
    evidence = classifier.model_.evidence(scipy.sparse.csr_matrix(classifier.features_.transform(small_data(1)[0])))
    assert np.any(seen[evidence.labels] < y.sum(axis=0)[evidence.labels])
    np.testing.assert_allclose(evidence.values[:, len(SHARES) + 1], np.log1p(seen)[evidence.labels], rtol=1e-6)


def test_the_background_is_the_rate_of_labels_that_are_no_candidates(monkeypatch: pytest.MonkeyPatch):
    every = LabelTreeModel.evidence

    def of_even_labels(self: LabelTreeModel, *args: Any, **kwargs: Any) -> Evidence:
        found = every(self, *args, **kwargs)
        even = found.labels % 2 == 0
        return found._replace(rows=found.rows[even], labels=found.labels[even], values=found.values[even])

    monkeypatch.setattr(LabelTreeModel, "evidence", of_even_labels)
    x, y = small_data()
    classifier = small_classifier().fit(x, y)
    held_out = held_out_rows()
    features = scipy.sparse.csr_matrix(classifier.features_.transform(x), dtype=np.float32)
    evidence = classifier.model_.evidence(features[held_out], own=held_out)
    is_candidate = np.zeros((len(held_out), K), bool)
    is_candidate[evidence.rows, evidence.labels] = True
    misses, others = (y[held_out].astype(bool) & ~is_candidate).sum(), (~is_candidate).sum()
    assert misses > 0
    expected = (misses + 0.5) / (others + 0.5 * N * K / y.sum())
    assert float(classifier.model_.background) == pytest.approx(expected, rel=1e-5)


def test_where_every_label_is_a_candidate_the_background_is_no_more_than_the_average_label():
    x, y = small_data()
    classifier = small_classifier(beam=1000).fit(x, y)
    assert float(classifier.model_.background) <= y.mean() * 1.0001


@pytest.mark.parametrize("blocks", [1, 4])
def test_an_interrupted_run_ends_at_the_same_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fits: list[tuple[int, int]], blocks: int
):
    expected = state(small_classifier().fit(*small_data()))
    n_all = len(fits)
    fits.clear()
    checkpoint = tmp_path / "model.checkpoint"
    interrupt(monkeypatch, small_classifier(checkpoint=checkpoint), blocks)
    assert len(fits) == blocks
    # Twice, the second time with another pace of saving, which is no other run.
    interrupt(monkeypatch, small_classifier(checkpoint=checkpoint, checkpoint_seconds=0), blocks + 2)
    assert len(fits) == blocks + 2
    resumed = small_classifier(checkpoint=checkpoint).fit(*small_data())
    assert_same(state(resumed), expected)
    assert len(fits) == n_all
    # Everything is saved before the evidence is weighed, so that nothing is fitted again.
    assert_same(state(small_classifier(checkpoint=checkpoint).fit(*small_data())), expected)
    assert len(fits) == n_all


def test_an_interrupt_while_the_evidence_is_weighed_names_the_checkpoint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    def interrupted(*_: Any, **__: Any) -> None:
        raise TrainingInterrupted(None)

    monkeypatch.setattr(combiner, "train", interrupted)
    with pytest.raises(TrainingInterrupted) as caught:
        small_classifier(checkpoint=tmp_path / "c").fit(*small_data())
    assert caught.value.saved == str(tmp_path / "c")


@pytest.fixture
def checkpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    path = tmp_path / "c"
    interrupt(monkeypatch, small_classifier(checkpoint=path), 2)
    return path


def test_the_checkpoint_of_other_data_or_settings_is_refused(checkpoint: Path):
    x, y = small_data()
    for classifier, data in (
        (small_classifier(checkpoint=checkpoint), small_data(1)),
        (small_classifier(checkpoint=checkpoint), (x, y[:, ::-1])),
        (small_classifier(checkpoint=checkpoint, prior_variance=3.0), (x, y)),
        (small_classifier(checkpoint=checkpoint, random_state=1), (x, y)),
    ):
        with pytest.raises(ModelFormatError, match="other data or settings"):
            classifier.fit(*data)


def change_header(path: Path, **changes: Any) -> None:
    tensors, header = read_tensors(path)
    header = {name: value for name, value in (header | changes).items() if value is not None}
    write_tensors(path, tensors, header)


@pytest.mark.parametrize(
    "changes",
    [
        {"n_parts": None},
        {"n_parts": "1"},
        {"n_parts": 1.5},
        {"n_parts": 7},
        {"seconds": None},
        {"seconds": "soon"},
        {"seconds": -1},
        {"format": "another"},
        {"fingerprint": None},
    ],
)
def test_a_damaged_header_is_refused(checkpoint: Path, changes: dict[str, Any]):
    change_header(checkpoint, **changes)
    with pytest.raises(ModelFormatError, match=str(checkpoint)):
        small_classifier(checkpoint=checkpoint).fit(*small_data())


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path):
    (tmp_path / "c").write_text("no checkpoint")
    with pytest.raises(ModelFormatError, match="not a readable tensor file"):
        small_classifier(checkpoint=tmp_path / "c").fit(*small_data())


def test_missing_or_cut_parts_are_refused(checkpoint: Path):
    part = parts_folder(checkpoint) / "0.safetensors"
    part.write_bytes(part.read_bytes()[:-40])
    with pytest.raises(ModelFormatError, match="not a readable tensor file"):
        small_classifier(checkpoint=checkpoint).fit(*small_data())
    shutil.rmtree(parts_folder(checkpoint))
    with pytest.raises(ModelFormatError, match="no such file"):
        small_classifier(checkpoint=checkpoint).fit(*small_data())


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("biases", lambda tensor: None),
        ("biases", lambda tensor: tensor[1:]),
        ("blocks", lambda tensor: tensor[:, None]),
        ("weights", lambda tensor: tensor[1:]),
        ("weights", lambda tensor: tensor.to(torch.int64)),
        ("features", lambda tensor: tensor + D),
        ("targets", lambda tensor: tensor + 10**6),
        ("entries", lambda tensor: tensor.flip(0)),
        ("features", lambda tensor: tensor.flip(0)),
    ],
)
def test_parts_that_contradict_themselves_are_refused(checkpoint: Path, name: str, change: Any):
    part = parts_folder(checkpoint) / "0.safetensors"
    tensors, header = read_tensors(part)
    tensors[f"0.0.0.{name}"] = change(tensors[f"0.0.0.{name}"])
    write_tensors(part, {name: tensor for name, tensor in tensors.items() if tensor is not None}, header)
    with pytest.raises(ModelFormatError, match=str(checkpoint)):
        small_classifier(checkpoint=checkpoint).fit(*small_data())


def test_parts_without_their_checkpoint_are_left_overs(checkpoint: Path):
    checkpoint.unlink()
    (parts_folder(checkpoint) / "0.safetensors").write_bytes(b"old")
    expected = state(small_classifier().fit(*small_data()))
    assert_same(state(small_classifier(checkpoint=checkpoint).fit(*small_data())), expected)


def test_a_time_budget_grows_fewer_trees_but_one(monkeypatch: pytest.MonkeyPatch):
    classifier = small_classifier(n_trees=50, time_budget=1e-3)
    with pytest.warns(BudgetWarning, match="is enough for 1 of 50 trees: give more time, or set n_trees=1"):
        classifier.fit(*small_data())
    assert len(classifier.settings_.trees) == 1
    assert classifier.predict_topk(small_data()[0], 3).labels.shape == (N, 3)
    assert len(small_classifier(n_trees=3, time_budget=1e6).fit(*small_data()).settings_.trees) == 3


def test_two_processes_end_at_the_model_of_one(tmp_path: Path):
    script = Path(__file__).with_name("several_processes.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, str(script), str(tmp_path)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected = state(small_classifier().fit(*small_data()))
    finally:
        torch.set_num_threads(before)
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt")
        assert found["n_fitted"] < found["n_blocks"]
        assert_same(found["state"], expected)


def test_labels_that_may_be_missing_are_more_probable_the_rarer_they_are_recorded():
    x, y = small_data(n_rows=1000)
    recorded = y * (np.random.default_rng(3).random(y.shape) < np.where(np.arange(K) % 2, 0.4, 1.0))
    propensity = np.where(np.arange(K) % 2, 0.4, 1.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(combiner, "_STEPS", 150)
        known, unknown = (
            small_classifier(propensity=each, n_inducing=30, held_out=0.4).fit(x, recorded)
            for each in (propensity, None)
        )
    test_x, test_y = small_data(5, n_rows=400)
    often, seldom = np.arange(0, K - 1, 2), np.arange(1, K - 1, 2)
    sums = {name: model.predict_proba(test_x).sum(axis=0) for name, model in (("known", known), ("unknown", unknown))}
    # The evidence does not tell the propensity of a label, only what goes with it, so that some is taken for another's.
    for labels in (often, seldom):
        assert sums["known"][labels].sum() == pytest.approx(test_y[:, labels].sum(), rel=0.3)
    assert sums["unknown"][seldom].sum() < 0.65 * test_y[:, seldom].sum()
    assert sums["known"][seldom].sum() > 1.4 * sums["unknown"][seldom].sum()


def test_propensities_of_one_change_nothing():
    models = [small_classifier(propensity=each).fit(*small_data()) for each in (np.ones(K), None)]
    with_them, without = (model.predict_proba(small_data(5)[0]) for model in models)
    np.testing.assert_array_equal(with_them, without)


@pytest.mark.parametrize("value", ["often", (1.0,), np.zeros(K), np.ones(3)])
def test_propensities_outside_their_domain_are_refused_before_the_work(monkeypatch: pytest.MonkeyPatch, value: Any):
    monkeypatch.setattr(training._Growth, "grow", lambda *_: pytest.fail("trees grew"))
    with pytest.raises(SettingsError, match="propensity"):
        small_classifier(propensity=value).fit(*small_data())


def test_what_was_tried_beside_training_is_told(tmp_path: Path):
    classifier = small_classifier().fit(*small_data())
    names = [set(each.chosen) for each in classifier.hyperparameters_]
    assert names == [{"exclusions"}, {"precision", "noise"}, {"noise of all rows"}, {"regression on all rows"}]
    used = classifier.hyperparameters_[-1].chosen["regression on all rows"] == "used"
    assert used == (classifier.settings_.n_directions > 0)
    classifier.save(tmp_path / "model")
    assert extremegp.load(tmp_path / "model").hyperparameters_ == classifier.hyperparameters_
    without = small_classifier(n_regressed=0, all_rows=False).fit(*small_data())
    assert [set(each.chosen) for each in without.hyperparameters_] == [{"exclusions"}]
