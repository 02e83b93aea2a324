"""How much the utility of each label varies, by a bound of the evidence for every label by itself.

In features whose sum of squares is diagonal (`Landmarks`) a Gaussian posterior with independent coordinates loses
little, and its bound of the evidence costs four products a step for all labels together. A label of pure noise wants a
variance near none, another label a large one. What labels have in common is their prior, learnt from all of them
(empirical Bayes), so that a label with few examples gets what others have.
"""

from __future__ import annotations

import math
from typing import NamedTuple, cast

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator
from scipy.special import log_softmax, logsumexp, softmax
from torch import Tensor

from extremegp.engine.latents.features import FeatureGP, left_out
from extremegp.engine.likelihoods.base import Likelihood
from extremegp.engine.linalg import inverse_cholesky
from extremegp.engine.matrices import column_means
from extremegp.engine.mixing import IdentityMixing
from extremegp.engine.model import VariationalModel

VARIANCES = tuple(0.03 * 10 ** (half / 2) for half in range(8))
"""Of utilities, that are tried: 0.03 to 95."""
_SPREADS, _FREEDOM = (0.3, 0.5, 0.75, 1.1, 1.6, 2.4), 4  # of log variances of labels
_FINE = 43
_STEPS, _STEP, _PIECE = 16, 0.6, 1 << 22
_WIDE_ROWS, _WIDE_COORDINATES, _KNOWN = 4000, 300, 0.01


class LabelVariances(NamedTuple):
    """What the evidence says of variances of utilities.

    Attributes:
        variances: the expectation of each label's, K.
        evidence: sum_k log p(y_k) about, with these variances integrated out.
    """

    variances: NDArray[np.float64]
    evidence: float


def label_variances(bounds: Float[Tensor, "G K"]) -> LabelVariances:
    """Variances of labels under a prior that is learnt from all of them.

    Log variances are Student-t around what labels have in common: a few labels may be quite unlike the others.

    Args:
        bounds: of log p(y_k | s_k^2), for `VARIANCES` in turn.
    """
    known = np.log(VARIANCES)
    logs = np.linspace(known[0], known[-1], _FINE)
    of_labels = PchipInterpolator(known, bounds.double().numpy(), axis=0)(logs)
    best, joint = -math.inf, of_labels
    for common in logs:
        for spread in _SPREADS:
            prior = log_softmax(-0.5 * (_FREEDOM + 1) * np.log1p(((logs - common) / spread) ** 2 / _FREEDOM))
            tried = of_labels + prior[:, None]
            evidence = float(logsumexp(tried, axis=0).sum()) - 0.5 * math.log(spread) ** 2
            if evidence > best:
                best, joint = evidence, tried
    return LabelVariances(softmax(joint, axis=0).T @ np.exp(logs), best)


