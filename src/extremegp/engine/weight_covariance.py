"""One posterior covariance for the weights of all functions: what knows how far inputs are from those of training.

Of functions f_p(x) = v_p'phi(x), v_p ~ N(0, t I), and tokens whose log-likelihoods have curvatures lambda_i, the same
for all functions, the covariance that maximises the bound is

    S = (I / t + sum_i lambda_i phi_i phi_i')^-1 = t (I + sum_i psi_i psi_i')^-1,      psi_i = sqrt(t lambda_i) phi_i,

where lambda_i is expected under the posterior (Opper and Archambeau 2009; R and W 2006, 3.4). Covariances here are of
the prior's size, S / t. A weight of which no token tells keeps its prior.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float, Int
from torch import Tensor

from extremegp.engine.linalg import cholesky, inverse_cholesky
from extremegp.engine.part import Part
from extremegp.engine.scaled_rows import as_csr
from extremegp.engine.sparse import Inputs, SparseRows, matmul, weighted_square_norms

MOST_WEIGHTS, MOST_POINTS = 4000, 2000
"""Weights with an exact covariance; of more, the tokens, or means of tokens, that it is made of."""


class WeightCovariance(Part):
    """S / t of F weights.

    Attributes:
        width: about how many numbers its methods hold of an input at once.
        divergence: KL divergence of N(0, S) from N(0, t I).
    """

    width: int
    divergence: Float[Tensor, ""]

    @property
    @abstractmethod
    def sizes(self) -> tuple[int, int | None]:
        """`n_points` and `n_stored` of `covariance_part`."""

    @abstractmethod
    def variance(self, phi: Inputs) -> Float[Tensor, " B"]:
        """phi_i'S phi_i / t of every input."""

    @abstractmethod
    def root(self, phi: Inputs) -> Float[Tensor, "B J"]:
        """A matrix A of at most B or F columns with A A' = Phi S Phi' / t."""

    def noise(
        self, phi: Inputs, lengths: Int[Tensor, " S"], shape: tuple[int, int], generator: torch.Generator
    ) -> Float[Tensor, "R B P"]:
        """Draws of phi'v, v ~ N(0, S / t), joint for the inputs of a sequence and independent between sequences.

        Args:
            phi: features of the inputs of S sequences, one after the other.
            lengths: inputs of each.
            shape: R and P.
            generator: decides the draws.
        """
        drawn, start = [], 0
        for length in lengths.tolist():
            rows = slice(start, start := start + length)
            root = self.root(phi.part(rows) if isinstance(phi, SparseRows) else phi[rows])
            size = root.shape[1], shape[0] * shape[1]
            drawn.append(root @ torch.randn(size, generator=generator, device=root.device, dtype=root.dtype))
        return torch.cat(drawn).view(-1, *shape).transpose(0, 1)


def _root_of(covariance: Float[Tensor, "B B"], dtype: torch.dtype, prior: Tensor | float = 0.0) -> Float[Tensor, "B B"]:
    """L with L L' the covariance of a sequence, and a little more variance for each of its inputs: 0.1 % in float32.

    Without that the root of inputs that are nearly alike moves by the square root of their rounding, and with it what
    is drawn would depend on the number of threads.

    Args:
        covariance: in float64; overwritten.
        dtype: of what it was made of, and of the root.
        prior: variance that it is a difference from, whose rounding it has.
    """
    rounding = torch.finfo(dtype).eps
    more = 3 * rounding**0.5 * covariance.diagonal().mean().clamp(min=0.0) + 10 * rounding * prior + 1e-30
    covariance.diagonal().add_(more)
    return cholesky(covariance).to(dtype)


class DenseCovariance(WeightCovariance):
    """S / t itself, by a root, F x F.

    Args:
        n_weights: F.
    """

    factor: Float[Tensor, "F F"]

    def __init__(self, n_weights: int) -> None:
        super().__init__()
        self.width = n_weights
        self.register_buffer("factor", torch.zeros(n_weights, n_weights))
        self.register_buffer("divergence", torch.zeros(()))

    @property
    def sizes(self) -> tuple[int, int | None]:
        return 0, 0

    @torch.no_grad()
    def fit(self, blocks: Iterable[Float[Tensor, "_ F"]]) -> None:
        """Set it from all psi, a block at a time."""
        precision = torch.eye(self.width, dtype=torch.float64, device=self.factor.device)
        for psi in blocks:
            precision.addmm_(psi.double().T, psi.double())
        root = inverse_cholesky(precision, relative_jitter=0.0).T
        trace, log_det = root.square().sum(), 2 * root.diagonal().log().sum()
        self.factor.copy_(root)
        self.divergence.copy_(0.5 * (trace - self.width - log_det))

    def variance(self, phi: Inputs) -> Float[Tensor, " B"]:
        return matmul(phi, self.factor).square().sum(-1)

    def root(self, phi: Inputs) -> Float[Tensor, "B J"]:
        root = matmul(phi, self.factor)
        if len(root) >= root.shape[1]:
            return root
        # Fewer columns have the same products.
        wide = root.double()
        return _root_of(wide @ wide.T, root.dtype)


