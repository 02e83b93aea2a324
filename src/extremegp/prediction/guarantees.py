"""Sets of labels that keep a promise: thresholds of scores, chosen on rows that training has not seen.

A set has all labels whose score reaches a threshold. What a set loses never grows as the threshold falls where the
promise is one of recall, so that conformal risk control holds it for exchangeable rows whatever the probabilities are
worth (Angelopoulos, Bates, Fisch, Lei and Schuster 2024, equation 4): the mean loss of the next row, over the held-out
rows too, is at most 1 - level. Precision falls and rises: thresholds are tested one after the other, from strict ones
on, until one cannot be shown to hold (Angelopoulos, Bates, Candes, Jordan and Lei 2021), with the p-value of Hoeffding
and Bentkus (Bates, Angelopoulos, Lei, Malik and Jordan 2021).

Scores are what makes sets small if the probabilities are right and labels independent given the row; the promise needs
neither.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

import numpy as np
import scipy.stats
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from extremegp.errors import DataError
from extremegp.prediction.decisions import Candidates

Promise = Literal["recall", "precision", "all", "class", "tokens", "labelling"]
NEVER = 2.0
"""A threshold that no score reaches."""

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(32)
_T, _WEIGHTS = (_NODES + 1) / 2, _WEIGHTS / 2
_GRID = np.unique(np.concatenate([np.linspace(0.01, 0.99, 197), 1 - np.logspace(-4, -2, 21)]))[::-1]
_STARTS = (0.25, 0.5, 1.0)  # of 1 - level, below 1: where tests of thresholds begin


def scores_of(promise: Promise, p: Float[np.ndarray, "B C"], others: Float[np.ndarray, " B"]) -> NDArray[np.float64]:
    """What the sets of a promise are cut by, B x C.

    For "recall" the share of the row's true labels that a label is expected to be: p_j E 1 / (1 + N) with N the number
    of other true labels, the integral of their generating function over [0, 1]. For "all" the probability that one of
    this and all less probable labels is true; for "labelling" likewise, where exactly one is. For the others its own
    probability.

    Args:
        promise: see there.
        p: of candidates, best first; 0 for those that do not count.
        others: the sum of the probabilities of other labels.
    """
    p = p.astype(np.float64)
    if promise in ("precision", "class", "tokens"):
        return p
    if promise == "labelling":
        return np.where(p > 0, 1 + p - np.cumsum(p, axis=1), 0)
    absent = np.log1p(-np.minimum(p, 1 - 1e-9))
    if promise == "all":
        none = np.cumsum(absent[:, ::-1], axis=1)[:, ::-1] - others[:, None]
        return np.where(p > 0, -np.expm1(none), 0)
    found = np.zeros(p.shape)
    for t, weight in zip(_T, _WEIGHTS, strict=True):
        factors = 1 - p * (1 - t)
        whole = np.log(factors).sum(axis=1, keepdims=True) - (others * (1 - t))[:, None]
        found += weight * np.exp(whole) / factors
    return np.asarray(p * found)


class Labelled(NamedTuple):
    """Candidates of a block of rows whose labels are known.

    Attributes:
        rows: which they are.
        candidates: of these.
        hits: which candidates are true, B x C.
        n_true: true labels of each group, candidates or not, B x G.
    """

    rows: slice
    candidates: Candidates
    hits: Bool[np.ndarray, "B C"]
    n_true: Int[np.ndarray, "B G"]


class HeldOut(NamedTuple):
    """What rows with known labels tell of the sets of a group of labels.

    Attributes:
        scores: of the true labels that are candidates, T.
        rows: of these, T.
        n_true: true labels of the group in each row, N.
        sureness: the greatest probability in each row, N.
        n_given: sets by the thresholds of a grid, N x G; without rows unless the promise is precision.
        n_right: how many of these are true.
    """

    scores: NDArray[np.float64]
    rows: NDArray[np.int64]
    n_true: NDArray[np.int64]
    sureness: NDArray[np.float64]
    n_given: NDArray[np.int64]
    n_right: NDArray[np.int64]


class Cut(NamedTuple):
    """The sets of a group of labels.

    Attributes:
        threshold: that scores are to reach; `NEVER` where nothing can be promised.
        least_sureness: of rows that the promise is for; the others are left to people.
        n_rows: held-out rows that it was chosen on.
        kept: the share of these that the promise is for.
        attainable: the recall of all candidates in all rows.
    """

    threshold: float
    least_sureness: float
    n_rows: int
    kept: float
    attainable: float


def held_out(promise: Promise, blocks: Iterable[Labelled], groups: Int[np.ndarray, " K"]) -> list[HeldOut]:
    """What rows with known labels tell of the sets of each group of labels."""
    found: list[list[HeldOut]] = [[] for _ in range(int(groups.max()) + 1)]
    for block in blocks:
        for group, parts in enumerate(found):
            p, scores = scored(promise, block.candidates, groups, group)
            hits = block.hits & (p > 0)
            row, place = np.nonzero(hits)
            given = right = np.zeros((0, len(_GRID)), np.int64)
            if promise == "precision":
                given = np.stack([(scores >= t).sum(axis=1) for t in _GRID], axis=1)
                right = np.stack([((scores >= t) & hits).sum(axis=1) for t in _GRID], axis=1)
            sureness = p.max(axis=1, initial=0)
            n_true = block.n_true[:, group]
            parts.append(HeldOut(scores[row, place], row + block.rows.start, n_true, sureness, given, right))
    if not all(found):
        raise DataError("there are no rows to promise anything by")
    return [HeldOut(*map(np.concatenate, zip(*parts, strict=True))) for parts in found]


def scored(
    promise: Promise, candidates: Candidates, groups: Int[np.ndarray, " K"], group: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Probabilities and scores of the candidates of a group, B x C each; 0 for the others."""
    alone = int(groups.max()) == 0
    there = (candidates.labels >= 0) & (alone | (groups[candidates.labels] == group))
    p = np.where(there, np.maximum(candidates.probabilities, 1e-12), 0)
    return p, scores_of(promise, p, candidates.others if alone else np.zeros(len(p)))


