from __future__ import annotations

from typing import Any

import pytest
from tests.estimators.small import small_classifier

from extremegp.estimators.multilabel import _FIXED
from extremegp.settings.latents import latents_asked
from extremegp.settings.resolve import model_settings, training_settings
from extremegp.training import TrainingSettings


def _training(n_labels: int, **changes: Any) -> TrainingSettings:
    params = _FIXED | latents_asked(small_classifier(**changes).get_params(), n_rows=100, n_labels=n_labels)
    model = model_settings(params, n_rows=100, n_features=10, n_labels=n_labels)
    return training_settings(params, model=model, n_rows=100, seed=0)


@pytest.mark.parametrize(
    ("n_labels", "asked", "sampled"),
    [
        (20_000, "auto", None),
        (20_001, "auto", 2000),
        (10**6, "auto", 2000),
        (10**6, None, None),
        (10**6, 50_000, 50_000),
        (30, 50_000, 30),
        (30, 7, 7),
    ],
)
def test_labels_are_sampled_where_they_are_very_many_or_where_asked(n_labels: int, asked: Any, sampled: int | None):
    assert _training(n_labels, n_sampled_labels=asked).n_sampled_labels == sampled
