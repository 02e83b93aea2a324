"""Spans of tags against a reading of our own, seqeval, and what conlleval.pl printed for CoNLL-2000."""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval import metrics as seqeval
from seqeval import scheme as seqeval_schemes
from tests.reference import sequences as reference

from extremegp.errors import SettingsError
from extremegp.metrics import SpanScore, looks_like_spans
from extremegp.metrics.spans import SCHEMES, SpanCounts

Pairs = list[tuple[str, str]]


def tag_set(letters: str, kinds: tuple[str, ...] = ("A", "B-C")) -> list[str]:
    return ["O", *(f"{letter}-{kind}" for letter in letters if letter != "O" for kind in kinds)]


def labelled(tags: list[str]) -> st.SearchStrategy[list[Pairs]]:
    """Sequences of true and predicted tags, often the same and often malformed."""
    tag = st.sampled_from(tags)
    pair = st.one_of(tag.map(lambda same: (same, same)), st.tuples(tag, tag))
    return st.lists(st.lists(pair, min_size=1, max_size=8), min_size=1, max_size=4)


def columns(sequences: list[Pairs]) -> tuple[list[list[str]], list[list[str]]]:
    return [[true for true, _ in pairs] for pairs in sequences], [[found for _, found in pairs] for pairs in sequences]


def counts(
    tags: list[str], truth: list[list[str]], predicted: list[list[str]], scheme: str | None = None
) -> SpanCounts:
    result = SpanCounts(tags, scheme)
    for true, found in zip(truth, predicted, strict=True):
        result.add(true, found)
    return result


def ratios(score: SpanScore) -> tuple[float, float, float]:
    return score.precision, score.recall, score.f1


@given(
    st.sampled_from(["IOB", "IOE", "IOBES", "BILOU"]).map(tag_set).flatmap(lambda t: st.tuples(st.just(t), labelled(t)))
)
def test_spans_are_read_as_by_conlleval(problem: tuple[list[str], list[Pairs]]) -> None:
    tags, sequences = problem
    truth, predicted = columns(sequences)
    expected = [[reference.conlleval_spans(row) for row in rows] for rows in (truth, predicted)]
    found = counts(tags, truth, predicted)
    assert ratios(found.total()) == pytest.approx(reference.span_metrics(*expected))
    for kind, score in found.by_type().items():
        of_kind = [[[span for span in row if span[0] == kind] for row in rows] for rows in expected]
        assert ratios(score) == pytest.approx(reference.span_metrics(*of_kind))
        assert score.support == sum(map(len, of_kind[0]))


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
@given(data=st.data())
def test_strict_spans_are_the_well_formed_ones(scheme: str, data: st.DataObject) -> None:
    tags = tag_set(SCHEMES[scheme])
    truth, predicted = columns(data.draw(labelled(tags)))
    expected = [[reference.strict_spans(row, scheme) for row in rows] for rows in (truth, predicted)]
    assert ratios(counts(tags, truth, predicted, scheme).total()) == pytest.approx(reference.span_metrics(*expected))


@given(labelled(["O", "B", "I", "E", "S"]))
def test_letters_alone_are_spans_of_one_type(sequences: list[Pairs]) -> None:
    truth, predicted = columns(sequences)
    found = counts(["O", "B", "I", "E", "S"], truth, predicted)
    expected = [[reference.conlleval_spans(row) for row in rows] for rows in (truth, predicted)]
    assert ratios(found.total()) == pytest.approx(reference.span_metrics(*expected))
    assert set(found.by_type()) <= {"_"}


@given(labelled(tag_set("IOBES")))
def test_scores_are_those_of_seqeval(sequences: list[Pairs]) -> None:
    tags, (truth, predicted) = tag_set("IOBES"), columns(sequences)
    scores = (seqeval.precision_score, seqeval.recall_score, seqeval.f1_score)
    found = counts(tags, truth, predicted).total()
    assert ratios(found) == pytest.approx([score(truth, predicted, zero_division=0) for score in scores])
    strict = {"mode": "strict", "scheme": seqeval_schemes.IOBES, "zero_division": 0}
    found = counts(tags, truth, predicted, "IOBES").total()
    assert ratios(found) == pytest.approx([score(truth, predicted, **strict) for score in scores])


