"""Links of regressions of labels: what makes utilities of estimated probabilities, which may lie outside 0 to 1."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

Link = Literal["logit", "log"]

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(16)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


class LinkMoments(NamedTuple):
    """Mean and variance of what a link makes of Gaussian numbers, B x K each."""

    mean: Float[Tensor, "B K"]
    variance: Float[Tensor, "B K"]


def linked(
    t: Float[Tensor, "B K"], mu: Float[Tensor, " K"], *, link: Link, floor: float | Tensor
) -> Float[Tensor, "B K"]:
    """link t - link mu: the logit of labels that are present or not, the logarithm of one class out of K.

    t enters by e softplus(t / e), with e the floor times the variance mu (1 - mu) of the label: about t where that is
    well above e, and positive everywhere.

    Args:
        t: estimates.
        mu: frequencies of the labels.
        link: which.
        floor: of t, in variances of the label.
    """
    e = floor * mu * (1 - mu)
    result = _positive(t, e).log_().sub_(_positive(mu, e).log())
    if link == "logit":
        result -= _positive(1 - t, e).log_().sub_(_positive(1 - mu, e).log())
    return result


def linked_moments(
    mean: Float[Tensor, "B K"],
    variance: Float[Tensor, "B K"],
    mu: Float[Tensor, " K"],
    *,
    link: Link,
    floor: float | Tensor,
) -> LinkMoments:
    """Moments of link g - link mu with g Gaussian, by Gauss-Hermite quadrature with 16 nodes."""
    deviation = variance.sqrt()
    first, second = torch.zeros_like(mean), torch.zeros_like(mean)
    for node, weight in zip(NODES.tolist(), WEIGHTS.tolist(), strict=True):
        value = linked(mean + node * deviation, mu, link=link, floor=floor)
        first.add_(value, alpha=weight)
        second.addcmul_(value, value, value=weight)
    return LinkMoments(first, second.addcmul_(first, first, value=-1).clamp_(min=0.0))


def _positive(t: Tensor, floor: Tensor) -> Tensor:
    """e softplus(t / e), and never zero in float32."""
    return (nn.functional.softplus(t / floor) * floor).clamp_(min=1e-12)
