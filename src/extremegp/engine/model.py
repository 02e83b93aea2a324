"""Latents + mixing + likelihood: one bound, one predictive distribution."""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from extremegp.engine.batch import Batch
from extremegp.engine.feature_regression import FeatureRegression
from extremegp.engine.landmarks import LandmarkCovariances, Landmarks
from extremegp.engine.latents.base import ConditionedLatents, Latents, Marginals
from extremegp.engine.likelihoods.base import Likelihood
from extremegp.engine.mean import RegressionMean
from extremegp.engine.mixing import FactorMixing, Mixing
from extremegp.engine.part import TrainingData, start_parts
from extremegp.engine.regression_variance import RegressionVariance
from extremegp.engine.sparse import Inputs, fill
from extremegp.engine.utilities import Spread, Utilities

MeanFunction = RegressionMean | FeatureRegression

_FAR_STEPS, _FAR_GAP = 100, 1e-3


class ELBO(NamedTuple):
    """The evidence lower bound of the whole data set, estimated from a batch: scale * data - kl.

    Attributes:
        data: weighted sum over the batch of E_q[log p(y | f)].
        kl: KL[q || p].
        scale: N / B.
    """

    data: Float[Tensor, ""]
    kl: Float[Tensor, ""]
    scale: float

    @property
    def bound(self) -> Float[Tensor, ""]:
        return self.scale * self.data - self.kl

    def tempered(self, kl_weight: float) -> Float[Tensor, ""]:
        """scale * data - kl_weight * kl: the bound itself at weight 1, a cold posterior below."""
        return self.scale * self.data - kl_weight * self.kl


