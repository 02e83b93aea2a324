"""Legal labellings and spans of chains, against enumeration of all labellings."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from tests.models import as_array
from tests.reference.chain import enumerate_labellings

from extremegp.data import TaggedSpan, convert_tags, legal_tags, spans_of
from extremegp.engine.likelihoods.chain_draws import ChainDraws, Legal
from extremegp.prediction.spans import span_probabilities

LABELS = {
    "IOB2": ["B-x", "I-x", "O"],
    "IOB1": ["B-x", "I-x", "I-y", "O"],
    "IOBES": ["B", "E", "I", "O", "S"],
    "BILOU": ["B-x", "L-x", "O", "U-x"],
}
LENGTHS, R = torch.tensor([3, 1, 4]), 3
KNOWN = torch.tensor([[-1, -1, 0, 9], [-1, 9, 9, 9], [-1, 0, -1, -1]])


def draws(scheme: str, form: str) -> ChainDraws:
    generator = torch.Generator().manual_seed(len(scheme) + len(form))
    v = len(LABELS[scheme])
    shape = {"shared": (v, v), "drawn": (R, v, v), "indexed": (R, 3, 4, v, v)}[form]
    unary = 2 * torch.randn(R, 3, 4, v, generator=generator, dtype=torch.float64)
    return ChainDraws(slice(0, 3), LENGTHS, unary, torch.randn(shape, generator=generator, dtype=torch.float64))


def legal_of(scheme: str) -> Legal:
    return Legal(*map(torch.from_numpy, legal_tags(LABELS[scheme], scheme)))


def enumerated(
    block: ChainDraws, s: int, scheme: str, *, legal: bool, known: bool
) -> tuple[list[tuple[int, ...]], np.ndarray]:
    """All labellings of a sequence and p of them, of legal and known ones alone; draws count as these are probable."""
    n, labels = int(LENGTHS[s]), LABELS[scheme]
    joint = []
    for r in range(R):
        pairs = block.transitions if block.transitions.ndim == 2 else block.transitions[r]
        pairs = pairs[s, :n] if pairs.ndim == 4 else pairs
        found = enumerate_labellings(as_array(block.unary[r, s, :n]), as_array(pairs))
        p = np.exp(found.scores - found.log_z)
        if legal:
            tags = [[labels[v] for v in y] for y in found.labellings]
            p = p * np.array([convert_tags([own], scheme) == [own] for own in tags])
        joint.append(p / p.sum())
    p = np.mean(joint, axis=0)
    if known:
        p = p * np.array([all(KNOWN[s, t] in (-1, y[t]) for t in range(n)) for y in found.labellings])
    return found.labellings, p / p.sum()


CASES = [
    pytest.param(scheme, form, legal, known, id=f"{scheme}-{form}{'-legal' * legal}{'-known' * known}")
    for scheme, (form, legal, known) in itertools.product(
        LABELS,
        [
            ("shared", False, False),
            ("drawn", True, False),
            ("indexed", False, True),
            ("indexed", True, False),
            ("drawn", True, True),
        ],
    )
    # Known labels of an end that cannot be one are a case of their own.
    if not (legal and known and scheme in ("IOBES", "IOB1", "BILOU"))
]


@pytest.mark.parametrize(("scheme", "form", "legal", "known"), CASES)
def test_probabilities_of_spans_and_labels_are_those_of_enumeration(scheme: str, form: str, legal: bool, known: bool):
    block, v = draws(scheme, form), len(LABELS[scheme])
    conditioned = block.within(legal_of(scheme)) if legal else block
    conditioned = conditioned.given(KNOWN) if known else conditioned
    marginals = as_array(conditioned.mean_marginals())
    paths, scores = (as_array(part) for part in conditioned.k_best(v**4))
    start = 0
    for s, n in enumerate(LENGTHS.tolist()):
        labellings, p = enumerated(block, s, scheme, legal=legal, known=known)
        truth = np.zeros((n, v))
        expected: dict[TaggedSpan, float] = {}
        for y, each in zip(labellings, p, strict=True):
            truth[np.arange(n), list(y)] += each
            for span in spans_of([LABELS[scheme][label] for label in y]):
                expected[span] = expected.get(span, 0.0) + each
        np.testing.assert_allclose(marginals[start : start + n], truth, atol=1e-9)
        start += n
        every = [(s, span) for span in expected]
        np.testing.assert_allclose(
            span_probabilities(conditioned, every, LABELS[scheme]), [*expected.values()], atol=1e-9
        )
        likely = {y: each for y, each in zip(labellings, p, strict=True) if each > 0}
        found = {
            tuple(path[:n].tolist()): score
            for path, score in zip(paths[s], scores[s], strict=True)
            if np.isfinite(score) and score > -1000
        }
        assert set(found) == set(likely)
        np.testing.assert_allclose([np.exp(found[y]) for y in likely], [*likely.values()], atol=1e-9)


@pytest.mark.parametrize("scheme", LABELS)
def test_decoding_by_marginals_is_legal_and_has_the_fewest_expected_errors(scheme: str):
    block = draws(scheme, "drawn").within(legal_of(scheme))
    marginals, codes = as_array(block.mean_marginals()), as_array(block.most_probable_labels())
    start = 0
    for s, n in enumerate(LENGTHS.tolist()):
        labellings, _ = enumerated(block, s, scheme, legal=True, known=False)
        own = marginals[start : start + n]
        gains = {
            y: own[np.arange(n), list(y)].sum()
            for y in labellings
            if convert_tags([[LABELS[scheme][v] for v in y]], scheme) == [[LABELS[scheme][v] for v in y]]
        }
        found = tuple(int(code) for code in codes[start : start + n])
        assert gains[found] == pytest.approx(max(gains.values()))
        start += n


def test_spans_that_cannot_be_have_no_probability():
    block = draws("IOB2", "drawn").within(legal_of("IOB2"))
    spans = [(0, TaggedSpan(0, 2, "z")), (2, TaggedSpan(0, 4, "x")), (0, TaggedSpan(0, 3, "x"))]
    known = block.given(torch.tensor([[2, -1, -1, 0], [-1, 0, 0, 0], [-1, 2, -1, -1]]))
    assert span_probabilities(known, spans, LABELS["IOB2"]).tolist() == [0, 0, 0]
    assert len(span_probabilities(block, [], LABELS["IOB2"])) == 0


def test_known_labels_beat_rules():
    block = draws("IOB2", "drawn").within(legal_of("IOB2"))
    given = block.given(torch.tensor([[1, -1, -1, 0], [1, 0, 0, 0], [2, 1, -1, -1]]))
    marginals = as_array(given.mean_marginals())
    assert np.isfinite(marginals).all()
    np.testing.assert_allclose(marginals[[0, 3, 5], 1], 1)
    assert as_array(given.most_probable_labels())[[0, 3, 5]].tolist() == [1, 1, 1]
