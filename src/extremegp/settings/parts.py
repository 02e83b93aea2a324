"""The registry: names of parts, and what makes each from the settings of a model. A new part is one line here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from extremegp.engine import kernels
from extremegp.engine.block_kernel import OnColumns
from extremegp.engine.inducing import (
    BlockInducingInputs,
    FreeInducingInputs,
    InducingInputs,
    SeparateInducingInputs,
    SparseInducingInputs,
    SubspaceInducingInputs,
)
from extremegp.engine.kernels import Kernel
from extremegp.engine.latents import (
    DeepRandomFeatures,
    FeatureGP,
    LandmarkFunctions,
    Latents,
    LinearFunctions,
    RegressionGP,
    SparseGP,
)
from extremegp.engine.likelihoods import (
    AugmentReduceLogit,
    AugmentReduceSoftmax,
    BernoulliLabels,
    IndependentClasses,
    Likelihood,
    LinearChain,
    OneVsEach,
    ProbitOneVsEach,
    RobustMax,
    Softmax,
    SoftmaxMonteCarlo,
)
from extremegp.engine.mixing import FactorMixing, IdentityMixing, Mixing
from extremegp.engine.part import Part
from extremegp.engine.posteriors import Full, MeanField, Parsimonious, Posterior, SharedBasis
from extremegp.errors import SettingsError

if TYPE_CHECKING:
    from extremegp.settings.model import ModelSettings

P = TypeVar("P", bound=Part)

WHITE = "+white"


@dataclass(frozen=True)
class Entry(Generic[P]):
    """A part's class, and what makes one from settings (of latents and of mixings, for a number of functions)."""

    part: type[P]
    make: Callable[..., P]


def _kernel(part: type[Kernel], *arguments: Any, ard: bool = False, **options: Any) -> Entry[Kernel]:
    if ard:
        return Entry(part, lambda s, p: part(*arguments, n_features=s.n_weights, **options))
    return Entry(part, lambda s, p: part(*arguments, **options))


def _posterior(part: type[Posterior], **options: Any) -> Entry[Posterior]:
    return Entry(part, lambda s, p: part(p, s.n_inducing, **options))


def _moving(s: ModelSettings) -> dict[str, bool]:
    return {"learn": s.learn_inducing, "normalise": s.normalise_inducing}


def _sparse(s: ModelSettings, p: int) -> InducingInputs:
    shape = s.n_inducing, s.support_size
    columns = torch.zeros(*shape, dtype=torch.int64)
    return SparseInducingInputs(columns, torch.zeros(*shape), n_features=s.n_features, **_moving(s))


def _subspace(learn_basis: bool) -> Entry[InducingInputs]:
    def make(s: ModelSettings, p: int) -> InducingInputs:
        coordinates, basis = torch.zeros(s.n_inducing, s.n_subspace), torch.zeros(s.n_subspace, s.n_features)
        weigh = s.lengthscales_in == "subspace"
        options = {"learn_basis": learn_basis, "coordinate_weights": weigh, **_moving(s)}
        return SubspaceInducingInputs(coordinates, basis, **options)

    return Entry(SubspaceInducingInputs, make)


def _inducing(s: ModelSettings, p: int) -> InducingInputs:
    make = INDUCING[s.inducing].make
    if not s.blocks or s.inducing not in ("free", "sparse"):
        return make(replace(s, normalise_inducing=s.normalise_inducing and not s.blocks), p)
    members = []
    for block in s.blocks:
        # Of dense features none can be left out.
        kind = "free" if block.dense or s.support_size >= block.n_features else s.inducing
        members.append(INDUCING[kind].make(s.of_block(block), p))
    return BlockInducingInputs(members, s.blocks)


def _sparse_gp(s: ModelSettings, p: int) -> Latents:
    return SparseGP(
        s.build_kernel(p),
        _inducing(s, p),
        POSTERIORS[s.posterior].make(s, p),
        n_functions=p,
        relative_jitter=s.relative_jitter,
    )


def _linear(posterior: str) -> Entry[Latents]:
    return Entry(
        LinearFunctions,
        lambda s, p: LinearFunctions(s.n_features, p, prior_variance=s.prior_variance, posterior=posterior),  # type: ignore[arg-type]
    )


