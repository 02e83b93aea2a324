"""The covariance that functions of sequences share, found once they are trained: see `WeightCovariance`.

Its curvatures are expected under the posterior that it makes, so that the two are found in turns; of points, those at
the points, which is Laplace's approximation. It is that of the bound whose KL term counts `kl_weight` times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from extremegp.engine import chain
from extremegp.engine.centres import clusters_of, hashed
from extremegp.engine.latents import WeightedLatents
from extremegp.engine.model import VariationalModel
from extremegp.engine.sparse import Inputs, Matrix, SparseRows, suited_block
from extremegp.engine.weight_covariance import (
    MOST_POINTS,
    MOST_WEIGHTS,
    DenseCovariance,
    PointCovariance,
    is_exact,
)
from extremegp.prediction.predictor import Predictor
from extremegp.settings.model import ModelSettings

_TURNS, _DRAWS = 3, 8
_BLOCK_ELEMENTS = 1 << 22
_LEAST_KL_WEIGHT = 1e-3  # a posterior of weight 0 has no width at all
_BUCKETS, _CLUSTERED_ROWS = 256, 50_000


def share_covariances(
    model: VariationalModel,
    settings: ModelSettings,
    x: Matrix,
    lengths: NDArray[np.int64],
    *,
    kl_weight: float,
    rng: np.random.Generator,
    weights: NDArray[np.float64] | None = None,
    exactly: bool = False,
    y: scipy.sparse.csr_matrix | None = None,
) -> ModelSettings:
    """Give trained functions of sequences a covariance of their weights, in place of their own variances.

    Args:
        model: the trained model, changed in place; functions without weights of features that stay are left as they
            are.
        settings: what it is.
        x: inputs of the training sequences, one after the other.
        lengths: of the sequences.
        kl_weight: of the KL term.
        rng: decides the draws, and which tokens of very many go together.
        weights: what each token counts; 1 by default.
        exactly: leave the functions as they are where their covariance would be that of groups of tokens.
        y: labels of the tokens, B x V, where some tokens have none that is known; None where all have.

    Returns:
        What the model then is.
    """
    members = [*model.latents.with_weights()]
    if not members or (exactly and not is_exact((latents.n_weights for _, latents in members), x.shape[0])):
        return settings
    seed = int(rng.integers(2**31))
    groups: NDArray[np.int64] | None = None
    known = None if y is None or (np.diff(y.indptr) > 0).all() else known_codes(y)
    turns, n_draws = (1, 1) if settings.is_point else (_TURNS, _DRAWS)
    for turn in range(turns):
        predictor = Predictor(model, n_draws=n_draws, seed=seed + turn)
        curvatures = _curvatures(predictor, x, lengths, [first > 0 for first, _ in members], known)
        for (_, latents), curvature in zip(members, curvatures, strict=True):
            scale = curvature / max(kl_weight, _LEAST_KL_WEIGHT) * (1.0 if weights is None else weights)
            if latents.n_weights <= MOST_WEIGHTS:
                dense = DenseCovariance(latents.n_weights).to(model.mixing.bias)
                dense.fit(_scaled(latents, x, scale))
                latents.share(dense)
                continue
            if groups is None:
                groups = _groups(x, scale, rng)
            latents.share(_of_points(latents, x, scale, groups))
    covariance = members[0][1].covariance
    assert covariance is not None
    n_points, n_stored = covariance.sizes
    return replace(settings, weight_covariance="shared", n_weight_points=n_points, n_weight_stored=n_stored)


def _curvatures(
    predictor: Predictor,
    x: Matrix,
    lengths: NDArray[np.int64],
    pairs: list[bool],
    known: NDArray[np.int64] | None = None,
) -> list[NDArray[np.float64]]:
    """Of all tokens, expected under the posterior, for functions of labels or of pairs of labels."""
    found, ends = [], np.cumsum(lengths)
    for block in predictor.blocks(x, lengths):
        if known is not None:
            first, last = block.sequences.start, block.sequences.stop - 1
            own = torch.from_numpy(known[ends[first] - lengths[first] : ends[last]]).to(block.lengths.device)
            block = block._replace(known=chain.pad(own, block.lengths, dim=-1))
        found.append([block.curvature(pairs=of_pairs).double().cpu().numpy() for of_pairs in pairs])
    return [np.concatenate(parts) for parts in zip(*found, strict=True)]


def known_codes(y: scipy.sparse.csr_matrix) -> NDArray[np.int64]:
    """The labels of tokens, N, -1 where there is none."""
    codes = np.full(y.shape[0], -1, dtype=np.int64)
    codes[np.diff(y.indptr) > 0] = y.indices
    return codes


def _features(latents: WeightedLatents, x: Matrix) -> Iterator[tuple[slice, Inputs]]:
    """phi of a block of rows at a time."""
    like = latents.prior_scale
    step = max(1, _BLOCK_ELEMENTS // latents.n_weights)
    for start in range(0, x.shape[0], step):
        rows = slice(start, min(start + step, x.shape[0]))
        yield rows, latents.weight_features(suited_block(x, rows, dtype=like.dtype, device=like.device))


@torch.no_grad()
def _scaled(latents: WeightedLatents, x: Matrix, scale: NDArray[np.float64]) -> Iterator[Float[Tensor, "n F"]]:
    """psi of a block of rows at a time, as arrays."""
    for rows, phi in _features(latents, x):
        root = (latents.prior_scale.double() * torch.from_numpy(scale[rows]).to(latents.prior_scale.device)).sqrt()
        yield _as_array(phi).double() * root.unsqueeze(1)


def _groups(x: Matrix, scale: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Which of at most `MOST_POINTS` groups of rows like each other each belongs to; rows alone where there are few."""
    n_rows = x.shape[0]
    if n_rows <= MOST_POINTS:
        return np.arange(n_rows)
    sketch = hashed(x, _BUCKETS, rng)
    sketch = np.asarray(sketch.toarray() if scipy.sparse.issparse(sketch) else sketch, dtype=np.float32)
    chosen = np.sort(rng.choice(n_rows, min(n_rows, _CLUSTERED_ROWS), replace=False))
    # Tokens that are certain tell little.
    clusters = clusters_of(sketch[chosen], MOST_POINTS, rng, scale[chosen] + 1e-12)
    groups: NDArray[np.int64] = np.unique(clusters.predict(sketch), return_inverse=True)[1]
    return groups


