"""evaluate_topk gathers the metrics under their names."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from tests.reference import metrics as reference

from extremegp.errors import DataError, SettingsError
from extremegp.metrics import TopK, evaluate_topk

RNG = np.random.default_rng(0)
TRUTH = (RNG.random((50, 20)) < 0.1).astype(int)
SCORES = RNG.random((50, 20)).astype(np.float32)
CHANCE = RNG.uniform(0.05, 1.0, 20)
COUNTS = np.arange(20)


def test_every_value_equals_its_literal_definition() -> None:
    tail = list(range(4))
    found = evaluate_topk(csr_matrix(TRUTH), TopK.from_scores(SCORES, 5), CHANCE, train_counts=COUNTS, tail_below=4)
    expected = {}
    for k in (1, 3, 5):
        expected[f"P@{k}"] = reference.precision(TRUTH, SCORES, k)
        expected[f"nDCG@{k}"] = reference.ndcg(TRUTH, SCORES, k)
        expected[f"R@{k}"] = reference.recall(TRUTH, SCORES, k)
        expected[f"macro_R@{k}"] = reference.macro_recall(TRUTH, SCORES, k)
        expected[f"PSP@{k}"] = reference.psp(TRUTH, SCORES, CHANCE, k)
        expected[f"PSnDCG@{k}"] = reference.psndcg(TRUTH, SCORES, CHANCE, k)
        expected[f"tail_P@{k}"] = reference.precision(TRUTH, SCORES, k, tail)
        expected[f"tail_macro_R@{k}"] = reference.macro_recall(TRUTH, SCORES, k, tail)
    assert found == pytest.approx(expected)
    assert all(type(value) is float for value in found.values())


def test_optional_parts_are_left_out() -> None:
    assert set(evaluate_topk(TRUTH, SCORES, ks=(2,))) == {"P@2", "nDCG@2", "R@2", "macro_R@2"}


def test_tail_and_head_precision_add_up() -> None:
    found = evaluate_topk(TRUTH, SCORES, train_counts=COUNTS, tail_below=7)
    head = evaluate_topk(TRUTH, SCORES, train_counts=19 - COUNTS, tail_below=13)
    for k in (1, 3, 5):
        assert found[f"tail_P@{k}"] + head[f"tail_P@{k}"] == pytest.approx(found[f"P@{k}"])


def test_no_tail_labels_score_zero() -> None:
    found = evaluate_topk(TRUTH, SCORES, train_counts=COUNTS + 50)
    assert found["tail_P@5"] == found["tail_macro_R@5"] == 0.0


def test_unusable_counts_and_thresholds_are_refused() -> None:
    for counts in (COUNTS[:3], -COUNTS, np.full(20, np.nan)):
        with pytest.raises(DataError, match="train_counts"):
            evaluate_topk(TRUTH, SCORES, train_counts=counts)
    with pytest.raises(SettingsError, match="tail_below"):
        evaluate_topk(TRUTH, SCORES, train_counts=COUNTS, tail_below=0)
