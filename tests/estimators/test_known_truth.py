"""Intervals of the default model where the truth is known: utilities drawn by themselves, and a label of noise."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.answers import known_truth

from extremegp import MultiLabelGPClassifier


@pytest.mark.slow
@pytest.mark.parametrize("n_rows", [100, 500, 2000])
def test_true_utilities_lie_within_intervals_as_often_as_these_say(n_rows: int):
    found = [known_truth.coverage(n_rows, seed) for seed in range(3)]
    inside, gap = (np.mean([getattr(of, part) for of in found]) for part in ("inside", "gap"))
    assert 0.92 < inside < 0.98
    assert gap > 0.92


def test_true_utilities_of_one_draw_lie_within_intervals():
    found = known_truth.coverage(200, 0)
    assert found.inside > 0.85
    assert found.gap > 0.8


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_a_label_of_pure_noise_is_undecided_in_a_gap(seed: int):
    low, high = known_truth.noise_in_gap(seed)
    assert low >= 0.4
    assert high <= 0.6


def test_a_label_of_pure_noise_varies_least_and_there_is_no_mean_function():
    x, y, _ = known_truth.two_clusters(0)
    classifier = MultiLabelGPClassifier(features="raw", verbose=False, random_state=0).fit(x, y)
    scales = classifier.model_.mixing.log_scales.detach().numpy()
    assert scales[-1] < scales[:-1].min() - 0.5
    assert classifier.model_.mean_function.slope == 0
