"""Metrics of sequence labelling against loops over sequences and tokens."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support
from tests.reference import sequences as reference

from extremegp.errors import DataError, SettingsError
from extremegp.metrics import (
    ClassMetrics,
    SequenceMetrics,
    SpanScore,
    evaluate_sequences,
    risk_coverage,
)

TAGS = ["B-A", "B-B", "I-A", "O"]
SPAN_KEYS = ("span_precision", "span_recall", "span_f1")


def random_block(rng: np.random.Generator, n_classes: int, lengths: list[int], unknown: float = 0.2) -> dict[str, Any]:
    """Arguments of `update`: some true labels were never seen, and some predicted ones are not the most probable."""
    n_tokens = sum(lengths)
    marginals = rng.dirichlet(np.full(n_classes, 0.5), size=n_tokens)
    drawn = (marginals.cumsum(axis=1) > rng.random((n_tokens, 1))).argmax(axis=1)
    truth = np.where(rng.random(n_tokens) < unknown, -1, drawn)
    predicted = np.where(rng.random(n_tokens) < 0.2, rng.integers(n_classes, size=n_tokens), marginals.argmax(axis=1))
    return {
        "y_true": truth,
        "predicted": predicted,
        "marginals": marginals,
        "lengths": np.array(lengths),
        "sequence_log_prob": -rng.exponential(3.0, size=len(lengths)),
    }


def split(values: Any, lengths: Any) -> list[np.ndarray]:
    return np.split(np.asarray(values), np.cumsum(lengths)[:-1])


def expected(block: dict[str, Any], n_bins: int = 16) -> dict[str, float]:
    truth, predicted, marginals = (split(block[key], block["lengths"]) for key in ("y_true", "predicted", "marginals"))
    codes = [[row.tolist() for row in rows] for rows in (truth, predicted)]
    return reference.sequence_metrics(*codes, marginals, block["sequence_log_prob"].tolist(), n_bins)


def joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    return {key: np.concatenate([first[key], second[key]]) for key in first}


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 5),
    st.lists(st.integers(1, 6), min_size=1, max_size=5),
    st.sampled_from([0.0, 0.3, 1.0]),
)
def test_metrics_equal_their_literal_definitions(seed: int, n_classes: int, lengths: list[int], unknown: float) -> None:
    block = random_block(np.random.default_rng(seed), n_classes, lengths, unknown)
    found = evaluate_sequences(**block, classes=range(n_classes), n_bins=16)
    assert {key: found[key] for key in found if not key.endswith("aurc")} == pytest.approx(expected(block))
    confidence = block["marginals"][np.arange(sum(lengths)), block["predicted"]].astype(np.float32)
    curve = risk_coverage(block["y_true"] == block["predicted"], confidence)
    assert (found["aurc"], found["excess_aurc"]) == (curve.area, curve.excess_area)
    assert all(type(value) is float for value in found.values())


def test_blocks_equal_one_pass() -> None:
    rng = np.random.default_rng(0)
    first, second = random_block(rng, 4, [3, 1, 5]), random_block(rng, 4, [2, 6])
    metrics = SequenceMetrics(TAGS, n_bins=16)
    for block in (first, second):
        metrics.update(**block)
    whole = evaluate_sequences(**joined(first, second), classes=TAGS, n_bins=16)
    assert metrics.compute() == pytest.approx(whole)
    assert set(SPAN_KEYS) < set(whole)
    assert metrics.n_unknown == whole["n_unknown"] == np.count_nonzero(joined(first, second)["y_true"] == -1)


def test_labels_come_as_codes_or_names_flat_or_by_sequence() -> None:
    rng = np.random.default_rng(1)
    block = random_block(rng, 4, [3, 1, 4], unknown=0.0)
    flat = evaluate_sequences(**block, classes=TAGS)
    lengths = block.pop("lengths")
    names = {key: np.array(TAGS)[block[key]] for key in ("y_true", "predicted")}
    forms: list[dict[str, Any]] = [
        {"y_true": split(block["y_true"], lengths)},
        {key: split(block[key], lengths) for key in names},
        {key: [row.tolist() for row in split(names[key], lengths)] for key in names},
        {key: [row.astype(object) for row in split(names[key], lengths)] for key in names},
        {"y_true": names["y_true"].tolist(), "lengths": lengths.tolist()},
        {key: torch.as_tensor(block[key]) for key in names} | {"lengths": torch.as_tensor(lengths)},
        {key: split(block[key].astype(np.int8), lengths) for key in names} | {"lengths": lengths},
    ]
    for form in forms:
        assert evaluate_sequences(**block | form, classes=np.array(TAGS)) == pytest.approx(flat)


def test_hand_computed_example() -> None:
    found = evaluate_sequences(
        [[0, 1], [1, 1], [-1]],
        [0, 1, 1, 0, 1],
        np.array([[0.75, 0.25], [0.25, 0.75], [0.5, 0.5], [0.5, 0.5], [0.25, 0.75]]),
        [10, 20],
        sequence_log_prob=[-0.5, -1.5, np.nan],
        n_bins=4,
    )
    nll = -2 * np.log(0.75) - 2 * np.log(0.5)
    assert found == pytest.approx(
        {
            "token_error": 2 / 5,
            "sequence_error": 2 / 3,
            # The most probable label of the third and fourth token is the first, by the order of ties.
            "marginal_error": 3 / 5,
            "nll_unstruct": nll,
            "nll_unstruct_per_token": nll / 4,
            "nll_struct": 2.0,
            "nll_struct_per_token": 2.0 / 4,
            "brier": (2 * 0.125 + 2 * 0.5 + 0.625 + 1) / 5,
            # Three confidences of 3/4, of which two are right, and two of 1/2, both wrong.
            "ece": (3 * abs(0.75 - 2 / 3) + 2 * 0.5) / 5,
            "aurc": (3 * 1 / 3 + (1 + 1 / 2) / 4 + 2 / 5) / 5,
            "excess_aurc": (3 * 1 / 3 + (1 + 1 / 2) / 4 + 2 / 5) / 5 - (1 / 4 + 2 / 5) / 5,
            "n_sequences": 3,
            "n_tokens": 5,
            "n_unknown": 1,
        }
    )


def test_labels_and_confusions_are_those_of_the_predicted_labels() -> None:
    rng = np.random.default_rng(5)
    blocks = [random_block(rng, 4, [9, 1, 20]), random_block(rng, 4, [30])]
    metrics = SequenceMetrics(TAGS)
    for block in blocks:
        metrics.update(**block)
    truth, predicted = (np.concatenate([block[key] for block in blocks]) for key in ("y_true", "predicted"))
    known = truth >= 0
    expected = confusion_matrix(truth[known], predicted[known], labels=range(4))
    np.testing.assert_array_equal(metrics.confusion().toarray(), expected)
    # Not those of the most probable labels, which some predicted ones are not.
    assert (metrics.confusion() != metrics.tokens.confusion()).nnz
    each = metrics.per_label()
    # To scikit-learn the label never seen is one more, which is never predicted.
    parts = precision_recall_fscore_support(truth, predicted, labels=range(4), zero_division=0)
    for found, wanted in zip((each.precision, each.recall, each.f1, each.support), parts, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)
    np.testing.assert_array_equal(each.predicted, np.bincount(predicted, minlength=4))


def test_tokens_are_the_classes_of_the_marginals() -> None:
    block = random_block(np.random.default_rng(2), 4, [7, 9])
    metrics, classes = SequenceMetrics(TAGS), ClassMetrics(4, ks=())
    metrics.update(**block)
    classes.update(block["marginals"], block["y_true"])
    assert metrics.tokens.compute() == classes.compute()
    np.testing.assert_array_equal(metrics.tokens.reliability().count, classes.reliability().count)


def test_without_probabilities_of_sequences_their_likelihood_is_left_out() -> None:
    block = random_block(np.random.default_rng(3), 3, [2, 3])
    whole = evaluate_sequences(**block, classes=["x", "y", "z"])
    del block["sequence_log_prob"]
    found = evaluate_sequences(**block, classes=["x", "y", "z"])
    assert whole.keys() - found.keys() == {"nll_struct", "nll_struct_per_token"}
    assert {key: whole[key] for key in found} == found


def test_a_certain_error_costs_no_more_than_103_nats_per_token() -> None:
    found = evaluate_sequences([[0, 0]], [[1, 1]], np.eye(2)[[1, 1]], [3, 4], sequence_log_prob=[-np.inf])
    assert found["nll_unstruct"] == found["nll_struct"] == pytest.approx(2 * 149 * np.log(2))


def test_rounding_may_make_a_sequence_a_little_more_than_certain() -> None:
    block = ([[0, 0]], [[0, 0]], np.eye(2)[[0, 0]], [3, 4])
    assert evaluate_sequences(*block, sequence_log_prob=[1e-3])["nll_struct"] == -1e-3
    with pytest.raises(DataError, match=r"log-probability 0\.01"):
        evaluate_sequences(*block, sequence_log_prob=[0.01])


def test_spans_are_scored_by_type_where_labels_are_tags() -> None:
    metrics = SequenceMetrics(TAGS)
    metrics.update(
        [["B-A", "I-A", "O", "B-B"], ["B-B", "O"]],
        [["B-A", "I-A", "O", "B-A"], ["B-B", "B-B"]],
        np.full((6, 4), 0.25),
    )
    assert metrics.span_scores() == {"A": SpanScore(1, 2, 1), "B": SpanScore(2, 2, 1)}
    found = metrics.compute()
    assert [found[key] for key in SPAN_KEYS] == pytest.approx([2 / 4, 2 / 3, 4 / 7])


def test_a_label_never_seen_is_a_missed_span_of_its_name_if_that_is_known() -> None:
    even = np.full((4, 4), 0.25)
    named, coded, other = SequenceMetrics(TAGS), SequenceMetrics(TAGS), SequenceMetrics(TAGS)
    predicted = [["O", "O", "B-A", "B-B"]]
    named.update([["B-C", "I-C", "O", "B-B"]], predicted, even)
    coded.update([[-1, -1, 3, 1]], predicted, even)
    other.update([["QQ", "RR", "O", "B-B"]], predicted, even)
    assert named.span_scores() == {"A": SpanScore(0, 1, 0), "B": SpanScore(1, 1, 1), "C": SpanScore(1, 0, 0)}
    assert coded.span_scores() == other.span_scores() == {"A": SpanScore(0, 1, 0), "B": SpanScore(1, 1, 1)}
    assert named.compute() == coded.compute() == other.compute()
    assert named.compute()["span_recall"] == 0.5
    assert named.compute()["n_unknown"] == 2


def test_a_strict_scheme_reads_well_formed_spans_only() -> None:
    block = ([["I-A", "I-A"]], [["I-A", "I-A"]], np.full((2, 4), 0.25), TAGS)
    assert evaluate_sequences(*block)["span_f1"] == 1.0
    assert evaluate_sequences(*block, scheme="IOB2")["span_f1"] == 0.0


@pytest.mark.parametrize(("classes", "spans"), [(range(4), None), (TAGS, False), (["NN", "VB", "O", "IN"], None)])
def test_other_labels_have_no_spans(classes: Any, spans: bool | None) -> None:
    block = random_block(np.random.default_rng(4), 4, [3])
    metrics = SequenceMetrics(classes, spans=spans)
    metrics.update(**block)
    assert not set(SPAN_KEYS) & set(metrics.compute())
    with pytest.raises(SettingsError, match="not read as tags"):
        metrics.span_scores()


def block_with(**changes: Any) -> dict[str, Any]:
    return {"y_true": [[0, 1], [1]], "predicted": [0, 1, 1], "marginals": np.full((3, 2), 0.5)} | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_true": [0, 1, 1]}, "y_true must be a list of sequences, or come with their lengths"),
        ({"y_true": [0, 1, 1], "lengths": [2, 2]}, "add up to the 3 labels of y_true; .* add up to 4"),
        ({"y_true": [0, 1, 1], "lengths": [3, 0]}, "at least 1"),
        ({"y_true": [0, 1, 1], "lengths": [4, -1]}, "at least 1"),
        ({"y_true": [0, 1, 1], "lengths": [1.0, 2.0]}, "must be integers"),
        ({"y_true": [0, 1, 1], "lengths": ["a"]}, "must be integers"),
        ({"y_true": [0, 1, 1], "lengths": [[1, 2]]}, "must be integers"),
        ({"lengths": [1, 2]}, "sequences of y_true do not have the lengths given"),
        ({"predicted": [0, 1]}, "add up to the 2 labels of predicted; .* add up to 3"),
        ({"predicted": [[0], [1, 1]]}, "sequences of predicted do not have the lengths"),
        ({"predicted": [0, 1, -1]}, "token 2 of this block has the predicted label -1"),
        ({"predicted": [0, 1, 2]}, "token 2 of this block has the label 2 in predicted; codes are 0 to 1"),
        ({"y_true": [[0, -2], [1]]}, "token 1 of this block has the label -2 in y_true"),
        ({"y_true": [[0, 1], []]}, "sequence 1 of y_true must hold one or more"),
        ({"y_true": [[0, 1], [1.0]]}, "sequence 1 of y_true .* float64"),
        ({"y_true": [[0, 1], ["1"]]}, "sequence 1 of y_true .* as all do"),
        ({"y_true": [["a", "b"], ["c"]]}, "y_true holds strings, but labels are such as 10"),
        ({"y_true": [[0, 1], [[1]]]}, "sequence 1 of y_true"),
        ({"y_true": [[True, False], [True]]}, "sequence 0 of y_true .* bool"),
        ({"y_true": [0.0, 1.0, 1.0], "lengths": [3]}, "integer codes or strings; got float64"),
        ({"y_true": [], "lengths": []}, "one or more sequences"),
        ({"y_true": "BIO"}, "one or more sequences"),
        ({"y_true": 3}, "one or more sequences"),
        ({"y_true": np.array(3)}, "one or more sequences"),
        ({"marginals": np.full((3, 2), 0.4)}, "row 0 of this block sums to 0.8"),
        ({"marginals": np.full((3, 2), np.nan)}, "nan"),
        ({"marginals": np.full((3, 3), 1 / 3)}, "2 classes"),
        ({"marginals": np.full((2, 2), 0.5)}, "each of 2 rows"),
        ({"sequence_log_prob": [-1.0]}, "float for each of 2 sequences"),
        ({"sequence_log_prob": [-1, -1]}, "float for each of 2 sequences"),
        ({"sequence_log_prob": [-1.0, np.nan]}, "sequence 1 of this block has the log-probability nan"),
        ({"sequence_log_prob": [np.inf, -1.0]}, "sequence 0 of this block has the log-probability inf"),
    ],
)
def test_unusable_blocks_are_refused_and_leave_no_trace(changes: dict[str, Any], message: str) -> None:
    metrics = SequenceMetrics([10, 20])
    with pytest.raises(DataError, match=message):
        metrics.update(**block_with(**changes))
    for ask in (metrics.compute, metrics.risk_coverage):
        with pytest.raises(DataError, match="no sequences"):
            ask()
    metrics.update(**block_with())
    assert metrics.compute() == evaluate_sequences(**block_with(), classes=[10, 20])


@pytest.mark.parametrize("first", [None, [-1.0, -1.0]])
def test_all_blocks_or_none_have_probabilities_of_sequences(first: list[float] | None) -> None:
    metrics = SequenceMetrics([10, 20])
    metrics.update(**block_with(sequence_log_prob=first))
    with pytest.raises(DataError, match="all blocks or with none"):
        metrics.update(**block_with(sequence_log_prob=[-1.0, -1.0] if first is None else None))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"classes": []}, "positive integer"),
        ({"classes": ["a", "b", "a"]}, "3 labels have 2 names"),
        ({"classes": TAGS, "n_bins": 0}, "positive integer"),
        ({"classes": TAGS, "scheme": "IOB2", "spans": False}, "leave it out"),
        ({"classes": TAGS, "scheme": "IOB1"}, "one of IOB2"),
        ({"classes": TAGS, "scheme": "IOE2"}, "of IOE2, but there are 'B-A', 'B-B'"),
        ({"classes": [1, 2], "spans": True}, "but there are 1, 2"),
        ({"classes": [1, 2], "scheme": "IOB2"}, "but there are 1, 2"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        SequenceMetrics(**settings)


def test_seqeval_is_needed_for_spans_only_and_the_error_names_the_extra() -> None:
    program = (
        "import sys\n"
        "sys.modules['seqeval'] = None\n"
        "from extremegp.metrics import SequenceMetrics\n"
        "SequenceMetrics([0, 1])\n"
        "SequenceMetrics(['O', 'B-A'], spans=False)\n"
        "try:\n"
        "    SequenceMetrics(['O', 'B-A'])\n"
        "except ImportError as error:\n"
        "    assert \"pip install 'extremegp[sequences]'\" in str(error), error\n"
        "else:\n"
        "    raise AssertionError('read spans without seqeval')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
