"""What models with landmarks say of their training rows, each as if it had not been trained on.

A regression leaves a row out exactly, but functions that are trained by steps beside it cannot be corrected for one row
at little cost: they have learnt from the row itself, and from what the regression says of all others, of which the row
is part too. So beside a regression they are left out, and two numbers and a floor make probabilities of what it says
without each row: by the likelihood of these very rows, which tell three numbers well.

Where there are functions alone, each row is a site of their Gaussian posterior: with g = E d log p / df and l = -E d2
log p / df2, it adds l to the precision and g + l m to the precision times the mean (Opper and Archambeau 2009). Without
it a function with mean m and variance v at the row is N(m - v' g, v') there, with v' = v / (1 - l v) (Vehtari et al.
2016, section 3.4).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from extremegp.engine.latents import Marginals
from extremegp.engine.latents.features import left_out
from extremegp.engine.likelihoods.base import Likelihood
from extremegp.engine.links import linked
from extremegp.engine.utilities import Utilities

_FLOORS = (0.5, 1.0, 2.0, 5.0, 10.0)
_MOST_LEVERAGE, _NEWTON_STEPS, _LEAST_CURVATURE = 0.95, 12, 1e-9


class LeftOutLink(NamedTuple):
    """p = sigma(c (link t - link mu) + logit mu + d), of what a regression says of rows that it leaves out.

    Attributes:
        frequencies: mu, K.
        floor: of the link, see `linked`.
        slope: c.
        shift: d.
    """

    frequencies: Float[Tensor, " K"]
    floor: float
    slope: float
    shift: float

    @classmethod
    def chosen(
        cls,
        t: Float[Tensor, "N K"],
        y: scipy.sparse.csr_matrix,
        frequencies: Float[Tensor, " K"],
        weights: NDArray[np.float64],
    ) -> LeftOutLink:
        """The one under which the labels of rows are likeliest.

        Args:
            t: what the regression says of some training rows, each without itself.
            y: their labels, N x K.
            frequencies: mu.
            weights: what each row counts, N.
        """
        truth, own = torch.from_numpy(y.toarray()).double(), torch.from_numpy(weights).unsqueeze(1)
        found = {floor: _logistic(_linked(t, frequencies, floor), frequencies, truth, own) for floor in _FLOORS}
        floor = max(found, key=lambda each: found[each][0])
        _, slope, shift = found[floor]
        return cls(frequencies, floor, slope, shift)

    def probabilities(self, t: Float[Tensor, "B K"]) -> Float[Tensor, "B K"]:
        """Of rows of which the regression says t."""
        utilities = self.slope * _linked(t, self.frequencies, self.floor) + self.frequencies.logit() + self.shift
        return utilities.sigmoid()


def _linked(t: Float[Tensor, "B K"], mu: Float[Tensor, " K"], floor: float) -> Float[Tensor, "B K"]:
    return linked(t.double(), mu.double(), link="logit", floor=floor)


def _logistic(
    x: Float[Tensor, "N K"], mu: Float[Tensor, " K"], y: Float[Tensor, "N K"], weights: Float[Tensor, "N 1"]
) -> tuple[float, float, float]:
    """The likelihood of a logistic regression with one slope and one shift, and these, by Newton's method."""
    offset, slope, shift = mu.logit(), 1.0, 0.0
    for _ in range(_NEWTON_STEPS):
        p = (slope * x + offset + shift).sigmoid()
        missing, curvature = weights * (y - p), weights * p * (1 - p)
        gradient = torch.stack([(missing * x).sum(), missing.sum()])
        across = (curvature * x).sum()
        hessian = torch.stack([(curvature * x * x).sum(), across, across, curvature.sum()]).view(2, 2)
        hessian.diagonal().add_(_LEAST_CURVATURE)
        by = torch.linalg.solve(hessian, gradient).clamp(-1.0, 1.0)
        slope, shift = slope + float(by[0]), shift + float(by[1])
    utilities = slope * x + offset + shift
    scores = y * utilities - torch.nn.functional.softplus(utilities)
    return float((weights * scores).sum()), slope, shift


@torch.no_grad()
def without_own_sites(
    utilities: Utilities,
    likelihood: Likelihood,
    a: Float[Tensor, "B M"],
    y: scipy.sparse.csr_matrix,
    weights: Float[Tensor, " B"],
) -> Utilities:
    """Utilities of training rows under the posterior of functions of features, one a label, each without its own site.

    Args:
        utilities: of the rows.
        likelihood: of labels that are independent given the utilities.
        a: features of the rows, whose part of the functions the rows tell of; what these lack is no other row's.
        y: labels, B x K.
        weights: what each row counts, over the weight of the KL divergence in training.
    """
    mean, variance = utilities.marginals()
    truth = torch.from_numpy(y.toarray()).to(mean)
    _, by_mean, by_variance = likelihood.label_terms(mean, variance, truth)
    counted = weights.to(mean).unsqueeze(1)
    by_mean, curvature = counted * by_mean, (-2 * counted * by_variance).clamp(min=0.0)
    lacking, scales = left_out(a), utilities.mixing.prior_variances()
    known = (utilities.latents.variance - lacking).clamp(min=0.0)
    wider = known / (1 - (scales * curvature * known).clamp(max=_MOST_LEVERAGE))
    moved = utilities.latents.mean - wider * scales.sqrt() * by_mean
    return Utilities(utilities.mixing, Marginals(moved, wider + lacking), utilities.offset)