@torch.no_grad()
def evidence_bounds(
    a: Float[Tensor, "N M"],
    y: scipy.sparse.csr_matrix,
    likelihood: Likelihood,
    weights: NDArray[np.float64] | None = None,
) -> Float[Tensor, "G K"]:
    """Bounds of log p(y_k | s_k^2) for `VARIANCES` in turn: f_k = b_k + s_k h_k, h_k ~ GP(0, k), no mean function.

    The posterior is q(h_k) = N(a'm_k, a' diag(p_k)^-1 a + 1 - a'a), by steps along natural gradients of all rows.

    Args:
        a: features of the rows, whose weighted sum of squares is diagonal.
        y: labels, N x K.
        likelihood: of the labels.
        weights: what each row counts; None for 1.
    """
    counts = None if weights is None else torch.from_numpy(weights).to(a).unsqueeze(1)
    frequencies = column_means(y, weights)
    size = max(1, _PIECE // max(a.shape))
    bounds = torch.empty(len(VARIANCES), y.shape[1])
    squares, rest = a.square(), left_out(a)
    counted = squares if counts is None else squares * counts
    for start in range(0, y.shape[1], size):
        labels = torch.arange(start, min(start + size, y.shape[1]))
        some, own = likelihood.select(labels), labels.numpy()
        present = torch.from_numpy(y[:, own].toarray()).to(a)
        mean = a.new_zeros(a.shape[1], len(labels))
        for g, variance in enumerate(VARIANCES):
            scale = math.sqrt(variance)
            bias = torch.from_numpy(some.prior_bias(frequencies[own], len(a), np.full(len(own), variance))).to(a)
            curvature = torch.from_numpy(likelihood.curvature(frequencies[own])).to(a)
            precision = 1 + variance * counted.sum(0).unsqueeze(1) * curvature
            for _ in range(_STEPS):
                value, by_mean, by_variance = _data(
                    some,
                    bias + scale * (a @ mean),
                    variance * (squares @ precision.reciprocal() + rest),
                    present,
                    counts,
                )
                precision += _STEP * (1 - 2 * variance * (squares.T @ by_variance) - precision)
                mean += _STEP * (scale * (a.T @ by_mean) - mean) / precision
            value, _, _ = _data(
                some, bias + scale * (a @ mean), variance * (squares @ precision.reciprocal() + rest), present, counts
            )
            divergence = 0.5 * (precision.reciprocal() + mean.square() - 1 + precision.log()).sum(0)
            bounds[g, labels] = (value.sum(0) - divergence).float()
            # Where the next, larger variance starts from: the same utilities.
            if g + 1 < len(VARIANCES):
                mean *= scale / math.sqrt(VARIANCES[g + 1])
    return bounds


@torch.no_grad()
def widen(
    model: VariationalModel,
    a: NDArray[np.float32],
    y: scipy.sparse.csr_matrix,
    weights: NDArray[np.float64] | None = None,
) -> None:
    """Give independent coordinates their own variances under the joint posterior, in place.

    The best posterior with independent coordinates has the inverse of the diagonal of the precision I + s^2 A' diag(l)
    A, which is too small. With the diagonal of its inverse in place the mean of the variances over the training rows is
    that of the joint posterior, for A'A is diagonal. It is worked out among the coordinates that the data say most of,
    from some of the rows where they are many.

    Args:
        model: of features, whose labels are independent and have a function each.
        a: features of the training rows, N x M.
        y: labels, N x K.
        weights: what each row counts, N; None for 1.
    """
    mixing = cast(IdentityMixing, model.mixing)
    log_variances = cast(FeatureGP, model.latents).posterior.log_scales
    rows = np.linspace(0, len(a) - 1, min(len(a), _WIDE_ROWS)).round().astype(np.int64)
    features = torch.from_numpy(a[rows]).to(log_variances)
    mean, variance = model.utilities(model.latents.condition(), features).marginals()
    present = torch.from_numpy(y[rows].toarray()).to(features)
    counts = torch.full((len(rows), 1), len(a) / len(rows)).to(features)
    if weights is not None:
        counts *= torch.from_numpy(weights[rows]).to(features).unsqueeze(1)
    _, _, by_variance = _data(model.likelihood, mean, variance, present, counts)
    curvature = (-2 * by_variance).clamp(min=0.0) * mixing.log_scales.mul(2).exp()
    for of_label, row_curvature in zip(log_variances, curvature.T, strict=True):
        known = torch.nonzero(of_label < -_KNOWN).squeeze(1)
        if len(known) > _WIDE_COORDINATES:
            known = of_label.topk(_WIDE_COORDINATES, largest=False).indices
        part = features[:, known]
        precision = ((part.T * row_curvature) @ part).double()
        precision.diagonal().add_(1.0)
        inverse_root = inverse_cholesky(precision, relative_jitter=0.0)
        of_label[known] = inverse_root.square().sum(0).log().to(of_label)


def _data(
    likelihood: Likelihood, mean: Tensor, variance: Tensor, y: Tensor, counts: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """E log p(y | f) of every entry, weighted, and its derivatives by mean and variance."""
    terms = likelihood.label_terms(mean, variance, y)
    if counts is None:
        return terms
    value, by_mean, by_variance = (term * counts for term in terms)
    return value, by_mean, by_variance
