"""The model of the default settings knows what it does not know."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from tests.cli.conftest import Run

import extremegp
from extremegp import LabelTreeGPClassifier, MultiClassGPClassifier, MultiLabelGPClassifier
from extremegp.datasets import load_debtags
from extremegp.errors import SettingsError


def _default(**changes: object) -> MultiLabelGPClassifier:
    return MultiLabelGPClassifier(verbose=False, random_state=0, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def texts() -> MultiLabelGPClassifier:
    train, _ = load_debtags()
    return _default(features="text").fit(train.texts[:600], train.labels[:600])


def test_the_default_is_a_regression_with_a_posterior(texts: MultiLabelGPClassifier):
    assert texts.settings_.latents == "landmarks"
    assert texts.model_.features is not None
    assert np.isfinite([record["elbo"] for record in texts.history_]).all()


@pytest.mark.filterwarnings("ignore:.*known")
def test_a_text_without_a_known_word_has_the_frequencies_and_is_the_most_uncertain(texts: MultiLabelGPClassifier):
    train, test = load_debtags()
    odd = "zzqx wwvk qqqj"
    frequencies = texts.label_counts_ / texts.n_rows_
    np.testing.assert_allclose(texts.predict_proba([odd])[0], frequencies, atol=0.01)
    asked = [odd, *test.texts[:200], *train.texts[:200]]
    found = texts.predict_uncertainty(asked)
    assert found.variance[0] == found.variance.max()
    assert found.novelty[0] < 0.01
    assert np.all(found.epistemic >= -1e-5)
    np.testing.assert_allclose(found.total - found.aleatoric, found.epistemic, atol=1e-5)


def test_parts_of_labels_add_up_and_utilities_give_the_probabilities(texts: MultiLabelGPClassifier):
    _, test = load_debtags()
    rows = test.texts[:20]
    whole, each = texts.predict_uncertainty(rows), texts.predict_label_uncertainty(rows)
    np.testing.assert_allclose(each.total.sum(1), whole.total, rtol=1e-4)
    np.testing.assert_allclose(each.variance.mean(1), whole.variance, rtol=1e-4)
    mean, variance = texts.predict_utilities(rows)
    grid = np.linspace(-8, 8, 2001)
    density = np.exp(-0.5 * grid**2) / np.exp(-0.5 * grid**2).sum()
    p = (1 / (1 + np.exp(-(mean[..., None] + np.sqrt(variance)[..., None] * grid)))) @ density
    np.testing.assert_allclose(texts.predict_proba(rows), p, atol=1e-3)


def test_it_is_saved_with_all_it_knows(texts: MultiLabelGPClassifier, tmp_path: Path):
    _, test = load_debtags()
    rows = test.texts[:20]
    texts.save(tmp_path / "model")
    again = extremegp.load(tmp_path / "model")
    for one, other in zip(texts.predict_uncertainty(rows), again.predict_uncertainty(rows), strict=True):
        np.testing.assert_array_equal(one, other)
    known = [labels[:1] for labels in test.labels[:20]]
    np.testing.assert_array_equal(texts.predict_proba(rows, given=known), again.predict_proba(rows, given=known))


def test_known_labels_move_the_others_and_none_known_moves_nothing(texts: MultiLabelGPClassifier):
    _, test = load_debtags()
    rows = test.texts[:20]
    plain = texts.predict_proba(rows)
    np.testing.assert_array_equal(texts.predict_proba(rows, given=[[]] * 20), plain)
    known = [labels[:1] for labels in test.labels[:20]]
    assert np.abs(texts.predict_proba(rows, given=known) - plain).max() > 0.05


@pytest.mark.parametrize("seed", range(2))
def test_the_variance_grows_into_a_gap_of_the_data_and_away_from_them(seed: int):
    rng = np.random.default_rng(seed)
    x = np.sort(np.concatenate([rng.uniform(-4, -1, 150), rng.uniform(1, 4, 150)]))[:, None].astype(np.float32)
    y = np.stack([rng.random(300) < 0.5, x[:, 0] > 0, np.abs(x[:, 0]) > 2.5], axis=1).astype(int)
    classifier = _default(features="raw").fit(x, y)
    gap = np.linspace(-0.5, 0.5, 11)[:, None].astype(np.float32)
    inside, between, far = (
        classifier.predict_utilities(np.asarray(rows, dtype=np.float32)).variance.mean() for rows in (x, gap, [[300.0]])
    )
    assert inside < between < far
    np.testing.assert_allclose(classifier.predict_proba(np.array([[300.0]]))[0], y.mean(0), atol=0.02)


def test_words_and_vectors_have_a_posterior_together():
    rng = np.random.default_rng(0)
    train, _ = load_debtags()
    vectors = rng.normal(size=(200, 5)).astype(np.float32)
    blocks = {"text": train.texts[:200], "vector": vectors}
    classifier = _default(features={"text": "text", "vector": "unit"}).fit(blocks, train.labels[:200])
    assert classifier.settings_.latents == "landmarks"
    assert classifier.predict_uncertainty(blocks).variance.shape == (200,)


def test_what_landmarks_do_not_have_is_told_or_taken_by_other_functions():
    x, y = np.eye(6, dtype=np.float32), np.eye(6, dtype=int)
    assert _default(mean_function="zero", epochs=1).fit(x, y).settings_.latents == "gp"
    with pytest.raises(SettingsError, match="does not go with posterior='full'"):
        _default(latents="landmarks", posterior="full").fit(x, y)


def test_classes_can_be_told_by_landmarks_too():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2)).astype(np.float32)
    y = np.where(x[:, 0] > 0, "right", "left")
    classifier = MultiClassGPClassifier(latents="landmarks", verbose=False, random_state=0).fit(x, y)
    assert classifier.score(x, y) > 0.95
    far = classifier.predict_proba(np.array([[300.0, 300.0]], dtype=np.float32))[0]
    np.testing.assert_allclose(far, classifier.label_counts_ / 200, atol=0.02)
    near, there = (classifier.predict_uncertainty(rows).variance for rows in (x, x + 100))
    assert there.min() > near.max()


def test_label_trees_tell_what_their_last_stage_knows():
    rng = np.random.default_rng(0)
    x = scipy.sparse.random(120, 40, density=0.2, format="csr", random_state=0, dtype=np.float32)
    y = (rng.random((120, 30)) < 0.1).astype(np.float32)
    y[:, 0] = 1
    classifier = LabelTreeGPClassifier(verbose=False, random_state=0).fit(x, scipy.sparse.csr_matrix(y))
    found = classifier.predict_uncertainty(x[:10])
    assert np.isfinite(np.stack(found)).all()
    assert np.all(found.total >= found.aleatoric - 1e-5)


@pytest.mark.filterwarnings("ignore:.*known")
def test_the_commands_tell_it_and_mark_new_rows(texts: MultiLabelGPClassifier, tmp_path: Path):
    texts.save(tmp_path / "model")
    _, test = load_debtags()
    rows = [{"text": text} for text in [*test.texts[:5], "zzqx wwvk qqqj"]]
    (tmp_path / "new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["--uncertainty", "--novelty-threshold", "0.01", "--out"]
    command = ["predict", tmp_path / "model", tmp_path / "new.jsonl", *arguments]
    result = Run()(*command, tmp_path / "out.jsonl")
    assert result.exit_code == 0
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert {"total", "aleatoric", "epistemic", "variance", "novelty", "novel"} <= written[0].keys()
    assert written[-1]["novel"] is True
    assert written[-1]["variance"] == max(row["variance"] for row in written)
    Run().fails(*command, tmp_path / "out.npz", naming="--uncertainty needs --out to end in .jsonl, .tsv or .csv")
