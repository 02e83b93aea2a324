"""The utilities of a batch as a likelihood sees them, worked out as far as it asks: marginals, sums, or joint draws."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property, partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from extremegp.engine.latents.base import ConditionedLatents, Marginals
from extremegp.engine.mixing import Mixing, Moments
from extremegp.engine.sparse import Inputs, SparseRows

_MACKAY = math.pi / 8


class Spread(NamedTuple):
    """Terms e_ik ~ N(0, v_i w_k) of the utilities, independent of each other and of the latent functions.

    Attributes:
        left: v, B.
        scales: w, K.
        draw: draws of them that are joint for all inputs, of a number R and a generator, R x B x K.
    """

    left: Float[Tensor, " B"]
    scales: Float[Tensor, " K"]
    draw: Callable[[int, torch.Generator], Float[Tensor, "R B K"]] | None = None

    def variance(self, labels: slice | Int[Tensor, "B L"] = slice(None)) -> Float[Tensor, "B L"]:
        """Of the terms of some labels, or of L labels of each row, which may differ from row to row."""
        return self.left.unsqueeze(1) * self.scales[labels]

    def rows(self, index: Int[Tensor, " R"]) -> Spread:
        """Those of some of the inputs, or of some more than once."""
        return Spread(self.left[index], self.scales)


class Utilities:
    """The K utilities f_i = mixing(h(x_i)) + mean(x_i) + e_i of B inputs under the posterior of the latent functions.

    Args:
        mixing: from latent functions to utilities.
        latents: marginals of the latent functions at the inputs, or what gives them when they are asked for.
        offset: what a mean function adds, B x K; None for none.
        draw: joint draws of the latent functions at the inputs of sequences: of lengths, a number of draws R and a
            generator, R x B x P.
        spread: e; None for none.
    """

    def __init__(
        self,
        mixing: Mixing,
        latents: Marginals | Callable[[], Marginals],
        offset: Float[Tensor, "B K"] | None = None,
        draw: Callable[[Int[Tensor, " S"], int, torch.Generator], Float[Tensor, "R B P"]] | None = None,
        spread: Spread | None = None,
    ) -> None:
        self.mixing, self.offset, self._latents, self._draw = mixing, offset, latents, draw
        self.spread = spread

    @classmethod
    def at(
        cls, mixing: Mixing, conditioned: ConditionedLatents, x: Inputs, offset: Float[Tensor, "B K"] | None
    ) -> Utilities:
        """Those of inputs."""
        return cls(
            mixing,
            lambda: conditioned.marginals(x),
            offset,
            lambda lengths, n_draws, generator: conditioned.draws(x, lengths, n_draws, generator),
        )

    @cached_property
    def latents(self) -> Marginals:
        """Marginals of the latent functions, B x P."""
        return self._latents() if callable(self._latents) else self._latents

    @property
    def independent(self) -> bool:
        """Whether the utilities of an input are independent of each other."""
        return self.mixing.independent

    @property
    def n_utilities(self) -> int:
        """K."""
        return self.mixing.n_utilities

    @property
    def n_noise(self) -> int:
        """How many standard normal numbers `sample` makes a draw of: P, and K more where utilities have a spread."""
        return self.latents.mean.shape[1] + (0 if self.spread is None else self.n_utilities)

    def moved(self, by: Float[Tensor, "B K"]) -> Utilities:
        """With other means."""
        offset = by if self.offset is None else self.offset + by
        return Utilities(self.mixing, self.latents, offset, self._draw, self.spread)

    def spread_out(self, spread: Spread, expected: Callable[[Float[Tensor, "B K"]], Float[Tensor, "B K"]]) -> Utilities:
        """With a spread that leaves the expectation of the labels about as it is.

        A spread of variance s pulls the probability p of a label towards one half, by s p (1 - p) (1 - 2p) / 2 to first
        order, and that of a class likewise under a softmax. Where the mean moves by s (p - 1/2) this is undone; of a
        larger s it grows as the root, as the mean does that MacKay (1992) needs for the same probability.

        Args:
            spread: what there is beside the latent functions.
            expected: the labels that are expected of known utilities.
        """
        grown = ((1 + _MACKAY * spread.variance()).sqrt() - 1) * (2 / _MACKAY)
        moved = self.moved(grown * (expected(self.means()) - 0.5))
        moved.spread = spread
        return moved

    def marginals(self, labels: slice = slice(None)) -> Marginals:
        """Means and variances of some utilities, B x |labels| each."""
        mean, variance = self.mixing.marginals(self.latents, labels)
        if self.spread is not None:
            variance = variance + self.spread.variance(labels)
        return Marginals(mean if self.offset is None else mean + self.offset[:, labels], variance)

    def means(self, labels: slice = slice(None)) -> Float[Tensor, "B L"]:
        """Means alone, where variances are not needed."""
        mean = self.mixing.means(self.latents, labels)
        return mean if self.offset is None else mean + self.offset[:, labels]

    def of_labels(self, labels: Int[Tensor, "B C"]) -> Marginals:
        """Means and variances of the utilities of C labels of each row, which may differ from row to row."""
        mean, variance = self.mixing.of_labels(self.latents, labels)
        if self.spread is not None:
            variance = variance + self.spread.variance(labels)
        return Marginals(mean if self.offset is None else mean + self.offset.gather(1, labels), variance)

    def differences(self, classes: Int[Tensor, " B"]) -> Marginals:
        """Means and variances of f_c - f_l, B x K, for the class c of each row; zero at l = c."""
        own = classes.unsqueeze(1)
        mean, variance = self.marginals()
        total = variance.gather(1, own) + variance
        covariance = self.mixing.covariances(self.latents, classes)
        if covariance is not None:
            # Rounding may leave less than nothing where utilities nearly coincide.
            total = (total - 2 * covariance).clamp(min=0.0)
        return Marginals(mean.gather(1, own) - mean, total.scatter(1, own, 0.0))

    def weighted_mean_sum(self, y: SparseRows) -> Float[Tensor, ""]:
        """sum_ik y_ik E[f_ik] over the stored entries of y, B x K, without forming any other utility."""
        total = self.mixing.weighted_mean_sum(self.latents, y)
        return total if self.offset is None else total + y.values @ self.offset[y.rows, y.columns]

    def rows(self, index: Int[Tensor, " R"]) -> Utilities:
        """Those of some of the inputs, or of some more than once."""
        offset, spread = self.offset, self.spread
        return Utilities(
            self.mixing,
            self.latents.rows(index),
            None if offset is None else offset[index],
            spread=None if spread is None else spread.rows(index),
        )

    def expectation_sum(
        self,
        moments: Moments,
        weights: Float[Tensor, " K"] | None = None,
        row_weights: Float[Tensor, " B"] | None = None,
    ) -> Float[Tensor, ""]:
        """sum_ik v_i w_k E g(f_ik) of a function g with known Gaussian expectations, in chunks of labels where it can.

        Args:
            moments: of means and variances of the utilities of a range of labels, B x L, and that range: E g(f), and
                its derivatives by mean and variance. It may overwrite the means.
            weights: w; 1 throughout by default.
            row_weights: v; 1 throughout by default.
        """
        if self.spread is not None:
            moments = partial(_spread, moments, self.spread)
        if row_weights is not None:
            moments = partial(_weighed, moments, row_weights.unsqueeze(1))
        return self.mixing.expectation_sum(self.latents, self.offset, moments, weights)

    def sample(self, noise: Float[Tensor, "S B n_noise"]) -> Float[Tensor, "S B K"]:
        """Draws of the utilities, made of standard normal noise."""
        n_latent = self.latents.mean.shape[1]
        f = self.mixing.sample(self.latents, noise[..., :n_latent])
        f = f if self.offset is None else f + self.offset
        return f if self.spread is None else torch.addcmul(f, self.spread.variance().sqrt(), noise[..., n_latent:])

    def draws(self, lengths: Int[Tensor, " S"], n_draws: int, generator: torch.Generator) -> Float[Tensor, "R B K"]:
        """Draws of the utilities, joint for the inputs of each sequence."""
        assert self._draw is not None
        f = self.mixing.at(self._draw(lengths, n_draws, generator))
        f = f if self.offset is None else f + self.offset
        if self.spread is None:
            return f
        assert self.spread.draw is not None
        return f + self.spread.draw(n_draws, generator)


def _spread(
    moments: Moments, spread: Spread, mean: Tensor, variance: Tensor, labels: slice
) -> tuple[Tensor, Tensor, Tensor]:
    return moments(mean, variance + spread.variance(labels), labels)


def _weighed(
    moments: Moments, row_weights: Float[Tensor, "B 1"], mean: Tensor, variance: Tensor, labels: slice
) -> tuple[Tensor, Tensor, Tensor]:
    value, by_mean, by_variance = moments(mean, variance, labels)
    return value * row_weights, by_mean * row_weights, by_variance * row_weights
