"""What the public checks say of parts of a user's own, sound and unsound."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.extension.periodic import Periodic
from tests.extension.poisson import Poisson
from tests.extension.rational_quadratic import RationalQuadratic
from torch import nn

from extremegp import testing
from extremegp.engine.inducing import FreeInducingInputs
from extremegp.engine.kernels import DenseKernel, InnerProductKernel, WhiteNoise
from extremegp.engine.latents import SparseGP
from extremegp.engine.likelihoods import BernoulliLabels
from extremegp.engine.posteriors import SharedBasis
from extremegp.settings.model import ModelSettings


def log_poisson(f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (y * f - f.exp() - torch.lgamma(y + 1)).sum(-1)


@pytest.mark.parametrize("kernel", [Periodic(2.0), RationalQuadratic(2.0), RationalQuadratic() + WhiteNoise()])
def test_kernels_pass(kernel):
    testing.check_part(kernel)


def test_latent_functions_of_a_kernel_of_arrays_pass():
    inducing = FreeInducingInputs(torch.zeros(5, 4), normalise=False)
    testing.check_part(SparseGP(Periodic(2.0), inducing, SharedBasis(3, 5), n_functions=3), n_features=4)


def test_a_likelihood_passes():
    testing.check_part(Poisson(), log_prob=log_poisson)


def test_the_memory_that_a_likelihood_takes_is_planned():
    settings = ModelSettings(
        n_features=5, n_labels=20, n_latent=20, n_inducing=4, kernel="se", mixing="identity", likelihood=Poisson()
    )
    testing.check_memory(settings)

    class Greedy(Poisson):
        step_arrays = 100

    with pytest.raises(AssertionError, match="MB are planned"):
        testing.check_memory(ModelSettings(**{**vars(settings), "likelihood": Greedy()}))


def test_counts_need_their_definition():
    with pytest.raises(ValueError, match="pass log_prob"):
        testing.check_part(Poisson())


def test_what_is_no_part_of_these_kinds_is_refused():
    with pytest.raises(TypeError, match="is none of Kernel"):
        testing.check_part(nn.Linear(1, 1))


class Distance(DenseKernel):
    """|x - z|, which is no covariance."""

    def covariance(self, x, z):
        return (x.unsqueeze(-2) - z.unsqueeze(-3)).norm(dim=-1)

    def variance(self, x):
        return x.new_zeros(x.shape[:-1])


class Forgotten(InnerProductKernel):
    """A parameter that counts for nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(()))

    def from_products(self, xz, xx, zz):
        return (xz - 0.5 * (xx + zz)).exp()


class Detached(Forgotten):
    def from_products(self, xz, xx, zz):
        return super().from_products(xz, xx, zz) * self.unused.detach().exp() + 0 * self.unused


class Single(InnerProductKernel):
    def from_products(self, xz, xx, zz):
        return (xz - 0.5 * (xx + zz)).float().exp()


class Wrong(RationalQuadratic):
    """k(x, x) is not k(x, z) at z = x."""

    def from_products(self, xz, xx, zz):
        return super().from_products(xz, xx, zz) * (1.0 if xz.ndim > 1 else 0.5)


class WithTensor(RationalQuadratic):
    def __init__(self, scale) -> None:
        super().__init__()
        self.scale = scale

    def from_products(self, xz, xx, zz):
        return super().from_products(xz, xx, zz) * self.scale


class Unregistered(RationalQuadratic):
    """Its tensor is no buffer, so that it is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.tensor(2.0)

    def from_products(self, xz, xx, zz):
        return super().from_products(xz, xx, zz) * self.scale


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (Distance(), "not positive semi-definite"),
        (Forgotten(), "unused is learnt, but gets no gradient"),
        (Detached(), "unused its gradient is 0, but finite differences"),
        (Single(), "has to be in float64"),
        (Wrong(), "is not the gram's"),
        (WithTensor(torch.tensor(2.0)), "cannot be saved"),
        (Unregistered(), "neither parameters nor registered buffers"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_unsound_kernel_is_named(kernel, message):
    with pytest.raises(AssertionError, match=message):
        testing.check_part(kernel)


class NoVariance(Poisson):
    def of_marginals(self, mean, variance):
        return mean.exp()


class HalfGradient(Poisson):
    def expected_log_prob(self, utilities, batch):
        value = super().expected_log_prob(utilities, batch)
        return 0.5 * value + 0.5 * value.detach()


class Unweighted(Poisson):
    def expected_log_prob(self, utilities, batch):
        return super().expected_log_prob(utilities, type(batch)(batch.x, batch.y))


class Unlogged(Poisson):
    def start_bias(self, frequencies, n_rows):
        return np.asarray(frequencies)


class Constant(Poisson):
    """Without log y!."""

    def expected_log_prob(self, utilities, batch):
        return super().expected_log_prob(utilities, batch) + torch.lgamma(batch.y.values + 1.0).sum()


class Means(Poisson):
    """log p(y | E f), which bounds the expectation from above."""

    def expected_log_prob(self, utilities, batch):
        certain = type(utilities.latents)(utilities.latents.mean, utilities.latents.variance * 0)
        return super().expected_log_prob(type(utilities)(utilities.mixing, certain), batch)


@pytest.mark.parametrize(
    ("likelihood", "options", "message"),
    [
        (NoVariance(), {}, "of_marginals is not the average"),
        (HalfGradient(), {}, "finite differences give"),
        (Unweighted(), {}, "samples of the labels are off"),
        (Unlogged(), {}, "labels do not start at their frequencies"),
        (Constant(), {}, "is not log p"),
        (Means(), {}, "differs from its average"),
        (Means(), {"is_bound": True}, "is above what it bounds"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_unsound_likelihood_is_named(likelihood, options, message):
    with pytest.raises(AssertionError, match=message):
        testing.check_part(likelihood, log_prob=log_poisson, **options)


def test_labels_that_are_0_or_1_need_no_definition():
    testing.check_part(BernoulliLabels())
