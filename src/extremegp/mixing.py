"""How P latent functions become K utilities (T 4.1, ML 1)."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from extremegp.latents.base import Marginals
from extremegp.sparse import SparseRows, matmul


class FactorMixing(nn.Module):
    """f = Phi h + b, so that f_k ~ N(Phi_k mean_h + b_k, (Phi_k * Phi_k) var_h), plus what a mean function adds.

    Args:
        loadings: start of Phi, K x P.
        bias: start of b, K.
    """

    def __init__(self, loadings: Float[Tensor, "K P"], bias: Float[Tensor, " K"]) -> None:
        super().__init__()
        self.loadings = nn.Parameter(loadings)
        self.bias = nn.Parameter(bias)

    @property
    def n_labels(self) -> int:
        return len(self.bias)

    def restricted(self, labels: Int[Tensor, " L"]) -> FactorMixing:
        """The mixing of L of the labels, with parameters of its own that start as these rows: gradients are L x P."""
        return FactorMixing(self.loadings.detach().index_select(0, labels), self.bias.detach().index_select(0, labels))

    def utilities(self, latents: Marginals, labels: slice = slice(None)) -> Marginals:
        """Means and variances of the utilities of some labels, B x |labels| each."""
        loadings = self.loadings[labels]
        mean = torch.addmm(self.bias[labels], latents.mean, loadings.T)
        if latents.offset is not None:
            mean = mean + latents.offset[:, labels]
        return Marginals(mean, latents.variance @ loadings.square().T)

    def mean_utilities(self, latents: Marginals) -> Float[Tensor, "B K"]:
        """Means alone, where variances are not needed."""
        mean = torch.addmm(self.bias, latents.mean, self.loadings.T)
        return mean if latents.offset is None else mean + latents.offset

    def weighted_mean_sum(self, latents: Marginals, y: SparseRows) -> Float[Tensor, ""]:
        """sum_ik y_ik E[f_ik] over the stored entries of y (B x K), without forming any other utility."""
        total = (latents.mean * matmul(y, self.loadings)).sum() + y.values @ self.bias.index_select(0, y.columns)
        return total if latents.offset is None else total + y.values @ latents.offset[y.rows, y.columns]
