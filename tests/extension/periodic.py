"""A kernel that is no function of inner products: one file, which imports only from extremegp (and torch)."""

from __future__ import annotations

import math

import torch
from torch import nn

from extremegp.engine.kernels import DenseKernel


class Periodic(DenseKernel):
    """exp(-2 sum_d sin^2(pi (x_d - z_d) / p) / l^2)."""

    def __init__(self, period: float = 1.0, lengthscale: float = 1.0) -> None:
        super().__init__()
        self.log_period = nn.Parameter(torch.tensor(math.log(period)))
        self.log_lengthscale = nn.Parameter(torch.tensor(math.log(lengthscale)))

    def covariance(self, x, z):
        period, lengthscale = (part.to(x.dtype).exp() for part in (self.log_period, self.log_lengthscale))
        angles = math.pi * (x.unsqueeze(-2) - z.unsqueeze(-3)) / period
        return (-2.0 * angles.sin().square().sum(-1) / lengthscale.square()).exp()

    def variance(self, x):
        return x.new_ones(x.shape[:-1])
