"""From settings to a model of sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from extremegp.engine.latents import DeepRandomFeatures, JoinedLatents, Latents, LinearFunctions, SumLatents
from extremegp.engine.latents.linear import LinearPosterior
from extremegp.engine.latents.random_features import Frequencies
from extremegp.engine.likelihoods.linear_chain import ChainObjective, LinearChain, Transitions
from extremegp.engine.mixing import IdentityMixing
from extremegp.engine.sequence_model import SequenceModel
from extremegp.settings.model import ModelSettings, PosteriorName

SequenceLatents = Literal["random-features", "gp", "linear", "linear-mean-field", "linear-point"]
SEQUENCE_LATENTS: tuple[str, ...] = get_args(SequenceLatents)
_LINEAR: dict[str, LinearPosterior] = {"linear": "shared", "linear-mean-field": "mean-field", "linear-point": "point"}


@dataclass(frozen=True)
class SequenceSettings:
    """Everything that decides the shapes and the meaning of a sequence model's parameters.

    Attributes:
        n_features: D.
        n_labels: V.
        latents: functions of the inputs: of a (deep) GP by random features, a sparse GP, or linear ones with a
            posterior of this family.
        linear_term: add linear functions, at their most probable, to those of random features.
        transitions: see `LinearChain`.
        objective: see `LinearChain`.
        prior_variance: of linear coefficients: where they start, or, of points, stay.
        kernel: "se" or "arccos1" of random features; any of `KERNEL_NAMES` of a sparse GP.
        ard: one lengthscale per input of a layer of random features.
        frequencies: how the spectral frequencies are learnt, see `RandomFeatures`.
        n_layers: layers of random features.
        n_hidden: functions of every hidden layer.
        n_random_features: spectral frequencies of every layer.
        n_reduced: dimensions that a learnt matrix takes the inputs to first; 0 leaves them as they are.
        feed_forward: give the inputs to every layer.
        n_inducing: M of a sparse GP.
        support_size: stored entries of an inducing input.
        posterior: family of q(u) of a sparse GP.
    """

    n_features: int
    n_labels: int
    latents: SequenceLatents = "random-features"
    linear_term: bool = False
    transitions: Transitions = "gaussian"
    objective: ChainObjective = "exact"
    prior_variance: float = 1.0
    kernel: str = "arccos1"
    ard: bool = True
    frequencies: Frequencies = "prior-fixed"
    n_layers: int = 1
    n_hidden: int = 1
    n_random_features: int = 1000
    n_reduced: int = 0
    feed_forward: bool = True
    n_inducing: int = 1
    support_size: int = 1
    posterior: PosteriorName = "full"

    def build(self) -> SequenceModel:
        """A model with parameters of these shapes; `start_sequences` or stored tensors give them their values."""
        likelihood = LinearChain(self.n_labels, transitions=self.transitions, objective=self.objective)
        p, v = likelihood.n_functions, self.n_labels
        # Pairs of labels have a network of their own.
        latents = self._latents(p) if p == v else JoinedLatents([self._latents(v), self._latents(p - v)])
        if self.linear_term:
            linear = LinearFunctions(self.n_features, p, prior_variance=self.prior_variance, posterior="point")
            latents = SumLatents([latents, linear])
        mixing = IdentityMixing(torch.zeros(p), torch.zeros(p))
        # Other latents have a variance of their own, and that of points must not be learnt.
        mixing.log_scales.requires_grad_(self.latents == "gp" and not self.linear_term)
        return SequenceModel(latents, mixing, likelihood)

    def _latents(self, p: int) -> Latents:
        if self.latents == "random-features":
            return DeepRandomFeatures(
                self.n_features,
                p,
                n_layers=self.n_layers,
                n_hidden=self.n_hidden,
                n_random=self.n_random_features,
                kernel="se" if self.kernel == "se" else "arccos1",
                frequencies=self.frequencies,
                ard=self.ard,
                n_reduced=self.n_reduced or None,
                feed_forward=self.feed_forward,
            )
        if self.latents == "gp":
            # Inducing inputs are inputs of training, and stay there: as wide as these, and sparse.
            return ModelSettings(
                n_features=self.n_features,
                n_labels=p,
                n_latent=p,
                n_inducing=self.n_inducing,
                kernel=self.kernel,
                posterior=self.posterior,
                inducing="sparse",
                support_size=self.support_size,
                learn_inducing=False,
                normalise_inducing=False,
                mixing="identity",
            ).build_latents()
        return LinearFunctions(self.n_features, p, prior_variance=self.prior_variance, posterior=_LINEAR[self.latents])
