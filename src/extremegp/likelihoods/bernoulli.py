"""Independent Bernoulli labels with a logistic link (T 4.2-4.3, ML 2-3)."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from extremegp.latents.base import Marginals
from extremegp.likelihoods.expectations import expected_sigmoid, softplus_moments
from extremegp.mixing import FactorMixing
from extremegp.sparse import SparseRows

_CHUNK_ELEMENTS = 1 << 20


class _SoftplusOverLabels(torch.autograd.Function):
    """sum_ik E softplus(f_ik) over all labels, in chunks of labels, with its gradients computed in the same pass.

    Nothing of size B x K outlives a chunk: what is saved for backward has the shapes of the four inputs.
    """

    @staticmethod
    def forward(ctx: Any, mean: Tensor, variance: Tensor, loadings: Tensor, bias: Tensor) -> Tensor:
        needs_grad = any(ctx.needs_input_grad)
        chunk = max(1, _CHUNK_ELEMENTS // max(1, len(mean)))
        total = mean.new_zeros((), dtype=torch.float64)
        grad_mean, grad_variance = torch.zeros_like(mean), torch.zeros_like(variance)
        grad_loadings, grad_bias = torch.empty_like(loadings), torch.empty_like(bias)
        for start in range(0, len(bias), chunk):
            labels = slice(start, start + chunk)
            phi = loadings[labels]
            phi2 = phi.square()
            value, dm, dv = softplus_moments(torch.addmm(bias[labels], mean, phi.T), variance @ phi2.T)
            total += value.sum(dim=1).sum(dtype=torch.float64)
            if needs_grad:
                grad_mean.addmm_(dm, phi)
                grad_variance.addmm_(dv, phi2)
                torch.mm(dv.T, variance, out=grad_loadings[labels])
                grad_loadings[labels].mul_(phi).mul_(2.0).addmm_(dm.T, mean)
                torch.sum(dm, 0, out=grad_bias[labels])
        if needs_grad:
            ctx.save_for_backward(grad_mean, grad_variance, grad_loadings, grad_bias)
        return total.to(mean.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        return tuple(saved * grad for saved in ctx.saved_tensors)


class BernoulliLabels(nn.Module):
    """y_k = 1 with probability sigma(f_k), independently for every label given the utilities."""

    def expected_log_prob(self, latents: Marginals, mixing: FactorMixing, y: SparseRows) -> Float[Tensor, ""]:
        """sum_ik E_q[log p(y_ik | f_ik)] = sum_ik y_ik E f_ik - sum_ik E softplus(f_ik), over the batch and K labels.

        Args:
            latents: marginals of the P latent functions at the B inputs.
            mixing: how they become utilities.
            y: the labels that are 1, B x K.
        """
        softplus: Tensor = _SoftplusOverLabels.apply(latents.mean, latents.variance, mixing.loadings, mixing.bias)
        return mixing.weighted_mean_sum(latents, y) - softplus

    def probabilities(self, utilities: Marginals) -> Float[Tensor, "B K"]:
        """p(y_k = 1) = E sigma(f_k), the posterior of the utility integrated out (T 4.36)."""
        return expected_sigmoid(utilities.mean, utilities.variance)
