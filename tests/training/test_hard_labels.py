from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse
import torch
from tests.models import random_inputs, random_labels, random_model, sparse_rows

from extremegp.engine.batch import Batch
from extremegp.engine.likelihoods import BernoulliLabels
from extremegp.engine.mixing import FactorMixing
from extremegp.engine.model import VariationalModel
from extremegp.settings.model import ModelSettings
from extremegp.training import TrainingSettings, World, hard_labels
from extremegp.training.hard_labels import HardLabels
from extremegp.training.label_sampling import LabelSampler
from extremegp.training.shards import Shards
from extremegp.training.steps import Steps

N, D, K, P = 5, 4, 40, 2


def _mixing(n_labels: int, n_latent: int = 3, seed: int = 0) -> FactorMixing:
    rng = np.random.default_rng(seed)
    loadings = rng.normal(size=(n_labels, n_latent)) * rng.uniform(0.1, 2, (n_labels, 1))
    return FactorMixing(torch.from_numpy(loadings), torch.from_numpy(rng.normal(-4, 2, n_labels)))


def _finder(mixing: FactorMixing, n_hard: int, **options: int) -> HardLabels:
    finder = HardLabels(mixing.n_utilities, n_hard, **{"batch_size": 10, "seed": 0, **options}, world=World())
    finder.prepare(0, mixing)
    return finder


def _latents(n_latent: int = 3, seed: int = 1) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(10, n_latent)))


def _expected(mixing: FactorMixing, h: torch.Tensor, known: np.ndarray, n_hard: int) -> np.ndarray:
    utilities = h.numpy() @ mixing.loadings.detach().numpy().T + mixing.bias.detach().numpy()
    mass = (1 / (1 + np.exp(-utilities))).sum(axis=0)
    mass[known] = -np.inf
    return np.sort(np.argsort(-mass)[:n_hard])


# What is found


def test_where_every_cluster_is_searched_the_labels_are_those_of_most_probability(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hard_labels, "_CANDIDATES", 1000)
    mixing, h, known = _mixing(500), _latents(), np.array([3, 4, 100, 499])
    found = _finder(mixing, 20).find(mixing, h, torch.from_numpy(known))
    np.testing.assert_array_equal(found, _expected(mixing, h, known, 20))


def test_of_many_labels_most_of_the_best_are_found_among_few():
    mixing, h = _mixing(20_000), _latents()
    finder = _finder(mixing, 100)
    found = finder.find(mixing, h, torch.tensor([], dtype=torch.int64))
    expected = _expected(mixing, h, np.array([], dtype=np.int64), 100)
    assert len(np.intersect1d(found, expected)) > 70
    queries = torch.cat([h, torch.ones(len(h), 1)], dim=1)
    assert len(finder._candidates(queries)) <= 8 * 100 + 2 * math.ceil(math.sqrt(20_000))


def test_with_an_offset_every_label_is_scored_with_it():
    mixing, h, nothing = _mixing(2000), _latents(), torch.tensor([], dtype=torch.int64)
    offset = torch.zeros(10, 2000, dtype=torch.float64)
    offset[:, 1234] = 50.0
    assert 1234 in _finder(mixing, 3).find(mixing, h, nothing, offset)


def test_labels_that_are_known_are_never_found_even_where_no_others_are_left():
    mixing, h = _mixing(12), _latents()
    finder = _finder(mixing, 6)
    assert finder.find(mixing, h, torch.arange(12)).tolist() == []
    assert finder.find(mixing, h, torch.arange(10)).tolist() == [10, 11]


def test_rows_that_weigh_more_have_more_say_in_what_is_found():
    mixing, h, nothing = _mixing(2000), _latents(), torch.tensor([], dtype=torch.int64)
    alone = _finder(mixing, 20).find(mixing, h[:1], nothing)
    weights = torch.full((len(h),), 1e-12, dtype=h.dtype)
    weights[0] = 1.0
    assert torch.equal(_finder(mixing, 20).find(mixing, h, nothing, weights=weights), alone)
    assert not torch.equal(_finder(mixing, 20).find(mixing, h, nothing), alone)


# The clusters


@pytest.mark.parametrize("n_labels", [1, 2, 17, 400])
@pytest.mark.parametrize("equal", [True, False])
def test_clusters_part_the_labels_and_none_is_much_larger_than_others(n_labels: int, equal: bool):
    mixing = _mixing(n_labels)
    if equal:
        with torch.no_grad():
            mixing.loadings.fill_(0.5)
            mixing.bias.fill_(-1.0)
    finder = _finder(mixing, 1)
    assert finder._members.sort().values.tolist() == list(range(n_labels))
    n_centres = math.ceil(math.sqrt(n_labels))
    assert int(finder._all_sizes.max()) <= 2 * math.ceil(n_labels / n_centres) + 2
    assert len(finder._all_sizes) <= 2 * n_centres


