from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.models import random_inputs, random_labels, random_model, sparse_rows

from extremegp.engine.batch import Batch
from extremegp.engine.likelihoods import BernoulliLabels
from extremegp.engine.model import VariationalModel
from extremegp.engine.sparse import SparseRows
from extremegp.settings.model import ModelSettings
from extremegp.settings.training import LABEL_SAMPLINGS
from extremegp.training.label_sampling import LabelSampler, inclusion_probabilities

COUNTS = np.array([0, 40, 1, 3, 900, 0, 12, 7, 2, 0, 60])
K = len(COUNTS)
CPU = torch.device("cpu")


def _every_draw(sampler: LabelSampler) -> Iterator[tuple[float, np.ndarray]]:
    """All samples there are with their probabilities: they change only where u passes the fraction of an end."""
    edges = np.unique(np.concatenate([[0.0], np.cumsum(sampler.inclusion[sampler._order]) % 1.0, [1.0]]))
    for low, high in pairwise(edges):
        yield high - low, sampler.drawn_from((low + high) / 2)


# Inclusion probabilities


@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=40), st.integers(1, 45))
def test_inclusion_probabilities_add_up_and_are_proportional_below_the_cap(sizes: list[float], n_sampled: int):
    inclusion = inclusion_probabilities(np.array(sizes), n_sampled)
    assert inclusion.sum() == pytest.approx(min(n_sampled, len(sizes)), rel=1e-9)
    assert (inclusion > 0).all()
    assert (inclusion <= 1 + 1e-12).all()
    below = inclusion < 1 - 1e-9
    if below.any():
        ratios = inclusion[below] / np.array(sizes)[below]
        np.testing.assert_allclose(ratios, ratios[0], rtol=1e-9)
        # A capped label is one that proportionality would give 1 or more.
        assert (np.array(sizes)[~below] * ratios[0] >= 1 - 1e-6).all()


def test_uniform_inclusion_is_the_share_sampled_and_frequency_follows_the_root_of_the_count():
    np.testing.assert_allclose(LabelSampler(COUNTS, 3, "uniform", seed=0).inclusion, 3 / K)
    inclusion = LabelSampler(COUNTS, 2, "frequency", seed=0).inclusion
    assert inclusion[6] / inclusion[0] == pytest.approx(np.sqrt(13.0))


# Draws


@pytest.mark.parametrize("sampling", LABEL_SAMPLINGS)
@pytest.mark.parametrize("n_sampled", [1, 2, 5, K - 1, K])
def test_labels_are_drawn_once_each_and_with_their_probabilities(sampling: str, n_sampled: int):
    sampler = LabelSampler(COUNTS, n_sampled, sampling, seed=3)
    chance = np.zeros(K)
    for probability, drawn in _every_draw(sampler):
        assert len(drawn) == n_sampled
        assert (np.diff(drawn) > 0).all()
        chance[drawn] += probability
    np.testing.assert_allclose(chance, sampler.inclusion, atol=1e-9)


def test_draws_are_functions_of_seed_and_step():
    first, again, other = (LabelSampler(COUNTS, 4, "uniform", seed=seed) for seed in (0, 0, 1))
    draws = [first.draw(step).tolist() for step in range(50)]
    assert draws == [again.draw(step).tolist() for step in reversed(range(50))][::-1]
    assert draws != [other.draw(step).tolist() for step in range(50)]
    assert len({tuple(draw) for draw in draws}) > 2


def test_draws_over_many_steps_have_the_inclusion_probabilities():
    sampler = LabelSampler(COUNTS, 3, "frequency", seed=1)
    n_steps = 4000
    chance = np.bincount(np.concatenate([sampler.draw(step) for step in range(n_steps)]), minlength=K) / n_steps
    deviation = np.sqrt(sampler.inclusion * (1 - sampler.inclusion) / n_steps)
    assert (np.abs(chance - sampler.inclusion) <= 4 * deviation + 1e-12).all()


# Batches


def test_labels_of_the_batch_are_exact_and_keep_their_entries():
    y = scipy.sparse.csr_matrix(random_labels(4, K, density=0.2))
    sampler = LabelSampler(COUNTS, 5, "uniform", seed=0)
    batch = sampler.batch(y, np.array([0, 2, 5, 8, 9]), dtype=torch.float64, device=CPU)
    labels = batch.labels.numpy()
    positive = np.flatnonzero(y.sum(axis=0))
    np.testing.assert_array_equal(labels, np.union1d(positive, [0, 2, 5, 8, 9]))
    assert set(positive) & {0, 2, 5, 8, 9}
    np.testing.assert_allclose(batch.weights, np.where(np.isin(labels, positive), 1.0, K / 5))
    small = scipy.sparse.csr_matrix((batch.y.values, batch.y.columns, batch.y.offsets), shape=batch.y.shape)
    np.testing.assert_array_equal(small.toarray(), y.toarray()[:, labels])


