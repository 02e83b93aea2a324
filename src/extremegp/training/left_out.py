"""What functions that are trained by steps say of their training rows, each without itself.

The optimum of the bound is a Gaussian with a site for every row: with g = E d log p / df and l = -E d2 log p / df2
under q, the row adds l to the precision of what it sees of the functions, and g + l m to the precision times the mean
(Opper and Archambeau 2009). Taking the site away leaves the cavity, the posterior without the row at the same
hyper-parameters up to what others would move by: of a function with mean m and variance v at the row,
N(m - v' g, v') with v' = v / (1 - l v) (Vehtari et al. 2016, section 3.4). Nothing is trained again.
"""

from __future__ import annotations

from typing import cast

import scipy.sparse
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from extremegp.engine.latents import Marginals
from extremegp.engine.latents.features import left_out
from extremegp.engine.likelihoods.base import Likelihood
from extremegp.engine.mixing import FactorMixing
from extremegp.engine.utilities import Utilities

_MOST_LEVERAGE = 0.95


@torch.no_grad()
def without_own_sites(
    utilities: Utilities,
    likelihood: Likelihood,
    a: Float[Tensor, "B M"],
    y: scipy.sparse.csr_matrix,
    weights: Float[Tensor, " B"],
    seen: Bool[Tensor, "B K"],
) -> Utilities:
    """Utilities of training rows under the posterior of functions of features, each without its own site.

    Args:
        utilities: of the rows, with what the mean function says of each without itself.
        likelihood: of labels that are independent given the utilities.
        a: features of the rows, whose part of the functions the rows tell of; what these lack is no other row's.
        y: labels, B x K.
        weights: what each row counts, over the weight of the KL divergence in training.
        seen: which labels of the rows the functions were trained on.
    """
    mean, variance = utilities.marginals()
    truth = torch.from_numpy(y.toarray()).to(mean)
    _, by_mean, by_variance = likelihood.label_terms(mean, variance, truth)
    counted = weights.to(mean).unsqueeze(1) * seen
    by_mean, curvature = counted * by_mean, (-2 * counted * by_variance).clamp(min=0.0)
    lacking = left_out(a)
    known = (utilities.latents.variance - lacking).clamp(min=0.0)
    mixing = utilities.mixing
    if mixing.independent:
        scales = mixing.prior_variances()
        wider = known / (1 - (scales * curvature * known).clamp(max=_MOST_LEVERAGE))
        moved = utilities.latents.mean - wider * scales.sqrt() * by_mean
    else:
        loadings, roots = cast(FactorMixing, mixing).loadings, known.sqrt()
        sites = torch.einsum("kp,bk,kq->bpq", loadings, curvature, loadings) * roots.unsqueeze(2) * roots.unsqueeze(1)
        values, vectors = torch.linalg.eigh(sites)
        scaled = roots.unsqueeze(2) * vectors / (1 - values.clamp(0.0, _MOST_LEVERAGE)).sqrt().unsqueeze(1)
        along = (scaled.mT @ (by_mean @ loadings).unsqueeze(2)).squeeze(2)
        wider, moved = scaled.square().sum(2), utilities.latents.mean - (scaled @ along.unsqueeze(2)).squeeze(2)
    return Utilities(mixing, Marginals(moved, wider + lacking), utilities.offset)
