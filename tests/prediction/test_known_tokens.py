"""Chains some of whose labels are known, against enumeration of all labellings."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from tests.models import as_array
from tests.reference.chain import enumerate_labellings

from extremegp.engine import chain
from extremegp.engine.likelihoods.chain_draws import ChainDraws

LENGTHS, V, R = torch.tensor([3, 1, 4, 2]), 3, 4
KNOWN = torch.tensor([[-1, 2, -1, 9], [0, 9, 9, 9], [1, -1, -1, 0], [-1, -1, 9, 9]])
FORMS = {"shared": (V, V), "drawn": (R, V, V), "indexed": (R, 4, 4, V, V), "wide": (R, V, V)}


def draws(form: str, *, dtype: torch.dtype = torch.float64, scale: float = 2.0) -> ChainDraws:
    generator = torch.Generator().manual_seed(len(form))
    unary = scale * torch.randn(R, 4, 4, V, generator=generator, dtype=torch.float64)
    transitions = torch.randn(FORMS[form], generator=generator, dtype=torch.float64)
    if form == "wide":
        # Beyond what products of exponentials hold: the recursions are in logarithms.
        transitions[..., 1, 2] = -1e4
    return ChainDraws(slice(0, 4), LENGTHS, unary.to(dtype), transitions.to(dtype))


class Enumerated:
    """p(y) of a sequence, averaged over the draws, and what follows from it given some labels."""

    def __init__(self, block: ChainDraws, s: int) -> None:
        n = int(LENGTHS[s])
        self.known = {t: int(KNOWN[s, t]) for t in range(n) if KNOWN[s, t] >= 0}
        self.by_draw = []
        for r in range(R):
            pairs = block.transitions if block.transitions.ndim == 2 else block.transitions[r]
            pairs = pairs[s, :n] if pairs.ndim == 4 else pairs
            found = enumerate_labellings(as_array(block.unary[r, s, :n]), as_array(pairs))
            self.labellings = found.labellings
            self.by_draw.append(np.exp(found.scores - found.log_z))
        self.fits = np.array([all(y[t] == label for t, label in self.known.items()) for y in self.labellings])
        joint = np.mean(self.by_draw, axis=0) * self.fits
        self.evidence = joint.sum()
        self.p = joint / self.evidence
        self.n = n

    def marginals(self, p: np.ndarray) -> np.ndarray:
        total = np.zeros((self.n, V))
        for y, each in zip(self.labellings, p, strict=True):
            total[np.arange(self.n), list(y)] += each
        return total


@pytest.mark.parametrize("form", FORMS)
def test_marginals_and_uncertainty_given_labels_are_those_of_enumeration(form: str):
    block = draws(form)
    given = block.given(KNOWN)
    marginals, uncertainty = given.mean_marginals(), given.uncertainty()
    start = 0
    for s, n in enumerate(LENGTHS.tolist()):
        truth, own = Enumerated(block, s), slice(start, start + n)
        start += n
        np.testing.assert_allclose(as_array(marginals[own]), truth.marginals(truth.p), atol=1e-12)
        weights = np.array([(p * truth.fits).sum() for p in truth.by_draw])
        weights /= weights.sum()
        of_draws = [truth.marginals(p * truth.fits / (p * truth.fits).sum()) for p in truth.by_draw]
        with np.errstate(divide="ignore", invalid="ignore"):
            entropies = [-np.nansum(m * np.log(m), axis=1) for m in of_draws]
            total = -np.nansum(truth.marginals(truth.p) * np.log(truth.marginals(truth.p)), axis=1)
        np.testing.assert_allclose(as_array(uncertainty[own, 0]), total, atol=1e-9)
        np.testing.assert_allclose(as_array(uncertainty[own, 1]), weights @ np.array(entropies), atol=1e-9)
        unary = as_array(block.unary[:, s, :n])
        centred = unary - np.einsum("r,rtv->tv", weights, unary)
        spread = np.einsum("r,rtv->tv", weights, centred**2).mean(1)
        np.testing.assert_allclose(as_array(uncertainty[own, 2]), spread, atol=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_labellings_given_labels_come_with_their_conditional_probabilities(form: str):
    block = draws(form)
    given = block.given(KNOWN)
    paths, scores = (as_array(part) for part in given.k_best(V**4))
    for s, n in enumerate(LENGTHS.tolist()):
        truth = Enumerated(block, s)
        expected = {y: p for y, p, fits in zip(truth.labellings, truth.p, truth.fits, strict=True) if fits}
        kept = np.isfinite(scores[s]) & (paths[s, :, 0] >= 0)
        found = {tuple(path[:n].tolist()): score for path, score in zip(paths[s][kept], scores[s][kept], strict=True)}
        likely = {y for y, p in expected.items() if p > 0}
        assert likely <= set(found) <= set(expected)
        for y in likely:
            assert np.exp(found[y]) == pytest.approx(expected[y], abs=1e-9)
    for labels in itertools.product(range(V), repeat=2):
        padded = torch.tensor([[0, 2, 0, 9], [0, 9, 9, 9], [1, *labels, 0], [*labels, 9, 9]])
        found_log = as_array(given.log_prob(padded))
        for s, y in ((2, (1, *labels, 0)), (3, labels)):
            truth = Enumerated(block, s)
            assert np.exp(found_log[s]) == pytest.approx(truth.p[truth.labellings.index(y)], abs=1e-9)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_probability_of_some_labels_is_the_sum_over_the_others(form: str, dtype: torch.dtype):
    block = draws(form, dtype=dtype)
    found = as_array(block.partial_log_prob(KNOWN))
    expected = [np.log(Enumerated(block, s).evidence) for s in range(4)]
    np.testing.assert_allclose(found, expected, atol=1e-9 if dtype == torch.float64 else 1e-5)
    assert found[3] == pytest.approx(0, abs=1e-6)


def test_conditional_and_joint_probabilities_agree_in_float32_where_scores_are_large():
    block = draws("drawn", dtype=torch.float32, scale=30.0)
    given = block.given(KNOWN)
    labels = torch.where(KNOWN < 0, 1, KNOWN)
    joint = as_array(block.log_prob(labels))
    np.testing.assert_allclose(
        as_array(given.log_prob(labels)), joint - as_array(block.partial_log_prob(KNOWN)), atol=2e-3
    )
    assert torch.isfinite(given.mean_marginals()).all()


@pytest.mark.parametrize("form", FORMS)
def test_gradients_of_partial_likelihoods_are_those_of_finite_differences(form: str):
    block = draws(form)
    unary, transitions = block.unary.clone().requires_grad_(), block.transitions.clone().requires_grad_()

    def value(unary: torch.Tensor, transitions: torch.Tensor) -> torch.Tensor:
        return chain.partial_log_prob(unary, transitions, KNOWN, LENGTHS)

    assert torch.autograd.gradcheck(value, (unary, transitions), eps=1e-6, atol=1e-6)


@pytest.mark.parametrize("pairs", [False, True])
def test_curvatures_with_missing_labels_are_second_derivatives_that_are_not_negative(pairs: bool):
    block = draws("indexed")
    found = as_array(block._replace(known=KNOWN).curvature(pairs=pairs))

    def log_prob(unary: torch.Tensor, transitions: torch.Tensor) -> torch.Tensor:
        return chain.partial_log_prob(unary, transitions, KNOWN, LENGTHS)

    places = [(s, t) for s, n in enumerate(LENGTHS.tolist()) for t in range(n)]
    for b, (s, t) in enumerate(places):
        if pairs and t == 0:
            continue
        curved = []
        for label in itertools.product(range(V), repeat=1 + pairs):
            values = []
            for step in (-1e-3, 0.0, 1e-3):
                unary, transitions = block.unary.clone(), block.transitions.clone()
                (transitions if pairs else unary)[(slice(None), s, t, *label)] += step
                values.append(float(log_prob(unary, transitions)[:, s].sum()))
            curved.append(-(values[0] - 2 * values[1] + values[2]) / 1e-6 / R)
        assert found[b] == pytest.approx(max(0.0, float(np.mean(curved))), abs=1e-5)


def test_sequences_without_known_labels_are_as_they_were():
    block = draws("drawn")
    given = block.given(torch.full((4, 4), -1))
    torch.testing.assert_close(given.mean_marginals(), block.mean_marginals())
    torch.testing.assert_close(given.uncertainty(), block.uncertainty())
    assert given.log_weights is not None
    assert float(given.log_weights.logsumexp(0).abs().max()) < 1e-12
    assert float(logsumexp(as_array(given.log_weights), axis=0)[0]) == pytest.approx(0)
