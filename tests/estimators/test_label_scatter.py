"""Known labels with Gaussian processes on features, whose labels have functions of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import expit

import extremegp
from extremegp import MultiLabelGPClassifier
from extremegp.errors import ExtremeGPError
from extremegp.estimators import scatter
from extremegp.prediction.label_scatter import LabelScatter
from extremegp.storage import models

N, D, K = 400, 3, 4


def data(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Labels 0 and 1 of a row go together, and 2 apart from them, whatever its features."""
    rng = np.random.default_rng(seed)
    x, e = rng.normal(size=(N, D)).astype(np.float32), 3 * rng.normal(size=N)
    f = 0.5 * x[:, :1] + np.stack([e, e, -e, np.zeros(N)], axis=1)
    return x, (rng.random((N, K)) < expit(f)).astype(np.float32)


@pytest.fixture(scope="module")
def trained() -> MultiLabelGPClassifier:
    return MultiLabelGPClassifier(latents="landmarks", n_inducing=50, random_state=0, verbose=False).fit(*data())


def test_known_labels_move_the_others_their_way_and_nothing_known_changes_nothing(trained: MultiLabelGPClassifier):
    x = data(1)[0][:20]
    known = np.zeros((20, K))
    plain = trained.predict_proba(x)
    np.testing.assert_array_equal(trained.predict_proba(x, given=known), plain)
    np.testing.assert_array_equal(trained.decision_function(x, given=known), trained.decision_function(x))
    known[:, 0] = 1.0
    moved = trained.predict_proba(x, given=known)
    np.testing.assert_array_equal(moved[:, 0], 1.0)
    assert (moved[:, 1] > plain[:, 1] + 0.1).all()
    assert (moved[:, 2] < plain[:, 2] - 0.1).all()
    known[:, 0] = -1.0
    assert (trained.predict_proba(x, given=known)[:, 1] < plain[:, 1] - 0.1).all()


def test_the_scatter_makes_other_labels_of_new_rows_likelier(trained: MultiLabelGPClassifier):
    x, y = data(2)
    known = np.zeros((N, K))
    known[:, 0] = 2 * y[:, 0] - 1

    def loss(p: np.ndarray) -> float:
        return float(-np.where(y > 0, np.log(p), np.log1p(-p))[:, 1:].sum(1).mean())

    assert loss(trained.predict_proba(x, given=known).clip(1e-6, 1 - 1e-6)) < loss(trained.predict_proba(x)) - 0.2


def test_saved_models_keep_the_scatter(trained: MultiLabelGPClassifier, tmp_path: Path):
    x = data(3)[0]
    known = np.diag(np.ones(K))[np.arange(N) % K]
    trained.save(tmp_path / "m")
    loaded = extremegp.load(tmp_path / "m")
    assert isinstance(loaded.instance_noise_, LabelScatter)
    np.testing.assert_array_equal(loaded.predict_proba(x, given=known), trained.predict_proba(x, given=known))


@pytest.mark.parametrize("value", [torch.zeros(K + 1, 2), torch.full((K, 2), float("nan")), torch.zeros(K)])
def test_a_scatter_that_does_not_fit_the_labels_is_refused(
    trained: MultiLabelGPClassifier, tmp_path: Path, value: torch.Tensor
):
    trained.save(tmp_path / "m")
    config, tensors = models.read_model(tmp_path / "m")
    config = {key: part for key, part in config.items() if key not in ("sha256", "format_version")}
    models.write_model(tmp_path / "altered", config, {**tensors, "instance_noise.loadings": value})
    with pytest.raises(ExtremeGPError, match=f"scatter of instances does not fit {K} labels"):
        extremegp.load(tmp_path / "altered")


def test_one_label_has_no_others_to_scatter_with():
    x, y = data()
    classifier = MultiLabelGPClassifier(latents="landmarks", n_inducing=20, random_state=0, verbose=False)
    classifier.fit(x[:60], y[:60, :1])
    np.testing.assert_array_equal(classifier.predict_proba(x[:3], given=np.array([[1], [0], [-1]]))[[0, 2], 0], [1, 0])


def test_rows_without_labels_count_for_the_scatter(monkeypatch: pytest.MonkeyPatch):
    x, y = data()
    y[:30] = 0.0
    seen, estimate = [], scatter.estimate_scatter

    def watched(logits: Any, y: Any, **options: Any) -> LabelScatter:
        seen.append(y.toarray())
        return estimate(logits, y, **options)

    monkeypatch.setattr(scatter, "estimate_scatter", watched)
    MultiLabelGPClassifier(latents="landmarks", n_inducing=20, random_state=0, verbose=False).fit(x[:90], y[:90])
    np.testing.assert_array_equal(seen[0], y[:90])
