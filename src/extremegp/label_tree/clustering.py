"""Where labels stand in a tree: near labels that inputs with alike features have."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from extremegp.label_tree._compiled import times_dense

_POWER_STEPS, _SPLIT_STEPS = 2, 8
_MOST_ELEMENTS = 1 << 28


def matmul(matrix: scipy.sparse.csr_matrix, dense: NDArray[np.float32]) -> NDArray[np.float32]:
    """A B for CSR A (N x D, float32) and an array B (D x R)."""
    out = np.empty((matrix.shape[0], dense.shape[1]), dtype=np.float32)
    dense = np.ascontiguousarray(dense, dtype=np.float32)
    times_dense(matrix.shape[0], matrix.indptr, matrix.indices, matrix.data, dense, out)
    return out


def embed_labels(
    x: scipy.sparse.csr_matrix,
    columns: scipy.sparse.csr_matrix,
    y: scipy.sparse.csr_matrix,
    *,
    n_dimensions: int = 128,
    rng: np.random.Generator,
    weights: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """Unit vectors of the labels, K x R: sums of the inputs of their rows, in the inputs' principal directions.

    The directions are those of a randomised decomposition with power steps (Halko et al. 2011). They are fewer where R
    of them would take more than a gigabyte.

    Args:
        x: inputs, N x D.
        columns: X', D x N.
        y: labels that are 1, N x K, or what they count.
        n_dimensions: R.
        rng: decides the start of the directions.
        weights: what the rows count in these, N; None for 1.
    """
    longest = max(*x.shape, y.shape[1])
    r = int(min(n_dimensions, max(8, _MOST_ELEMENTS // longest), *x.shape))
    directions = rng.standard_normal((x.shape[1], r), dtype=np.float32)
    for _ in range(_POWER_STEPS):
        projected = matmul(x, directions) if weights is None else matmul(x, directions) * weights[:, None]
        directions = np.linalg.qr(matmul(columns, projected))[0].astype(np.float32)
    sums = matmul(scipy.sparse.csr_matrix(y.T), matmul(x, directions))
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
