from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.models import random_inputs, random_labels, random_model, sparse_rows

from extremegp.engine.batch import Batch
from extremegp.engine.latents import SparseGP
from extremegp.settings.model import ModelSettings
from extremegp.settings.parts import POSTERIORS
from extremegp.training.natural import NaturalGradient
from extremegp.training.steps import natural_parts

N, D, K, P, M = 12, 4, 5, 2, 3


def _settings(**changes: object) -> ModelSettings:
    sizes = {"n_features": D, "n_labels": K, "n_latent": P, "n_inducing": M, "kernel": "ard"}
    return ModelSettings(**{**sizes, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("posterior", ["shared-basis", "mean-field", "full"])
def test_natural_steps_alone_climb_the_bound_faster_than_gradient_steps_of_any_length(posterior: str):
    batch = Batch(sparse_rows(random_inputs(N, D)), sparse_rows(random_labels(N, K)))
    bounds = {}
    for rate in (None, 0.1, 0.03, 0.01, 0.003):
        model = random_model(_settings(posterior=posterior))
        latents = model.latents
        assert isinstance(latents, SparseGP)
        moved = latents.posterior.natural_parameters()
        optimizer = NaturalGradient([latents.posterior], scale=N) if rate is None else torch.optim.SGD(moved, N * rate)
        if rate is None:
            for group in optimizer.param_groups:
                group["lr"] = 0.5
        for _ in range(8):
            model.zero_grad()
            bound = model.elbo(batch).bound
            (-bound / N).backward()
            optimizer.step()
        with torch.no_grad():
            bounds[rate] = float(model.elbo(batch).bound)
    natural = bounds.pop(None)
    assert natural > max(bound for bound in bounds.values() if np.isfinite(bound))


@pytest.mark.parametrize("posterior", POSTERIORS)
def test_the_families_with_natural_gradients_are_found(posterior: str):
    found = natural_parts(_settings(posterior=posterior).build())
    assert bool(found) is (posterior in ("shared-basis", "mean-field", "full"))


def test_every_natural_parameter_is_a_group_and_the_first_one_sets_the_step():
    model = random_model(_settings())
    assert isinstance(model.latents, SparseGP)
    posterior = model.latents.posterior
    optimizer = NaturalGradient([posterior], scale=1.0)
    assert [group["params"][0] for group in optimizer.param_groups] == posterior.natural_parameters()
    model.elbo(Batch(sparse_rows(random_inputs(N, D)), sparse_rows(random_labels(N, K)))).bound.neg().backward()
    before = posterior.q_mean.detach().clone()
    optimizer.step()
    assert torch.equal(posterior.q_mean, before)
    optimizer.param_groups[0]["lr"] = 0.1
    optimizer.step()
    assert not torch.equal(posterior.q_mean, before)
    assert optimizer.state_dict()["state"] == {}