def _regression(s: ModelSettings, p: int) -> Latents:
    points, landmarks = (s.n_mean_points, s.n_mean_stored), (s.n_inducing, s.n_landmark_stored)
    link = part_class("likelihood", s.likelihood).link
    return RegressionGP(p, *points, *landmarks, s.n_features, link=link, blocks=s.blocks)


def _random_features(s: ModelSettings, p: int) -> Latents:
    return DeepRandomFeatures(
        s.n_features,
        p,
        n_layers=s.n_layers,
        n_hidden=s.n_hidden,
        n_random=s.n_random_features,
        kernel=s.kernel,  # type: ignore[arg-type]
        frequencies=s.frequencies,
        ard=s.ard,
        n_reduced=s.n_reduced or None,
        feed_forward=s.feed_forward,
    )


def _class_likelihood(part: type[Likelihood]) -> Entry[Likelihood]:
    return Entry(part, lambda s: part())


def _augment_reduce(part: type[AugmentReduceSoftmax] | type[AugmentReduceLogit]) -> Entry[Likelihood]:
    return Entry(
        part,
        lambda s: part(s.local, n_features=s.n_features, n_classes=s.n_labels, n_rows=s.n_local_rows),
    )


KERNELS: dict[str, Entry[Kernel]] = {
    "linear": _kernel(kernels.Linear),
    "linear-ell": _kernel(kernels.Linear, ard=True, learn=True),
    "se": _kernel(kernels.SquaredExponential),
    "se-p-ell": Entry(
        kernels.SquaredExponentialPerLatent, lambda s, p: kernels.SquaredExponentialPerLatent(n_functions=p)
    ),
    "ard": _kernel(kernels.SquaredExponential, ard=True),
    "se+linear": _kernel(kernels.SEPlusLinear),
    "ard+linear": _kernel(kernels.SEPlusLinear, ard=True),
    **{f"matern{order}2": _kernel(kernels.Matern, order) for order in (1, 3, 5)},
    **{f"matern{order}2-ard": _kernel(kernels.Matern, order, ard=True) for order in (1, 3, 5)},
    **{f"arccos{order}": _kernel(kernels.ArcCosine, order) for order in (0, 1)},
    **{f"arccos{order}-ard": _kernel(kernels.ArcCosine, order, ard=True) for order in (0, 1)},
}
POSTERIORS: dict[str, Entry[Posterior]] = {
    "shared-basis": _posterior(SharedBasis),
    "mean-field": _posterior(MeanField),
    "full": _posterior(Full),
    "full-u": _posterior(Full, whitened=False),
    "parsimonious": _posterior(Parsimonious),
}
INDUCING: dict[str, Entry[InducingInputs]] = {
    "free": Entry(
        FreeInducingInputs, lambda s, p: FreeInducingInputs(torch.zeros(s.n_inducing, s.n_features), **_moving(s))
    ),
    "subspace": _subspace(learn_basis=False),
    "subspace-basis": _subspace(learn_basis=True),
    "sparse": Entry(SparseInducingInputs, _sparse),
    "separate": Entry(
        SeparateInducingInputs,
        lambda s, p: SeparateInducingInputs(torch.zeros(p, s.n_inducing, s.n_features), **_moving(s)),
    ),
}
LATENTS: dict[str, Entry[Latents]] = {
    "gp": Entry(SparseGP, _sparse_gp),
    "landmarks": Entry(FeatureGP, lambda s, p: FeatureGP(p, s.n_inducing)),
    "regression": Entry(RegressionGP, _regression),
    "linear": _linear("shared"),
    "linear-mean-field": _linear("mean-field"),
    "linear-point": _linear("point"),
    "landmarks-point": Entry(
        LandmarkFunctions, lambda s, p: LandmarkFunctions(s.n_inducing, p, prior_variance=s.prior_variance)
    ),
    "random-features": Entry(DeepRandomFeatures, _random_features),
}
MIXINGS: dict[str, Entry[Mixing]] = {
    "factor": Entry(
        FactorMixing,
        lambda s, n: FactorMixing(torch.zeros(n, s.n_latent), torch.zeros(n), learn_bias=s.learn_bias),
    ),
    "identity": Entry(
        IdentityMixing,
        lambda s, n: IdentityMixing(
            torch.zeros(n),
            torch.zeros(n),
            learn_scales=s.learn_scales,
            learn_bias=s.learn_bias,
            bias_variance=s.bias_variance,
        ),
    ),
}
LIKELIHOODS: dict[str, Entry[Likelihood]] = {
    "bernoulli": Entry(BernoulliLabels, lambda s: BernoulliLabels(torch.ones(s.n_labels) if s.propensity else None)),
    "softmax": _class_likelihood(Softmax),
    "softmax-mc": _class_likelihood(SoftmaxMonteCarlo),
    "one-vs-each": _class_likelihood(OneVsEach),
    "probit-one-vs-each": _class_likelihood(ProbitOneVsEach),
    "ar-softmax": _augment_reduce(AugmentReduceSoftmax),
    "ar-logit": _augment_reduce(AugmentReduceLogit),
    "robust-max": _class_likelihood(RobustMax),
    "independent": _class_likelihood(IndependentClasses),
    "linear-chain": Entry(
        LinearChain, lambda s: LinearChain(s.n_labels, transitions=s.transitions, objective=s.objective)
    ),
}
REGISTRIES: Mapping[str, Mapping[str, Entry[Any]]] = {
    "kernel": KERNELS,
    "posterior": POSTERIORS,
    "inducing": INDUCING,
    "latents": LATENTS,
    "mixing": MIXINGS,
    "likelihood": LIKELIHOODS,
}
"""All names by the setting that takes them."""

