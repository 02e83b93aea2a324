"""From data to the point where training starts."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, aslinearoperator, svds
from sklearn.cluster import MiniBatchKMeans
from sklearn.preprocessing import normalize
from sklearn.utils.extmath import randomized_svd
from torch import Tensor

from extremegp.data.validation import column_counts, is_mapped, row_blocks
from extremegp.engine.inducing import (
    InducingInputs,
    SeparateInducingInputs,
    SparseInducingInputs,
    SubspaceInducingInputs,
)
from extremegp.engine.latents import DeepRandomFeatures
from extremegp.engine.likelihoods import BernoulliLabels, ClassLikelihood
from extremegp.engine.mean import fit_regression
from extremegp.engine.mixing import FactorMixing
from extremegp.engine.model import VariationalModel
from extremegp.engine.sequence_model import SequenceModel
from extremegp.engine.sparse import row_block

Matrix = scipy.sparse.csr_matrix | NDArray[Any]

_HASHED_FEATURES = 4096
_SIZED_ROWS = 2000
# Inducing inputs start from so many rows and stored entries at most: the start takes several copies of them.
_START_ROWS, _START_ENTRIES = 500_000, 1 << 27


@torch.no_grad()
def initialise(
    model: VariationalModel,
    x: Matrix,
    y: scipy.sparse.csr_matrix,
    *,
    rng: np.random.Generator,
    inducing_start: Literal["kmeans", "rows"] = "kmeans",
    loadings_start: Literal["random", "spectral"] = "random",
    propensities: NDArray[np.float64] | None = None,
) -> NDArray[np.float32] | None:
    """Start a model from its training data, in place.

    Inducing inputs are centres of the inputs or random inputs, biases the log-odds of the label frequencies (their
    logarithms for one class out of K), loadings N(0, 1/P) or principal directions of the labels. A subspace is that of
    the leading right-singular vectors of the inputs (T 2.5).

    Args:
        model: as `ModelSettings.build` makes it.
        x: inputs, N x D.
        y: labels that are 1, N x K.
        rng: decides the start.
        inducing_start: centres of a mini-batch k-means, or rows drawn at random.
        loadings_start: drawn at random, or "spectral": the leading eigenvectors of the labels' covariance, each as long
            as its standard deviation, all scaled to the size that random ones have.
        propensities: of the labels, K, for a model that has them; frequencies are then those of the labels that apply.

    Returns:
        Of a model with a mean function that was fitted here, its predictions of every row without that row (logits,
        N x K): what training takes for `mean_logits`.
    """
    for module in model.latents.modules():
        if isinstance(module, SeparateInducingInputs):
            _start_separate(module, x, y, inducing_start, rng)
        elif isinstance(module, InducingInputs):
            _start_inducing(module, x, inducing_start, rng)
    mixing, n_rows = model.mixing, x.shape[0]
    frequency = recorded = column_counts(y) / n_rows
    if propensities is not None:
        assert isinstance(model.likelihood, BernoulliLabels)
        assert model.likelihood.propensities is not None
        _fill(model.likelihood.propensities, propensities)
        frequency = recorded / propensities
    start = _log_frequency if isinstance(model.likelihood, ClassLikelihood) else _log_odds
    bias, logits = start(frequency, n_rows), None
    if model.mean_function is not None:
        of_mean = model.mean_function
        n_points = len(of_mean.coefficients)
        fitted = fit_regression(x, y, rng=rng, link=of_mean.link, n_points=n_points)
        of_mean.load_state_dict(fitted.mean.state_dict())
        logits = fitted.logits
        # The regression starts from the recorded frequencies itself.
        bias -= start(recorded, n_rows)
    _fill(mixing.bias, bias)
    if not isinstance(mixing, FactorMixing):
        return logits
    n_latent = mixing.loadings.shape[1]
    if loadings_start == "spectral":
        _fill(mixing.loadings, _principal_loadings(y, n_latent, rng))
        return logits
    # In blocks, for the draws are float64 and a wide model should not need several times its own memory to start.
    for start_row in range(0, mixing.n_labels, 1 << 16):
        rows = mixing.loadings[start_row : start_row + (1 << 16)]
        _fill(rows, rng.normal(scale=1.0 / np.sqrt(n_latent), size=rows.shape))
    return logits


@torch.no_grad()
def start_sequences(model: SequenceModel, x: Matrix, counts: NDArray[np.int64], *, rng: np.random.Generator) -> None:
    """Start a model of sequences from its training data, in place.

    Random features are drawn and scaled to the inputs, inducing inputs are random inputs, and biases the logarithms of
    the frequencies of the labels about their mean.

    Args:
        model: as `SequenceSettings.build` makes it.
        x: inputs, N x D.
        counts: rows with each label, V.
        rng: decides the start.
    """
    some = row_block(x, np.sort(rng.permutation(x.shape[0])[:_SIZED_ROWS]))
    for module in model.latents.modules():
        if isinstance(module, DeepRandomFeatures):
            module.start(some, torch.Generator().manual_seed(int(rng.integers(2**31))))
        elif isinstance(module, InducingInputs):
            _start_inducing(module, x, "rows", rng)
    bias = _log_frequency(counts / counts.sum(), int(counts.sum()))
    _fill(model.mixing.bias[: len(counts)], bias - bias.mean())


def _log_frequency(frequency: NDArray[np.float64], n_rows: int) -> NDArray[np.float64]:
    """Logarithms of frequencies, finite for classes of no row."""
    return np.asarray(np.log(np.maximum(frequency, 0.5 / n_rows)))


def _log_odds(frequency: NDArray[np.float64], n_rows: int) -> NDArray[np.float64]:
    """Log-odds of frequencies, finite for labels of no row and of all."""
    frequency = np.clip(frequency, 0.5 / n_rows, 1 - 0.5 / n_rows)
    return np.asarray(np.log(frequency / (1 - frequency)))


def _principal_loadings(y: scipy.sparse.csr_matrix, n_latent: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Principal directions of the labels times their standard deviations, K x P, of mean square 1/P.

    There are at most min(N, K) - 1 of them; other columns are small and random.
    """
    n_rows, n_labels = y.shape
    counts = column_counts(y)
    found = min(n_latent, n_rows - 1, n_labels - 1)
    loadings = rng.normal(scale=0.1 / np.sqrt(n_latent), size=(n_labels, n_latent))
    # Labels that all rows have, or none, are nothing once they are centred.
    if found > 0 and ((counts > 0) & (counts < n_rows)).any():
        means = aslinearoperator(counts[None] / n_rows)
        centred = _float64_operator(y) - aslinearoperator(np.ones((n_rows, 1))) @ means
        _, deviations, directions = svds(centred, k=found, random_state=int(rng.integers(2**31)))
        principal = directions.T[:, ::-1] * deviations[::-1]
        loadings[:, :found] = principal / max(np.sqrt(n_latent * np.square(principal).mean()), 1e-12)
    return loadings


