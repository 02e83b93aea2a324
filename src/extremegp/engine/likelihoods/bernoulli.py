"""Independent Bernoulli labels with a logistic link (T 4.2-4.3, ML 2-3), all recorded or some of them missing."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from extremegp.engine.integrals.logistic import expected_sigmoid, softplus_moments
from extremegp.engine.latents.base import Marginals
from extremegp.engine.likelihoods.base import BatchContext, Likelihood
from extremegp.engine.linalg import tensor_float32
from extremegp.engine.mixing import Mixing
from extremegp.engine.sparse import SparseRows

_CHUNK_ELEMENTS = 1 << 20


class _SoftplusOverLabels(torch.autograd.Function):
    """sum_ik w_k [E softplus(f_ik) - (1 - y_ik) E softplus(f_ik + c_k)] over all labels; no second term without c.

    It goes through the labels in chunks, with the gradients computed in the same pass. Nothing of size B x K outlives a
    chunk but the gradient of the offset: what is saved for backward has the shapes of the first five inputs.
    """

    @staticmethod
    def forward(
        ctx: Any,
        mean: Tensor,
        variance: Tensor,
        loadings: Tensor,
        bias: Tensor,
        offset: Tensor | None,
        weights: Tensor | None,
        shifts: Tensor | None,
        y: SparseRows,
    ) -> Tensor:
        needs_grad = any(ctx.needs_input_grad)
        chunk = max(1, _CHUNK_ELEMENTS // max(1, len(mean)))
        total = mean.new_zeros((), dtype=torch.float64)
        grad_mean, grad_variance = torch.zeros_like(mean), torch.zeros_like(variance)
        grad_loadings, grad_bias = torch.empty_like(loadings), torch.empty_like(bias)
        grad_offset = None if offset is None else torch.empty_like(offset)
        for start in range(0, len(bias), chunk):
            labels = slice(start, start + chunk)
            phi = loadings[labels]
            phi2 = phi.square()
            f_mean, f_variance = torch.addmm(bias[labels], mean, phi.T), variance @ phi2.T
            if offset is not None:
                f_mean += offset[:, labels]
            value, dm, dv = softplus_moments(f_mean, f_variance)
            if shifts is not None:
                positives = _positions(y, start, len(phi))
                for moment, shifted in zip(
                    (value, dm, dv), softplus_moments(f_mean.add_(shifts[labels]), f_variance), strict=True
                ):
                    moment.sub_(shifted.view(-1).index_fill_(0, positives, 0.0).view_as(moment))
            if weights is not None:
                for moment in (value, dm, dv):
                    moment.mul_(weights[labels])
            total += value.sum(dim=1).sum(dtype=torch.float64)
            if needs_grad:
                grad_mean.addmm_(dm, phi)
                grad_variance.addmm_(dv, phi2)
                torch.mm(dv.T, variance, out=grad_loadings[labels])
                grad_loadings[labels].mul_(phi).mul_(2.0).addmm_(dm.T, mean)
                torch.sum(dm, 0, out=grad_bias[labels])
                if grad_offset is not None:
                    grad_offset[:, labels] = dm
        if needs_grad:
            ctx.save_for_backward(grad_mean, grad_variance, grad_loadings, grad_bias, grad_offset)
        return total.to(mean.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        gradients = (None if saved is None else saved * grad for saved in ctx.saved_tensors)
        return (*gradients, None, None, None)


def _positions(y: SparseRows, start: int, width: int) -> Int[Tensor, " entries"]:
    """Where the stored entries of `width` columns from `start` on lie in those columns as a dense, flat B x width."""
    by_label = y.transposed
    first, last = (int(by_label.offsets[column]) for column in (start, start + width))
    return by_label.columns[first:last] * width + by_label.rows[first:last] - start


class BernoulliLabels(Likelihood):
    """y_k = 1 with probability sigma(f_k), independently for every label given the utilities.

    With propensities p_k a label that applies is recorded with probability p_k only (Jain, Prabhu and Varma 2016): y_k
    is what was recorded, 1 with probability p_k sigma(f_k), and sigma(f_k) the probability that label k applies.

    Args:
        propensities: p_k in (0, 1], K; None where every label that applies was recorded. An error of the expectations
            is relative to them, not to the difference of two that a small p_k makes of it: it grows as 1 / p_k.
    """

    propensities: Float[Tensor, " K"] | None

    def __init__(self, propensities: Float[Tensor, " K"] | None = None) -> None:
        super().__init__()
        self.register_buffer("propensities", propensities)

    def restricted(self, labels: Int[Tensor, " L"]) -> BernoulliLabels:
        """The likelihood of L of the labels."""
        return BernoulliLabels(None if self.propensities is None else self.propensities.index_select(0, labels))

    def expected_log_prob(
        self,
        latents: Marginals,
        mixing: Mixing,
        y: SparseRows,
        *,
        label_weights: Float[Tensor, " K"] | None = None,
        context: BatchContext | None = None,
    ) -> Float[Tensor, ""]:
        """sum_ik E_q[log p(y_ik | f_ik)] over the batch and K labels.

        Without propensities this is sum_ik y_ik E f_ik - sum_ik E softplus(f_ik). With them, as 1 - p sigma(f) is
        (1 + e^{f + c}) / (1 + e^f) for c = log(1 - p), it is sum_ik y_ik (E f_ik + log p_k) - sum_ik E softplus(f_ik) +
        sum_ik (1 - y_ik) E softplus(f_ik + c_k). On a GPU the products over labels round their factors to TF32.
        """
        shifts = None if self.propensities is None else torch.log1p(-self.propensities)
        # Its backward pass has no product of its own: all of them are in this block.
        with tensor_float32(latents.mean.device):
            softplus: Tensor = _SoftplusOverLabels.apply(
                latents.mean, latents.variance, mixing.loadings, mixing.bias, latents.offset, label_weights, shifts, y
            )
        data = mixing.weighted_mean_sum(latents, y) - softplus
        return data if self.propensities is None else data + y.values @ self.propensities.log()[y.columns]

    def predict(self, latents: Marginals, mixing: Mixing) -> tuple[Float[Tensor, "B K"], Float[Tensor, "B K"]]:
        utilities = mixing.utilities(latents)
        return utilities.mean, self.probabilities(utilities)

    def probabilities(self, utilities: Marginals) -> Float[Tensor, "B K"]:
        """E sigma(f_k), the posterior of the utility integrated out (T 4.36): that label k applies, recorded or not."""
        return expected_sigmoid(utilities.mean, utilities.variance)


class IndependentClasses(BernoulliLabels):
    """One class out of K by K Bernoulli labels: the class is 1, all others are 0 (T section 4.5.4, MLGPF on MNIST)."""

    def predict(self, latents: Marginals, mixing: Mixing) -> tuple[Float[Tensor, "B K"], Float[Tensor, "B K"]]:
        """Mean utilities, and the probabilities of the labels scaled to add up to one."""
        utilities = mixing.utilities(latents)
        probabilities = self.probabilities(utilities)
        total = probabilities.sum(1, keepdim=True)
        # Where all of them vanish sigma is the exponential function, whose ratios do not.
        limit = (utilities.mean + 0.5 * utilities.variance).softmax(1)
        return utilities.mean, torch.where(total < 1e-30, limit, probabilities / total)

    def conditional(self, f: Float[Tensor, "*S B K"]) -> Float[Tensor, "*S B K"]:
        """The probabilities of known utilities, scaled as in `predict`."""
        return torch.nn.functional.logsigmoid(f).softmax(-1)

    def restricted(self, labels: Int[Tensor, " L"]) -> IndependentClasses:
        return self
