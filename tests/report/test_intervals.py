"""Intervals of figures, against resampling by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from extremegp.metrics import expected_calibration_error
from extremegp.report.intervals import RowSums

N, K = 60, 4


def _sums() -> tuple[RowSums, dict[str, np.ndarray]]:
    """Figures of random rows that come in two blocks, and what they are made of."""
    rng = np.random.default_rng(1)
    truth, p = rng.random((N, K)) < 0.4, rng.random((N, K)).astype(np.float32)
    decided, sums = p >= 0.5, RowSums()
    for rows in (slice(0, 25), slice(25, N)):
        own, of, guessed = truth[rows], p[rows], decided[rows]
        sums.add_mean("mean", own[:, 0])
        sums.add_ratio("recall", (own & guessed).sum(axis=1), own.sum(axis=1))
        places = np.repeat(np.arange(len(own)), K)
        sums.add_error("ece", len(own), places, of.ravel(), own.ravel())
        sums.add_macro("macro", csr_matrix(own & guessed), csr_matrix(guessed), csr_matrix(own))
    return sums, {"truth": truth, "p": p, "decided": decided}


def _naive(truth: np.ndarray, p: np.ndarray, decided: np.ndarray) -> dict[str, float]:
    f1 = []
    for k in range(K):
        if truth[:, k].any():
            right = int((truth[:, k] & decided[:, k]).sum())
            f1.append(2 * right / (int(truth[:, k].sum()) + int(decided[:, k].sum())))
    return {
        "mean": float(truth[:, 0].mean()),
        "recall": float((truth & decided).sum() / truth.sum()),
        "ece": expected_calibration_error(truth.astype(int), p),
        "macro": float(np.mean(f1)),
    }


def test_figures_are_those_of_the_rows() -> None:
    sums, data = _sums()
    assert sums.estimates() == pytest.approx(_naive(**data), rel=1e-6)


def test_intervals_are_percentiles_of_figures_of_resampled_rows() -> None:
    sums, data = _sums()
    rng, drawn = np.random.default_rng(7), []
    for _ in range(150):
        rows = rng.integers(0, N, N)
        drawn.append(_naive(**{name: part[rows] for name, part in data.items()}))
    found = sums.intervals(7, 150)
    estimates = _naive(**data)
    for name in estimates:
        low, high = np.percentile([each[name] for each in drawn], (2.5, 97.5))
        if name == "ece":
            low, high = max(0.0, 2 * estimates[name] - high), max(0.0, 2 * estimates[name] - low)
        if name == "macro":
            margin = 1.96 * np.std([each[name] for each in drawn], ddof=1)
            low, high = max(0.0, estimates[name] - margin), min(1.0, estimates[name] + margin)
        assert found[name] == pytest.approx((low, high), abs=1e-6)


def test_intervals_of_means_hold_about_as_often_as_they_say() -> None:
    rng, held = np.random.default_rng(3), 0
    for seed in range(200):
        sums = RowSums()
        sums.add_mean("mean", rng.random(100) < 0.3)
        low, high = sums.intervals(seed, 200)["mean"]
        held += low <= 0.3 <= high
    assert 0.88 <= held / 200 <= 0.99


def test_the_error_of_calibrated_probabilities_is_not_told_from_none() -> None:
    rng, sums = np.random.default_rng(5), RowSums()
    p = rng.random(2000).astype(np.float32)
    sums.add_mean("mean", p)
    sums.add_error("ece", 2000, np.arange(2000), p, rng.random(2000) < p)
    low, high = sums.intervals(0)["ece"]
    assert low < 0.01
    assert high < sums.estimates()["ece"] + 0.005


def test_the_interval_of_a_mean_over_rare_labels_is_about_the_figure() -> None:
    """Every label is of one row, a third of which are found: most resamples have other labels."""
    n, sums = 90, RowSums()
    own = csr_matrix(np.eye(n))
    found = csr_matrix(np.diag((np.arange(n) % 3 == 0).astype(float)))
    sums.add_mean("mean", np.ones(n))
    sums.add_macro("macro", found, found, own)
    low, high = sums.intervals(0, 200)["macro"]
    assert low < 1 / 3 < high
    assert high - low < 0.3


def test_equal_seeds_give_equal_intervals() -> None:
    assert _sums()[0].intervals(2, 100) == _sums()[0].intervals(2, 100) != _sums()[0].intervals(3, 100)
    assert RowSums().intervals(0) == {}
