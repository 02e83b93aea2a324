"""The predictive distribution of a trained model, a block of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from extremegp.conditional import GivenVariance, InstanceNoise, mean_utilities_given, utilities_given
from extremegp.data import FloatCSR, LabelSpace, check_inputs
from extremegp.data.validation import entry_position
from extremegp.errors import DataError
from extremegp.latents import Marginals
from extremegp.likelihoods import BernoulliLabels, ClassLikelihood, IndependentClasses, entropy_parts
from extremegp.model import VariationalModel
from extremegp.sparse import SparseRows, row_block

_BLOCK_ELEMENTS = 1 << 22

Matrix = scipy.sparse.csr_matrix | NDArray[Any]


class Predictor:
    """A model conditioned once, for any number of inputs; memory is bounded by the block, not by the rows.

    Where labels of the rows are known already, `given` holds them: N x K, 1 for a label that is present, -1 for one
    that is absent. The predictions of the others then take them into account (`extremegp.conditional`).

    Args:
        model: the trained model; later changes of its parameters have no effect on the conditioning.
        noise: scatter of the instances, used with `given` only; by default there is none, as in the papers.
        given_variance: what known labels do to the variance of a utility: "laplace" reduces it, "map" leaves it.
    """

    @torch.no_grad()
    def __init__(
        self, model: VariationalModel, noise: InstanceNoise | None = None, *, given_variance: GivenVariance = "laplace"
    ) -> None:
        self._model = model
        self._conditioned = model.latents.condition()
        bias = model.mixing.bias
        self._like, self._dtype, self._device = bias, bias.dtype, bias.device
        self._noise = InstanceNoise.none(bias, model.latents.n_functions) if noise is None else noise
        self._given_variance: GivenVariance = given_variance

    def latents(self, x: Matrix, mean_logits: NDArray[np.float32] | None = None) -> Iterator[tuple[slice, Marginals]]:
        """Marginals of the P latent functions, with the rows they belong to.

        Args:
            x: inputs, N x D.
            mean_logits: what the model's mean function scales at these inputs, N x K; by default it works that out.
        """
        width = max(self._model.mixing.n_labels, self._model.latents.n_functions, self._conditioned.width, 512)
        step = max(1, _BLOCK_ELEMENTS // width)
        for start in range(0, x.shape[0], step):
            rows = slice(start, min(start + step, x.shape[0]))
            block = row_block(x, rows, dtype=self._dtype, device=self._device)
            logits = None if mean_logits is None else torch.from_numpy(mean_logits[rows]).to(self._like)
            with torch.no_grad():
                marginals = self._model.marginals(self._conditioned, block, logits)
            yield rows, marginals

    def mean_logits(self, x: Matrix) -> NDArray[np.float32] | None:
        """What the model's mean function scales, N x K and dense; None without one."""
        function = self._model.mean_function
        if function is None:
            return None
        with torch.no_grad():
            logits: NDArray[np.float32] = function.logits(row_block(x, slice(None), dtype=self._dtype)).cpu().numpy()
        return logits

    def mean_utilities(
        self, x: Matrix, given: scipy.sparse.csr_matrix | None = None
    ) -> Iterator[tuple[slice, NDArray[Any]]]:
        """E f_ik, that labels are ranked by, or given labels the utility at the mode, with the rows they belong to."""
        mixing = self._model.mixing
        for rows, latents in self.latents(x):
            with torch.no_grad():
                if given is None:
                    utilities = mixing.mean_utilities(latents)
                else:
                    utilities = mean_utilities_given(latents, mixing, given[rows], self._noise)
            yield rows, utilities.cpu().numpy()

    def probabilities(
        self, x: Matrix, given: scipy.sparse.csr_matrix | None = None
    ) -> Iterator[tuple[slice, NDArray[Any]]]:
        """p(y_ik = 1), the posterior of the utility integrated out, with the rows they belong to.

        Of given labels it is 1 for those that are present, 0 for those that are absent.
        """
        for rows, _, probabilities in self.mean_utilities_and_probabilities(x, given):
            yield rows, probabilities

    def mean_utilities_and_probabilities(
        self, x: Matrix, given: scipy.sparse.csr_matrix | None = None
    ) -> Iterator[tuple[slice, NDArray[Any], NDArray[Any]]]:
        """What labels are ranked by and how likely they are, from one pass, with the rows they belong to."""
        mixing, likelihood = self._model.mixing, self._model.likelihood
        for rows, latents in self.latents(x):
            with torch.no_grad():
                if given is None:
                    means, probabilities = likelihood.predict(latents, mixing)
                else:
                    assert isinstance(likelihood, BernoulliLabels)
                    utilities = utilities_given(
                        latents, mixing, given[rows], self._noise, variance=self._given_variance
                    )
                    means, probabilities = utilities.mean, likelihood.probabilities(utilities)
                    known = SparseRows.from_scipy(given[rows], dtype=means.dtype, device=means.device)
                    probabilities[known.rows, known.columns] = (known.values > 0).to(means.dtype)
            yield rows, means.cpu().numpy(), probabilities.cpu().numpy()

    def class_uncertainty(self, x: Matrix) -> Iterator[tuple[slice, NDArray[Any], NDArray[Any], NDArray[Any]]]:
        """Of one class per row: probabilities (B x K), their entropy and its aleatoric part (nats), with their rows."""
        mixing, likelihood = self._model.mixing, self._model.likelihood
        assert isinstance(likelihood, ClassLikelihood | IndependentClasses)
        for rows, latents in self.latents(x):
            with torch.no_grad():
                _, probabilities = likelihood.predict(latents, mixing)
                total, aleatoric = entropy_parts(latents, mixing, likelihood.conditional)
            yield rows, probabilities.cpu().numpy(), total.cpu().numpy(), aleatoric.cpu().numpy()


