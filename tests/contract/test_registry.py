"""Every registered part, and every part that is made of others, keeps to what its kind has to."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from extremegp import testing
from extremegp.engine import kernels
from extremegp.engine.block_kernel import OnColumns
from extremegp.engine.blocks import Block
from extremegp.engine.inducing import BlockInducingInputs
from extremegp.engine.latents import ColumnLatents, DeepRandomFeatures, JoinedLatents, LinearFunctions, SumLatents
from extremegp.engine.likelihoods import AugmentReduceLogit, AugmentReduceSoftmax, BernoulliLabels, LinearChain
from extremegp.engine.model import SelectedLatents
from extremegp.engine.part import Part
from extremegp.settings.model import ModelSettings
from extremegp.settings.parts import INDUCING, KERNELS, LATENTS, LIKELIHOODS, MIXINGS, POSTERIORS, REGISTRIES
from extremegp.testing.common import moved

D, P, M = 5, 3, 4
SETTINGS = ModelSettings(
    n_features=D, n_labels=4, n_latent=P, n_inducing=M, kernel="se", n_subspace=3, support_size=2, n_random_features=6
)
WITHOUT = {"n_subspace": 0, "support_size": 0}


COMPOSED = {
    kernels.Sum,
    kernels.Product,
    kernels.WhiteNoise,
    OnColumns,
    BlockInducingInputs,
    ColumnLatents,
    JoinedLatents,
    SumLatents,
    SelectedLatents,
}
BLOCKS = (Block(3, dense=False, unit=True), Block(2, dense=True))


def concrete(kind: type[Part]) -> Iterator[type[Part]]:
    """Public parts of the library of a kind that can be made."""
    for part in kind.__subclasses__():
        yield from concrete(part)
        public = part.__module__.startswith("extremegp.") and not part.__name__.startswith("_")
        if public and not any(getattr(getattr(part, n, None), "__isabstractmethod__", False) for n in dir(part)):
            yield part


def test_there_is_no_part_that_is_not_checked_here():
    registered = {entry.part for registry in REGISTRIES.values() for entry in registry.values()}
    assert {part for kind in testing.CHECKS for part in concrete(kind)} == registered | COMPOSED
    tested = {"kernel": KERNELS, "posterior": POSTERIORS, "inducing": INDUCING, "latents": LATENTS, "mixing": MIXINGS}
    assert {**tested, "likelihood": LIKELIHOODS} == REGISTRIES
    assert set(LIKELIHOODS) == set(DEFINITIONS)


@pytest.mark.parametrize("name", KERNELS)
def test_kernels(name: str):
    testing.check_part(KERNELS[name].make(SETTINGS, P), n_features=D)


@pytest.mark.parametrize(
    "kernel",
    [
        kernels.SquaredExponential(2.0) + kernels.WhiteNoise(0.1),
        kernels.Matern(3) * kernels.Linear(learn=True),
        kernels.SquaredExponentialPerLatent(n_functions=P) * kernels.ArcCosine(1) + kernels.WhiteNoise(),
        kernels.SquaredExponential(learn_variance=True, n_features=D),
        kernels.WhiteNoise(0.5),
        OnColumns(kernels.SquaredExponential(n_features=2), 1, 3) + OnColumns(kernels.Linear(), 3, D, dense=True),
    ],
    ids=["sum", "product", "per-function", "variance", "white", "columns"],
)
def test_kernels_that_are_made_of_others(kernel: kernels.Kernel):
    testing.check_part(kernel, n_features=D)


@pytest.mark.parametrize("name", INDUCING)
@pytest.mark.parametrize("normalise", [False, True])
def test_inducing_inputs(name: str, normalise: bool):
    testing.check_part(INDUCING[name].make(replace(SETTINGS, normalise_inducing=normalise), P))


@pytest.mark.parametrize("kind", ["free", "sparse"])
def test_inducing_inputs_of_blocks(kind: str):
    inducing = replace(SETTINGS, inducing=kind, blocks=BLOCKS).build_latents().inducing
    assert isinstance(inducing, BlockInducingInputs)
    testing.check_part(inducing)


def test_inducing_inputs_with_weights_of_coordinates():
    settings = replace(SETTINGS, lengthscales_in="subspace")
    testing.check_part(INDUCING["subspace"].make(settings, P), per_feature=False)


@pytest.mark.parametrize("name", POSTERIORS)
def test_posteriors(name: str):
    testing.check_part(POSTERIORS[name].make(SETTINGS, P))


@pytest.mark.parametrize("name", LATENTS)
def test_latents(name: str):
    kernel = "arccos1" if name == "random-features" else "se"
    n_inducing = D if LATENTS[name].part.of_features else M
    testing.check_part(LATENTS[name].make(replace(SETTINGS, kernel=kernel, n_inducing=n_inducing), P), n_features=D)


def gp(**changes: Any) -> Part:
    return replace(SETTINGS, **changes).build_latents()


@pytest.mark.parametrize(
    "latents",
    [
        *(gp(posterior=name) for name in POSTERIORS if name != "shared-basis"),
        *(gp(inducing=name, mixing="identity") for name in INDUCING if name != "free"),
        gp(kernel="se-p-ell+white", posterior="full"),
        gp(linear_term=True),
        gp(linear_term=True, kernel="ard+white", blocks=BLOCKS),
        gp(inducing="separate", mixing="identity", blocks=BLOCKS),
        gp(inducing="subspace", blocks=BLOCKS),
        ColumnLatents(DeepRandomFeatures(3, P, n_random=4), 1, 4, dense=True),
        DeepRandomFeatures(D, P, n_layers=2, n_hidden=2, n_random=4),
        DeepRandomFeatures(D, P, n_random=4, kernel="se", frequencies="var-resampled", n_reduced=2, ard=False),
        SelectedLatents(gp(), torch.tensor([0, 2]), partial=False),
        SelectedLatents(gp(posterior="full"), torch.tensor([0, 2]), partial=True),
        JoinedLatents([LinearFunctions(D, 2), gp()]),
        SumLatents([LinearFunctions(D, P, posterior="point"), gp()]),
    ],
    ids=lambda latents: type(latents).__name__,
)
def test_latents_that_are_made_of_others(latents: Part):
    testing.check_part(latents, n_features=D)


@pytest.mark.parametrize("name", MIXINGS)
def test_mixings(name: str):
    n_utilities = 4
    testing.check_part(MIXINGS[name].make(SETTINGS, n_utilities), n_latent=n_utilities if name == "identity" else P)


def test_a_mixing_with_a_prior_of_its_biases():
    testing.check_part(MIXINGS["identity"].make(replace(SETTINGS, bias_variance=4.0), P), n_latent=P)


# log p(y | f), S x B x K and B x K to S x B.


def others(f: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """f_c - f_l, and where l is another class."""
    return (f * y).sum(-1, keepdim=True) - f, 1 - y


def log_softmax(f: Tensor, y: Tensor) -> Tensor:
    return (f.log_softmax(-1) * y).sum(-1)


def one_vs_each(f: Tensor, y: Tensor) -> Tensor:
    differences, other = others(f, y)
    return (logsigmoid(differences) * other).sum(-1)


def probit_one_vs_each(f: Tensor, y: Tensor) -> Tensor:
    differences, other = others(f, y)
    return (torch.special.log_ndtr(differences) * other).sum(-1)


def logistic_race(f: Tensor, y: Tensor) -> Tensor:
    """P(f_c + e_c is the highest), e standard logistic, by quadrature over e_c."""
    e = torch.linspace(-30.0, 30.0, 61, dtype=torch.float64)
    differences, other = others(f, y)
    terms = (logsigmoid(differences.unsqueeze(-1) + e) * other.unsqueeze(-1)).sum(-2) + logsigmoid(e) + logsigmoid(-e)
    return terms.logsumexp(-1) + (e[1] - e[0]).log()


def bernoulli(f: Tensor, y: Tensor) -> Tensor:
    return torch.where(y > 0, logsigmoid(f), logsigmoid(-f)).sum(-1)


def chain(transitions: Tensor | None) -> testing.LogProb:
    """Of sequences of 3, 1 and 2 elements by a sum over all labellings; without transitions, pairs have utilities."""

    def log_prob(f: Tensor, y: Tensor) -> Tensor:
        classes, v, total, start = y.argmax(-1), y.shape[-1], [], 0
        for length in (3, 1, 2):
            rows = f[:, start : start + length]

            def score(labels: Any, rows: Tensor = rows) -> Tensor:
                value = sum(rows[:, t, label] for t, label in enumerate(labels))
                for t, (a, b) in enumerate(itertools.pairwise(labels), 1):
                    value = value + (rows[:, t, v + v * a + b] if transitions is None else transitions[a, b])
                return value

            own = score(classes[start : start + length].tolist())
            every = [score(labels) for labels in itertools.product(range(v), repeat=length)]
            total.append(own - torch.stack(every).logsumexp(0))
            start += length
        return torch.stack(total, 1)

    return log_prob


DEFINITIONS: dict[str, dict[str, Any]] = {
    "bernoulli": {"log_prob": bernoulli},
    "independent": {"log_prob": bernoulli},
    "softmax": {"log_prob": log_softmax},
    "softmax-mc": {"log_prob": log_softmax},
    "one-vs-each": {"log_prob": one_vs_each},
    "probit-one-vs-each": {"log_prob": probit_one_vs_each, "prediction_error": 0.008},
    "ar-softmax": {"log_prob": log_softmax, "is_bound": True},
    "ar-logit": {"log_prob": logistic_race, "is_bound": True, "is_tight": False},
    "robust-max": {},
    "linear-chain": {"log_prob": chain(torch.zeros(3, 3)), "n_labels": 3},
}


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_likelihoods(name: str):
    options = DEFINITIONS[name]
    settings = replace(SETTINGS, n_labels=options.get("n_labels", 4), transitions="none")
    testing.check_part(LIKELIHOODS[name].make(settings), **options)


def test_labels_that_may_be_missing():
    propensities = torch.tensor([1.0, 0.3, 0.8, 0.5])

    def log_prob(f: Tensor, y: Tensor) -> Tensor:
        recorded = propensities * f.sigmoid()
        return torch.where(y > 0, recorded, 1 - recorded).log().sum(-1)

    testing.check_part(BernoulliLabels(propensities), log_prob=log_prob, as_argument=False)


def test_chains_with_transitions():
    likelihood = LinearChain(3, transitions="point")
    transitions = moved(likelihood).q_mean.detach()
    testing.check_part(likelihood, n_labels=3, log_prob=chain(transitions))
    testing.check_part(LinearChain(3, transitions="indexed"), n_labels=3, log_prob=chain(None))


@pytest.mark.parametrize("part", [AugmentReduceSoftmax, AugmentReduceLogit])
@pytest.mark.parametrize("local", ["amortised", "stored"])
def test_parameters_of_every_instance(part: type[Any], local: str):
    name = {AugmentReduceSoftmax: "ar-softmax", AugmentReduceLogit: "ar-logit"}[part]
    # What starts as if there were many classes needs no guard, which has a gradient of its own.
    likelihood = part(local, n_classes=1000, n_features=3, n_rows=6, hidden=4)
    testing.check_part(likelihood, **DEFINITIONS[name])


@pytest.mark.parametrize("name", ["bernoulli", "softmax", "one-vs-each", "ar-softmax", "softmax-mc"])
def test_memory(name: str):
    settings = replace(SETTINGS, n_labels=20, n_latent=20, mixing="identity", likelihood=name, **WITHOUT)
    testing.check_memory(settings)
