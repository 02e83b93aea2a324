"""Batches and mixings that the tests of the class likelihoods share."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from tests.models import sparse_rows

from extremegp.engine.latents import Marginals
from extremegp.engine.mixing import FactorMixing, IdentityMixing, Mixing
from extremegp.engine.sparse import SparseRows


class Batch(NamedTuple):
    latents: Marginals
    mixing: Mixing
    y: SparseRows


def one_hot(classes: list[int] | np.ndarray, n_classes: int) -> SparseRows:
    return sparse_rows(np.eye(n_classes)[np.asarray(classes)])


def identity(n_classes: int, dtype: torch.dtype = torch.float64) -> IdentityMixing:
    """Utilities that are the latent functions themselves."""
    return IdentityMixing(torch.zeros(n_classes, dtype=dtype), torch.zeros(n_classes, dtype=dtype))


def independent(n_rows: int, n_classes: int, *, spread: float = 1.5, variance: float = 2.0, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    mean = torch.from_numpy(spread * rng.normal(size=(n_rows, n_classes)))
    variances = torch.from_numpy(variance * rng.random((n_rows, n_classes)) + 0.01)
    classes = rng.integers(n_classes, size=n_rows)
    return Batch(Marginals(mean, variances), identity(n_classes), one_hot(classes, n_classes))


def factored(n_rows: int, n_classes: int, *, n_latent: int = 3, spread: float = 1.5, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    mean, loadings = (torch.from_numpy(rng.normal(size=(n, n_latent))) for n in (n_rows, n_classes))
    variance = torch.from_numpy(2.0 * rng.random((n_rows, n_latent)) + 0.01)
    offset = torch.from_numpy(rng.normal(size=(n_rows, n_classes)))
    mixing = FactorMixing(spread * loadings, torch.from_numpy(rng.normal(size=n_classes)))
    y = one_hot(rng.integers(n_classes, size=n_rows), n_classes)
    return Batch(Marginals(mean, variance, offset), mixing, y)


def extreme(dtype: torch.dtype) -> Batch:
    """Means of 0 and +-1000, variances of 0 and 1000, in every combination for the class itself and the others."""
    values = [(m, v, own) for m in (-1e3, 0.0, 1e3) for v in (0.0, 1e3) for own in (0.0, 1e3)]
    mean = torch.tensor([[m, 0.0, 0.5] for m, _, _ in values], dtype=dtype)
    variance = torch.tensor([[own, v, v] for _, v, own in values], dtype=dtype)
    return Batch(
        Marginals(mean.requires_grad_(), variance.requires_grad_()), identity(3, dtype), one_hot([0] * len(values), 3)
    )