def check_given(given: Any, n_labels: int, space: LabelSpace | None = None) -> FloatCSR:
    """Known labels as the N x K matrix of 1, -1 and nothing that a `Predictor` takes.

    Args:
        given: N x K numbers, sparse or an array, 1 for a label that is present, -1 for one that is absent, else 0; or N
            lists of the names of labels that are present, if the labels have names.
        n_labels: K.
        space: the names of the labels, if any.

    Raises:
        DataError: another number of labels, another value than -1, 0 and 1, or an unknown name.
    """
    if isinstance(given, (list, tuple)):
        if space is None:
            raise DataError("given holds lists of label names, but the labels have none; pass a matrix of -1, 0 and 1")
        return space.encode(given)
    matrix = csr_matrix(check_inputs(given, name="given"), copy=True)
    if matrix.shape[1] != n_labels:
        raise DataError(f"given has {matrix.shape[1]} labels, but the model has {n_labels}")
    matrix.eliminate_zeros()
    bad = np.flatnonzero(np.abs(matrix.data) != 1)
    if bad.size:
        row, column = entry_position(matrix, int(bad[0]))
        raise DataError(
            f"given must hold 1 (present), -1 (absent) or 0 (unknown), but has {matrix.data[bad[0]]:g} at row {row}, "
            f"column {column} (counted from 0)"
        )
    return matrix


def exclude(scores: NDArray[Any], given: scipy.sparse.csr_matrix) -> NDArray[Any]:
    """Scores to rank a block by, B x K, with those of given labels at -inf: they are never predictions."""
    scores = scores.copy()
    known = given.tocoo()
    scores[known.row, known.col] = -np.inf
    return scores


def stack(blocks: Iterator[tuple[slice, NDArray[Any]]], n_rows: int, n_columns: int) -> NDArray[np.float32]:
    """All blocks as one array: only for callers who asked for the dense N x K."""
    whole = np.empty((n_rows, n_columns), dtype=np.float32)
    for rows, block in blocks:
        whole[rows] = block
    return whole
