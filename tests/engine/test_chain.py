from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from jaxtyping import TypeCheckError
from tests.reference.chain import (
    enumerate_labellings,
    long_log_partition,
    piecewise_pseudo_likelihood,
    score,
)
from torch import Tensor

from extremegp.engine import chain

KINDS = pytest.mark.parametrize("indexed", [False, True], ids=["shared", "indexed"])
DRAWS = pytest.mark.parametrize("draws", [(), (3,), (2, 2)], ids=str)
LENGTHS = [3, 1, 5, 5, 2]


class Case(NamedTuple):
    unary: Tensor
    transitions: Tensor
    lengths: Tensor

    @property
    def sequences(self) -> list[tuple[tuple[int, ...], int, np.ndarray, np.ndarray]]:
        """Draw, place, unary scores and transitions of every sequence, without padding."""
        found = []
        draws, n_sequences = self.unary.shape[:-3], self.unary.shape[-3]
        for r in np.ndindex(*draws):
            for s in range(n_sequences):
                length, shared = int(self.lengths[s]), self.transitions.ndim < self.unary.ndim
                if shared:
                    transitions = self.transitions[r] if self.transitions.ndim > 2 else self.transitions
                else:
                    transitions = self.transitions[(*r, s, slice(length))]
                found.append((r, s, self.unary[(*r, s, slice(length))].numpy(), transitions.numpy()))
        return found