@torch.no_grad()
def _of_points(
    latents: WeightedLatents, x: Matrix, scale: NDArray[np.float64], groups: NDArray[np.int64]
) -> PointCovariance:
    """The covariance from weighted means of groups of rows."""
    n_points, n_rows = int(groups.max()) + 1, x.shape[0]
    # At least so large that no mean is lost.
    weights = np.maximum(scale, 1e-12)
    # psi_g = sqrt(t w_g) sum_i w_i phi_i / w_g, w_g = sum_i w_i.
    shares = weights / np.sqrt(np.bincount(groups, weights))[groups] * float(latents.prior_scale.double().sqrt())
    like = latents.prior_scale
    psi: Tensor | scipy.sparse.csr_matrix
    if scipy.sparse.issparse(x) and isinstance(next(_features(latents, x))[1], SparseRows):
        gather = scipy.sparse.csr_matrix((shares, (groups, np.arange(n_rows))), shape=(n_points, n_rows))
        psi = scipy.sparse.csr_matrix(gather @ x)
    else:
        psi = like.new_zeros(n_points, latents.n_weights)
        for rows, phi in _features(latents, x):
            array = _as_array(phi) * torch.from_numpy(shares[rows]).to(like).unsqueeze(1)
            psi.index_add_(0, torch.from_numpy(groups[rows]).to(like.device), array)
    n_stored = None if isinstance(psi, Tensor) else int(psi.nnz)
    covariance = PointCovariance(n_points, n_stored, latents.n_weights).to(like)
    covariance.fit(psi)
    return covariance


def _as_array(phi: Inputs) -> Tensor:
    array = phi.between(0, phi.n_columns, dense=True) if isinstance(phi, SparseRows) else phi
    assert isinstance(array, Tensor)
    return array