class PointCovariance(WeightCovariance):
    """S / t of very many weights, from M rows psi alone (Woodbury): I - Psi'(I + Psi Psi')^-1 Psi.

    With all of N rows it is exact. With weighted means of groups of rows, sum_g w_g m_g m_g' is at most the sum over
    all rows, so that no variance is below the exact one.

    Args:
        n_points: M.
        n_stored: stored entries of the rows; None to keep them as an array.
        n_weights: F.
    """

    points: Float[Tensor, "M F"]
    rows: Int[Tensor, " n_stored"]
    columns: Int[Tensor, " n_stored"]
    values: Float[Tensor, " n_stored"]
    whitener: Float[Tensor, "M M"]

    def __init__(self, n_points: int, n_stored: int | None, n_weights: int) -> None:
        super().__init__()
        self.width, self.n_weights = n_points, n_weights
        if n_stored is None:
            self.register_buffer("points", torch.zeros(n_points, n_weights))
        else:
            self.register_buffer("rows", torch.zeros(n_stored, dtype=torch.int64))
            self.register_buffer("columns", torch.zeros(n_stored, dtype=torch.int64))
            self.register_buffer("values", torch.zeros(n_stored))
        self.register_buffer("whitener", torch.zeros(n_points, n_points))
        self.register_buffer("divergence", torch.zeros(()))
        self.index_limits = {"rows": n_points, "columns": n_weights}
        self._held: tuple[tuple[Any, ...], scipy.sparse.csr_matrix] | None = None

    @property
    def sizes(self) -> tuple[int, int | None]:
        return self.width, None if "points" in self._buffers else len(self.values)

    @torch.no_grad()
    def fit(self, psi: Float[Tensor, "M F"] | scipy.sparse.csr_matrix) -> None:
        """Set it from M rows psi."""
        if isinstance(psi, Tensor):
            self.points.copy_(psi)
            gram = (psi.double() @ psi.double().T).to(self.whitener.device)
        else:
            entries = psi.tocoo()
            for buffer, array in ((self.rows, entries.row), (self.columns, entries.col), (self.values, entries.data)):
                buffer.copy_(torch.from_numpy(array))
            wide = psi.astype(np.float64)
            gram = torch.from_numpy((wide @ wide.T).toarray()).to(self.whitener.device)
        gram.diagonal().add_(1.0)
        inverse = inverse_cholesky(gram, relative_jitter=0.0)
        log_det = -2 * inverse.diagonal().log().sum()
        self.whitener.copy_(inverse.T)
        self.divergence.copy_(0.5 * (inverse.square().sum() - self.width + log_det))

    def variance(self, phi: Inputs) -> Float[Tensor, " B"]:
        prior = weighted_square_norms(phi, torch.ones(1, dtype=phi.dtype, device=phi.device))
        # Rounding may leave less than nothing.
        return (prior - self._told(phi).square().sum(-1)).clamp(min=0.0)

    def root(self, phi: Inputs) -> Float[Tensor, "B J"]:
        told = self._told(phi).double()
        if isinstance(phi, SparseRows):
            rows: Any = as_csr(phi).astype(np.float64)
            prior = torch.from_numpy((rows @ rows.T).toarray()).to(told)
        else:
            prior = phi.double() @ phi.double().T
        return _root_of(prior - told @ told.T, phi.dtype, prior.diagonal().mean())

    def _told(self, phi: Inputs) -> Float[Tensor, "B M"]:
        """phi'Psi'L^-T, L L' = I + Psi Psi'."""
        if "points" in self._buffers:
            return matmul(phi, self.points.T) @ self.whitener
        products = (as_csr(phi) @ self._transposed()).toarray()
        return torch.from_numpy(products).to(self.whitener) @ self.whitener

    def _transposed(self) -> scipy.sparse.csr_matrix:
        """The rows as columns of a matrix, made once."""
        # Loading replaces or overwrites the buffers.
        source = self.values, self.values._version
        if self._held is None or any(a is not b for a, b in zip(self._held[0], source, strict=True)):
            entries = self.values.cpu().numpy(), (self.columns.cpu().numpy(), self.rows.cpu().numpy())
            self._held = source, scipy.sparse.csr_matrix(entries, shape=(self.n_weights, self.width))
        return self._held[1]


def covariance_part(n_weights: int, n_points: int, n_stored: int | None) -> WeightCovariance:
    """A covariance of F weights of the given sizes; `n_points` of 0 stands for an exact one."""
    return PointCovariance(n_points, n_stored, n_weights) if n_points else DenseCovariance(n_weights)


def is_exact(n_weights: Iterable[int], n_rows: int) -> bool:
    """Whether covariances of functions with so many weights each are those of all N rows, not of groups of these."""
    return n_rows <= MOST_POINTS or all(n <= MOST_WEIGHTS for n in n_weights)


def covariance_bytes(n_weights: int, n_rows: int) -> int:
    """About what it takes to fit one to N rows."""
    if n_weights <= MOST_WEIGHTS:
        return 8 * 5 * n_weights**2
    return 8 * 5 * min(n_rows, MOST_POINTS) ** 2
