"""A kernel of distances: one file, which imports only from extremegp (and torch)."""

from __future__ import annotations

import math

import torch
from torch import nn

from extremegp.engine.kernels import InnerProductKernel


class RationalQuadratic(InnerProductKernel):
    """(1 + r^2 / (2 alpha))^-alpha at r^2 = sum_d w_d (x_d - z_d)^2."""

    def __init__(self, alpha: float = 1.0, weight: float = 1.0) -> None:
        super().__init__(weight)
        self.log_alpha = nn.Parameter(torch.tensor(math.log(alpha)))

    def from_products(self, xz, xx, zz):
        alpha = self.log_alpha.to(xz.dtype).exp()
        square = (xx + zz - 2 * xz).clamp(min=0.0)
        return (1 + square / (2 * alpha)) ** -alpha