class VariationalModel(nn.Module):
    """A variational Gaussian process model.

    Args:
        latents: P latent functions and their posterior.
        mixing: from latent functions to utilities.
        likelihood: from utilities to labels.
        mean_function: added to the utilities; None adds nothing.
        features: what latents and mean function see of the inputs; None for the inputs themselves.
        regression_variance: of the mean function, once the model is trained; None takes it as known.
    """

    def __init__(
        self,
        latents: Latents,
        mixing: Mixing,
        likelihood: Likelihood,
        mean_function: MeanFunction | None = None,
        features: Landmarks | LandmarkCovariances | None = None,
        regression_variance: RegressionVariance | None = None,
    ) -> None:
        super().__init__()
        self.latents, self.mixing, self.likelihood = latents, mixing, likelihood
        # Covariances alone are seen at the mode only, where nobody asks for more of them.
        self.mean_function, self.features = mean_function, cast("Landmarks | None", features)
        self.regression_variance = regression_variance

    def elbo(self, batch: Batch, conditioned: ConditionedLatents | None = None) -> ELBO:
        """The bound from a batch, whose mean over batches and draws is exact.

        Args:
            batch: the inputs and their labels.
            conditioned: the latent functions under the current parameters, where they are conditioned already.
        """
        conditioned = self.latents.condition(batch.seed) if conditioned is None else conditioned
        utilities = self.utilities(conditioned, batch.x, batch.mean_logits)
        data = self.likelihood.expected_log_prob(utilities, batch)
        kl = self.latents.kl_weight * conditioned.kl() + self.likelihood.kl() + self.mixing.kl()
        return ELBO(data, kl, batch.scale)

    def utilities(
        self, conditioned: ConditionedLatents, x: Inputs, mean_logits: Float[Tensor, "B K"] | None = None
    ) -> Utilities:
        """The utilities of B inputs; `mean_logits` are what the mean function scales, where they are known."""
        offset, x = None, self.seen(x)
        if self.mean_function is not None:
            offset = self.mean_function(x) if mean_logits is None else self.mean_function.scaled(mean_logits)
        utilities = Utilities.at(self.mixing, conditioned, x, offset)
        if self.regression_variance is None or not self.regression_variance.counts:
            return utilities
        return self.with_spread(utilities, self.regression_variance.at(x))

    def with_spread(self, utilities: Utilities, spread: Spread) -> Utilities:
        """Utilities with the variance of the mean function, which says how likely labels are with it integrated out."""
        assert self.regression_variance is not None
        moved = utilities.moved(self.regression_variance.moved(spread))
        return moved.spread_out(spread, self.likelihood.conditional)

    def select(self, labels: Int[Tensor, " L"], *, partial: bool = False) -> VariationalModel:
        """The model of L of the labels: the same latent functions, and a mixing with parameters of its own.

        Its mean function still gives all K labels: it needs `mean_logits` of the L. It is taken as known.

        Args:
            labels: the labels, ascending.
            partial: where every label has a latent function of its own, leave out those of the other labels, and let
                the KL of the L stand for that of all (T 3.36): without bias if every label is as likely to be among
                the L. The bound then costs nothing more for more labels. Else the KL is that of all functions.
        """
        functions = self.mixing.functions(labels)
        return VariationalModel(
            self.latents if functions is None else SelectedLatents(self.latents, functions, partial=partial),
            self.mixing.select(labels),
            self.likelihood.select(labels),
            self.mean_function,
            self.features,
        )

    def seen(self, x: Inputs) -> Inputs:
        """What latents and mean function see of inputs."""
        return x if self.features is None else self.features.forward(x)

    def at_mode(self) -> tuple[VariationalModel, ConditionedLatents]:
        """A model and its most probable functions, where they were found before their covariance; see `Latents`."""
        landmarks = self.features
        if landmarks is not None and landmarks.basis.device.type == "cpu":
            mode = self.latents.mode_of_covariances(landmarks.unwhitened)
            if mode is not None:
                parts = self.latents, self.mixing, self.likelihood, self.mean_function
                return VariationalModel(*parts, LandmarkCovariances(landmarks)), mode
        return self, self.latents.at_mode()

    def of_features(self) -> VariationalModel:
        """The same model, parameter by parameter, of the features as inputs."""
        return VariationalModel(self.latents, self.mixing, self.likelihood, self.mean_function)

    @torch.no_grad()
    def return_to_frequencies(self, data: TrainingData) -> None:
        """Let labels have the probabilities of their frequencies far from all data, where functions have their prior.

        Args:
            data: what the model was trained on.
        """
        variance, mean = self.regression_variance, cast(RegressionMean, self.mean_function)
        assert variance is not None
        like, least = self.mixing.bias, 0.5 / data.n_counted
        wanted = torch.from_numpy(np.clip(data.applies, least, 1 - least)).to(like)
        none = like.new_zeros(1, self.latents.n_functions)
        spread = Spread(like.new_ones(1), variance.scales)
        variance.shift.zero_()
        for _ in range(_FAR_STEPS):
            far = self.with_spread(Utilities(self.mixing, Marginals(none, torch.ones_like(none))), spread)
            found = self.likelihood.predict(far).expectations[0].clamp(1e-30, 1 - 1e-7)
            missing = (wanted / found).log() if mean.link == "log" else wanted.logit() - found.logit()
            variance.shift += missing.clamp(-1.0, 1.0)
            if float(missing.abs().max()) < _FAR_GAP:
                break

    def without_regression_variance(self) -> VariationalModel:
        """The same model, parameter by parameter, that takes its mean function as known, as training does."""
        return VariationalModel(self.latents, self.mixing, self.likelihood, self.mean_function, self.features)

    @torch.no_grad()
    def start(self, data: TrainingData) -> NDArray[np.float32] | None:
        """Start from training data, in place.

        Inducing inputs are centres of the inputs or random inputs, biases such that the labels have their frequencies,
        loadings N(0, 1/P) or principal directions of the labels.

        Returns:
            Of a model with a mean function, which is fitted here, its predictions of every row without that row
            (logits, N x K): what training takes for `mean_logits`.
        """
        start_parts(self.latents, data)
        self.likelihood.start(data)
        logits, mean = None, cast("RegressionMean | None", self.mean_function)  # of features it is fitted beforehand
        if mean is not None:
            regressed = mean.regress(data, mean.learnt(data))
            logits = mean.linked(regressed.left_out).float().numpy()
            if self.regression_variance is not None:
                self.regression_variance.fit(data, mean, regressed.noise)
        self.mixing.start_loadings(data)
        if mean is not None and mean.anchored and self.likelihood.has_prior:
            variances = self.mixing.prior_variances().double().numpy()
            bias = self.likelihood.prior_bias(data.applies, data.n_counted, variances)
            if not self.mixing.bias.requires_grad:
                cast(FactorMixing, self.mixing).prior = self.likelihood.prior(data.applies, data.n_counted)
        else:
            bias = self.likelihood.start_bias(data.applies, data.n_counted)
            if mean is not None and not mean.anchored:
                # The regression starts from the recorded frequencies itself.
                bias -= self.likelihood.start_bias(data.frequencies, data.n_counted)
        fill(self.mixing.bias, bias)
        return logits


class SelectedLatents(Latents):
    """Some of the functions of latents, whose parameters they are.

    Args:
        latents: P functions.
        functions: which, ascending.
        partial: leave out what the others take; the KL of these times P / L then stands for that of all.
    """

    def __init__(self, latents: Latents, functions: Int[Tensor, " L"], *, partial: bool) -> None:
        super().__init__()
        self.latents, self.functions, self.partial = latents, functions, partial
        self.n_functions = len(functions)
        self.kl_weight = latents.n_functions / len(functions) if partial else 1.0

    def condition(self, seed: int = 0, functions: Int[Tensor, " L"] | None = None) -> ConditionedLatents:
        own = self.functions if functions is None else self.functions[functions]
        return self.latents.condition(seed, own) if self.partial else self.latents.condition(seed).select(own)