def cut_of(promise: Promise, known: HeldOut, level: float, confidence: float) -> Cut:
    """The threshold for which the promise holds, and the rows that it holds for.

    Where even all candidates are too few, half of the held-out rows choose which rows are left to people, the surest
    being kept, and the other half chooses the threshold on the rest.
    """
    if promise == "precision":
        return _precise(known, level, confidence)
    labelled = np.flatnonzero(known.n_true)
    found = np.bincount(known.rows, minlength=len(known.n_true))[labelled]
    weights = 1 / known.n_true[known.rows]
    best = found / known.n_true[labelled]
    if promise == "all":
        # A row counts with the lowest score of its labels, and not at all if one is no candidate.
        lowest = np.full(len(known.n_true), np.inf)
        np.minimum.at(lowest, known.rows, known.scores)
        best = (best == 1).astype(np.float64)
        rows = labelled[best == 1]
        known = known._replace(scores=lowest[rows], rows=rows)
        weights = np.ones(len(rows))
    attainable = float(best.mean()) if len(labelled) else 0.0
    threshold = controlled(known.scores, weights, len(labelled), level)
    if threshold is not None:
        return Cut(threshold, 0.0, len(labelled), 1.0, attainable)
    half = np.random.default_rng(0).permutation(len(labelled)) < len(labelled) // 2
    sure = known.sureness[labelled]
    least = _least_sureness(sure[half], best[half], level)
    kept = labelled[~half & (sure >= least)]
    of_kept = np.isin(known.rows, kept)
    threshold = controlled(known.scores[of_kept], weights[of_kept], len(kept), level)
    share = float((sure >= least).mean()) if len(labelled) else 0.0
    if threshold is None:
        return Cut(NEVER, NEVER, len(labelled), 0.0, attainable)
    return Cut(threshold, least, len(kept), share, attainable)


def controlled(scores: NDArray[np.float64], weights: NDArray[np.float64], n: int, level: float) -> float | None:
    """The greatest threshold with a mean loss of at most 1 - level, as conformal risk control has it; None if none is.

    Args:
        scores: above 0, of what a set may have.
        weights: by how much the loss of its row, at most 1, is less if the set has it.
        n: rows.
        level: to be kept in expectation over the n rows and the next.
    """
    order = np.argsort(-scores, kind="stable")
    held = np.cumsum(weights[order])
    place = int(np.searchsorted(held, level * (n + 1) - 1e-9))
    return float(scores[order[place]]) if place < len(order) else None


def p_value(loss: float, n: int, bound: float) -> float:
    """Of the hypothesis that losses in [0, 1] are more than `bound` in the mean, by the mean of n independent ones."""
    if n == 0 or loss >= bound:
        return 1.0
    a = max(loss, 0.0)
    divergence = (a * np.log(a / bound) if a > 0 else 0.0) + (1 - a) * np.log((1 - a) / (1 - bound))
    bentkus = np.e * scipy.stats.binom.cdf(np.ceil(n * a), n, bound)
    return float(min(np.exp(-n * divergence), bentkus, 1.0))


def _least_sureness(sureness: NDArray[np.float64], best: NDArray[np.float64], level: float) -> float:
    """The least sureness that leaves rows whose candidates are enough, with room for the threshold to choose."""
    order = np.argsort(-sureness, kind="stable")
    n = np.arange(1, len(order) + 1)
    enough = np.cumsum(best[order]) / n >= level + (1 - level) / 4 + 0.5 * np.sqrt(level * (1 - level) / n)
    return float(sureness[order[np.flatnonzero(enough)[-1]]]) if enough.any() else NEVER


def _precise(known: HeldOut, level: float, confidence: float) -> Cut:
    """The loosest threshold that is shown to hold, of chains of tests that share the risk of being wrong."""
    n_rows = len(known.n_true)
    best = -1
    for start in _STARTS:
        for place in range(int(np.argmax(1 - start * (1 - level) >= _GRID)), len(_GRID)):
            given = known.n_given[:, place]
            rows = given > 0
            wrong = 1 - known.n_right[rows, place] / given[rows]
            loss = float(wrong.mean()) if rows.any() else 1.0
            if p_value(loss, int(rows.sum()), 1 - level) > (1 - confidence) / len(_STARTS):
                break
            best = max(best, place)
    if best < 0:
        return Cut(NEVER, NEVER, n_rows, 0.0, 1.0)
    return Cut(float(_GRID[best]), 0.0, n_rows, float((known.n_given[:, best] > 0).mean()), 1.0)


def frequency_bands(counts: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """Bands of labels, from rare to frequent, with about as many occurrences in training each, K.

    Labels of equal frequency are in one band, so that there may be fewer.

    Raises:
        DataError: no label has a training row.
    """
    values, n_labels = np.unique(counts, return_counts=True)
    occurrences = np.cumsum(values * n_labels)
    if occurrences[-1] == 0:
        raise DataError("no label has a training row: there are no bands of them by frequency")
    band = np.minimum((occurrences - values * n_labels / 2) * n // occurrences[-1], n - 1)
    band = np.unique(band, return_inverse=True)[1]
    return np.asarray(band[np.searchsorted(values, counts)], np.int64)
