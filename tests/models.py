"""Small random data and models for the tests of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from extremegp.engine.batch import Batch
from extremegp.engine.blocks import Block
from extremegp.engine.kernels import (
    ArcCosine,
    Kernel,
    Linear,
    Matern,
    SEPlusLinear,
    SquaredExponential,
    SquaredExponentialPerLatent,
    Sum,
    WhiteNoise,
)
from extremegp.engine.latents import SparseGP
from extremegp.engine.links import Link
from extremegp.engine.mean import RegressionMean, points_kept
from extremegp.engine.mixing import IdentityMixing, Mixing
from extremegp.engine.model import VariationalModel
from extremegp.engine.part import TrainingData, parts_of
from extremegp.engine.posteriors import Full, MeanField, Parsimonious, Posterior, SharedBasis
from extremegp.engine.sparse import Inputs, Matrix, SparseRows
from extremegp.settings.model import ModelSettings
from tests.reference import svgp


def random_inputs(n_rows: int, n_features: int, *, density: float = 0.5, seed: int = 0) -> NDArray[np.float64]:
    """Unit-norm rows, some entries zero; the first row is all zeros."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n_rows, n_features)) * (rng.random((n_rows, n_features)) < density)
    x[0] = 0.0
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    return x / np.where(norms > 0, norms, 1.0)


def random_labels(n_rows: int, n_labels: int, *, density: float = 0.3, seed: int = 1) -> NDArray[np.float64]:
    """A 0/1 matrix whose last row is all zeros."""
    y = (np.random.default_rng(seed).random((n_rows, n_labels)) < density).astype(float)
    y[-1] = 0.0
    return y


def sparse_rows(matrix: NDArray[np.float64], dtype: torch.dtype = torch.float64) -> SparseRows:
    return SparseRows.from_scipy(scipy.sparse.csr_matrix(matrix), dtype=dtype)


def batch_of(y: SparseRows, x: Inputs | None = None, **known: Any) -> Batch:
    """A batch with these labels; its inputs are of no matter unless they are given."""
    return Batch(torch.zeros(y.shape[0], 1, dtype=y.dtype) if x is None else x, y, **known)


def loadings_of(mixing: Mixing) -> Tensor:
    """Phi, K x P: diagonal where every label has a function of its own."""
    loadings = mixing.log_scales.exp().diag() if isinstance(mixing, IdentityMixing) else mixing.loadings
    return loadings.detach()


def project(module: nn.Module) -> None:
    """As after every step of an optimiser."""
    for part in parts_of(module):
        part.project()


@torch.no_grad()
def randomise(module: nn.Module, *, scale: float = 0.3, seed: int = 0) -> None:
    """Move every parameter away from its start, so that no term of a formula is hidden by a zero."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.add_(scale * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))


def random_model(settings: ModelSettings, *, scale: float = 0.3, seed: int = 0) -> VariationalModel:
    """A float64 model of the settings with every parameter random."""
    model = settings.build().double()
    randomise(model, scale=scale, seed=seed)
    project(model)
    return model


def as_array(tensor: Tensor) -> NDArray[np.float64]:
    return tensor.detach().numpy().astype(np.float64)


def whitened_moments(
    posterior: Posterior, k_z: NDArray[np.float64] | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Means and covariances of q (P x M, P x M x M), of v, or of u for the full posterior in u.

    Those of the parsimonious posterior depend on K_Z.
    """
    means = as_array(posterior.q_mean)
    if isinstance(posterior, SharedBasis):
        basis = svgp.lower_triangular(as_array(posterior.raw_basis))
        scales = np.exp(as_array(posterior.log_scales))
        return means, np.stack([basis @ np.diag(d) @ basis.T for d in scales])
    if isinstance(posterior, MeanField):
        return means, np.stack([np.diag(d) for d in np.exp(as_array(posterior.log_scales))])
    if isinstance(posterior, Parsimonious):
        assert k_z is not None
        unwhiten = np.linalg.inv(np.linalg.cholesky(k_z))
        noise = np.exp(as_array(posterior.log_noise)) + 1e-6
        in_u = [np.linalg.inv(np.linalg.inv(k_z) + np.diag(1 / sigma)) for sigma in noise]
        return means, np.stack([unwhiten @ s @ unwhiten.T for s in in_u])
    assert isinstance(posterior, Full)
    factors = [svgp.lower_triangular(raw) for raw in as_array(posterior.raw_factors)]
    return means, np.stack([factor @ factor.T for factor in factors])


