"""From settings to a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from extremegp.engine.inducing import (
    FreeInducingInputs,
    InducingInputs,
    SeparateInducingInputs,
    SparseInducingInputs,
    SubspaceInducingInputs,
)
from extremegp.engine.kernels import (
    ArcCosine,
    Kernel,
    Linear,
    Matern,
    SEPlusLinear,
    SquaredExponential,
    SquaredExponentialPerLatent,
    WhiteNoise,
)
from extremegp.engine.latents import Latents, LinearFunctions, SparseGP, SumLatents
from extremegp.engine.latents.linear import LinearPosterior
from extremegp.engine.likelihoods import (
    AugmentReduceLogit,
    AugmentReduceSoftmax,
    BernoulliLabels,
    IndependentClasses,
    Likelihood,
    OneVsEach,
    ProbitOneVsEach,
    RobustMax,
    Softmax,
    SoftmaxMonteCarlo,
)
from extremegp.engine.likelihoods.augment_reduce import Local
from extremegp.engine.mean import Link, RegressionMean
from extremegp.engine.mixing import FactorMixing, IdentityMixing, Mixing
from extremegp.engine.model import VariationalModel
from extremegp.engine.posteriors import Full, MeanField, Parsimonious, Posterior, SharedBasis

PosteriorName = Literal["shared-basis", "mean-field", "full", "full-u", "parsimonious"]
InducingName = Literal["free", "subspace", "subspace-basis", "sparse", "separate"]
Space = Literal["input", "subspace"]
LikelihoodName = Literal[
    "bernoulli",
    "softmax",
    "softmax-mc",
    "one-vs-each",
    "probit-one-vs-each",
    "ar-softmax",
    "ar-logit",
    "robust-max",
    "independent",
]
MixingName = Literal["factor", "identity"]
LatentsName = Literal["gp", "linear", "linear-mean-field", "linear-point"]

# Functions of the number of weights (where they are learnt one by one) and of P.
_KERNELS: dict[str, Callable[[int, int], Kernel]] = {
    "linear": lambda n_weights, p: Linear(),
    "linear-ell": lambda n_weights, p: Linear(n_features=n_weights, learn=True),
    "se": lambda n_weights, p: SquaredExponential(),
    "se-p-ell": lambda n_weights, p: SquaredExponentialPerLatent(n_functions=p),
    "ard": lambda n_weights, p: SquaredExponential(n_features=n_weights),
    "se+linear": lambda n_weights, p: SEPlusLinear(),
    "ard+linear": lambda n_weights, p: SEPlusLinear(n_features=n_weights),
    "matern12": lambda n_weights, p: Matern(1),
    "matern32": lambda n_weights, p: Matern(3),
    "matern52": lambda n_weights, p: Matern(5),
    "matern12-ard": lambda n_weights, p: Matern(1, n_features=n_weights),
    "matern32-ard": lambda n_weights, p: Matern(3, n_features=n_weights),
    "matern52-ard": lambda n_weights, p: Matern(5, n_features=n_weights),
    "arccos0": lambda n_weights, p: ArcCosine(0),
    "arccos1": lambda n_weights, p: ArcCosine(1),
    "arccos0-ard": lambda n_weights, p: ArcCosine(0, n_features=n_weights),
    "arccos1-ard": lambda n_weights, p: ArcCosine(1, n_features=n_weights),
}
_WHITE = "+white"
_POSTERIORS: dict[PosteriorName, Callable[[int, int], Posterior]] = {
    "shared-basis": SharedBasis,
    "mean-field": MeanField,
    "full": Full,
    "full-u": lambda n_functions, n_inducing: Full(n_functions, n_inducing, whitened=False),
    "parsimonious": Parsimonious,
}
_PLAIN_LIKELIHOODS: dict[str, Callable[[], Likelihood]] = {
    "softmax": Softmax,
    "softmax-mc": SoftmaxMonteCarlo,
    "one-vs-each": OneVsEach,
    "probit-one-vs-each": ProbitOneVsEach,
    "robust-max": RobustMax,
}
KERNEL_NAMES: tuple[str, ...] = tuple(name + white for white in ("", _WHITE) for name in _KERNELS)
POSTERIOR_NAMES: tuple[str, ...] = get_args(PosteriorName)
INDUCING_NAMES: tuple[str, ...] = get_args(InducingName)
SPACES: tuple[str, ...] = get_args(Space)
CLASS_LIKELIHOODS: tuple[str, ...] = tuple(name for name in get_args(LikelihoodName) if name != "bernoulli")
MIXING_NAMES: tuple[str, ...] = get_args(MixingName)
LATENTS_NAMES: tuple[str, ...] = get_args(LatentsName)
LOCAL_NAMES: tuple[str, ...] = get_args(Local)
_LINEAR_POSTERIORS: dict[str, LinearPosterior] = {
    "linear": "shared",
    "linear-mean-field": "mean-field",
    "linear-point": "point",
}


@dataclass(frozen=True)
class ModelSettings:
    """Everything that decides the shapes and the meaning of a model's parameters.

    Attributes:
        n_features: D.
        n_labels: K.
        n_latent: P.
        n_inducing: M.
        kernel: covariance function of the sparse GP; "+white" after its name adds white noise.
        posterior: family of q(u).
        linear_term: add an exact linear GP in feature space to every latent function.
        inducing: where the inducing inputs live: anywhere, in a subspace, in one whose basis is learnt too, or on
            sparse supports.
        n_subspace: R, the dimensions of the subspace; 0 without one.
        support_size: S, the entries of an inducing input on a sparse support; 0 without.
        lengthscales_in: whether weights "per feature" are those of the D features, or of the R coordinates of the
            subspace and the rest.
        learn_inducing: learn Z, or leave it at its start ("-FX").
        normalise_inducing: keep the rows of Z at unit norm, or not ("-UN").
        relative_jitter: added to K_Z, as a fraction of its mean diagonal.
        n_mean_points: rows that the mean function is a regression on; 0 for a mean function of zero.
        n_mean_stored: stored entries of these rows; None for rows of an array.
        propensity: whether labels that apply may be missing, each recorded with a propensity of its own.
        likelihood: of the labels; "bernoulli" for many labels per instance, all others for one class.
        mixing: K utilities from P latent functions, or one from each of K ("identity", P = K).
        latents: sparse GPs, or linear functions of the features with a posterior of this family (T 3.22).
        local: how a likelihood with parameters for every instance finds them.
        n_local_rows: rows that have stored ones; 0 without.
    """

    n_features: int
    n_labels: int
    n_latent: int
    n_inducing: int
    kernel: str
    posterior: PosteriorName = "shared-basis"
    linear_term: bool = False
    inducing: InducingName = "free"
    n_subspace: int = 0
    support_size: int = 0
    lengthscales_in: Space = "input"
    learn_inducing: bool = True
    normalise_inducing: bool = True
    relative_jitter: float = 1e-6
    n_mean_points: int = 0
    n_mean_stored: int | None = 0
    propensity: bool = False
    likelihood: LikelihoodName = "bernoulli"
    mixing: MixingName = "factor"
    latents: LatentsName = "gp"
    local: Local = "optimal"
    n_local_rows: int = 0

    def build(self) -> VariationalModel:
        """A model with parameters of these shapes; `initialise` or stored tensors give them their values."""
        k = self.n_labels
        mixing: Mixing = IdentityMixing(torch.zeros(k), torch.zeros(k))
        if self.mixing == "factor":
            mixing = FactorMixing(torch.zeros(k, self.n_latent), torch.zeros(k))
        mean = None
        if self.n_mean_points:
            link: Link = "logit" if self.likelihood in ("bernoulli", "independent") else "log"
            mean = RegressionMean(self.n_mean_points, self.n_mean_stored, self.n_features, k, link=link)
        return VariationalModel(self.build_latents(), mixing, self._likelihood(), mean)

    def build_latents(self) -> Latents:
        """The latent functions of that model."""
        p, d = self.n_latent, self.n_features
        if self.latents != "gp":
            return LinearFunctions(d, p, posterior=_LINEAR_POSTERIORS[self.latents])
        name = self.kernel.removesuffix(_WHITE)
        kernel = _KERNELS[name](self.n_subspace + 1 if self.lengthscales_in == "subspace" else d, p)
        latents = SparseGP(
            kernel if name == self.kernel else kernel + WhiteNoise(),
            self._inducing(),
            _POSTERIORS[self.posterior](p, self.n_inducing),
            n_functions=p,
            relative_jitter=self.relative_jitter,
        )
        return SumLatents([latents, LinearFunctions(d, p, prior_variance=0.1)]) if self.linear_term else latents

    def _likelihood(self) -> Likelihood:
        k = self.n_labels
        locals_of = {"n_features": self.n_features, "n_classes": k, "n_rows": self.n_local_rows}
        match self.likelihood:
            case "bernoulli":
                return BernoulliLabels(torch.ones(k) if self.propensity else None)
            case "independent":
                return IndependentClasses()
            case "ar-softmax":
                return AugmentReduceSoftmax(self.local, **locals_of)
            case "ar-logit":
                return AugmentReduceLogit(self.local, **locals_of)
        return _PLAIN_LIKELIHOODS[self.likelihood]()

    def _inducing(self) -> InducingInputs:
        m, d, r, s = self.n_inducing, self.n_features, self.n_subspace, self.support_size
        learn, normalise = self.learn_inducing, self.normalise_inducing
        if self.inducing == "sparse":
            columns = torch.zeros(m, s, dtype=torch.int64)
            return SparseInducingInputs(columns, torch.zeros(m, s), n_features=d, learn=learn, normalise=normalise)
        if self.inducing == "separate":
            return SeparateInducingInputs(torch.zeros(self.n_latent, m, d), learn=learn, normalise=normalise)
        if self.inducing == "free":
            return FreeInducingInputs(torch.zeros(m, d), learn=learn, normalise=normalise)
        return SubspaceInducingInputs(
            torch.zeros(m, r),
            torch.zeros(r, d),
            learn=learn,
            learn_basis=self.inducing == "subspace-basis",
            normalise=normalise,
            coordinate_weights=self.lengthscales_in == "subspace",
        )
