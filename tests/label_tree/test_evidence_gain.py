from __future__ import annotations

import numpy as np
import pytest

from extremegp.label_tree.evidence_gain import Gain, gain_of

ROWS, LABELS = 200, 10


def pairs(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two numbers, the second of which says nothing, a third that does; labels by the first and the third; rows."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(ROWS * LABELS, 3))
    present = rng.random(len(values)) < 1 / (1 + np.exp(2 - values[:, 0] - 1.5 * values[:, 2]))
    return values, present, np.repeat(np.arange(ROWS), LABELS)


def test_numbers_that_tell_something_gain_and_others_do_not():
    values, present, rows = pairs()
    weights = np.ones(len(rows))
    gain = gain_of(values, values[:, :2], present, rows, weights)
    nothing = gain_of(values[:, :2], values[:, :1], present, rows, weights)
    assert gain.share > 0.1
    assert gain.is_enough(0.015)
    assert abs(nothing.share) < 0.01
    assert not nothing.is_enough(0.005)


def test_it_is_the_share_of_the_log_likelihood_of_halves():
    from scipy.special import expit
    from sklearn.linear_model import LogisticRegression

    values, present, rows = pairs()
    weights = 0.5 + np.random.default_rng(1).random(ROWS)[rows]
    likelihoods = []
    for numbers in (values, values[:, :2]):
        total = np.zeros(ROWS)
        for half in (0, 1):
            mine = rows % 2 == half
            scaled = (numbers - numbers[mine].mean(axis=0)) / numbers[mine].std(axis=0)
            kind = LogisticRegression(max_iter=300).fit(scaled[mine], present[mine], weights[mine])
            p = expit(scaled[~mine] @ kind.coef_[0] + kind.intercept_)
            logarithms = weights[~mine] * np.log(np.where(present[~mine], p, 1 - p))
            np.add.at(total, rows[~mine], logarithms)
        likelihoods.append(total)
    gains = likelihoods[0] - likelihoods[1]
    found = gain_of(values, values[:, :2], present, rows, weights)
    assert found.share == pytest.approx(gains.mean() / -likelihoods[1].mean(), rel=1e-3)
    assert found.error == pytest.approx(gains.std() / np.sqrt(ROWS) / -likelihoods[1].mean(), rel=1e-3)


def test_nothing_is_gained_where_nothing_can_be_learnt():
    values, _, rows = pairs()
    assert gain_of(values, values[:, :2], np.zeros(len(rows), bool), rows, np.ones(len(rows))) == Gain(0, 0)


@pytest.mark.parametrize(("gain", "enough"), [((0.02, 0.009), True), ((0.02, 0.011), False), ((0.01, 0.001), False)])
def test_a_gain_is_enough_beyond_chance_and_cost(gain: tuple[float, float], enough: bool):
    assert Gain(*gain).is_enough(0.015) == enough
