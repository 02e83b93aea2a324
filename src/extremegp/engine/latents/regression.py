"""Functions that are the regression of the labels itself, under its closed posterior: nothing is trained by steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from extremegp.engine.blocks import Block
from extremegp.engine.closed_posterior import closed_posterior, variance_left
from extremegp.engine.landmarks import Landmarks
from extremegp.engine.latents.base import ConditionedLatents, Latents, Marginals
from extremegp.engine.lengthscales import Learnt, chosen
from extremegp.engine.links import Link, LinkMoments, linked, linked_moments
from extremegp.engine.mean import RegressionMean
from extremegp.engine.part import TrainingData
from extremegp.engine.sparse import Inputs

_PIECE = 1024  # rows


class LeftOut(NamedTuple):
    """What the posterior of the regression says of every training row without that row.

    Attributes:
        mean: t_k, N x K.
        variance: v, N, of all labels alike and beside their amplitudes.
    """

    mean: Float[Tensor, "N K"]
    variance: Float[Tensor, " N"]


class RegressionGP(Latents):
    """h_k(x) = c (link g_k(x) - link mu_k), with g_k the Gaussian process regression of label k.

    Under squared loss the posterior of g_k is closed and, up to an amplitude s_k for each, has one variance for all
    labels (Rasmussen and Williams 2006, 2.2): g_k(x) ~ N(t_k(x), u s_k^2 v(x)). The mean t is that of all training rows
    or of many of them; the variance v goes through M of them (subset of regressors, with what they leave out of the
    prior). What the link makes of g is taken as Gaussian with its mean and variance. c, u and the floor of the link
    (`linked`) are numbers set by what predicts training rows that are left out (`extremegp.training.regression`).

    Args:
        n_functions: K.
        n_points: rows of the training data that the mean keeps.
        n_stored: stored entries of these; None to keep them as an array.
        n_landmarks: M.
        n_landmark_stored: of the landmarks.
        n_features: D.
        link: "logit" or "log".
        blocks: blocks of the features.
    """

    is_closed = True
    value_limits = {  # noqa: RUF012 (a mapping that nothing changes)
        "amplitudes": (0.0, 1e30),
        "shrinkage": (0.0, 1.0),
        "slope": (-1e3, 1e3),
        "share": (0.0, 1.0),
        "floor": (1e-3, 1e3),
    }

    amplitudes: Float[Tensor, " K"]
    shrinkage: Float[Tensor, " M"]
    slope: Float[Tensor, ""]
    share: Float[Tensor, ""]
    floor: Float[Tensor, ""]

    def __init__(
        self,
        n_functions: int,
        n_points: int,
        n_stored: int | None,
        n_landmarks: int,
        n_landmark_stored: int | None,
        n_features: int,
        *,
        link: Link = "logit",
        blocks: Sequence[Block] = (),
    ) -> None:
        super().__init__()
        self.n_functions, self.link = n_functions, link
        self.mean = RegressionMean(n_points, n_stored, n_features, n_functions, link=link, blocks=blocks, lone=True)
        self.mean.slope.requires_grad_(False)
        self.mean.frequencies.fill_(0.5)
        self.landmarks = Landmarks(n_landmarks, n_landmark_stored, n_features, blocks=blocks)
        self.register_buffer("amplitudes", torch.ones(n_functions))
        self.register_buffer("shrinkage", torch.ones(n_landmarks))
        for name, value in (("slope", 1.0), ("share", 1.0), ("floor", 2.0)):
            self.register_buffer(name, torch.tensor(value))
        # The covariance that `shrinkage` is the diagonal of, while rows have come or gone since that was one.
        self.covariance: Tensor | None = None

    @torch.no_grad()
    def fit(self, data: TrainingData, learnt: Learnt | None = None) -> LeftOut:
        """Become the regression of the labels; what it says of its own training rows when each is left out.

        Args:
            data: training rows.
            learnt: kernel and noise; None to learn them.
        """
        mean, landmarks = self.mean, self.landmarks
        learnt = mean.learnt(data) if learnt is None else learnt
        left_out, noise = mean.regress(data, learnt)
        self.limit_frequencies(data.n_counted)
        landmarks.kept.keep(data.x[chosen(data.n_rows, len(landmarks))])
        landmarks.kept.set_kernel(learnt)
        a = landmarks.rotate(data.x, data.weights)
        found = closed_posterior(lambda: iter(torch.split(a, _PIECE)), data.y, mean.frequencies, noise, data.weights)
        self.amplitudes.copy_(found.amplitudes)
        self.shrinkage.copy_(found.shrinkage)
        return LeftOut(left_out.float(), found.left_out)

    @torch.no_grad()
    def limit_frequencies(self, n_rows: int) -> None:
        """Keep frequencies of labels that none or all of so many rows have away from zero and one."""
        least = 0.3 / (n_rows + 1)
        self.mean.frequencies.clamp_(least, 1 - least)

    def of_prior(self) -> LinkMoments:
        """Moments of the functions far from all training rows, K each as a row."""
        none = torch.ones(1, device=self.slope.device)
        return self.of(LeftOut(self.mean.frequencies.unsqueeze(0), none))

    def of(self, posterior: LeftOut) -> LinkMoments:
        """Moments of the functions where the regression has these."""
        mu, variance = self.mean.frequencies, self.share * posterior.variance.unsqueeze(1) * self.amplitudes
        mean, variance = linked_moments(posterior.mean, variance, mu, link=self.link, floor=self.floor)
        return LinkMoments(self.slope * mean, self.slope.square() * variance)

    def variance_at(self, a: Float[Tensor, "B M"]) -> Float[Tensor, " B"]:
        """v of inputs with features a of the landmarks."""
        if self.covariance is None:
            return variance_left(a, self.shrinkage)
        return (1 - a.square().sum(1) + (a @ self.covariance.to(a) * a).sum(1)).clamp(min=0.0)

    def rooted(self, a: Float[Tensor, "B M"]) -> Float[Tensor, "B M"]:
        """Features whose products with themselves are the covariance of what these explain."""
        if self.covariance is None:
            return a * self.shrinkage.sqrt()
        values, vectors = torch.linalg.eigh(self.covariance)
        rooted: Tensor = a @ (vectors * values.clamp(min=0.0).sqrt()).to(a)
        return rooted

    def condition(self, seed: int = 0, functions: Int[Tensor, " L"] | None = None) -> ConditionedRegressionGP:
        return ConditionedRegressionGP(self, functions)


class ConditionedRegressionGP(ConditionedLatents):
    """The functions, or some of them.

    Args:
        latents: all.
        functions: which; None for all.
    """

    def __init__(self, latents: RegressionGP, functions: Int[Tensor, " L"] | None) -> None:
        self.latents, self.functions = latents, functions
        self.width = len(latents.landmarks) + latents.n_functions

    def marginals(self, x: Inputs) -> Marginals:
        mean, variance = self.latents.of(self._regression(x)[0])
        some = slice(None) if self.functions is None else self.functions
        return Marginals(mean[:, some], variance[:, some])

    def _regression(self, x: Inputs) -> tuple[LeftOut, Float[Tensor, "B M"]]:
        """The posterior of the regression at inputs, and their features of the landmarks."""
        a = self.latents.landmarks(x)
        return LeftOut(self.latents.mean.regressed(x), self.latents.variance_at(a)), a

    def draws(
        self, x: Inputs, lengths: Int[Tensor, " S"], n_draws: int, generator: torch.Generator
    ) -> Float[Tensor, "R B P"]:
        latents = self.latents
        (t, _), a = self._regression(x)

        def noise(n: int) -> Tensor:
            return torch.randn(n_draws, n, t.shape[1], generator=generator, device=t.device, dtype=t.dtype)

        left_out = (1 - a.square().sum(1, keepdim=True)).clamp(min=0.0).sqrt() * noise(len(a))
        drawn = latents.rooted(a) @ noise(a.shape[1]) + left_out
        g = t + (latents.share * latents.amplitudes).sqrt() * drawn
        h = latents.slope * linked(g, latents.mean.frequencies, link=latents.link, floor=latents.floor)
        return h if self.functions is None else h[..., self.functions]

    def kl(self) -> Float[Tensor, ""]:
        """0: the posterior is that under squared loss, and of no bound on the evidence of the labels."""
        return torch.zeros((), device=self.latents.slope.device)

    def select(self, functions: Int[Tensor, " L"]) -> ConditionedRegressionGP:
        own = functions if self.functions is None else self.functions[functions]
        return ConditionedRegressionGP(self.latents, own)
