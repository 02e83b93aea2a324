"""What a model is: every choice and size, and the model that they make."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import Any, Literal, Self, get_args, get_type_hints

from extremegp.engine.block_kernel import OnColumns
from extremegp.engine.blocks import Block, columns_of
from extremegp.engine.feature_regression import FeatureRegression
from extremegp.engine.kernels import Kernel, WhiteNoise
from extremegp.engine.landmarks import Landmarks
from extremegp.engine.latents import ColumnLatents, JoinedLatents, Latents, LinearFunctions, SumLatents
from extremegp.engine.latents.random_features import FEATURE_KERNELS, Frequencies
from extremegp.engine.likelihoods import Likelihood
from extremegp.engine.likelihoods.augment_reduce import Local
from extremegp.engine.likelihoods.linear_chain import ChainObjective, Transitions
from extremegp.engine.mean import RegressionMean
from extremegp.engine.model import MeanFunction, VariationalModel
from extremegp.engine.part import Part
from extremegp.engine.regression_variance import RegressionVariance
from extremegp.engine.weight_covariance import covariance_part
from extremegp.errors import SettingsError
from extremegp.settings.domains import choice, number
from extremegp.settings.files import MOST, blocks_of, of_sequences
from extremegp.settings.parts import (
    KERNEL_NAMES,
    KERNELS,
    LATENTS,
    LIKELIHOODS,
    MIXINGS,
    WHITE,
    described,
    made,
    part_class,
)

PosteriorName = Literal["shared-basis", "mean-field", "full", "full-u", "parsimonious"]
InducingName = Literal["free", "subspace", "subspace-basis", "sparse", "separate"]
Space = Literal["input", "subspace"]
MixingName = Literal["factor", "identity"]
LatentsName = Literal[
    "gp",
    "landmarks",
    "landmarks-point",
    "regression",
    "linear",
    "linear-mean-field",
    "linear-point",
    "random-features",
]
LinearTermPosterior = Literal["shared", "point"]
WeightCovarianceName = Literal["factorised", "shared"]
WEIGHT_COVARIANCES: tuple[str, ...] = get_args(WeightCovarianceName)


@dataclass(frozen=True)
class ModelSettings:
    """Everything that decides the shapes and the meaning of a model's parameters.

    Attributes:
        n_features: D.
        n_labels: K.
        n_latent: P.
        n_inducing: M.
        kernel: covariance function of the sparse GP, by its name, "+white" after which adds white noise, or as an
            object; of random features "se" or "arccos1".
        posterior: family of q(u).
        linear_term: add an exact linear GP in feature space to every latent function.
        inducing: where the inducing inputs live: anywhere, in a subspace, in one whose basis is learnt too, on sparse
            supports, or anywhere for each function.
        n_subspace: R, the dimensions of the subspace; 0 without one.
        support_size: S, the entries of an inducing input on a sparse support; 0 without.
        lengthscales_in: whether weights "per feature" are those of the D features, or of the R coordinates of the
            subspace and the rest.
        learn_inducing: learn Z, or leave it at its start ("-FX").
        normalise_inducing: keep the rows of Z at unit norm, or not ("-UN").
        relative_jitter: added to K_Z, as a fraction of its mean diagonal.
        n_mean_points: rows that the mean function, or latents "regression", is a regression on; 0 for a mean function
            of zero.
        n_mean_stored: stored entries of these rows; None for rows of an array.
        n_variance_points: rows that the variance of the mean function goes through; 0 takes the mean function as known,
            as models of earlier versions do.
        n_variance_stored: stored entries of these rows; None for rows of an array.
        n_landmark_stored: stored entries of M rows of the training data; None for rows of an array.
        propensity: whether labels that apply may be missing, each recorded with a propensity of its own.
        likelihood: of the labels, by its name or as an object.
        mixing: K utilities from P latent functions, or one from each ("identity", P = K).
        latents: sparse GPs; GPs with rows of the training data as inducing inputs, which correct a regression; that
            regression alone, with a closed posterior; (deep) GPs by random features; or linear functions whose
            posterior is of this family (T 3.22).
        local: how a likelihood with parameters for every instance finds them.
        n_local_rows: rows that have stored ones; 0 without.
        transitions: of a linear chain, see `LinearChain`.
        objective: of a linear chain, see `LinearChain`.
        prior_variance: of linear coefficients: where they start, or, of points, stay.
        linear_posterior: family of the posterior of the linear term.
        learn_scales: whether scales of an identity mixing are learnt.
        learn_bias: whether its biases are; else labels have their frequencies under the prior.
        bias_variance: of the prior of the biases of an identity mixing; None for none.
        ard: one lengthscale per input of a layer of random features.
        frequencies: how the spectral frequencies are learnt, see `RandomFeatures`.
        n_layers: layers of random features.
        n_hidden: functions of every hidden layer.
        n_random_features: spectral frequencies of every layer.
        n_reduced: dimensions that a learnt matrix takes inputs of random features to first; 0 leaves them as they are.
        feed_forward: give the inputs to every layer.
        weight_covariance: of the weights of linear functions and of flat random features: every function's own
            variances, or one matrix for all, see `WeightCovariance`.
        n_weight_points: rows that such a matrix is held by, M; 0 to hold it as it is.
        n_weight_stored: stored entries of these rows; None for rows of an array.
        blocks: blocks of the features, each of which then has a kernel and a weight of its own; none for features that
            are all of one kind.
    """

    n_features: int
    n_labels: int
    n_latent: int
    n_inducing: int
    kernel: str | Kernel
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
    n_variance_points: int = 0
    n_variance_stored: int | None = 0
    n_landmark_stored: int | None = 0
    propensity: bool = False
    likelihood: str | Likelihood = "bernoulli"
    mixing: MixingName = "factor"
    latents: LatentsName = "gp"
    local: Local = "optimal"
    n_local_rows: int = 0
    transitions: Transitions = "gaussian"
    objective: ChainObjective = "exact"
    prior_variance: float = 1.0
    linear_posterior: LinearTermPosterior = "shared"
    learn_scales: bool = True
    learn_bias: bool = True
    bias_variance: float | None = None
    ard: bool = True
    frequencies: Frequencies = "prior-fixed"
    n_layers: int = 1
    n_hidden: int = 1
    n_random_features: int = 1000
    n_reduced: int = 0
    feed_forward: bool = True
    weight_covariance: WeightCovarianceName = "factorised"
    n_weight_points: int = 0
    n_weight_stored: int | None = 0
    blocks: tuple[Block, ...] = ()

    @property
    def n_weights(self) -> int:
        """How many weights kernels have where they have one for each coordinate."""
        return self.n_subspace + 1 if self.lengthscales_in == "subspace" else self.n_features

    @property
    def is_closed(self) -> bool:
        """Whether the posterior is had in closed form, and nothing is trained by steps."""
        return LATENTS[self.latents].part.is_closed

    @property
    def likelihood_class(self) -> type[Likelihood]:
        """The likelihood's class, which knows what it is."""
        return part_class("likelihood", self.likelihood)

    @property
    def is_point(self) -> bool:
        """Whether functions and transitions of sequences are the most probable ones."""
        return self.latents in ("linear-point", "landmarks-point") and self.transitions in ("point", "none")

    def build(self) -> VariationalModel:
        """A model with parameters of these shapes; `start` or stored tensors give them their values."""
        k = self.n_labels
        own = self.likelihood
        likelihood = LIKELIHOODS[own].make(self) if isinstance(own, str) else copy.deepcopy(own)
        n_utilities = likelihood.n_utilities(k)
        mixing = MIXINGS[self.mixing].make(self, n_utilities)
        mean: MeanFunction | None = None
        features = variance = None
        if LATENTS[self.latents].part.of_features:
            features = Landmarks(self.n_inducing, self.n_landmark_stored, self.n_features, blocks=self.blocks)
        if self.latents == "landmarks":
            assert likelihood.link is not None
            mean = FeatureRegression(self.n_inducing, k, link=likelihood.link)
        if self.n_mean_points and self.latents != "regression":
            assert likelihood.link is not None
            mean = RegressionMean(
                self.n_mean_points,
                self.n_mean_stored,
                self.n_features,
                k,
                link=likelihood.link,
                blocks=self.blocks,
                anchored=self.n_variance_points > 0,
            )
        if self.n_variance_points:
            points = self.n_variance_points, self.n_variance_stored
            variance = RegressionVariance(*points, self.n_features, k, blocks=self.blocks)
        return VariationalModel(self.build_latents(n_utilities), mixing, likelihood, mean, features, variance)

    def build_latents(self, n_utilities: int | None = None) -> Latents:
        """The latent functions of that model."""
        p, make = self.n_latent, self._make_latents
        n_functions = (n_utilities or p) if self.mixing == "identity" else p
        # Utilities beside those of labels, of pairs of them, have functions of their own.
        latents = make(p) if n_functions == p else JoinedLatents([make(p), make(n_functions - p)])
        if self.weight_covariance == "shared":
            for _, weighted in latents.with_weights():
                sizes = weighted.n_weights, self.n_weight_points, self.n_weight_stored
                weighted.share(covariance_part(*sizes))
        if not self.linear_term:
            return latents

        def term(s: ModelSettings) -> Latents:
            return LinearFunctions(
                s.n_features,
                n_functions,
                prior_variance=s.prior_variance,
                posterior=s.linear_posterior,
                stays_point=s.linear_posterior == "point",
            )

        return SumLatents([latents, *self._of_blocks(term)])

    def _make_latents(self, p: int) -> Latents:
        """P functions, or their sum over blocks; kernels of sparse GPs are sums themselves."""
        make = LATENTS[self.latents].make
        if self.latents in ("gp", "landmarks", "landmarks-point", "regression"):
            return make(self, p)
        terms = self._of_blocks(lambda settings: make(settings, p))
        return terms[0] if len(terms) == 1 else SumLatents(terms)

    def _of_blocks(self, make: Callable[[ModelSettings], Latents]) -> list[Latents]:
        """Latents of all features, or of every block."""
        if not self.blocks:
            return [make(self)]
        return [
            ColumnLatents(make(self.of_block(block)), start, stop, dense=dense)
            for block, (start, stop, dense) in zip(self.blocks, columns_of(self.blocks), strict=True)
        ]

    def of_block(self, block: Block) -> Self:
        """The settings of parts that see a block alone."""
        return replace(
            self,
            n_features=block.n_features,
            support_size=min(self.support_size, block.n_features),
            normalise_inducing=self.normalise_inducing and block.unit,
            blocks=(),
        )

    def build_kernel(self, n_functions: int) -> Kernel:
        """The covariance function of sparse GPs."""
        if not isinstance(self.kernel, str):
            return copy.deepcopy(self.kernel)
        make = KERNELS[self.kernel.removesuffix(WHITE)].make
        kernel = self._sum_of_blocks(make, n_functions) if self.blocks else make(self, n_functions)
        return kernel + WhiteNoise() if self.kernel.endswith(WHITE) else kernel

    def _sum_of_blocks(self, make: Callable[[ModelSettings, int], Kernel], n_functions: int) -> Kernel:
        """A kernel of every block with a weight of its own."""
        share = 1 / len(self.blocks)
        kernels: list[Kernel] = [
            OnColumns(make(self.of_block(block), n_functions), start, stop, dense=dense, variance=share, rescale=True)
            for block, (start, stop, dense) in zip(self.blocks, columns_of(self.blocks), strict=True)
        ]
        return reduce(operator.add, kernels)

    def to_config(self) -> dict[str, Any]:
        """All of it as JSON."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {name: described(value) if isinstance(value, Part) else value for name, value in values.items()}

    @classmethod
    def from_config(cls, values: Any, parts: Iterable[type[Part]] = ()) -> Self:
        """What `to_config` gave, of this version or an earlier one.

        Args:
            values: as from a file: nothing in it is trusted.
            parts: classes of the user's own parts.

        Raises:
            SettingsError: names or values that there are not.
        """
        known = {entry.name for entry in fields(cls)}
        needed = {"n_features", "n_labels", "n_latent", "n_inducing", "kernel"}
        if isinstance(values, dict) and "n_latent" not in values and "transitions" in values:
            values = of_sequences(values)
        if not isinstance(values, dict) or not needed <= values.keys() <= known:
            raise SettingsError("the model settings are incomplete or of another version")
        decoded: dict[str, Any] = {
            name: made(value, parts) if isinstance(value, dict) else value for name, value in values.items()
        }
        if "blocks" in values:
            decoded["blocks"] = blocks_of(values["blocks"])
        return cls(**decoded).checked()

    def checked(self) -> Self:
        """The settings themselves, if every one is in its domain: they may come from a file.

        Raises:
            SettingsError: one is not, or two do not go together.
        """
        for name in ("n_features", "n_labels", "n_latent", "n_inducing", "n_hidden", "n_random_features"):
            number(name, getattr(self, name), low=1, high=MOST, integer=True)
        for name in ("n_mean_points", "n_variance_points", "n_local_rows", "n_reduced", "n_weight_points"):
            number(name, getattr(self, name), low=0, high=MOST, integer=True)
        for name, hint in _HINTS.items():
            if hint is bool:
                choice(name, getattr(self, name), (True, False))
            elif options := get_args(hint) if getattr(hint, "__origin__", None) is Literal else ():
                choice(name, getattr(self, name), options)
        for name in ("n_mean_stored", "n_variance_stored", "n_landmark_stored", "n_weight_stored"):
            if getattr(self, name) is not None:
                number(name, getattr(self, name), low=0, high=MOST, integer=True)
        number("n_layers", self.n_layers, low=1, high=100, integer=True)
        number("relative_jitter", self.relative_jitter, low=0, high=1e-3)
        number("prior_variance", self.prior_variance, low=0, open_low=True)
        if self.bias_variance is not None:
            number("bias_variance", self.bias_variance, low=0, open_low=True)
        self._check_blocks()
        self._check_kernel()
        self._check_inducing()
        self._check_likelihood()
        return self

    def _check_blocks(self) -> None:
        if not self.blocks:
            return
        if sum(block.n_features for block in self.blocks) != self.n_features:
            raise SettingsError(f"the blocks do not have {self.n_features} features together")
        if self.lengthscales_in == "subspace":
            raise SettingsError('lengthscales_in="subspace" is for features of one kind, not for blocks')

    def _check_kernel(self) -> None:
        if isinstance(self.kernel, Kernel):
            described(self.kernel)
        elif self.latents == "random-features":
            choice("kernel", self.kernel, FEATURE_KERNELS)
        elif self.kernel not in KERNEL_NAMES:
            raise SettingsError(
                f"kernel must be one of {', '.join(KERNELS)}, perhaps with '+white' after it; it is {self.kernel!r}"
            )

    def _check_inducing(self) -> None:
        most = min(self.n_features, MOST)
        for name, used in (
            ("n_subspace", self.inducing in ("subspace", "subspace-basis")),
            ("support_size", self.inducing == "sparse"),
        ):
            number(name, getattr(self, name), low=used, high=most if used else 0, integer=True)
        if self.lengthscales_in == "subspace" and self.inducing != "subspace":
            raise SettingsError('lengthscales_in="subspace" needs inducing="subspace", a subspace that stays fixed')
        if self.inducing == "separate" and self.mixing != "identity":
            raise SettingsError(
                'inducing="separate" gives every class inducing inputs of its own: use mixing="identity"'
            )
        if self.linear_term and self.latents not in ("gp", "random-features"):
            raise SettingsError(f'linear_term adds linear functions, which latents="{self.latents}" are already')
        if self.n_layers > 1 and self.latents != "random-features":
            raise SettingsError('n_layers above 1 needs latents="random-features"')

    def _check_likelihood(self) -> None:
        if isinstance(self.likelihood, Likelihood):
            described(self.likelihood)
        else:
            choice("likelihood", self.likelihood, LIKELIHOODS)
        if self.mixing == "identity" and self.n_latent != self.n_labels:
            raise SettingsError(
                f'mixing="identity" has one latent function for each of {self.n_labels} classes, not n_latent='
                f'{self.n_latent}; use mixing="factor"'
            )
        likelihood = self.likelihood_class
        if likelihood.needs_independent and self.mixing == "factor":
            raise SettingsError(
                f'likelihood="{self.likelihood}" needs independent utilities, which mixing="factor" does not give: use '
                'mixing="identity" or likelihood="softmax"'
            )
        if likelihood.has_sequences:
            number("n_labels", self.n_labels, low=2, high=2**20, integer=True)
        if self.n_mean_points and likelihood.link is None:
            raise SettingsError(f"{likelihood.__name__} has no link for a regression: use mean_function='zero'")
        if self.n_variance_points and (not self.n_mean_points or self.latents in ("landmarks", "regression")):
            raise SettingsError("n_variance_points are of a mean function that is a regression of the labels")
        if self.latents == "regression" and (not self.n_mean_points or likelihood.link is None):
            raise SettingsError('latents="regression" takes rows to keep, and a likelihood with a link')
        if self.transitions == "none" and self.objective != "exact":
            raise SettingsError('objective="pseudo-likelihood" is of transitions, and transitions="none" has none')


_HINTS = get_type_hints(ModelSettings)
