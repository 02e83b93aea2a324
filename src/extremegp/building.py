"""From settings to a model, and from data to its starting point."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from sklearn.cluster import MiniBatchKMeans
from sklearn.preprocessing import normalize
from torch import Tensor

from extremegp.inducing import FreeInducingInputs
from extremegp.kernels import Kernel, Linear, SEPlusLinear, SquaredExponential
from extremegp.latents import Latents, LinearFunctions, SparseGP, SumLatents
from extremegp.likelihoods import BernoulliLabels
from extremegp.mixing import FactorMixing
from extremegp.model import VariationalModel
from extremegp.posteriors import Full, MeanField, Posterior, SharedBasis

KernelName = Literal["linear", "linear-ell", "se", "ard", "se+linear", "ard+linear"]
PosteriorName = Literal["shared-basis", "mean-field", "full", "full-u"]

_KERNELS: dict[KernelName, Callable[[int], Kernel]] = {
    "linear": lambda n_features: Linear(),
    "linear-ell": lambda n_features: Linear(n_features=n_features, learn=True),
    "se": lambda n_features: SquaredExponential(),
    "ard": lambda n_features: SquaredExponential(n_features=n_features),
    "se+linear": lambda n_features: SEPlusLinear(),
    "ard+linear": lambda n_features: SEPlusLinear(n_features=n_features),
}
_POSTERIORS: dict[PosteriorName, Callable[[int, int], Posterior]] = {
    "shared-basis": SharedBasis,
    "mean-field": MeanField,
    "full": Full,
    "full-u": lambda n_functions, n_inducing: Full(n_functions, n_inducing, whitened=False),
}
KERNEL_NAMES: tuple[str, ...] = get_args(KernelName)
POSTERIOR_NAMES: tuple[str, ...] = get_args(PosteriorName)


@dataclass(frozen=True)
class ModelSettings:
    """Everything that decides the shapes and the meaning of a multi-label model's parameters.

    Attributes:
        n_features: D.
        n_labels: K.
        n_latent: P.
        n_inducing: M.
        kernel: covariance function of the sparse GP.
        posterior: family of q(u).
        linear_term: add an exact linear GP in feature space to every latent function.
        learn_inducing: learn Z, or leave it at its start ("-FX").
        normalise_inducing: keep the rows of Z at unit norm, or not ("-UN").
        relative_jitter: added to K_Z, as a fraction of its mean diagonal.
    """

    n_features: int
    n_labels: int
    n_latent: int
    n_inducing: int
    kernel: KernelName
    posterior: PosteriorName = "shared-basis"
    linear_term: bool = False
    learn_inducing: bool = True
    normalise_inducing: bool = True
    relative_jitter: float = 1e-6

    def build(self) -> VariationalModel:
        """A model with parameters of these shapes; `initialise` or stored tensors give them their values."""
        p, m, d = self.n_latent, self.n_inducing, self.n_features
        inducing = FreeInducingInputs(torch.zeros(m, d), learn=self.learn_inducing, normalise=self.normalise_inducing)
        latents: Latents = SparseGP(
            _KERNELS[self.kernel](d),
            inducing,
            _POSTERIORS[self.posterior](p, m),
            n_functions=p,
            relative_jitter=self.relative_jitter,
        )
        if self.linear_term:
            latents = SumLatents([latents, LinearFunctions(d, p, prior_variance=0.1)])
        mixing = FactorMixing(torch.zeros(self.n_labels, p), torch.zeros(self.n_labels))
        return VariationalModel(latents, mixing, BernoulliLabels())


@torch.no_grad()
def initialise(
    model: VariationalModel,
    x: scipy.sparse.csr_matrix | NDArray[Any],
    y: scipy.sparse.csr_matrix,
    *,
    normalise_inducing: bool,
    rng: np.random.Generator,
) -> None:
    """Start a model from its training data, in place.

    Inducing inputs are the centres of a mini-batch k-means of the inputs, biases the log-odds of the label frequencies,
    loadings N(0, 1/P).

    Args:
        model: as `ModelSettings.build` makes it.
        x: inputs, N x D.
        y: labels that are 1, N x K.
        normalise_inducing: scale the centres to unit norm.
        rng: decides the start.
    """
    for module in model.latents.modules():
        if isinstance(module, FreeInducingInputs):
            centres = _centres(x, len(module), rng)
            module.transposed.copy_(torch.from_numpy(normalize(centres) if normalise_inducing else centres).T)
    mixing = model.mixing
    n_rows, n_latent = x.shape[0], mixing.loadings.shape[1]
    frequency = np.asarray(y.sum(axis=0), dtype=np.float64).ravel() / n_rows
    frequency = np.clip(frequency, 0.5 / n_rows, 1 - 0.5 / n_rows)
    mixing.bias.copy_(_like(np.log(frequency / (1 - frequency)), mixing.bias))
    mixing.loadings.copy_(_like(rng.normal(scale=1.0 / np.sqrt(n_latent), size=mixing.loadings.shape), mixing.loadings))


def _like(values: NDArray[Any], parameter: Tensor) -> Tensor:
    return torch.from_numpy(values).to(dtype=parameter.dtype, device=parameter.device)


def _centres(
    x: scipy.sparse.csr_matrix | NDArray[Any], n_centres: int, rng: np.random.Generator
) -> NDArray[np.float32]:
    """k-means centres of the inputs; where there are fewer distinct inputs than centres, noisy copies fill up."""
    seed = int(rng.integers(2**31))
    n_fitted = min(n_centres, x.shape[0])
    kmeans = MiniBatchKMeans(
        n_fitted, init="random", n_init=1, max_iter=5, batch_size=max(1024, 4 * n_fitted), random_state=seed
    )
    centres = np.asarray(kmeans.fit(x).cluster_centers_, dtype=np.float32)
    fill = centres[rng.integers(n_fitted, size=n_centres - n_fitted)]
    centres = np.concatenate([centres, fill])
    # Exact duplicates would make K_Z singular.
    _, first = np.unique(centres, axis=0, return_index=True)
    copies = np.setdiff1d(np.arange(n_centres), first)
    spread = float(np.abs(centres).mean()) + 1e-3
    centres[copies] += rng.normal(scale=spread, size=(len(copies), x.shape[1])).astype(np.float32)
    return centres
