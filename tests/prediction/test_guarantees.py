"""Promises of sets: scores against enumeration, thresholds against all others, and whether they are kept."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import scipy.stats

from extremegp.errors import DataError
from extremegp.prediction.decisions import Candidates
from extremegp.prediction.guarantees import (
    NEVER,
    HeldOut,
    Labelled,
    controlled,
    cut_of,
    frequency_bands,
    held_out,
    p_value,
    scored,
    scores_of,
)


@pytest.mark.parametrize("seed", range(5))
def test_scores_are_expectations_over_all_truths(seed: int):
    p = np.sort(np.random.default_rng(seed).beta(0.5, 1.5, size=6))[::-1]
    share, missed = np.zeros(6), np.zeros(6)
    for truth in product((0, 1), repeat=6):
        chance, y = float(np.prod(np.where(truth, p, 1 - p))), np.array(truth)
        share += chance * y / max(y.sum(), 1)
        missed += chance * np.array([y[j:].any() for j in range(6)])
    none = np.zeros(1)
    np.testing.assert_allclose(scores_of("recall", p[None], none)[0], share, atol=1e-9)
    np.testing.assert_allclose(scores_of("all", p[None], none)[0], missed, atol=1e-9)
    np.testing.assert_array_equal(scores_of("precision", p[None], none)[0], p)
    shares = p / p.sum()
    np.testing.assert_allclose(scores_of("labelling", shares[None], none)[0], np.cumsum(shares[::-1])[::-1], atol=1e-12)


def test_many_unlikely_labels_count_as_their_sum():
    p, rare = np.array([0.9, 0.4, 0.2]), np.full(2000, 5e-4)
    whole = scores_of("recall", np.concatenate([p, rare])[None], np.zeros(1))[0]
    np.testing.assert_allclose(scores_of("recall", p[None], np.ones(1))[0], whole[:3], atol=1e-3)
    whole = scores_of("all", np.concatenate([p, rare])[None], np.zeros(1))[0]
    np.testing.assert_allclose(scores_of("all", p[None], np.ones(1))[0], whole[:3], atol=1e-3)


@pytest.mark.parametrize("level", [0.5, 0.8, 0.95])
def test_the_threshold_is_the_greatest_that_is_controlled(level: float):
    rng = np.random.default_rng(3)
    n = 60
    counts = rng.integers(1, 4, size=n)
    rows = np.repeat(np.arange(n), counts)
    scores, weights = rng.random(len(rows)), 1 / counts[rows]
    found = controlled(scores, weights, n, level)

    def bound(threshold: float) -> float:
        loss = 1 - np.bincount(rows, weights * (scores >= threshold), n)
        return float((loss.sum() + 1) / (n + 1))

    allowed = [threshold for threshold in scores if bound(threshold) <= 1 - level + 1e-9]
    assert found == max(allowed)
    assert controlled(scores[:5], weights[:5], n, level) is None


def simulated(rng: np.random.Generator, n: int) -> tuple[Candidates, np.ndarray]:
    """Rows of 12 labels whose probabilities are not quite right."""
    p = rng.beta(0.4, 1.2, size=(n, 12))
    y = rng.random((n, 12)) < p**1.3
    labels = np.argsort(-p, axis=1)
    return Candidates(labels, np.take_along_axis(p, labels, 1), np.zeros(n)), np.take_along_axis(y, labels, 1)


def known(promise: str, candidates: Candidates, hits: np.ndarray, groups: np.ndarray) -> list[HeldOut]:
    n_groups = groups.max() + 1
    n_true = np.stack([(hits & (groups[candidates.labels] == g)).sum(1) for g in range(n_groups)], 1)
    return held_out(promise, [Labelled(slice(0, len(hits)), candidates, hits, n_true)], groups)  # type: ignore[arg-type]


def kept(promise: str, level: float, groups: np.ndarray, seed: int) -> list[float]:
    """What sets of other rows hold, of each group."""
    rng = np.random.default_rng(seed)
    candidates, hits = simulated(rng, 120)
    cuts = [cut_of(promise, each, level, 0.9) for each in known(promise, candidates, hits, groups)]  # type: ignore[arg-type]
    candidates, hits = simulated(rng, 500)
    found = []
    for group, cut in enumerate(cuts):
        p, scores = scored(promise, candidates, groups, group)  # type: ignore[arg-type]
        taken, true = (p > 0) & (scores >= cut.threshold), hits & (p > 0)
        right, n_true = (taken & true).sum(1), true.sum(1)
        if promise == "precision":
            given = taken.sum(1)
            found.append(float((right / np.maximum(given, 1))[given > 0].mean()) if given.any() else 1.0)
        else:
            share = right / np.maximum(n_true, 1) if promise == "recall" else right == n_true
            found.append(float(share[n_true > 0].mean()))
    return found


@pytest.mark.parametrize("promise", ["recall", "all"])
@pytest.mark.parametrize("n_groups", [1, 3])
def test_promises_are_kept_in_expectation(promise: str, n_groups: int):
    found = np.array([kept(promise, 0.85, np.arange(12) % n_groups, seed) for seed in range(60)])
    error = found.std(axis=0) / 60**0.5
    assert (found.mean(axis=0) >= 0.85 - 2.5 * error).all()
    # They are not kept by giving much more than was asked for.
    assert (found.mean(axis=0) <= 0.85 + 2 / 90 + 2.5 * error).all()


def test_precision_is_kept_with_the_confidence_that_was_asked_for():
    found = np.array([kept("precision", 0.6, np.zeros(12, int), seed)[0] for seed in range(60)])
    assert (found < 0.6).mean() <= 0.1 + 2 * (0.1 * 0.9 / 60) ** 0.5
    assert found.mean() < 0.75


def test_p_values_are_no_smaller_than_the_chance():
    for n, bound in ((30, 0.1), (200, 0.3)):
        for wrong in range(0, int(n * bound), 3):
            exact = scipy.stats.binom.cdf(wrong, n, bound)
            assert exact <= p_value(wrong / n, n, bound) * (1 + 1e-9)
            assert p_value(wrong / n, n, bound) <= 1
    assert p_value(0.0, 0, 0.1) == p_value(0.2, 50, 0.1) == 1
    assert p_value(0.0, 100, 0.1) <= 0.9**100 * np.e


def test_where_candidates_are_too_few_the_surest_rows_are_promised():
    rng = np.random.default_rng(0)
    p = np.sort(rng.random((400, 3)), axis=1)[:, ::-1]
    hits = rng.random((400, 3)) < p
    candidates = Candidates(np.tile(np.arange(3), (400, 1)), p, np.zeros(400))
    # Rows that are not sure have a label that is no candidate.
    missed = (p[:, 0] < 0.7).astype(int)
    block = Labelled(slice(0, 400), candidates, hits, (hits.sum(1) + missed)[:, None])
    (of_rows,) = held_out("recall", [block], np.zeros(3, int))
    cut = cut_of("recall", of_rows, 0.9, 0.9)
    assert cut.attainable < 0.9
    assert 0.4 < cut.least_sureness < 0.95
    assert 0.2 < cut.kept < 0.9
    assert cut_of("recall", of_rows, 1.0, 0.9).threshold == NEVER
    with pytest.raises(DataError, match="no rows"):
        held_out("recall", [], np.zeros(3, int))


def test_bands_have_as_many_occurrences_and_equals_together():
    counts = np.array([1, 1, 1, 1, 1, 1, 6, 6, 3, 3, 30, 0])
    bands = frequency_bands(counts, 5)
    np.testing.assert_array_equal(np.unique(bands), np.arange(bands.max() + 1))
    assert bands[counts == 30] == bands.max()
    for value in np.unique(counts):
        assert len(np.unique(bands[counts == value])) == 1
    order = np.argsort(counts)
    assert (np.diff(bands[order]) >= 0).all()
    np.testing.assert_array_equal(np.bincount(frequency_bands(np.arange(1000, 1500), 5)) > 80, True)
    with pytest.raises(DataError, match="no label has a training row"):
        frequency_bands(np.zeros(3, int), 5)