def make(
    lengths: list[int] = LENGTHS,
    n_labels: int = 3,
    *,
    draws: tuple[int, ...] = (),
    indexed: bool = False,
    scale: float = 2.0,
    padding: float = math.nan,
    extra: int = 1,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Case:
    """Normal scores; what must not be read holds `padding`."""
    generator = torch.Generator().manual_seed(seed)
    size = (len(lengths), max(lengths) + extra, n_labels)
    unary = torch.randn(*draws, *size, generator=generator, dtype=torch.float64) * scale
    tail = (*size, n_labels) if indexed else (n_labels, n_labels)
    transitions = torch.randn(*draws, *tail, generator=generator, dtype=torch.float64) * scale
    for s, length in enumerate(lengths):
        unary[..., s, length:, :] = padding
        if indexed:
            transitions[..., s, length:, :, :] = padding
            transitions[..., s, 0, :, :] = padding
    return Case(unary.to(dtype), transitions.to(dtype), torch.tensor(lengths))


def widened(case: Case, by: float) -> Case:
    """The same probabilities by wider transitions: what label 0 loses as the previous one it has at its own step."""
    case.transitions[..., 0, :] -= by
    for s, length in enumerate(case.lengths.tolist()):
        case.unary[..., s, : length - 1, 0] += by
    return case


def some_labels(case: Case, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(case.unary.shape[-1], case.unary.shape[-3:-1], generator=generator)
    for s, length in enumerate(case.lengths.tolist()):
        labels[s, length:] = -100 if s % 2 else 999
    return labels


def leaves(case: Case) -> tuple[Tensor, Tensor]:
    return case.unary.clone().requires_grad_(), case.transitions.clone().requires_grad_()


def padded(case: Case) -> Tensor:
    return torch.arange(case.unary.shape[-2]) >= case.lengths[:, None]


def cases(draws: tuple[int, ...], indexed: bool) -> list[Case]:
    wide = make(draws=draws, indexed=indexed, scale=60.0)  # beyond products in float32, within those in float64
    wider = make(draws=draws, indexed=indexed, scale=500.0)  # beyond products
    two = make([6, 4, 1], 2, draws=draws, indexed=indexed, seed=1)
    four = make([4, 5], 4, draws=draws, indexed=indexed, seed=2)
    one_label = make([3, 1], 1, draws=draws, indexed=indexed)
    one_step = make([1, 1], 3, draws=draws, indexed=indexed, extra=0)
    return [make(draws=draws, indexed=indexed), wide, wider, two, four, one_label, one_step]


@DRAWS
@KINDS
def test_log_partition_marginals_and_entropy_are_those_of_the_enumeration(
    draws: tuple[int, ...], indexed: bool
) -> None:
    for case in cases(draws, indexed):
        log_z, entropy = chain.log_partition(*case), chain.entropy(*case)
        marginals, pairs = chain.marginals(*case), chain.pair_marginals(*case)
        assert log_z.shape == entropy.shape == case.unary.shape[:-2]
        assert marginals.shape == case.unary.shape
        assert pairs.shape == (*case.unary.shape, case.unary.shape[-1])
        for r, s, unary, transitions in case.sequences:
            expected, place = enumerate_labellings(unary, transitions), (*r, s, slice(len(unary)))
            assert log_z[(*r, s)].item() == pytest.approx(expected.log_z, rel=1e-12)
            assert entropy[(*r, s)].item() == pytest.approx(expected.entropy, rel=1e-9, abs=1e-12)
            np.testing.assert_allclose(marginals[place], expected.marginals, rtol=1e-10, atol=1e-13)
            np.testing.assert_allclose(pairs[place], expected.pairs, rtol=1e-10, atol=1e-13)
        assert not marginals[..., padded(case), :].any()
        assert not pairs[..., padded(case), :, :].any()


@DRAWS
@KINDS
def test_gradients_are_marginals_and_pair_marginals_times_the_incoming_gradient(
    draws: tuple[int, ...], indexed: bool
) -> None:
    for case in cases(draws, indexed):
        unary, transitions = leaves(case)
        weights = torch.randn(case.unary.shape[:-2], generator=torch.Generator().manual_seed(1)).double()
        (chain.log_partition(unary, transitions, case.lengths) * weights).sum().backward()
        pairs = chain.pair_marginals(*case) * weights[..., None, None, None]
        torch.testing.assert_close(unary.grad, chain.marginals(*case) * weights[..., None, None])
        torch.testing.assert_close(transitions.grad, pairs if indexed else pairs.sum((-4, -3)))


@pytest.mark.parametrize("by", [0.0, 500.0], ids=["products", "logs"])
@DRAWS
@KINDS
def test_gradcheck_of_the_log_partition(draws: tuple[int, ...], indexed: bool, by: float) -> None:
    case = widened(make([3, 1, 2], 2, draws=draws, indexed=indexed, padding=0.0, scale=1.0), by)
    inputs = (case.unary.requires_grad_(), case.transitions.requires_grad_())
    assert torch.autograd.gradcheck(lambda u, t: chain.log_partition(u, t, case.lengths), inputs)


def test_gradcheck_of_scores_and_pseudo_likelihood() -> None:
    for indexed in (False, True):
        for draws in ((), (2,)):
            case = make([3, 1, 2], 3, draws=draws, indexed=indexed, padding=0.0)
            labels, inputs = some_labels(case), (case.unary.requires_grad_(), case.transitions.requires_grad_())
            for function in (chain.path_score, chain.sequence_log_prob, chain.piecewise_pseudo_likelihood):
                assert torch.autograd.gradcheck(function, (*inputs, labels, case.lengths))


@DRAWS
@KINDS
def test_scores_and_pseudo_likelihood_follow_their_definitions(draws: tuple[int, ...], indexed: bool) -> None:
    for case in cases(draws, indexed):
        labels = some_labels(case)
        scores = chain.path_score(case.unary, case.transitions, labels, case.lengths)
        log_prob = chain.sequence_log_prob(case.unary, case.transitions, labels, case.lengths)
        pseudo = chain.piecewise_pseudo_likelihood(case.unary, case.transitions, labels, case.lengths)
        assert scores.shape == pseudo.shape == case.unary.shape[:-2]
        for r, s, unary, transitions in case.sequences:
            y = tuple(labels[s, : len(unary)].tolist())
            expected = score(unary, transitions, y)
            assert scores[(*r, s)].item() == pytest.approx(expected, rel=1e-12)
            log_z = enumerate_labellings(unary, transitions).log_z
            assert log_prob[(*r, s)].item() == pytest.approx(expected - log_z, rel=1e-9, abs=1e-9)
            expected = piecewise_pseudo_likelihood(unary, transitions, y)
            assert pseudo[(*r, s)].item() == pytest.approx(expected, rel=1e-12, abs=1e-11)


@KINDS
def test_pseudo_likelihood_without_transitions_is_that_of_independent_labels_and_a_constant(indexed: bool) -> None:
    case = make(indexed=indexed, padding=0.0)
    labels = some_labels(case)
    pseudo = chain.piecewise_pseudo_likelihood(case.unary, case.transitions * 0, labels, case.lengths)
    independent = chain.sequence_log_prob(case.unary, case.transitions * 0, labels, case.lengths)
    torch.testing.assert_close(pseudo, independent - (case.lengths - 1) * math.log(3))


@KINDS
def test_labels_may_have_draws_of_their_own(indexed: bool) -> None:
    case = make(draws=(4,), indexed=indexed)
    labels = torch.stack([some_labels(case, seed) for seed in range(4)])
    scores = chain.path_score(case.unary, case.transitions, labels, case.lengths)
    for r, s, unary, transitions in case.sequences:
        y = tuple(labels[(*r, s, slice(len(unary)))].tolist())
        assert scores[(*r, s)].item() == pytest.approx(score(unary, transitions, y), rel=1e-12)


@DRAWS
@KINDS
def test_several_labellings_have_the_log_probabilities_of_each(draws: tuple[int, ...], indexed: bool) -> None:
    case = make(draws=draws, indexed=indexed)
    labellings = [some_labels(case, seed) for seed in range(3)]
    together = list(chain.sequence_log_probs(case.unary, case.transitions, labellings, case.lengths))
    assert len(together) == 3
    for labels, log_prob in zip(labellings, together, strict=True):
        assert torch.equal(log_prob, chain.sequence_log_prob(case.unary, case.transitions, labels, case.lengths))
        for r, s, unary, transitions in case.sequences:
            expected = enumerate_labellings(unary, transitions)
            y = tuple(labels[s, : len(unary)].tolist())
            assert log_prob[(*r, s)].item() == pytest.approx(score(unary, transitions, y) - expected.log_z, rel=1e-11)


@DRAWS
@KINDS
def test_viterbi_finds_the_best_of_the_enumeration(draws: tuple[int, ...], indexed: bool) -> None:
    for case in cases(draws, indexed):
        labels, scores = chain.viterbi(*case)
        assert labels.shape == case.unary.shape[:-1]
        for r, s, unary, transitions in case.sequences:
            expected = enumerate_labellings(unary, transitions)
            assert tuple(labels[(*r, s, slice(len(unary)))].tolist()) == expected.labellings[expected.scores.argmax()]
            assert scores[(*r, s)].item() == pytest.approx(expected.scores.max(), rel=1e-12)
        assert (labels[..., padded(case)] == -1).all()


@pytest.mark.parametrize("k", [1, 2, 7, 300])
@KINDS
def test_k_best_are_the_first_of_the_sorted_enumeration(indexed: bool, k: int) -> None:
    for case in cases((), indexed):
        labels, scores = chain.k_best(*case, k)
        assert labels.shape == (len(case.lengths), k, case.unary.shape[1])
        for _, s, unary, transitions in case.sequences:
            expected = enumerate_labellings(unary, transitions)
            best = np.argsort(-expected.scores)[:k]
            found = [tuple(y) for y in labels[s, : len(best), : len(unary)].tolist()]
            assert found == [expected.labellings[index] for index in best]
            np.testing.assert_allclose(scores[s, : len(best)], expected.scores[best], rtol=1e-12)
            assert (scores[s, len(best) :] == -math.inf).all()
            assert (labels[s, len(best) :] == -1).all()
            assert (labels[s, :, len(unary) :] == -1).all()


def everything(case: Case, labels: Tensor) -> dict[str, Tensor]:
    """What every function says of every sequence, gradients included; sequences first."""
    unary, transitions = leaves(case)
    found: dict[str, Tensor] = {}
    for function in (chain.sequence_log_prob, chain.piecewise_pseudo_likelihood):
        value = function(unary, transitions, labels, case.lengths)
        found[function.__name__] = value.detach()
        found[f"{function.__name__} by unary"] = torch.autograd.grad(value.sum(), unary, retain_graph=True)[0]
        (by_transitions,) = torch.autograd.grad(value.sum(), transitions)
        if case.transitions.ndim > case.unary.ndim:
            found[f"{function.__name__} by transitions"] = by_transitions
        assert by_transitions.isfinite().all()
    for measure in (chain.log_partition, chain.entropy, chain.marginals, chain.pair_marginals):
        found[measure.__name__] = measure(*case)
    found["viterbi"], found["viterbi score"] = chain.viterbi(*case)
    found["k_best"], found["k_best scores"] = chain.k_best(*case, 4)
    return found


def without_padding(case: Case, found: dict[str, Tensor], s: int) -> dict[str, Tensor]:
    length, width = int(case.lengths[s]), case.unary.shape[1]
    values = {name: value[s] for name, value in found.items()}
    values["k_best"] = values["k_best"].T
    return {name: value[:length] if value.shape[:1] == (width,) else value for name, value in values.items()}


@pytest.mark.parametrize("padding", [math.nan, math.inf, -math.inf, 1e30, 0.0])
@pytest.mark.parametrize("scale", [2.0, 500.0])
@KINDS
def test_a_sequence_alone_and_in_a_padded_batch_are_the_same(indexed: bool, scale: float, padding: float) -> None:
    case = make([3, 1, 7, 5, 7], indexed=indexed, scale=scale, padding=padding, extra=2)
    labels = some_labels(case)
    batch = everything(case, labels)
    for s, length in enumerate(case.lengths.tolist()):
        cut = case.transitions[s : s + 1, :length].clone() if indexed else case.transitions
        if indexed:
            cut[:, 0] = 0.0
        alone = Case(case.unary[s : s + 1, :length], cut, case.lengths[s : s + 1])
        expected = without_padding(alone, everything(alone, labels[s : s + 1, :length]), 0)
        found = without_padding(case, batch, s)
        for name in expected:
            torch.testing.assert_close(found[name], expected[name], rtol=1e-10, atol=1e-10, msg=name)


def test_gradients_are_zero_in_padding_and_unused_transitions() -> None:
    case = make(indexed=True)
    labels = some_labels(case)
    for function in (chain.sequence_log_prob, chain.piecewise_pseudo_likelihood, chain.path_score):
        unary, transitions = leaves(case)
        function(unary, transitions, labels, case.lengths).sum().backward()
        assert not unary.grad[padded(case)].any()
        assert not transitions.grad[padded(case)].any()
        assert not transitions.grad[:, 0].any()


@KINDS
def test_draws_are_computed_as_if_alone_and_one_matrix_may_serve_all(indexed: bool) -> None:
    case = make(draws=(2, 3), indexed=indexed)
    unary, transitions = leaves(case)
    log_z = chain.log_partition(unary, transitions, case.lengths)
    log_z.sum().backward()
    labels, _ = chain.viterbi(*case)
    for r in np.ndindex(2, 3):
        one = Case(case.unary[r], case.transitions[r], case.lengths)
        u, t = leaves(one)
        value = chain.log_partition(u, t, case.lengths)
        value.sum().backward()
        for found, expected in ((log_z, value), (unary.grad, u.grad), (transitions.grad, t.grad)):
            torch.testing.assert_close(found[r], expected)
        assert torch.equal(labels[r], chain.viterbi(*one)[0])
    if not indexed:
        matrix = case.transitions[0, 0].clone().requires_grad_()
        labels = some_labels(case)
        for function in (chain.sequence_log_prob, chain.piecewise_pseudo_likelihood):
            value = function(case.unary, matrix, labels, case.lengths)
            (by_matrix,) = torch.autograd.grad(value.sum(), matrix)
            spread = matrix.detach().expand(2, 3, 3, 3).clone().requires_grad_()
            expected = function(case.unary, spread, labels, case.lengths)
            (by_spread,) = torch.autograd.grad(expected.sum(), spread)
            torch.testing.assert_close(value, expected)
            torch.testing.assert_close(by_matrix, by_spread.sum((0, 1)))


@pytest.mark.parametrize("scale", [1.0, 40.0, 500.0], ids=["products", "float64 products", "logs"])
@KINDS
def test_long_sequences_in_float32_agree_with_float64(indexed: bool, scale: float) -> None:
    lengths = [10_000, 7_001]
    exact = make(lengths, 4, indexed=indexed, scale=scale, padding=0.0, extra=0)
    case = Case(exact.unary.float(), exact.transitions.float(), exact.lengths)
    exact = Case(case.unary.double(), case.transitions.double(), exact.lengths)
    log_z = chain.log_partition(*exact)
    for s, length in enumerate(lengths):
        transitions = (exact.transitions[s, :length] if indexed else exact.transitions).numpy()
        expected = long_log_partition(exact.unary[s, :length].numpy(), transitions)
        assert log_z[s].item() == pytest.approx(expected, rel=1e-12)
    torch.testing.assert_close(chain.log_partition(*case).double(), log_z, rtol=3e-7, atol=0)
    atol = 1e-5 if scale < 100 else 2e-4  # scores in the thousands have rounding errors of 1e-4
    labels, _ = chain.viterbi(*case)
    assert torch.equal(labels, chain.viterbi(*exact)[0])
    log_prob = chain.sequence_log_prob(case.unary, case.transitions, labels, case.lengths)
    expected = chain.sequence_log_prob(exact.unary, exact.transitions, labels, case.lengths)
    torch.testing.assert_close(log_prob.double(), expected, rtol=1e-4, atol=2e-2)
    torch.testing.assert_close(chain.marginals(*case).double(), chain.marginals(*exact), rtol=0, atol=atol)
    torch.testing.assert_close(chain.entropy(*case).double(), chain.entropy(*exact), rtol=1e-4, atol=1e-2)
    unary, transitions = leaves(case)
    chain.log_partition(unary, transitions, case.lengths).sum().backward()
    double_unary, double_transitions = leaves(exact)
    chain.log_partition(double_unary, double_transitions, case.lengths).sum().backward()
    torch.testing.assert_close(unary.grad.double(), double_unary.grad, rtol=0, atol=atol)
    torch.testing.assert_close(transitions.grad.double(), double_transitions.grad, rtol=5e-5, atol=1e-3)


def log_space(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """log Z, marginals and summed pairs of shared transitions, by indexed ones in float64: never by products."""
    indexed = case.transitions.double().expand(*case.unary.shape, case.unary.shape[-1])
    unary, transitions = case.unary.double().requires_grad_(), indexed.clone().requires_grad_()
    value = chain.log_partition(unary, transitions, case.lengths)
    by_unary, by_transitions = torch.autograd.grad(value.sum(), (unary, transitions))
    return value.detach(), by_unary, by_transitions.sum((0, 1))


@given(
    seed=st.integers(0, 10_000),
    n_labels=st.integers(1, 6),
    unary_scale=st.sampled_from([0.1, 3.0, 100.0, 1e4]),
    spread=st.floats(0, 400),
)
@example(seed=0, n_labels=2, unary_scale=1e4, spread=33.0)
@example(seed=1, n_labels=5, unary_scale=100.0, spread=32.0)
def test_products_lose_nothing_whatever_the_spread_of_the_scores(
    seed: int, n_labels: int, unary_scale: float, spread: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    unary = torch.randn(3, 12, n_labels, generator=generator) * unary_scale
    # Two-valued transitions leave the most to chance: all of a sum can hang on its smallest term.
    transitions = -spread * torch.randint(2, (n_labels, n_labels), generator=generator).float()
    case = Case(unary, transitions, torch.tensor([12, 7, 1]))
    unary, transitions = leaves(case)
    value = chain.log_partition(unary, transitions, case.lengths)
    by_unary, by_transitions = torch.autograd.grad(value.sum(), (unary, transitions))
    log_z, marginals, pairs = log_space(case)
    torch.testing.assert_close(value.detach().double(), log_z, rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(by_unary.double(), marginals, rtol=0, atol=1e-3 if spread > 100 else 1e-4)
    torch.testing.assert_close(by_transitions.double(), pairs, rtol=0, atol=2e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@KINDS
def test_forbidden_pairs_have_no_probability_and_are_avoided(dtype: torch.dtype, indexed: bool) -> None:
    case = make([6, 3, 1], 3, indexed=indexed, padding=0.0, dtype=dtype)
    case.transitions[..., 0, 2] = case.transitions[..., 1, 1] = -1e4
    log_z, marginals, pairs = chain.log_partition(*case), chain.marginals(*case), chain.pair_marginals(*case)
    unary, transitions = leaves(case)
    chain.log_partition(unary, transitions, case.lengths).sum().backward()
    entropy = chain.entropy(*case)
    for _, s, u, t in case.sequences:
        expected = enumerate_labellings(u.astype(np.float64), t.astype(np.float64))
        assert log_z[s].item() == pytest.approx(expected.log_z, rel=1e-6)
        assert entropy[s].item() == pytest.approx(expected.entropy, rel=1e-5)
        np.testing.assert_allclose(marginals[s, : len(u)], expected.marginals, atol=1e-6)
        np.testing.assert_allclose(pairs[s, : len(u)], expected.pairs, atol=1e-6)
    assert pairs[..., 0, 2].max() == pairs[..., 1, 1].max() == 0.0
    torch.testing.assert_close(unary.grad, marginals)
    torch.testing.assert_close(transitions.grad, pairs if indexed else pairs.sum((0, 1)))
    draws = Case(*(part.expand(200, *part.shape) for part in case[:2]), case.lengths)
    labels = chain.sample(*draws, torch.Generator().manual_seed(0))
    for y in (chain.viterbi(*case)[0], labels):
        before, after = y[..., :-1], y[..., 1:]
        assert not ((before == 0) & (after == 2)).any()
        assert not ((before == 1) & (after == 1)).any()


def test_only_forbidden_labellings_are_left_with_finite_results() -> None:
    case = Case(torch.zeros(1, 3, 2), torch.full((2, 2), -1e4), torch.tensor([3]))
    assert chain.log_partition(*case).item() == pytest.approx(3 * math.log(2) - 2e4)
    torch.testing.assert_close(chain.marginals(*case), torch.full((1, 3, 2), 0.5))
    # The best state cannot go on: all rests on a label that had no chance before.
    unary = torch.tensor([[[0.0, -500.0], [0.0, 0.0]]])
    transitions = torch.tensor([[-1e4, -1e4], [0.0, 1.0]])
    p = torch.tensor([1.0, math.e]) / (1 + math.e)
    expected = torch.stack([torch.tensor([0.0, 1.0]), p])[None]
    torch.testing.assert_close(chain.marginals(unary, transitions, torch.tensor([2])), expected)


@pytest.mark.parametrize("by", [0.0, 500.0], ids=["products", "logs"])
@KINDS
def test_samples_have_the_frequencies_of_the_enumeration(indexed: bool, by: float) -> None:
    case = widened(make([3, 1, 2], 2, indexed=indexed, scale=1.0), by)
    n = 20_000
    draws = Case(*(part.expand(n, *part.shape) for part in (case.unary, case.transitions)), case.lengths)
    if not indexed:
        draws = draws._replace(transitions=case.transitions)
    labels = chain.sample(*draws, torch.Generator().manual_seed(0))
    assert labels.shape == (n, 3, 4)
    for _, s, unary, transitions in case.sequences:
        expected = enumerate_labellings(unary, transitions)
        code = torch.tensor([2**t for t in reversed(range(len(unary)))])
        counts = torch.bincount((labels[:, s, : len(unary)] * code).sum(1), minlength=2 ** len(unary))
        p = np.exp(expected.scores - expected.log_z)
        assert (np.abs(counts.numpy() / n - p) <= 4.5 * np.sqrt(p * (1 - p) / n) + 1e-12).all()
    assert (labels[:, padded(case)] == -1).all()
    again = chain.sample(*draws, torch.Generator().manual_seed(0))
    assert torch.equal(labels, again)


@given(
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    n_labels=st.integers(1, 3),
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([0.0, 1.0, 10.0, 300.0]),
    indexed=st.booleans(),
)
def test_log_probabilities_are_never_positive_and_those_of_all_labellings_sum_to_one(
    lengths: list[int], n_labels: int, seed: int, scale: float, indexed: bool
) -> None:
    case = make(lengths, n_labels, indexed=indexed, scale=scale, seed=seed)
    for _, s, unary, transitions in case.sequences:
        labellings = torch.tensor(enumerate_labellings(unary, transitions).labellings)
        labels = torch.full((len(labellings), *case.unary.shape[:2]), -100)
        labels[:, s, : len(unary)] = labellings
        labels[:, torch.arange(len(lengths)) != s] = 0
        draws = case.unary.expand(len(labellings), *case.unary.shape)
        matrices = case.transitions.expand(len(labellings), *case.transitions.shape) if indexed else case.transitions
        log_prob = chain.sequence_log_prob(draws, matrices, labels, case.lengths)[:, s]
        assert (log_prob <= 1e-9).all()
        assert log_prob.exp().sum().item() == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize(
    ("values", "dim"),
    [
        (torch.randn(2, 8, 3), -2),
        (torch.randn(2, 8, 3), 1),
        (torch.randn(8, 3), 0),
        (torch.randn(8, 2, 2), -3),
        (torch.randn(4, 2, 8, 2, 2), 2),
        (torch.arange(8), -1),
    ],
    ids=lambda value: str(tuple(value.shape)) if isinstance(value, Tensor) else str(value),
)
def test_pad_and_unpad_place_every_element_and_are_inverse(values: Tensor, dim: int) -> None:
    lengths = torch.tensor([3, 1, 4])
    result = chain.pad(values, lengths, dim)
    moved, parts = result.movedim((dim, dim + 1) if dim >= 0 else (dim - 1, dim), (0, 1)), values.movedim(dim, 0)
    assert moved.shape[:2] == (3, 4)
    assert result.dtype == values.dtype
    for s, part in enumerate(parts.split(lengths.tolist())):
        assert torch.equal(moved[s, : len(part)], part)
        assert not moved[s, len(part) :].any()
    assert torch.equal(chain.unpad(result, lengths, dim), values)
    if values.is_floating_point():
        values = values.double().requires_grad_()
        assert torch.autograd.gradcheck(lambda v: chain.pad(v, lengths, dim), (values,))
        assert torch.autograd.gradcheck(lambda p: chain.unpad(p, lengths, dim), (result.double().requires_grad_(),))


def test_unpad_takes_padding_beyond_the_longest_sequence() -> None:
    case = make(LENGTHS, padding=math.nan, extra=3)
    values = chain.unpad(case.unary, case.lengths)
    assert values.shape == (sum(LENGTHS), 3)
    assert values.isfinite().all()


def test_only_one_filter_is_kept_for_the_backward_pass() -> None:
    for indexed in (False, True):
        unary, transitions = leaves(make(draws=(2,), indexed=indexed))
        saved: list[Tensor] = []

        def keep(tensor: Tensor, saved: list[Tensor] = saved) -> Tensor:
            saved.append(tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            chain.log_partition(unary, transitions, torch.tensor(LENGTHS))
        assert sum(part.numel() for part in saved) == unary.shape[0] * sum(LENGTHS) * 3 + transitions.numel()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda u, t, n: chain.log_partition(u, t[0], n), "neither shared nor indexed|is needed"),
        (lambda u, t, n: chain.log_partition(u, t[:2], n), "is needed"),
        (lambda u, t, n: chain.log_partition(u, t, n[:3]), "lengths"),
        (lambda u, t, n: chain.log_partition(u.float(), t, n), "float32"),
        (lambda u, t, n: chain.k_best(u[None], t, n, 2), "no draws"),
        (lambda u, t, n: chain.k_best(u, t, n, 0), "k >= 1"),
        (lambda u, t, n: chain.pad(u[:, 0], n), "elements"),
        (lambda u, t, n: chain.unpad(u[:3], n), "sequences"),
    ],
)
def test_wrong_shapes_are_refused(call: Callable[..., object], message: str) -> None:
    case = make()
    # Annotations say it before the assertion does, where they are checked.
    with pytest.raises((AssertionError, TypeCheckError), match=f"{message}|Type-check error"):
        call(*case)