_COMPOSED = (kernels.Sum, kernels.Product, kernels.WhiteNoise, OnColumns)
CLASS_LIKELIHOODS = tuple(
    name for name, entry in LIKELIHOODS.items() if entry.part.has_classes and not entry.part.has_sequences
)
SEQUENCE_LATENTS = tuple(
    name for name, entry in LATENTS.items() if not (entry.part is FeatureGP or entry.part.is_closed)
)
KERNEL_NAMES = tuple(name + white for white in ("", WHITE) for name in KERNELS)


def part_class(setting: str, value: str | Part) -> type[Any]:
    """The class of a part, given by its name or as an object."""
    return REGISTRIES[setting][value].part if isinstance(value, str) else type(value)


def described(part: Part) -> dict[str, Any]:
    """A part as JSON: its class's name and what it was made with.

    Raises:
        SettingsError: a saved model could not make it again.
    """
    try:
        arguments = part.arguments()
    except TypeError as error:
        raise SettingsError(f"{error}: let its constructor take numbers and strings alone") from error
    plain = {name: described(value) if isinstance(value, Part) else value for name, value in arguments.items()}
    return {"part": type(part).__name__, "arguments": plain}


def made(description: Any, parts: Iterable[type[Part]] = ()) -> Part:
    """The part that `described` described.

    Args:
        description: as from a file; it names a class, and never where to import it from.
        parts: classes beside those of the library.

    Raises:
        SettingsError: it describes no such part; names the class that is missing.
    """
    if not isinstance(description, dict) or description.keys() != {"part", "arguments"}:
        raise SettingsError(f"not the description of a part: {description!r}")
    registered = (entry.part for registry in REGISTRIES.values() for entry in registry.values())
    classes: list[Any] = [*registered, *_COMPOSED, *parts]
    known = {cls.__name__: cls for cls in classes}
    name, arguments = description["part"], description["arguments"]
    if name not in known:
        raise SettingsError(f"the model has a part {name!r} of its own: pass its class, load(folder, parts=[{name}])")
    if not isinstance(arguments, dict):
        raise SettingsError(f"not the arguments of {name}: {arguments!r}")
    plain = {key: made(value, parts) if isinstance(value, dict) else value for key, value in arguments.items()}
    try:
        found: Part = known[name](**plain)
    except TypeError as error:
        raise SettingsError(f"{name} takes other arguments than the model was saved with ({error})") from error
    return found