def test_a_batch_without_labels_has_the_sample_alone():
    sampler = LabelSampler(COUNTS, 2, "frequency", seed=0)
    batch = sampler.batch(scipy.sparse.csr_matrix((3, K)), np.array([1, 4]), dtype=torch.float32, device=CPU)
    assert batch.labels.tolist() == [1, 4]
    np.testing.assert_allclose(batch.weights, 1 / sampler.inclusion[[1, 4]], rtol=1e-6)
    assert batch.y.shape == (3, 2)


@pytest.mark.parametrize("sampling", LABEL_SAMPLINGS)
@pytest.mark.parametrize("cuts", [[0, K], [0, 3, K], [0, 1, 2, K - 1, K]], ids=str)
def test_batches_within_ranges_of_labels_are_the_pieces_of_the_whole(cuts: list[int], sampling: str):
    sampler, drawn = LabelSampler(COUNTS, 5, sampling, seed=0), np.array([0, 2, 5, 8, 9])
    y = scipy.sparse.csr_matrix(random_labels(4, K, density=0.2))
    to = {"dtype": torch.float64, "device": CPU}
    whole = sampler.batch(y, drawn, **to)
    parts = [sampler.batch(y, drawn, within=slice(*pair), **to) for pair in pairwise(cuts)]
    labels = [part.labels + start for part, start in zip(parts, cuts, strict=False)]
    assert torch.equal(torch.cat(labels), whole.labels)
    assert torch.equal(torch.cat([part.weights for part in parts]), whole.weights)
    dense = [
        scipy.sparse.csr_matrix((part.y.values, part.y.columns, part.y.offsets), shape=part.y.shape).toarray()
        for part in (*parts, whole)
    ]
    np.testing.assert_array_equal(np.hstack(dense[:-1]), dense[-1])


# The estimate of the bound

N, D = 5, 4


def _model(propensities: bool) -> VariationalModel:
    settings = ModelSettings(n_features=D, n_labels=K, n_latent=2, n_inducing=3, kernel="ard")
    model = random_model(settings)
    if propensities:
        model.likelihood = BernoulliLabels(torch.linspace(0.1, 1.0, K, dtype=torch.float64))
    return model


def _estimate(
    model: VariationalModel, sampler: LabelSampler, drawn: np.ndarray
) -> tuple[float, dict[str, torch.Tensor]]:
    """The bound on a sample of labels, and its gradients by the parameters' names, for the mixing with zero rows."""
    x, y = random_inputs(N, D), random_labels(N, K, density=0.15)
    batch = sampler.batch(scipy.sparse.csr_matrix(y), drawn, dtype=torch.float64, device=CPU)
    small = model.select(batch.labels)
    bound, gradients = _with_gradients(small, x, batch.y, batch.weights)
    for name in ("mixing.loadings", "mixing.bias"):
        whole = torch.zeros_like(model.get_parameter(name))
        gradients[name] = whole.index_copy(0, batch.labels, gradients[name])
    return bound, gradients


def _whole(model: VariationalModel) -> tuple[float, dict[str, torch.Tensor]]:
    return _with_gradients(model, random_inputs(N, D), sparse_rows(random_labels(N, K, density=0.15)))


def _with_gradients(
    model: VariationalModel, x: np.ndarray, y: SparseRows, weights: torch.Tensor | None = None
) -> tuple[float, dict[str, torch.Tensor]]:
    bound = model.elbo(Batch(sparse_rows(x), y, label_weights=weights)).bound
    learnt = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    gradients = torch.autograd.grad(bound, list(learnt.values()))
    return float(bound.detach()), dict(zip(learnt, gradients, strict=True))


@pytest.mark.parametrize("propensities", [False, True])
@pytest.mark.parametrize("sampling", LABEL_SAMPLINGS)
@pytest.mark.parametrize("n_sampled", [1, 4])
def test_over_all_samples_the_mean_of_bound_and_gradients_is_that_of_all_labels(
    n_sampled: int, sampling: str, propensities: bool
):
    model, sampler = _model(propensities), LabelSampler(COUNTS, n_sampled, sampling, seed=2)
    mean, spread, mean_gradients = 0.0, [], {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for probability, drawn in _every_draw(sampler):
        bound, gradients = _estimate(model, sampler, drawn)
        mean += probability * bound
        spread.append(bound)
        for name, gradient in gradients.items():
            mean_gradients[name] += probability * gradient
    expected, expected_gradients = _whole(model)
    assert mean == pytest.approx(expected, rel=1e-9)
    assert np.std(spread) > 1e-3
    for name, gradient in expected_gradients.items():
        torch.testing.assert_close(mean_gradients[name], gradient, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("sampling", LABEL_SAMPLINGS)
def test_a_sample_of_everything_is_the_bound_itself(sampling: str):
    model, sampler = _model(True), LabelSampler(COUNTS, K, sampling, seed=2)
    bound, gradients = _estimate(model, sampler, sampler.draw(7))
    expected, expected_gradients = _whole(model)
    assert bound == pytest.approx(expected, rel=1e-13)
    for name, gradient in expected_gradients.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-11, atol=1e-13)
