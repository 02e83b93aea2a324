"""The predictive distribution of a trained model, a block of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray

from extremegp.latents import Marginals
from extremegp.model import VariationalModel
from extremegp.sparse import row_block

_BLOCK_ELEMENTS = 1 << 22

Matrix = scipy.sparse.csr_matrix | NDArray[Any]


class Predictor:
    """A model conditioned once, for any number of inputs; memory is bounded by the block, not by the rows.

    Args:
        model: the trained model; later changes of its parameters have no effect on the conditioning.
    """

    @torch.no_grad()
    def __init__(self, model: VariationalModel) -> None:
        self._model = model
        self._conditioned = model.latents.condition()
        bias = model.mixing.bias
        self._dtype, self._device = bias.dtype, bias.device

    def latents(self, x: Matrix) -> Iterator[tuple[slice, Marginals]]:
        """Marginals of the P latent functions, with the rows they belong to."""
        width = max(self._model.mixing.n_labels, self._model.latents.n_functions, 512)
        step = max(1, _BLOCK_ELEMENTS // width)
        for start in range(0, x.shape[0], step):
            rows = slice(start, min(start + step, x.shape[0]))
            with torch.no_grad():
                marginals = self._conditioned.marginals(row_block(x, rows, dtype=self._dtype, device=self._device))
            yield rows, marginals

    def mean_utilities(self, x: Matrix) -> Iterator[tuple[slice, NDArray[Any]]]:
        """E f_ik, the utility that labels are ranked by, with the rows they belong to."""
        for rows, latents in self.latents(x):
            with torch.no_grad():
                yield rows, self._model.mixing.mean_utilities(latents).cpu().numpy()

    def probabilities(self, x: Matrix) -> Iterator[tuple[slice, NDArray[Any]]]:
        """p(y_ik = 1), the posterior of the utility integrated out, with the rows they belong to."""
        for rows, latents in self.latents(x):
            with torch.no_grad():
                utilities = self._model.mixing.utilities(latents)
                yield rows, self._model.likelihood.probabilities(utilities).cpu().numpy()

    def mean_utilities_and_probabilities(self, x: Matrix) -> Iterator[tuple[slice, NDArray[Any], NDArray[Any]]]:
        """What labels are ranked by and how likely they are, from one pass, with the rows they belong to."""
        for rows, latents in self.latents(x):
            with torch.no_grad():
                utilities = self._model.mixing.utilities(latents)
                probabilities = self._model.likelihood.probabilities(utilities)
            yield rows, utilities.mean.cpu().numpy(), probabilities.cpu().numpy()


def stack(blocks: Iterator[tuple[slice, NDArray[Any]]], n_rows: int, n_columns: int) -> NDArray[np.float32]:
    """All blocks as one array: only for callers who asked for the dense N x K."""
    whole = np.empty((n_rows, n_columns), dtype=np.float32)
    for rows, block in blocks:
        whole[rows] = block
    return whole
