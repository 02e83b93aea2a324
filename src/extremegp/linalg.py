"""The one place for positive parameters and for factorising covariance matrices."""

from __future__ import annotations

import warnings

import torch
from jaxtyping import Float
from torch import Tensor

from extremegp.errors import ExtremeGPError

MAX_RELATIVE_JITTER = 1e-3


class JitterWarning(UserWarning):
    """A covariance matrix needed more jitter than asked for to be factorised."""


class NotPositiveDefiniteError(ExtremeGPError, ArithmeticError):
    """A covariance matrix that no allowed jitter makes positive definite."""


def inverse_cholesky(covariance: Float[Tensor, "M M"], *, relative_jitter: float = 1e-6) -> Float[Tensor, "M M"]:
    """L^-1 for covariance + jitter I = L L', computed in the dtype of `covariance` (float64 for kernels).

    The jitter is `relative_jitter` times the mean of the diagonal. On failure it grows tenfold, with a `JitterWarning`,
    up to `MAX_RELATIVE_JITTER`: beyond that the model would no longer be the one asked for.

    Raises:
        NotPositiveDefiniteError: no allowed jitter is enough, or the matrix is not finite.
    """
    size = len(covariance)
    identity = torch.eye(size, dtype=covariance.dtype, device=covariance.device)
    scale = covariance.detach().diagonal().mean()
    if not torch.isfinite(covariance.detach()).all():
        raise NotPositiveDefiniteError("the covariance of the inducing inputs is not finite: lower the learning rate")
    jitter = relative_jitter
    while True:
        factor, failed = torch.linalg.cholesky_ex(covariance + (jitter * scale) * identity)
        if not failed:
            break
        jitter = 10 * max(jitter, 1e-8)
        if jitter > MAX_RELATIVE_JITTER:
            raise NotPositiveDefiniteError(
                f"the {size} x {size} covariance of the inducing inputs is not positive definite even with jitter "
                f"{MAX_RELATIVE_JITTER:g}: remove duplicate inducing inputs, or use fewer of them"
            )
    if jitter > relative_jitter:
        warnings.warn(f"jitter raised from {relative_jitter:g} to {jitter:g} (relative)", JitterWarning, stacklevel=2)
    inverse: Tensor = torch.linalg.solve_triangular(factor, identity, upper=False)
    return inverse


def lower_triangular(raw: Float[Tensor, "*P M M"]) -> Float[Tensor, "*P M M"]:
    """A lower-triangular matrix with positive diagonal: the strict lower part of `raw`, and exp of its diagonal."""
    return raw.tril(-1) + torch.diag_embed(raw.diagonal(dim1=-2, dim2=-1).exp())
