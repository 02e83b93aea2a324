"""Where labels stand in a tree: near labels that inputs with alike features have."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from extremegp.engine.compiled import matmul

_POWER_STEPS, _SPLIT_STEPS = 2, 8
_MOST_ELEMENTS = 1 << 28


def principal_directions(
    x: scipy.sparse.csr_matrix,
    columns: scipy.sparse.csr_matrix,
    n_labels: int,
    *,
    n_dimensions: int = 128,
    rng: np.random.Generator,
    weights: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """Orthonormal directions in which the inputs spread most, D x R, by power steps (Halko et al. 2011).

    They are fewer than R where so many of them, or of labels', would take more than a gigabyte.

    Args:
        x: inputs, N x D.
        columns: X', D x N.
        n_labels: K.
        n_dimensions: R.
        rng: decides the start.
        weights: what the rows count, N; None for 1.
    """
    r = int(min(n_dimensions, max(8, _MOST_ELEMENTS // max(*x.shape, n_labels)), *x.shape))
    directions = rng.standard_normal((x.shape[1], r), dtype=np.float32)
    for _ in range(_POWER_STEPS):
        projected = matmul(x, directions) if weights is None else matmul(x, directions) * weights[:, None]
        directions = np.linalg.qr(matmul(columns, projected))[0].astype(np.float32)
    return directions


def embed_labels(projected: NDArray[np.float32], y: scipy.sparse.csr_matrix) -> NDArray[np.float32]:
    """Unit vectors of the labels, K x R: sums of the inputs of their rows.

    Args:
        projected: the inputs in their principal directions, N x R.
        y: labels that are 1, N x K, or what they count.
    """
    sums = matmul(scipy.sparse.csr_matrix(y.T), projected)
    norms = np.linalg.norm(sums, axis=1, keepdims=True)
    return np.asarray(sums / np.where(norms > 0, norms, 1), dtype=np.float32)


def balanced_leaves(
    vectors: NDArray[np.float32], depth: int, *, rng: np.random.Generator
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Split labels in two, and the parts again, into 2^depth leaves whose sizes differ by at most one.

    Every split is spherical 2-means with parts of equal size (Prabhu et al. 2018).

    Args:
        vectors: unit vectors of K labels, K x R.
        depth: how often, with 2^depth <= K.
        rng: decides the starts.

    Returns:
        The labels in the order of the leaves, and where the leaves begin and end in it, 2^depth + 1.
    """
    order, bounds = np.arange(len(vectors), dtype=np.int32), np.array([0, len(vectors)])
    for _ in range(depth):
        middles = []
        for start, end in pairwise(bounds):
            labels = order[start:end]
            order[start:end] = labels[_by_side(vectors[labels], rng)]
            middles.append((start + end + 1) // 2)
        bounds = np.insert(bounds, np.arange(1, len(bounds)), middles)
    return order, bounds


def _by_side(vectors: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.int64]:
    """An order of the vectors whose halves are the two parts."""
    half = (len(vectors) + 1) // 2
    first, second = rng.choice(len(vectors), size=2, replace=False)
    direction = vectors[first] - vectors[second]
    for _ in range(_SPLIT_STEPS):
        order = np.argsort(-(vectors @ direction), kind="stable")
        centres = [vectors[part].mean(axis=0) for part in (order[:half], order[half:])]
        lengths = [float(np.linalg.norm(centre)) or 1.0 for centre in centres]
        moved = centres[0] / lengths[0] - centres[1] / lengths[1]
        if np.linalg.norm(moved - direction) < 1e-4:
            break
        direction = moved
    return order
