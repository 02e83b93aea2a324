"""What the regression that a mean function is does not know, as a part of the utilities' posterior."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from extremegp.engine.blocks import Block
from extremegp.engine.closed_posterior import closed_posterior, variance_left, variance_left_out
from extremegp.engine.landmarks import Landmarks
from extremegp.engine.lengthscales import chosen
from extremegp.engine.mean import RegressionMean
from extremegp.engine.part import Part, TrainingData
from extremegp.engine.sparse import Inputs, Matrix
from extremegp.engine.utilities import Spread

_MOST_CENTRE = 0.999


class RegressionVariance(Part):
    """The variances u s_k^2 v(x) of a regression of the labels, carried to the utilities.

    Under squared loss the posterior of the regression is closed, g_k(x) ~ N(t_k(x), s_k^2 v(x)), with one shape v for
    all labels (Rasmussen and Williams 2006, 2.2) that goes through M rows of the training data, with what these leave
    out of the prior. A link is taken as linear here, with the slope that gives its variance under the prior N(mu_k,
    s_k^2): utilities have the variances u v(x) Var c link g_k. The share u is set once a model is trained, and with it
    what is added to means, d_k (v(x) - v0) / (1 - v0), v0 the mean of v over training rows that are left out: nothing
    there, and d_k far from all of them, where labels are to have the probabilities of their frequencies
    (`extremegp.training.regression`).

    Args:
        n_points: M.
        n_stored: stored entries of these rows; None to keep them as an array.
        n_features: D.
        n_labels: K.
        blocks: blocks of the features.
    """

    value_limits = {  # noqa: RUF012 (a mapping that nothing changes)
        "amplitudes": (0.0, 1e30),
        "shrinkage": (0.0, 1.0),
        "scales": (0.0, 1e30),
        "noise": (1e-30, 1e30),
        "shift": (-1e3, 1e3),
        "centre": (0.0, 1.0),
    }

    amplitudes: Float[Tensor, " K"]
    shrinkage: Float[Tensor, " M"]
    scales: Float[Tensor, " K"]
    noise: Float[Tensor, ""]
    shift: Float[Tensor, " K"]
    centre: Float[Tensor, ""]

    def __init__(
        self, n_points: int, n_stored: int | None, n_features: int, n_labels: int, *, blocks: Sequence[Block] = ()
    ) -> None:
        super().__init__()
        self.landmarks = Landmarks(n_points, n_stored, n_features, blocks=blocks, held=False)
        self.register_buffer("amplitudes", torch.ones(n_labels))
        self.register_buffer("shrinkage", torch.ones(n_points))
        self.register_buffer("scales", torch.zeros(n_labels))
        self.register_buffer("noise", torch.ones(()))
        self.register_buffer("shift", torch.zeros(n_labels))
        self.register_buffer("centre", torch.zeros(()))

    @property
    def counts(self) -> bool:
        """Whether there is any variance: not before training has ended."""
        return bool(self.scales.any())

    @torch.no_grad()
    def fit(self, data: TrainingData, mean: RegressionMean, noise: float) -> None:
        """Take the kernel of a mean function that was fitted to the same data, and the posterior that it has."""
        self.landmarks.kept.keep_under(data.x[chosen(data.n_rows, len(self.landmarks))], mean)
        self.landmarks.turn(data.x, data.weights)
        found = closed_posterior(lambda: self.landmarks.pieces(data.x), data.y, mean.frequencies, noise, data.weights)
        self.amplitudes.copy_(found.amplitudes)
        self.shrinkage.copy_(found.shrinkage)
        self.noise.fill_(noise)
        # Where no row tells of others all are as far as can be.
        self.centre.fill_(min(_MOST_CENTRE, float(np.average(found.left_out.numpy(), weights=data.weights))))

    @torch.no_grad()
    def settle(self, share: float, mean: RegressionMean) -> None:
        """Let a share u of the variance of a mean function count."""
        self.scales.copy_(share * mean.prior_variances(self.amplitudes))

    def at(self, x: Inputs) -> Spread:
        """The spread of the utilities of B inputs."""
        a, scales = self.landmarks(x), self.scales

        def draw(n_draws: int, generator: torch.Generator) -> Tensor:
            def noise(n: int) -> Tensor:
                return torch.randn(n_draws, n, len(scales), generator=generator, device=a.device, dtype=a.dtype)

            lacking = (1 - a.square().sum(1, keepdim=True)).clamp(min=0.0).sqrt()
            drawn: Tensor = (a * self.shrinkage.sqrt()) @ noise(a.shape[1]) + lacking * noise(len(a))
            return scales.sqrt() * drawn

        return Spread(variance_left(a, self.shrinkage), scales, draw)

    def left_out(self, x: Matrix | Inputs, weights: NDArray[np.float64] | None = None) -> Float[Tensor, " B"]:
        """v of rows that the regression was fitted to, each as if it had not been.

        Args:
            x: some of the training rows.
            weights: what each of them counts; None for 1.
        """
        a = self.landmarks(x)
        own = None if weights is None else torch.from_numpy(weights).to(a)
        return variance_left_out(a, self.shrinkage, float(self.noise), own)

    def moved(self, spread: Spread) -> Float[Tensor, "B K"]:
        """What is added to the means of utilities with a spread."""
        return ((spread.left - self.centre) / (1 - self.centre)).unsqueeze(1) * self.shift

    def fit_bytes(self, n_rows: int) -> int:
        # What is projected of the labels, in float64.
        return 3 * 8 * len(self.shrinkage) * len(self.amplitudes)
