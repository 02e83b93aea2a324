"""Labels that are probably wrong: against sorting all pairs."""

from __future__ import annotations

import numpy as np

from extremegp.report.issues import MOST, Surprises


def test_the_most_surprising_pairs_of_many_blocks_are_kept() -> None:
    rng = np.random.default_rng(0)
    # No row has more than two labels, nor lacks more than two.
    truth, p = np.zeros((300, 4), np.bool_), rng.random((300, 4))
    np.put_along_axis(truth, rng.random((300, 4)).argsort(axis=1)[:, :2], True, axis=1)
    surprises = Surprises()
    for start in range(0, 300, 40):
        rows, labels = np.nonzero(truth[start : start + 40])
        surprises.add(rows + start, labels, p[rows + start, labels], present=True)
        rows, labels = np.nonzero(~truth[start : start + 40])
        surprises.add(rows + start, labels, p[rows + start, labels], present=False)
    found = surprises.likeliest()
    present = sorted((p[i, k], i, k) for i, k in np.argwhere(truth))[: MOST // 2]
    absent = sorted((-p[i, k], i, k) for i, k in np.argwhere(~truth))[: MOST // 2]
    assert [(each.row, each.label, each.present) for each in found] == [
        *((i, k, True) for _, i, k in present),
        *((i, k, False) for _, i, k in absent),
    ]


def test_what_the_model_agrees_with_is_no_issue() -> None:
    surprises, one = Surprises(), np.array([0])
    surprises.add(one, one, np.array([0.9]), present=True)
    surprises.add(one, one, np.array([0.1]), present=False)
    assert surprises.likeliest() == []
    # The class of a row, which the model finds more likely than any other.
    surprises.add(one, one, np.array([0.3]), present=True, instead=(one + 1, np.array([0.2])))
    assert surprises.likeliest() == []
    surprises.add(one, one, np.array([0.3]), present=True, instead=(one + 1, np.array([0.6])))
    assert [(each.label, each.instead) for each in surprises.likeliest()] == [(0, 1)]


def test_one_kind_takes_the_places_that_the_other_leaves() -> None:
    surprises = Surprises()
    surprises.add(np.arange(80), np.zeros(80, np.int64), np.full(80, 0.01), present=True)
    assert len(surprises.likeliest()) == MOST
    surprises.add(np.arange(10), np.zeros(10, np.int64), np.full(10, 0.99), present=False)
    assert [each.present for each in surprises.likeliest()] == [True] * 40 + [False] * 10


def test_of_equally_unlikely_labels_the_frequent_come_first_and_two_of_a_row() -> None:
    surprises, labels = Surprises(), np.arange(6)
    rows, counts = np.array([0, 0, 0, 1, 1, 2]), np.array([1, 9, 8, 7, 3, 2])
    surprises.add(rows, labels, np.full(6, 0.001), present=True, counts=counts)
    assert [(each.row, each.label) for each in surprises.likeliest()] == [(0, 1), (0, 2), (1, 3), (1, 4), (2, 5)]
