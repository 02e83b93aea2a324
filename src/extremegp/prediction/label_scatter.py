r"""How labels of an instance go together beyond what its features say, and what known ones then say of the others.

The posterior says how well the functions are known. That labels come together, or exclude each other, in one and the
same instance is another matter:

    f_i = f(x_i) + A z_i,    z_i ~ N(0, I) for every instance by itself,    A of K x Q.

The scatter A z must not change what is said of an instance of which no label is known. The logistic function of a
Gaussian utility N(m, v) is nearly that of m / sqrt(1 + pi v / 8) (MacKay 1992), so a utility with variance v + a,
a = ||A_k||^2, has the mean

    m_k' = m_k sqrt((1 + pi (v + a) / 8) / (1 + pi v / 8)) .

Known labels turn N(0, I) into Laplace's approximation N(z*, S) of the posterior of z, and the others have the utilities
N(m_k' + A_k z*, v_k + A_k S A_k').

A is estimated of logits without a variance. By the same formula, A z speaks as loudly beside a variance v_k if A_k is
sqrt(1 + pi v_k / 8) times as large.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from extremegp.engine.integrals.logistic import expected_softplus
from extremegp.engine.latents.base import Marginals
from extremegp.engine.utilities import Utilities
from extremegp.prediction.known_labels import GivenVariance, find_mode, known_groups, solver

_MOST_FACTORS, _BATCH, _STEPS, _RATE, _NEWTON = 20, 500, 200, 0.1, 3
_MOST_LABELS, _PRIOR_VARIANCE = 1000, 4.0
_CALIBRATION_STEPS, _CALIBRATION_RATE = 120, 0.1
_MACKAY = math.pi / 8


class LabelScatter(NamedTuple):
    """The scatter of instances.

    Attributes:
        loadings: A.
    """

    loadings: Float[Tensor, "K Q"]

    @classmethod
    def none(cls, like: Tensor) -> LabelScatter:
        """No scatter: known labels say nothing of the others."""
        return cls(like.new_zeros(len(like), 0))

    @torch.no_grad()
    def given(
        self, utilities: Utilities, given: scipy.sparse.csr_matrix, *, variance: GivenVariance = "laplace"
    ) -> Marginals:
        """Utilities of B instances some of whose labels are known; rows without known labels as they are, to the bit.

        Args:
            utilities: without the known labels.
            given: known labels, B x K: 1 for a label that is present, -1 for one that is absent, no entry for others.
            variance: "laplace" reduces the scatter of the others by what the known ones say; "map" leaves it.
        """
        mean, variances = (part.clone() for part in utilities.marginals())
        scatter = self.loadings.square().sum(1)
        for rows, labels, signs in known_groups(given, mean):
            own = variances[rows]
            widened = widened_mean(mean[rows], own, scatter)
            known = self.loadings[labels].double() * signs.abs()[..., None]
            deviations = own.gather(1, labels).double().sqrt() * signs.abs()
            root = torch.cat([known, torch.diag_embed(deviations)], dim=2)
            mode = find_mode(widened.gather(1, labels).double(), root, signs)
            shift = (mode.gradient[:, None] @ known).squeeze(1)
            scale = mode.curvature.sqrt()[..., None]
            moved = widened + (shift @ self.loadings.T.double()).to(mean.dtype)
            # What the functions do not know of a label is moved by the label itself alone.
            mean[rows] = moved.scatter_add(1, labels, (mode.gradient * deviations.square()).to(mean.dtype))
            left = scatter.expand_as(own)
            if variance == "laplace":
                # A S A' of all labels: A A' less what the known ones take away.
                right = scale * known
                taken = (right.mT @ solver(scale * root)(right)).to(mean.dtype)
                left = left - ((self.loadings @ taken) * self.loadings).sum(2)
            variances[rows] = own + left.clamp(min=0.0)
        return Marginals(mean, variances)

    def mean_given(self, utilities: Utilities, given: scipy.sparse.csr_matrix) -> Float[Tensor, "B K"]:
        """The means of these alone."""
        return self.given(utilities, given, variance="map").mean


def widened_mean(
    mean: Float[Tensor, "B K"], variance: Float[Tensor, "B K"] | float, scatter: Float[Tensor, " K"]
) -> Float[Tensor, "B K"]:
    """Means with which utilities of a larger variance have the probabilities that they had."""
    return mean * ((1 + _MACKAY * (variance + scatter)) / (1 + _MACKAY * variance)).sqrt()


def estimate_scatter(
    logits: Float[Tensor, "N K"],
    y: scipy.sparse.csr_matrix,
    *,
    rng: np.random.Generator,
    variances: Float[Tensor, " K"] | None = None,
    weights: NDArray[np.float64] | None = None,
) -> LabelScatter:
    """The scatter that makes the labels of training rows most likely beside what is said of each without itself.

    Variational expectation maximisation (Jordan et al. 1999): q(z_i) is Laplace's approximation of the posterior of z_i
    given all labels of the row, and A moves along the gradient of the bound; of many labels, a random part in a step.
    The entries of A have the prior N(0, 4), so that few rows do not make them large.

    Args:
        logits: leave-one-out predictions of the mean function.
        y: labels as recorded, N x K, in [0, 1]; rows without labels say as much as others, and propensities nothing.
        rng: decides the start and the rows of each step.
        variances: about what the utilities have under the posterior; 0 by default.
        weights: what each row counts; None for 1.
    """
    n_rows, n_labels = y.shape
    n_factors = min(_MOST_FACTORS, n_labels - 1)
    if not n_factors:
        return LabelScatter.none(logits[0])
    means = _calibrated(logits, y, weights)
    loadings = torch.from_numpy(rng.normal(scale=0.1, size=(n_labels, n_factors)).astype(np.float32))
    loadings.requires_grad_()
    optimizer = torch.optim.Adam([loadings], lr=_RATE)
    for step in range(_STEPS):
        optimizer.param_groups[0]["lr"] = _RATE * min(1.0, 2 * (1 - step / _STEPS))
        rows = np.sort(rng.choice(n_rows, min(_BATCH, n_rows), replace=False))
        labels = np.arange(n_labels)
        if n_labels > _MOST_LABELS:
            labels = np.sort(rng.choice(n_labels, _MOST_LABELS, replace=False))
        target = torch.from_numpy(y[rows][:, labels].toarray()).float()
        mean, own = means[rows][:, labels], loadings[torch.from_numpy(labels)]
        counts = torch.ones(len(rows)) if weights is None else torch.from_numpy(weights[rows]).float()
        widened = widened_mean(mean, 0.0, own.square().sum(1))
        with torch.no_grad():
            z, covariance = _posterior(widened, own, target)
        f = widened + z @ own.T
        variance = ((own @ covariance) * own).sum(2)
        loss = (counts @ (expected_softplus(f, variance) - target * f)).sum() / len(rows)
        loss = loss + own.square().sum() / (2 * _PRIOR_VARIANCE * n_rows)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    loadings = loadings.detach()
    return LabelScatter(loadings if variances is None else loadings * (1 + _MACKAY * variances).sqrt()[:, None])


def _posterior(
    mean: Float[Tensor, "B L"], loadings: Float[Tensor, "L Q"], y: Float[Tensor, "B L"]
) -> tuple[Float[Tensor, "B Q"], Float[Tensor, "B Q Q"]]:
    """Laplace's approximation of p(z | y) by damped Newton steps."""
    z = mean.new_zeros(len(mean), loadings.shape[1])
    n_labels, n_factors = loadings.shape
    identity = torch.eye(n_factors)
    products = (loadings.unsqueeze(2) * loadings.unsqueeze(1)).view(n_labels, -1)
    covariance = identity.expand(len(mean), -1, -1)
    for _ in range(_NEWTON):
        p = torch.sigmoid(mean + z @ loadings.T)
        precision = identity + ((p * (1 - p)) @ products).view(-1, n_factors, n_factors)
        covariance = torch.cholesky_inverse(torch.linalg.cholesky(precision))
        step = (covariance @ ((y - p) @ loadings - z).unsqueeze(2)).squeeze(2)
        z = z + step / step.norm(dim=1, keepdim=True).clamp(min=2.0).mul(0.5)
    return z, covariance


def _calibrated(
    logits: Float[Tensor, "N K"], y: scipy.sparse.csr_matrix, weights: NDArray[np.float64] | None
) -> Float[Tensor, "N K"]:
    """b_k + c logits, with b and c such that the labels are most likely."""
    rows = np.linspace(0, y.shape[0] - 1, min(y.shape[0], 4000)).round().astype(np.int64)
    target, some = torch.from_numpy(y[rows].toarray()).float(), logits[rows]
    counts = torch.ones(len(rows)) if weights is None else torch.from_numpy(weights[rows]).float()
    rates = ((counts @ target + 0.3) / (counts.sum() + 1)).clamp(max=1 - 1e-4)
    bias, slope = torch.logit(rates).requires_grad_(), torch.ones(1, requires_grad=True)
    optimizer = torch.optim.Adam([bias, slope], lr=_CALIBRATION_RATE)
    for _ in range(_CALIBRATION_STEPS):
        f = bias + slope * some
        loss = (counts @ (torch.nn.functional.softplus(f) - target * f)).sum() / len(rows)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return (bias + slope * logits).detach()