def reference_latents(latents: SparseGP, covariances: list[svgp.Covariance]) -> svgp.Independent:
    """The NumPy reference with the parameters of a SparseGP; `covariances` are the loop forms of its kernel, per p."""
    z = as_array(latents.inducing())
    parts = []
    for p, covariance in enumerate(covariances):
        k_z = svgp.with_jitter(svgp.gram(covariance, z, z), latents.relative_jitter)
        means, s = (moments[p : p + 1] for moments in whitened_moments(latents.posterior, k_z))
        if not (isinstance(latents.posterior, Full) and not latents.posterior.whitened):
            root = np.linalg.cholesky(k_z)
            means, s = means @ root.T, root @ s @ root.T
        parts.append(svgp.Variational(covariance, z, k_z, means, s))
    return svgp.Independent(parts)


def reference_covariances(latents: SparseGP) -> list[svgp.Covariance]:
    """The loop form of one of the kernels that `ModelSettings` names, for each of the P functions."""
    n_features = latents.inducing().shape[1]
    return [reference_covariance(latents.kernel, n_features, p) for p in range(latents.n_functions)]


def reference_covariance(kernel: Kernel, n_features: int, p: int = 0) -> svgp.Covariance:
    """The loop form of a kernel, that of function p where they differ."""
    if isinstance(kernel, Sum):
        left, right = (reference_covariance(part, n_features, p) for part in (kernel.left, kernel.right))
        return lambda x, z: left(x, z) + right(x, z)
    if isinstance(kernel, WhiteNoise):
        return svgp.white(float(kernel.log_variance.detach().exp()))
    if isinstance(kernel, SquaredExponentialPerLatent):
        return svgp.squared_exponential(np.full(n_features, np.exp(as_array(kernel.log_weights)[p])))
    weights = np.exp(np.broadcast_to(as_array(kernel.log_weights), n_features))
    match kernel:
        case Linear():
            return svgp.linear(weights)
        case SquaredExponential():
            return svgp.squared_exponential(weights, float(kernel.log_variance.detach().exp()))
        case SEPlusLinear():
            return svgp.se_plus_linear(weights, float(kernel.mixture_logit.detach().sigmoid()))
        case Matern():
            return svgp.matern(weights, kernel.order / 2)
        case ArcCosine():
            return svgp.arc_cosine(weights, kernel.order)
    raise AssertionError(kernel)


class FittedRegression(NamedTuple):
    """A regression, and what it says of its own training rows when each is left out.

    Attributes:
        mean: the mean function.
        logits: link of the leave-one-out predictions, N x K.
    """

    mean: RegressionMean
    logits: NDArray[np.float32]


def fit_regression(
    x: Matrix,
    y: scipy.sparse.csr_matrix,
    *,
    rng: np.random.Generator,
    link: Link = "logit",
    n_points: int | None = None,
    weights: NDArray[np.float64] | None = None,
    blocks: Sequence[Block] = (),
) -> FittedRegression:
    """Learn the lengthscales and the noise, then regress the labels of all rows.

    Args:
        x: inputs, N x D.
        y: labels, N x K, in (0, 1].
        rng: decides the subsets that lengthscales are learnt on.
        link: what the mean function makes of the regression.
        n_points: rows to keep; by default all rows up to `EXACT_ROWS`, and `SUBSET_POINTS` of more.
        weights: precisions of the rows, N. None for 1.
        blocks: blocks of the features.
    """
    kept, n_stored = points_kept(x, n_points, blocks)
    mean = RegressionMean(kept, n_stored, x.shape[1], y.shape[1], link=link, blocks=blocks)
    data = TrainingData(x, y, rng, weights=weights)
    left_out = mean.regress(data, mean.learnt(data)).left_out
    return FittedRegression(mean, mean.linked(left_out).float().numpy())