def _float64_operator(y: scipy.sparse.csr_matrix) -> LinearOperator:
    """Products with y and its transpose in float64, a block of rows at a time: y as a whole is not converted."""
    blocks = [*row_blocks(y.indptr)]

    def product(v: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.concatenate([y[rows].astype(np.float64) @ v for rows in blocks])

    def transposed(v: NDArray[np.float64]) -> NDArray[np.float64]:
        parts = (y[rows].astype(np.float64).T @ v[rows] for rows in blocks)
        return sum(parts, start=np.zeros(1))

    return LinearOperator(y.shape, product, transposed, product, np.float64, transposed)


def _fill(parameter: Tensor, values: NDArray[Any]) -> None:
    parameter.copy_(torch.from_numpy(np.ascontiguousarray(values)))


def _start_inducing(
    inducing: InducingInputs, x: Matrix, how: Literal["kmeans", "rows"], rng: np.random.Generator
) -> None:
    size = len(inducing)
    x = _some_in_memory(x, size, rng)
    if isinstance(inducing, SparseInducingInputs):
        n_entries = inducing.columns.shape[1]
        columns, entries = _largest_entries(_sparse_centres(x, size, how, rng), n_entries, rng)
        _fill(inducing.columns, columns)
        _fill(inducing.entries, normalize(entries) if inducing.normalise else entries)
        return
    if isinstance(inducing, SubspaceInducingInputs):
        n_basis = inducing.transposed_basis.shape[1]
        _, _, basis = randomized_svd(x, n_basis, random_state=int(rng.integers(2**31)))
        _fill(inducing.transposed_basis, basis.T)
        x = np.asarray(x @ basis.T)
    centres = _distinct(_centres(x, size, rng) if how == "kmeans" else _dense(_random_rows(x, size, rng)), rng)
    # Rows of a subspace's A have the norms of those of A Xt, as the basis is orthonormal.
    centres = normalize(centres) if inducing.normalise else centres
    _fill(inducing.coordinates(), centres if isinstance(inducing, SubspaceInducingInputs) else centres.T)


def _start_separate(
    inducing: SeparateInducingInputs,
    x: Matrix,
    y: scipy.sparse.csr_matrix,
    how: Literal["kmeans", "rows"],
    rng: np.random.Generator,
) -> None:
    """Every class starts from its own rows (T 3.8.3), with rows of others where it has fewer than inducing inputs."""
    size, by_class = len(inducing), y.tocsc()
    for k in range(y.shape[1]):
        own = by_class.indices[by_class.indptr[k] : by_class.indptr[k + 1]]
        others = rng.choice(x.shape[0], size=max(0, size - len(own)), replace=False)
        rows = x[np.concatenate([own, others])]
        centres = _distinct(
            _centres(rows, size, rng) if how == "kmeans" else _dense(_random_rows(rows, size, rng)), rng
        )
        _fill(inducing.transposed[:, k], (normalize(centres) if inducing.normalise else centres).T)


def _dense(rows: Matrix) -> NDArray[np.float32]:
    return np.asarray(rows.toarray() if scipy.sparse.issparse(rows) else rows, dtype=np.float32)


def _random_rows(x: Matrix, size: int, rng: np.random.Generator) -> Matrix:
    chosen: Matrix = x[rng.choice(x.shape[0], size=size, replace=size > x.shape[0])]
    return chosen


def _some_in_memory(x: Matrix, size: int, rng: np.random.Generator) -> Matrix:
    """The inputs that inducing inputs start from: all of them unless they are very many, and never on disk."""
    n_rows, most = x.shape[0], _START_ROWS
    if scipy.sparse.issparse(x):
        most = min(most, _START_ENTRIES * n_rows // max(x.nnz, 1))
    if n_rows > max(most, size):
        chosen: Matrix = x[np.sort(rng.choice(n_rows, size=max(most, size), replace=False))]
        return chosen
    return x.copy() if is_mapped(x) else x


def _clusters(x: Matrix, n_clusters: int, rng: np.random.Generator) -> MiniBatchKMeans:
    seed = int(rng.integers(2**31))
    kmeans = MiniBatchKMeans(
        n_clusters, init="random", n_init=1, max_iter=5, batch_size=max(1024, 4 * n_clusters), random_state=seed
    )
    return kmeans.fit(x)


def _centres(x: Matrix, size: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """k-means centres of the inputs; where there are fewer inputs than centres, copies fill up."""
    n_clusters = min(size, x.shape[0])
    centres = np.asarray(_clusters(x, n_clusters, rng).cluster_centers_, dtype=np.float32)
    return np.concatenate([centres, centres[rng.integers(n_clusters, size=size - n_clusters)]])


def _distinct(centres: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """The centres, with noise on repeated ones: exact duplicates would make K_Z singular."""
    _, first = np.unique(centres, axis=0, return_index=True)
    copies = np.setdiff1d(np.arange(len(centres)), first)
    spread = float(np.abs(centres).mean()) + 1e-3
    centres[copies] += rng.normal(scale=spread, size=(len(copies), centres.shape[1])).astype(np.float32)
    return centres


def _sparse_centres(
    x: Matrix, size: int, how: Literal["kmeans", "rows"], rng: np.random.Generator
) -> scipy.sparse.csr_matrix:
    """Centres that were never dense: clusters are found on signed hashes of the features (count sketches)."""
    x = scipy.sparse.csr_matrix(x)
    if how == "rows":
        return scipy.sparse.csr_matrix(_random_rows(x, size, rng))
    n_rows, n_features = x.shape
    hashed = x
    if n_features > _HASHED_FEATURES:
        buckets = rng.integers(_HASHED_FEATURES, size=n_features)
        signs = rng.choice(np.array([-1.0, 1.0], dtype=np.float32), size=n_features)
        sketch = scipy.sparse.csr_matrix((signs, buckets, np.arange(n_features + 1)), (n_features, _HASHED_FEATURES))
        hashed = scipy.sparse.csr_matrix(x @ sketch)
    clusters = _clusters(hashed, min(size, n_rows), rng).labels_
    # A cluster without members takes a row at random.
    empty = np.setdiff1d(np.arange(size), clusters)
    clusters = np.concatenate([clusters, empty])
    rows = np.concatenate([np.arange(n_rows), rng.integers(n_rows, size=len(empty))])
    shares = (1.0 / np.bincount(clusters)[clusters]).astype(np.float32)
    return scipy.sparse.csr_matrix(scipy.sparse.csr_matrix((shares, (clusters, rows)), shape=(size, n_rows)) @ x)


def _largest_entries(
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