def test_spans_end_with_their_sequence() -> None:
    apart = counts(["O", "B-A", "I-A"], [["B-A"], ["I-A"]], [["B-A"], ["I-A"]])
    assert apart.total() == SpanScore(2, 2, 2)


def test_runs_of_true_labels_that_are_no_tags_are_missed_spans() -> None:
    truth = ["B-A", "I-A", None, None, "B-A", "X", "O"]
    found = counts(["O", "B-A", "I-A"], [truth, [None]], [["B-A", "I-A", "O", "B-A", "B-A", "O", "O"], ["O"]])
    assert found.n_unknown == 3
    assert found.total() == SpanScore(support=5, predicted=3, true_positives=2)
    assert found.by_type() == {"A": SpanScore(2, 3, 2)}
    assert counts(["O", "B-A"], [["I-A"]], [["B-A"]], "IOB2").n_unknown == 0
    assert counts(["O", "B-A"], [["S-A"]], [["B-A"]], "IOB2").n_unknown == 1


def test_without_spans_ratios_are_zero() -> None:
    found = counts(["O", "B-A"], [["O"]], [["O"]])
    assert ratios(found.total()) == (0, 0, 0)
    assert found.by_type() == {}


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["O", "B-NP", "I-NP"], True),
        (["B-NP", "I-NP"], True),
        (["O", "I-NP"], True),
        (["O", "E-NP", "I-NP", "B-NP", "S-NP"], True),
        (["O", "U-NP", "I-NP", "B-NP", "L-NP"], True),
        (["O", "B-A B", "I-A-1"], True),
        (["O", "B", "I"], True),
        (["B", "I"], True),
        ([], False),
        (["O"], False),
        (["O", "B", "I-NP"], False),
        (["O", "S", "E"], False),
        (["O", "B-NP", "X-NP"], False),
        (["O", "B-NP", ""], False),
        (["O", "B-"], False),
        (["O-NP", "B-NP"], False),
        (["o", "b-np"], False),
        (["O", "BNP"], False),
        (["NN", "VB", "O"], False),
        (["O", "S-A", "U-A"], False),
        ([0, 1, 2], False),
        (["O", "B-NP", None], False),
    ],
)
def test_tags_are_told_from_other_labels(labels: list, expected: bool) -> None:
    assert looks_like_spans(labels) is expected
    assert looks_like_spans(iter(labels)) is expected


@pytest.mark.parametrize(
    ("labels", "scheme", "message"),
    [
        (["O", "B-A"], "IOE1", "one of IOB2, IOE2, IOBES, BILOU; got 'IOE1'"),
        (["O", "B-A", "E-A", "S-A"], "IOB2", "of IOB2, but there are 'E-A', 'S-A'; pass spans=False"),
        (["NN", "VB"], None, "but there are 'NN', 'VB'"),
        ([0, 1], None, "but there are 0, 1"),
        (["O", "B", "I-A"], None, "but there are 'O', 'B', 'I-A'"),
    ],
)
def test_labels_that_are_no_tags_of_the_scheme_are_refused(labels: list, scheme: str | None, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        SpanCounts(labels, scheme)


def test_conll_2000_has_as_many_spans_as_conlleval_counted(shared_data: Path) -> None:
    with lzma.open(shared_data / "conll2000" / "test.txt.xz", "rt") as file:
        sentences = [[line.split()[2] for line in block.splitlines()] for block in file.read().strip().split("\n\n")]
    tags = sorted({tag for sentence in sentences for tag in sentence})
    rng = np.random.default_rng(0)
    noisy = [[str(rng.choice(tags)) if rng.random() < 0.1 else tag for tag in sentence] for sentence in sentences]
    found = counts(tags, sentences, noisy)
    # "processed 47377 tokens with 23852 phrases", as the shared task's own output begins.
    assert sum(map(len, sentences)) == 47377
    assert found.total().support == 23852
    expected = [[reference.conlleval_spans(row) for row in rows] for rows in (sentences, noisy)]
    assert ratios(found.total()) == pytest.approx(reference.span_metrics(*expected))
