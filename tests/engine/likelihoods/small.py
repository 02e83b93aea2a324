"""Utilities and classes that the tests of the class likelihoods share."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from tests.models import batch_of, sparse_rows
from torch import Tensor

from extremegp.engine.latents import Marginals
from extremegp.engine.likelihoods import Likelihood
from extremegp.engine.likelihoods.augment_reduce import Differences
from extremegp.engine.mixing import FactorMixing, IdentityMixing, Mixing
from extremegp.engine.sparse import SparseRows
from extremegp.engine.utilities import Utilities


class Case(NamedTuple):
    """Rows with a class each; the mean of the latent functions, or their variance, may be replaced."""

    latents: Marginals
    mixing: Mixing
    y: SparseRows
    offset: Tensor | None = None

    @property
    def utilities(self) -> Utilities:
        return Utilities(self.mixing, self.latents, self.offset)

    @property
    def classes(self) -> Tensor:
        return self.y.columns

    def expected(self, likelihood: Likelihood, **known: Any) -> Tensor:
        """E log p of the classes; `known` are the other attributes of the batch."""
        return likelihood.expected_log_prob(self.utilities, batch_of(self.y, **known))

    def differences(self, label_weights: Tensor | None = None) -> Differences:
        return Differences(*self.utilities.differences(self.classes), self.classes, label_weights)

    def at(self, mean: Tensor | None = None, variance: Tensor | None = None) -> Case:
        """With other latent functions."""
        mean = self.latents.mean if mean is None else mean
        return self._replace(latents=Marginals(mean, self.latents.variance if variance is None else variance))


def one_hot(classes: list[int] | np.ndarray, n_classes: int) -> SparseRows:
    return sparse_rows(np.eye(n_classes)[np.asarray(classes)])


def identity(n_classes: int, dtype: torch.dtype = torch.float64) -> IdentityMixing:
    """Utilities that are the latent functions themselves."""
    return IdentityMixing(torch.zeros(n_classes, dtype=dtype), torch.zeros(n_classes, dtype=dtype))


def independent(n_rows: int, n_classes: int, *, spread: float = 1.5, variance: float = 2.0, seed: int = 0) -> Case:
    rng = np.random.default_rng(seed)
    mean = torch.from_numpy(spread * rng.normal(size=(n_rows, n_classes)))
    variances = torch.from_numpy(variance * rng.random((n_rows, n_classes)) + 0.01)
    classes = rng.integers(n_classes, size=n_rows)
    return Case(Marginals(mean, variances), identity(n_classes), one_hot(classes, n_classes))


def factored(n_rows: int, n_classes: int, *, n_latent: int = 3, spread: float = 1.5, seed: int = 0) -> Case:
    rng = np.random.default_rng(seed)
    mean, loadings = (torch.from_numpy(rng.normal(size=(n, n_latent))) for n in (n_rows, n_classes))
    variance = torch.from_numpy(2.0 * rng.random((n_rows, n_latent)) + 0.01)
    offset = torch.from_numpy(rng.normal(size=(n_rows, n_classes)))
    mixing = FactorMixing(spread * loadings, torch.from_numpy(rng.normal(size=n_classes)))
    y = one_hot(rng.integers(n_classes, size=n_rows), n_classes)
    return Case(Marginals(mean, variance), mixing, y, offset)


def extreme(dtype: torch.dtype) -> Case:
    """Means of 0 and +-1000, variances of 0 and 1000, in every combination for the class itself and the others."""
    values = [(m, v, own) for m in (-1e3, 0.0, 1e3) for v in (0.0, 1e3) for own in (0.0, 1e3)]
    mean = torch.tensor([[m, 0.0, 0.5] for m, _, _ in values], dtype=dtype)
    variance = torch.tensor([[own, v, v] for _, v, own in values], dtype=dtype)
    return Case(
        Marginals(mean.requires_grad_(), variance.requires_grad_()), identity(3, dtype), one_hot([0] * len(values), 3)
    )
