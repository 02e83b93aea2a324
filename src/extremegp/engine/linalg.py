"""The one place for positive parameters and for factorising covariance matrices."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from extremegp.errors import ExtremeGPError

MAX_RELATIVE_JITTER = 1e-3
_EXACT_COLUMNS, _BLOCK_COLUMNS = 2048, 256
_BLOCK_ROWS, _PIECE = 512, 4096


class JitterWarning(UserWarning):
    """A covariance matrix needed more jitter than asked for to be factorised."""


class NotPositiveDefiniteError(ExtremeGPError, ArithmeticError):
    """A covariance matrix that no allowed jitter makes positive definite."""


def cholesky(covariance: Float[Tensor, "*P M M"], *, relative_jitter: float = 0.0) -> Float[Tensor, "*P M M"]:
    """L for covariance + jitter I = L L', without gradient, factorised in the dtype of `covariance`.

    The jitter is `relative_jitter` times the mean of a matrix's diagonal. On failure it grows tenfold, with a
    `JitterWarning`, up to `MAX_RELATIVE_JITTER`: beyond that the model would no longer be the one asked for.

    Raises:
        NotPositiveDefiniteError: no allowed jitter is enough, or the matrix is not finite.
    """
    size, covariance = covariance.shape[-1], covariance.detach()
    scale = covariance.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)
    if not torch.isfinite(covariance).all():
        raise NotPositiveDefiniteError("the covariance of the inducing inputs is not finite: lower the learning rate")
    jitter = relative_jitter
    while True:
        shifted = covariance.clone() if jitter else covariance
        if jitter:
            shifted.diagonal(dim1=-2, dim2=-1).add_(jitter * scale)
        factor, failed = torch.linalg.cholesky_ex(shifted)
        if not failed.any():
            break
        jitter = 10 * max(jitter, 1e-8)
        if jitter > MAX_RELATIVE_JITTER:
            raise NotPositiveDefiniteError(
                f"the {size} x {size} covariance of the inducing inputs is not positive definite even with jitter "
                f"{MAX_RELATIVE_JITTER:g}: remove duplicate inducing inputs, or use fewer of them"
            )
    if jitter > relative_jitter:
        warnings.warn(f"jitter raised from {relative_jitter:g} to {jitter:g} (relative)", JitterWarning, stacklevel=3)
    found: Tensor = factor
    return found


def inverse_cholesky(
    covariance: Float[Tensor, "*P M M"], *, relative_jitter: float = 1e-6, dtype: torch.dtype = torch.float64
) -> Float[Tensor, "*P M M"]:
    """L^-1, in `dtype`, of the factor L that `cholesky` finds; it is differentiable."""
    factor = cholesky(covariance, relative_jitter=relative_jitter)
    identity = torch.eye(covariance.shape[-1], dtype=covariance.dtype, device=covariance.device)
    inverse: Tensor = _InverseFactor.apply(covariance, factor, identity, dtype)
    return inverse


def inverse_diagonal(factor: Float[Tensor, "M M"]) -> Float[Tensor, " M"]:
    """diag (L L')^-1 of a lower triangular L, which is overwritten; without gradient.

    By halves, whose products take most of the time: several times as fast as the whole inverse.
    """
    _invert(factor)
    squares = torch.zeros(len(factor), dtype=factor.dtype, device=factor.device)
    for start in range(0, len(factor), _BLOCK_ROWS):
        squares += factor[start : start + _BLOCK_ROWS].square().sum(0)
    return squares


def _invert(factor: Float[Tensor, "M M"]) -> None:
    """L^-1 in the place of L."""
    size = len(factor)
    if size <= _BLOCK_ROWS:
        identity = torch.eye(size, dtype=factor.dtype, device=factor.device)
        factor.copy_(torch.linalg.solve_triangular(factor, identity, upper=False))
        return
    half = size // 2
    _invert(factor[:half, :half])
    _invert(factor[half:, half:])
    factor[half:, :half] = (factor[half:, half:] @ (factor[half:, :half] @ factor[:half, :half])).neg_()


class _InverseFactor(torch.autograd.Function):
    """L^-1 of a covariance whose factor L is known; its gradient takes three matrix products and no more solves."""

    @staticmethod
    def forward(ctx: Any, covariance: Tensor, factor: Tensor, identity: Tensor, dtype: torch.dtype) -> Tensor:
        inverse: Tensor = torch.linalg.solve_triangular(factor, identity, upper=False).to(dtype)
        ctx.dtype = covariance.dtype
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        # With W = L^-1 and G its gradient, L'dL = -G W', and dK = 1/2 W'(P + P')W, P the lower part of that with its
        # diagonal halved (Murray 2016, "Differentiation of the Cholesky decomposition", section 3).
        (inverse,) = ctx.saved_tensors
        lower = torch.matmul(grad, inverse.mT).tril_()
        lower.diagonal(dim1=-2, dim2=-1).mul_(0.5)
        gradient = torch.matmul(inverse.mT, (lower + lower.mT) @ inverse).mul_(-0.5)
        return gradient.to(ctx.dtype), None, None, None


class _WeightedGram(torch.autograd.Function):
    """z * w and z diag(w) z', in one pass over blocks of columns that stay in cache, and their gradients in another."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(z, weights)
        # z is the transpose of what is stored, D x M; rows of that are contiguous.
        stored = z.T
        weighted = torch.empty_like(stored, memory_format=torch.contiguous_format)
        gram = z.new_zeros(len(z), len(z), dtype=torch.float64)
        exact = len(stored) <= _EXACT_COLUMNS
        for block in _blocks(len(stored)):
            part = torch.mul(stored[block], _block_weights(weights, block), out=weighted[block])
            if exact:
                # Not of `part`, whose rounding would leave the Gram matrix neither symmetric nor positive.
                double = stored[block].double()
                gram.addmm_(double.T, double * _block_weights(weights, block).double())
            else:
                gram += part.T @ stored[block]
        return weighted.T, gram

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_weighted: Tensor, grad_gram: Tensor) -> tuple[Tensor, Tensor]:
        z, weights = ctx.saved_tensors
        stored, grad_stored = z.T, grad_weighted.T
        symmetric = (grad_gram + grad_gram.T).to(z.dtype)
        grad_z = torch.empty_like(stored, memory_format=torch.contiguous_format)
        grad_weights = torch.zeros_like(weights)
        for block in _blocks(len(stored)):
            from_gram, direct = stored[block] @ symmetric, grad_stored[block]
            torch.add(from_gram, direct, out=grad_z[block]).mul_(_block_weights(weights, block))
            per_feature = from_gram.mul_(0.5).add_(direct).mul_(stored[block]).sum(1)
            if len(weights) > 1:
                grad_weights[block] = per_feature
            else:
                grad_weights += per_feature.sum()
        return grad_z.T, grad_weights


