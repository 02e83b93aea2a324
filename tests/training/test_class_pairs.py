from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch
from tests.models import random_inputs, random_model, sparse_rows

from extremegp.engine.batch import Batch
from extremegp.engine.model import VariationalModel
from extremegp.settings.model import ModelSettings
from extremegp.training.class_pairs import ClassPair, ClassPairSampler

N, D, K = 7, 4, 4
CLASSES = np.array([0, 2, 2, 0, 3, 2, 0])  # no row of class 1
CPU = torch.device("cpu")


def _y() -> scipy.sparse.csr_matrix:
    return scipy.sparse.csr_matrix((np.ones(N), (np.arange(N), CLASSES)), shape=(N, K))


def _model(inducing: str, posterior: str, likelihood: str) -> VariationalModel:
    return random_model(
        ModelSettings(
            n_features=D,
            n_labels=K,
            n_latent=K,
            n_inducing=3,
            kernel="se-p-ell",
            posterior=posterior,
            inducing=inducing,
            likelihood=likelihood,
            mixing="identity",
        )
    )


def test_a_draw_is_rows_of_one_class_and_another_class_and_repeats_for_its_step():
    sampler = ClassPairSampler(_y(), 2, seed=3)
    seen = set()
    for step in range(200):
        pair = sampler.draw(step)
        own = pair.labels[pair.of_rows]
        assert set(CLASSES[pair.rows]) == {own}
        assert len(pair.rows) == min(2, np.sum(own == CLASSES)) == len(set(pair.rows))
        assert pair.labels[0] < pair.labels[1]
        assert pair.n_rows == 3 * np.sum(own == CLASSES)
        again = ClassPairSampler(_y(), 2, seed=3).draw(step)
        assert np.array_equal(pair.rows, again.rows)
        assert np.array_equal(pair.labels, again.labels)
        seen.add((int(own), int(pair.labels[1 - pair.of_rows])))
    assert seen == {(k, other) for k in (0, 2, 3) for other in range(K) if other != k}


@pytest.mark.parametrize(
    ("inducing", "posterior", "likelihood"),
    [
        ("separate", "full", "one-vs-each"),
        ("free", "parsimonious", "one-vs-each"),
        ("free", "full", "independent"),
    ],
)
def test_over_all_pairs_the_mean_of_bound_and_gradients_is_that_of_all_rows_and_classes(
    inducing: str, posterior: str, likelihood: str
):
    model, x = _model(inducing, posterior, likelihood), random_inputs(N, D)
    expected = model.elbo(Batch(sparse_rows(x), sparse_rows(_y().toarray()))).bound
    names = [name for name, parameter in model.named_parameters() if not name.startswith("mixing")]
    parameters = [model.get_parameter(name) for name in names]
    wanted = torch.autograd.grad(expected, [*parameters, *model.mixing.parameters()])
    mean, gradients, spread = 0.0, [torch.zeros_like(gradient) for gradient in wanted], []
    pairs = [(k, other) for k in range(K) for other in range(K) if other != k]
    for own, other in pairs:
        rows = np.flatnonzero(own == CLASSES)
        # Pairs are taken alike here, of classes without rows as well: these have no data, but the KL is that of a pair.
        pair = ClassPair(rows, np.array(sorted((own, other))), int(own > other), float(K * len(rows)))
        batch = pair.batch(K, dtype=torch.float64, device=CPU)
        small = model.select(batch.labels, partial=True)
        if len(rows):
            scale = pair.n_rows / len(rows)
            bound = small.elbo(Batch(sparse_rows(x[rows]), batch.y, scale, label_weights=batch.weights)).bound
        else:
            bound = -small.latents.kl_weight * small.latents.condition().kl()
        found = torch.autograd.grad(bound, [*parameters, *small.mixing.parameters()], allow_unused=True)
        mean += float(bound.detach()) / len(pairs)
        spread.append(float(bound.detach()))
        for i, gradient in enumerate(found):
            if gradient is None:
                continue
            of_mixing = i >= len(parameters)
            whole = torch.zeros_like(gradients[i]).index_copy(0, batch.labels, gradient) if of_mixing else gradient
            gradients[i] += whole / len(pairs)
    assert mean == pytest.approx(float(expected.detach()), rel=1e-10)
    assert np.std(spread) > 1e-2
    for got, gradient in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(got, gradient, rtol=1e-8, atol=1e-9)
