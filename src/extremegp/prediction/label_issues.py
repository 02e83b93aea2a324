"""How probable it is that recorded labels are wrong, and that missing ones were forgotten, given what a model says.

Noise of labels depends on the true label alone: of the labels that apply a share a is not recorded, and a share b of
those that do not apply is (Natarajan et al. 2013). With q how probable it is that the label applies, by Bayes' rule

    P(applies | not recorded) = a q / (a q + (1 - b)(1 - q)),
    P(does not apply | recorded) = b (1 - q) / (b (1 - q) + (1 - a) q).

For q stands what a model of recorded labels says, which is near it where errors are few. Rates are counted where it is
confident (Northcutt, Jiang and Chuang 2021): labels that are not recorded, of a probability above the mean of those
that are, and recorded ones of a probability below the mean of those that are not. A model cannot tell errors from what
nobody could predict: where labels are hard to predict the rates are too high, and so are the probabilities. The order
is what counts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_LIKE_OTHERS = 20.0
"""Rows of all labels together that count beside those of each."""
_MOST = 0.3


class LabelPairs(NamedTuple):
    """Pairs of a row and a label.

    Attributes:
        rows: of the pairs.
        labels: of the pairs.
        p: how probable it is, as the model has it, that the label is recorded of the row.
    """

    rows: NDArray[np.int64]
    labels: NDArray[np.int64]
    p: NDArray[np.float32]

    def some(self, which: NDArray[np.bool_] | NDArray[np.int64]) -> LabelPairs:
        """Some of them."""
        return LabelPairs(self.rows[which], self.labels[which], self.p[which])


class NoiseRates(NamedTuple):
    """How labels are recorded.

    Attributes:
        missing: a, the share of labels that apply and are not recorded.
        wrong: b, the share of pairs of a row and a label that does not apply which are recorded.
    """

    missing: float
    wrong: float

    @classmethod
    def counted(cls, recorded: LabelPairs, absent: LabelPairs, n_rows: int, n_labels: int) -> NoiseRates:
        """Rates by confident counting: of all labels together, for few have enough rows to tell their own.

        Args:
            recorded: all pairs that are.
            absent: the likeliest of those that are not.
            n_rows: N.
            n_labels: K.
        """
        n = np.bincount(recorded.labels, minlength=n_labels).astype(np.float64)
        expected = np.bincount(recorded.labels, recorded.p, n_labels)
        present = (expected + _LIKE_OTHERS * expected.sum() / max(n.sum(), 1)) / (n + _LIKE_OTHERS)
        # Of a calibrated model the labels that are expected are as many as there are.
        lacking = np.maximum(n - expected, 0) / np.maximum(n_rows - n, 1)
        sure = np.count_nonzero(recorded.p >= present[recorded.labels])
        forgotten = np.count_nonzero(absent.p >= present[absent.labels])
        strange = np.count_nonzero(recorded.p <= lacking[recorded.labels])
        missing, wrong = ((count + 0.5) / (count + sure + 1) for count in (forgotten, strange))
        of_absent = min(wrong, _MOST) * n.sum() / max(n_rows * n_labels - n.sum(), 1.0)
        return cls(min(missing, _MOST), min(max(of_absent, 1e-9), _MOST))

    def of_recorded(self, pairs: LabelPairs) -> NDArray[np.float64]:
        """How probable it is that labels which are recorded do not apply."""
        wrong, q = self.wrong, _within(pairs.p)
        return np.asarray(wrong * (1 - q) / (wrong * (1 - q) + (1 - self.missing) * q))

    def of_absent(self, pairs: LabelPairs) -> NDArray[np.float64]:
        """How probable it is that labels which are not recorded apply."""
        wrong, q = self.wrong, _within(pairs.p)
        return np.asarray(self.missing * q / (self.missing * q + (1 - wrong) * (1 - q)))


def contradicted(pairs: LabelPairs, rates: NoiseRates, *, recorded: bool) -> NDArray[np.float64]:
    """How probable an error is where one of two rows that are alike has a label, which applies to both or none.

    Args:
        pairs: of a label and one of the rows.
        rates: how labels are recorded.
        recorded: whether that row has the label.
    """
    wrong, q = rates.wrong, _within(pairs.p)
    forgotten, added = q * rates.missing * (1 - rates.missing), (1 - q) * wrong * (1 - wrong)
    return np.asarray((added if recorded else forgotten) / (forgotten + added))


def _within(p: NDArray[np.float32]) -> NDArray[np.float64]:
    return np.clip(p.astype(np.float64), 1e-7, 1 - 1e-6)