def test_clusters_are_made_at_certain_steps_from_the_parameters_of_those():
    mixing = _mixing(300)
    finder, other = _finder(mixing, 5), _finder(mixing, 5)
    assert finder.every == 30
    start = finder.state()
    assert all(torch.equal(tensor, other.state()[name]) for name, tensor in start.items())
    with torch.no_grad():
        mixing.loadings.copy_(_mixing(300, seed=5).loadings)
    finder.prepare(29, mixing)
    assert torch.equal(finder.state()["clusters"], start["clusters"])
    finder.prepare(30, mixing)
    assert not torch.equal(finder.state()["clusters"], start["clusters"])


# The estimate of the bound


def _model(propensities: bool) -> VariationalModel:
    model = random_model(ModelSettings(n_features=D, n_labels=K, n_latent=P, n_inducing=3, kernel="ard"))
    if propensities:
        model.likelihood = BernoulliLabels(torch.linspace(0.1, 1.0, K, dtype=torch.float64))
    return model


def _labels() -> scipy.sparse.csr_matrix:
    return scipy.sparse.csr_matrix(random_labels(N, K, density=0.03))


def _gradients(model: VariationalModel) -> dict[str, torch.Tensor]:
    learnt = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    return {name: parameter.grad.to_dense() for name, parameter in learnt.items()}


@pytest.mark.parametrize("propensities", [False, True])
@pytest.mark.parametrize("n_sampled", [1, 4])
def test_over_all_samples_the_mean_of_bound_and_gradients_is_that_of_all_labels(
    n_sampled: int, propensities: bool, monkeypatch: pytest.MonkeyPatch
):
    model, x, y = _model(propensities), scipy.sparse.csr_matrix(random_inputs(N, D)), _labels()
    settings = TrainingSettings(
        epochs=1, batch_size=N, learning_rate=0.1, n_sampled_labels=n_sampled, label_sampling="hard", n_hard_labels=5
    )
    options = {"lengths": None, "mean_logits": None, "shards": Shards(model, World())}
    sampled, rows = Steps(x, y, settings, **options), np.arange(N)
    sampler = sampled.sampler
    edges = np.unique(np.concatenate([[0.0], np.cumsum(sampler.inclusion[sampler._order]) % 1.0, [1.0]]))
    mean, spread, mean_gradients, added = 0.0, [], {}, set()
    for low, high in pairwise(edges):
        drawn = sampler.drawn_from((low + high) / 2)
        monkeypatch.setattr(LabelSampler, "draw", lambda self, step, drawn=drawn: drawn)
        bound = float(sampled.gradients(sampled.load(rows, 0), n_draws=1).bound.detach())
        mean += (high - low) * bound
        spread.append(bound)
        for name, gradient in _gradients(model).items():
            mean_gradients[name] = mean_gradients.get(name, 0) + (high - low) * gradient
        looked_at = model.mixing.bias.grad.coalesce().indices()[0].numpy()
        added.add(tuple(np.setdiff1d(looked_at, np.union1d(drawn, y.indices))))
    whole = model.elbo(Batch(sparse_rows(x.toarray()), sparse_rows(y.toarray()))).bound
    model.zero_grad()
    (-whole / N).backward()
    assert mean == pytest.approx(float(whole.detach()), rel=1e-9)
    assert np.std(spread) > 1e-3
    # Those of the hard labels that no sample has are the same whatever the sample.
    assert max(map(len, added)) == 5
    for name, gradient in _gradients(model).items():
        torch.testing.assert_close(mean_gradients[name], gradient, rtol=1e-8, atol=1e-10)


def test_hard_labels_count_once_whether_they_were_drawn_or_not():
    y = scipy.sparse.csr_matrix(random_labels(4, 11, density=0.2))
    sampler = LabelSampler(np.ones(11, dtype=np.int64), 5, "uniform", seed=0)
    batch = sampler.batch(y, np.array([0, 2, 5, 8, 9]), dtype=torch.float64, device=torch.device("cpu"))
    more = batch.including(torch.tensor([2, 7, 10]))
    labels = np.union1d(batch.labels, [2, 7, 10])
    np.testing.assert_array_equal(more.labels, labels)
    certain = np.union1d(np.flatnonzero(y.sum(axis=0)), [2, 7, 10])
    np.testing.assert_allclose(more.weights, np.where(np.isin(labels, certain), 1.0, 11 / 5))
    small = scipy.sparse.csr_matrix((more.y.values, more.y.columns, more.y.offsets), shape=more.y.shape)
    np.testing.assert_array_equal(small.toarray(), y.toarray()[:, labels])
