"""The checks can fail: of parts with one fault each they say which."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from extremegp import testing
from extremegp.engine.inducing import FreeInducingInputs
from extremegp.engine.latents import LinearFunctions
from extremegp.engine.mixing import FactorMixing
from extremegp.engine.part import Part
from extremegp.engine.posteriors import MeanField


class Unnormalised(FreeInducingInputs):
    def project(self):
        pass


class DoubledDivergence(MeanField):
    def condition(self, inverse_factor, functions=None):
        conditioned, kl = super().condition(inverse_factor, functions)
        return conditioned, lambda: 2 * kl()


class AllFunctions(MeanField):
    def condition(self, inverse_factor, functions=None):
        return super().condition(inverse_factor)


class Backwards(MeanField):
    def natural_step(self, step, scale):
        super().natural_step(step, -scale)


class Certain(LinearFunctions):
    """Its draws are its means."""

    def condition(self, seed=0, functions=None):
        conditioned = super().condition(seed, functions)
        conditioned.draws = lambda x, lengths, n, generator: conditioned.marginals(x).mean.expand(n, -1, -1)
        return conditioned


class Unselected(LinearFunctions):
    def condition(self, seed=0, functions=None):
        return super().condition(seed, None if functions is None else functions.flip(0))


class Unsquared(FactorMixing):
    def marginals(self, latents, labels=slice(None)):
        mean, _ = super().marginals(latents, labels)
        return type(latents)(mean, latents.variance @ self.loadings[labels].abs().T)


class Independent(FactorMixing):
    independent = True


class Shared(FactorMixing):
    """Its selection moves the biases of all."""

    def select(self, labels):
        selected = super().select(labels)
        selected.bias.data = self.bias.data[: len(labels)]
        return selected


def mixing(part: type[FactorMixing]) -> FactorMixing:
    return part(torch.zeros(4, 3), torch.zeros(4))


@pytest.mark.parametrize(
    ("part", "options", "message"),
    [
        (Unnormalised(torch.ones(3, 4)), {}, r"project\(\) leaves other norms"),
        (DoubledDivergence(2, 3), {}, "kl is not that of the Gaussian"),
        (AllFunctions(3, 3), {}, "some of the functions"),
        (Backwards(2, 3), {}, "a natural step takes the bound from"),
        (Certain(4, 3), {"n_features": 4}, "draws have other second moments"),
        (Unselected(4, 3), {"n_features": 4}, "are not those of all"),
        (mixing(Unsquared), {"n_latent": 3}, "the marginals are not those of at"),
        (mixing(Independent), {"n_latent": 3}, "is said to be independent"),
        (mixing(Shared), {"n_latent": 3}, "those labels of all|parameters of its own"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_fault_is_named(part: Part, options: dict[str, Any], message: str):
    with pytest.raises(AssertionError, match=message):
        testing.check_part(part, **options)
