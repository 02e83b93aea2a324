"""Where inducing inputs start: at centres of the inputs, or at some of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from extremegp.engine.matrices import is_mapped
from extremegp.engine.part import TrainingData
from extremegp.engine.sparse import Matrix

if TYPE_CHECKING:
    from sklearn.cluster import MiniBatchKMeans

_HASHED_FEATURES = 4096
# Inducing inputs start from so many rows and stored entries at most: the start takes several copies of them.
_START_ROWS, _START_ENTRIES = 500_000, 1 << 27


def dense_rows(rows: Matrix) -> NDArray[np.float32]:
    """Rows as an array."""
    return np.asarray(rows.toarray() if scipy.sparse.issparse(rows) else rows, dtype=np.float32)


def _random_rows(x: Matrix, size: int, rng: np.random.Generator) -> Matrix:
    chosen: Matrix = x[rng.choice(x.shape[0], size=size, replace=size > x.shape[0])]
    return chosen


def in_memory(data: TrainingData, size: int) -> Matrix:
    """The inputs that `size` inducing inputs start from: all of them unless they are very many, and never on disk."""
    x, rng, n_rows, most = data.x, data.rng, data.n_rows, _START_ROWS
    if scipy.sparse.issparse(x):
        most = min(most, _START_ENTRIES * n_rows // max(x.nnz, 1))
    if n_rows > max(most, size):
        chosen: Matrix = x[np.sort(rng.choice(n_rows, size=max(most, size), replace=False))]
        return chosen
    return x.copy() if is_mapped(x) else x


def clusters_of(
    x: Matrix, n_clusters: int, rng: np.random.Generator, weights: NDArray[np.float64] | None = None
) -> MiniBatchKMeans:
    """Clusters of rows, which count as their weights say."""
    # Here, as it takes a tenth of a second, which whoever only predicts need not wait for.
    from sklearn.cluster import MiniBatchKMeans

    seed = int(rng.integers(2**31))
    kmeans = MiniBatchKMeans(
        n_clusters, init="random", n_init=1, max_iter=5, batch_size=max(1024, 4 * n_clusters), random_state=seed
    )
    return kmeans.fit(x, sample_weight=weights)


def _centres(x: Matrix, size: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """k-means centres of the inputs; where there are fewer inputs than centres, copies fill up."""
    n_clusters = min(size, x.shape[0])
    centres = np.asarray(clusters_of(x, n_clusters, rng).cluster_centers_, dtype=np.float32)
    return np.concatenate([centres, centres[rng.integers(n_clusters, size=size - n_clusters)]])


def distinct_centres(x: Matrix, size: int, data: TrainingData) -> NDArray[np.float32]:
    """Centres of inputs, or some of these, `size` x D and all different."""
    if data.inducing_start == "kmeans":
        return distinct(_centres(x, size, data.rng), data.rng)
    return distinct(dense_rows(_random_rows(x, size, data.rng)), data.rng)


def distinct(centres: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """The centres, with noise on repeated ones: exact duplicates would make K_Z singular."""
    _, first = np.unique(centres, axis=0, return_index=True)
    copies = np.setdiff1d(np.arange(len(centres)), first)
    spread = float(np.abs(centres).mean()) + 1e-3
    centres[copies] += rng.normal(scale=spread, size=(len(copies), centres.shape[1])).astype(np.float32)
    return centres


def sparse_centres(x: Matrix, size: int, data: TrainingData) -> scipy.sparse.csr_matrix:
    """Centres that were never dense: clusters are found on signed hashes of the features (count sketches)."""
    x, rng = scipy.sparse.csr_matrix(x), data.rng
    if data.inducing_start == "rows":
        return scipy.sparse.csr_matrix(_random_rows(x, size, rng))
    n_rows = x.shape[0]
    clusters = clusters_of(hashed(x, _HASHED_FEATURES, rng), min(size, n_rows), rng).labels_
    # A cluster without members takes a row at random.
    empty = np.setdiff1d(np.arange(size), clusters)
    clusters = np.concatenate([clusters, empty])
    rows = np.concatenate([np.arange(n_rows), rng.integers(n_rows, size=len(empty))])
    shares = (1.0 / np.bincount(clusters)[clusters]).astype(np.float32)
    return scipy.sparse.csr_matrix(scipy.sparse.csr_matrix((shares, (clusters, rows)), shape=(size, n_rows)) @ x)


def hashed(x: Matrix, n_buckets: int, rng: np.random.Generator) -> Matrix:
    """Signed hashes of the features (count sketches), whose inner products are those of the rows on average."""
    n_features = x.shape[1]
    if n_features <= n_buckets:
        return x
    buckets = rng.integers(n_buckets, size=n_features)
    signs = rng.choice(np.array([-1.0, 1.0], dtype=np.float32), size=n_features)
    entries: Any = signs, buckets, np.arange(n_features + 1)
    sketch: Any = scipy.sparse.csr_matrix(entries, shape=(n_features, n_buckets))
    found: Matrix = scipy.sparse.csr_matrix(x @ sketch) if scipy.sparse.issparse(x) else x @ sketch
    return found


def largest_entries(
    centres: scipy.sparse.csr_matrix, n_entries: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The S largest entries of every row; rows with fewer take others' most common columns, near zero."""
    size, n_features = centres.shape
    common = np.argsort(-np.bincount(centres.indices, minlength=n_features), kind="stable")[: 2 * n_entries]
    columns = np.empty((size, n_entries), dtype=np.int64)
    entries = np.empty((size, n_entries), dtype=np.float32)
    for row in range(size):
        part = slice(centres.indptr[row], centres.indptr[row + 1])
        own, values = centres.indices[part].astype(np.int64), centres.data[part]
        best = np.argsort(-np.abs(values), kind="stable")[:n_entries]
        own, values = own[best], values[best]
        others = common[~np.isin(common, own)][: n_entries - len(own)]
        # A little noise tells rows apart that would be equal: they would make K_Z singular.
        noise = rng.normal(scale=0.01 * (np.abs(values).max(initial=0.0) + 1e-3), size=n_entries)
        columns[row] = np.concatenate([own, others])
        entries[row] = np.concatenate([values, np.zeros(len(others), dtype=np.float32)]) + noise
    return columns, entries