def _blocks(n_rows: int) -> Iterator[slice]:
    for start in range(0, n_rows, _BLOCK_COLUMNS):
        yield slice(start, start + _BLOCK_COLUMNS)


def _block_weights(weights: Tensor, block: slice) -> Tensor:
    return weights[block].unsqueeze(-1) if len(weights) > 1 else weights


def weighted_gram(
    z: Float[Tensor, "M D"], weights: Float[Tensor, " D_or_1"]
) -> tuple[Float[Tensor, "M D"], Float[Tensor, "M M"]]:
    """z * weights, and z diag(weights) z' in float64 without a float64 copy of z; `weights` may be a single one.

    Up to 2048 columns every product is float64. Beyond, blocks of 256 columns are multiplied in the precision of z and
    added up in float64: rounding then stays an order of magnitude below the jitter of a covariance.
    """
    weighted, gram = _WeightedGram.apply(z, weights)
    return weighted, gram


def lower_triangular(raw: Float[Tensor, "*P M M"]) -> Float[Tensor, "*P M M"]:
    """A lower-triangular matrix with positive diagonal: the strict lower part of `raw`, and exp of its diagonal."""
    return raw.tril(-1) + torch.diag_embed(raw.diagonal(dim1=-2, dim2=-1).exp())


@contextmanager
def tensor_float32(device: torch.device) -> Iterator[None]:
    """Let float32 products on a GPU round their factors to the 11 bits of TF32 within the block, for several times the
    speed; on other devices, and for float64, nothing changes.

    For sums of many terms whose rounding is nothing beside the noise of a minibatch. Covariances must never be among
    them: what multiplies the inverse of K_Z multiplies its errors by up to the root of the jitter's inverse.
    """
    matmul = torch.backends.cuda.matmul
    if device.type != "cuda" or matmul.allow_tf32:
        yield
        return
    matmul.allow_tf32 = True
    try:
        yield
    finally:
        matmul.allow_tf32 = False


def principal(features: Float[Tensor, "N M"], weights: Float[Tensor, " N"] | None = None) -> Float[Tensor, "M M"]:
    """A rotation that makes the weighted sum of squares A'A of features diagonal, largest first."""
    pieces = torch.split(features, _PIECE)
    return principal_of(
        zip(pieces, [None] * len(pieces) if weights is None else torch.split(weights, _PIECE), strict=True)
    )


def principal_of(pieces: Iterable[tuple[Float[Tensor, "n M"], Float[Tensor, " n"] | None]]) -> Float[Tensor, "M M"]:
    """The same of features, and weights, of some rows at a time; small ones, for they are summed up in float64."""
    # A sum over many rows in float32 would round small eigenvalues away.
    squares, like = torch.zeros(1, dtype=torch.float64), torch.zeros(1)
    for like, weights in pieces:
        squares = squares.to(like.device) + like.T @ (like if weights is None else like * weights.unsqueeze(1))
    # Orthogonal in any precision, which is what matters.
    rotation: Tensor = torch.linalg.eigh(squares.to(like.dtype))[1].flip(1)
    return rotation
