"""The predictive distribution of a trained model, a block of rows or sequences at a time."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Any, Literal, cast

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor

from extremegp.data import FloatCSR, LabelSpace, check_inputs
from extremegp.data.frames import lists_of
from extremegp.data.labels import check_label_names, refuse_nested_indicator
from extremegp.engine.latents import Marginals
from extremegp.engine.likelihoods.chain_draws import ChainDraws
from extremegp.engine.likelihoods.linear_chain import LinearChain
from extremegp.engine.matrices import entry_position, mostly_zero
from extremegp.engine.model import VariationalModel
from extremegp.engine.part import parts_of
from extremegp.engine.sparse import Inputs, Matrix, SparseRows, suited_block
from extremegp.engine.utilities import Utilities
from extremegp.errors import DataError
from extremegp.metrics import TopK
from extremegp.metrics.topk import PAD
from extremegp.prediction.decisions import Candidates
from extremegp.prediction.known_labels import GivenVariance, InstanceNoise
from extremegp.prediction.label_scatter import LabelScatter
from extremegp.threads import alone

_BLOCK_ELEMENTS = 1 << 22
_LITTLE = 1 << 17
_DRAWN_ELEMENTS = 1 << 24
_ROWS_LOOKED_AT = 256
_MIN_LABELS = 1 << 14
"""Labels in a block of B x labels at the least, where there are more: narrower products are slow."""

RankedBy = Literal["probability", "utility"]
Ranked = tuple[slice, TopK, NDArray[np.float32]]
"""Rows, their best labels with the scores that these are ranked by, and their probabilities, B x k."""


class Predictor:
    """A model conditioned once, for any number of inputs; memory is bounded by the block, not by the rows.

    Where labels of the rows are known already, `given` holds them: N x K, 1 for a label that is present, -1 for one
    that is absent. The predictions of the others then take them into account (`extremegp.prediction.known_labels`).
    Of sequences `blocks` says what draws of the posterior do.

    Args:
        model: the trained model; later changes of its parameters have no effect on the conditioning.
        noise: scatter of the instances, used with `given` only; by default there is none, as in the papers.
        given_variance: what known labels do to the variance of a utility: "laplace" reduces it, "map" leaves it.
        n_draws: R, of the posterior, for sequences.
        at_mode: take the most probable functions in place of the posterior, where the latents tell them apart.
        seed: decides the draws. A sequence has the same ones whatever it is predicted with.
    """

    @torch.no_grad()
    def __init__(
        self,
        model: VariationalModel,
        noise: InstanceNoise | LabelScatter | None = None,
        *,
        given_variance: GivenVariance = "laplace",
        n_draws: int = 1,
        seed: int = 0,
        at_mode: bool = False,
    ) -> None:
        conditioned = None
        if at_mode:
            model, conditioned = model.at_mode()
        self._model, self.n_draws, self.seed = model, n_draws, seed
        self._conditioned = model.latents.condition(seed) if conditioned is None else conditioned
        variance = model.regression_variance
        self._width = max(self._conditioned.width, 512, 0 if variance is None else len(variance.landmarks))
        bias = model.mixing.bias
        self._like, self._dtype, self._device = bias, bias.dtype, bias.device
        if noise is None:
            of_functions = not model.mixing.independent
            noise = InstanceNoise.none(bias, model.latents.n_functions) if of_functions else LabelScatter.none(bias)
        self._noise = noise
        self._given_variance: GivenVariance = given_variance
        # Features are arrays, whatever the inputs.
        self._needs_dense = model.features is None and any(part.needs_dense for part in parts_of(model))

    def using(self, *, given_variance: GivenVariance | None = None, n_draws: int | None = None) -> Predictor:
        """The same one with other arguments, as in the constructor: nothing is conditioned again."""
        other = copy(self)
        other._given_variance = self._given_variance if given_variance is None else given_variance
        other.n_draws = self.n_draws if n_draws is None else n_draws
        return other

    def utilities(
        self, x: Matrix, mean_logits: NDArray[np.float32] | None = None, *, width: int | None = None
    ) -> Iterator[tuple[slice, Utilities]]:
        """The utilities of the rows, a block at a time, with the rows they belong to.

        Args:
            x: inputs, N x D.
            mean_logits: what the model's mean function scales at these inputs, N x K; by default it works that out.
            width: how many numbers the caller makes of every row; K by default.
        """
        widest = max(width or self._model.mixing.n_utilities, self._model.latents.n_functions)
        for rows in self._row_slices(x, max(widest, self._width)):
            block = self._inputs(x, rows)
            logits = None if mean_logits is None else torch.from_numpy(mean_logits[rows]).to(self._like)
            with torch.no_grad(), alone((rows.stop - rows.start) * self._width < _LITTLE):
                utilities = self._model.utilities(self._conditioned, block, logits)
                utilities.latents  # noqa: B018 (worked out here, without gradients)
            yield rows, utilities

    def mean_logits(self, x: Matrix) -> NDArray[np.float32] | None:
        """What the model's mean function scales, N x K and dense; None without one."""
        function = self._model.mean_function
        if function is None:
            return None
        with torch.no_grad():
            blocks = [
                function.logits(self._model.seen(self._inputs(x, rows))).cpu() for rows in self._row_slices(x, 512)
            ]
        logits: NDArray[np.float32] = torch.cat(blocks).numpy()
        return logits

    def _row_slices(self, x: Matrix, width: int) -> Iterator[slice]:
        """Blocks of rows of which `width` numbers each, and the inputs, are no more than there is room for."""
        step = max(1, _BLOCK_ELEMENTS // (width if mostly_zero(x, _ROWS_LOOKED_AT) else max(width, x.shape[1])))
        for start in range(0, x.shape[0], step):
            yield slice(start, min(start + step, x.shape[0]))

    def _inputs(self, x: Matrix, rows: slice) -> Inputs:
        return suited_block(x, rows, dense=self._needs_dense, dtype=self._dtype, device=self._device)

    def mean_utilities(
        self, x: Matrix, given: scipy.sparse.csr_matrix | None = None
    ) -> Iterator[tuple[slice, NDArray[Any]]]:
        """E f_ik, that labels are ranked by, or given labels the utility at the mode, with the rows they belong to."""
        for rows, utilities in self.utilities(x):
            with torch.no_grad():
                means = utilities.means() if given is None else self._noise.mean_given(utilities, given[rows])
            yield rows, means.cpu().numpy()

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
        likelihood = self._model.likelihood
        for rows, utilities in self.utilities(x):
            with torch.no_grad():
                if given is None:
                    means, probabilities = likelihood.predict(utilities)
                else:
                    means, variances = self._noise.given(utilities, given[rows], variance=self._given_variance)
                    probabilities = likelihood.of_marginals(means, variances)
                    known = SparseRows.from_scipy(given[rows], dtype=means.dtype, device=means.device)
                    probabilities[known.rows, known.columns] = (known.values > 0).to(means.dtype)
            yield rows, means.cpu().numpy(), probabilities.cpu().numpy()

    def top(
        self, x: Matrix, k: int, by: RankedBy = "probability", given: scipy.sparse.csr_matrix | None = None
    ) -> Iterator[Ranked]:
        """The k best labels of every row, exactly, and their probabilities, a block of rows at a time.

        Where labels are independent of each other they go by in blocks too, so that memory does not grow with B x K.
        Where a mean function, known labels or one class per row tie all K together, blocks of rows have all K columns.

        Args:
            x: inputs, N x D.
            k: how many labels; ties go to the lower one.
            by: rank by p(y = 1) or by the mean utility.
            given: labels known already, as in `mean_utilities`; they are never among the best.

        Returns:
            An iterator of rows, their k best labels with the scores they are ranked by, and the probabilities of these,
            B x k; beyond the labels that there are, pads of probability 0.
        """
        if given is None and self.separable:
            for rows, utilities in self.utilities(x, width=_MIN_LABELS):
                yield rows, *self._top_of_label_blocks(utilities, k, by)
            return
        for rows, means, probabilities in self.mean_utilities_and_probabilities(x, given):
            scores = means if by == "utility" else probabilities
            best = TopK.from_scores(scores if given is None else exclude(scores, given[rows]), k)
            of_best = np.take_along_axis(probabilities, best.labels, axis=1)
            yield rows, best, np.where(best.labels == PAD, 0, of_best).astype(np.float32)

    def likeliest(self, x: Matrix, k: int) -> Iterator[tuple[slice, Candidates]]:
        """The k most probable labels of every row, with the sum of the probabilities of the others."""
        for rows, _, probabilities in self.mean_utilities_and_probabilities(x):
            best = TopK.from_scores(probabilities, k)
            p = np.where(best.labels == PAD, 0, best.scores).astype(np.float64)
            others = np.maximum(probabilities.sum(axis=1, dtype=np.float64) - p.sum(axis=1), 0)
            yield rows, Candidates(best.labels, p, others if k < probabilities.shape[1] else np.zeros(len(p)))

    @property
    def model(self) -> VariationalModel:
        """The model that it was made of."""
        return self._model

    @property
    def separable(self) -> bool:
        """Whether utilities and probabilities of some labels can be had without those of the others."""
        likelihood = self._model.likelihood
        return likelihood.labels_independent and not likelihood.has_classes and self._model.mean_function is None

    @torch.no_grad()
    def at(self, utilities: Utilities, labels: Int[Tensor, "B C"]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Mean utilities and probabilities of C labels of each row, which may differ from row to row, B x C each.

        Args:
            utilities: of B inputs, of a model that is `separable`.
            labels: their numbers.
        """
        latents, mixing = utilities.latents, utilities.mixing
        step = max(1, _BLOCK_ELEMENTS // max(1, labels.shape[1] * latents.mean.shape[1]))
        blocks = (slice(start, start + step) for start in range(0, len(labels), step))
        parts = [mixing.of_labels(latents.rows(rows), labels[rows]) for rows in blocks]
        mean, variance = Marginals.concatenate(parts)
        return mean.cpu().numpy(), self._model.likelihood.of_marginals(mean, variance).cpu().numpy()

    @torch.no_grad()
    def _top_of_label_blocks(self, utilities: Utilities, k: int, by: RankedBy) -> tuple[TopK, NDArray[np.float32]]:
        likelihood, n_rows = self._model.likelihood, len(utilities.latents.mean)
        labels = np.full((n_rows, k), PAD, dtype=np.int64)
        scores = np.full(labels.shape, -np.inf, dtype=np.float32)
        step = max(1, _BLOCK_ELEMENTS // max(n_rows, utilities.latents.mean.shape[1]))
        for start in range(0, utilities.n_utilities, step):
            columns = slice(start, start + step)
            if by == "utility":
                block = utilities.means(columns).cpu().numpy()
            else:
                block = likelihood.of_marginals(*utilities.marginals(columns)).cpu().numpy()
            # Equal scores do not enter: these labels are higher than all before. NaN does, and is refused there.
            enter = np.flatnonzero(~(block.max(axis=1) <= scores[:, -1]))
            if enter.size:
                of_block = TopK.from_scores(block[enter], k)
                found = np.hstack([labels[enter], np.where(of_block.labels == PAD, PAD, of_block.labels + start)])
                merged = TopK.from_scores(np.hstack([scores[enter], of_block.scores]), k)
                labels[enter] = np.where(merged.labels == PAD, PAD, np.take_along_axis(found, merged.labels, axis=1))
                scores[enter] = merged.scores
        best = TopK(labels, scores)
        if by == "probability":
            return best, np.where(labels == PAD, np.float32(0), scores)
        of_best = self.at(utilities, torch.from_numpy(np.maximum(labels, 0)).to(self._device))[1]
        return best, np.where(labels == PAD, 0, of_best).astype(np.float32)

    def uncertainty(self, x: Matrix) -> Iterator[tuple[slice, NDArray[Any], NDArray[Any], NDArray[Any]]]:
        """Entropies of the labels in nats, their expectation under the posterior, and variances of the utilities.

        Of many labels each is B x K; of one class per row entropies are B x 1, and variances B x K.
        """
        for rows, utilities in self.utilities(x):
            with torch.no_grad():
                parts = (*self._model.likelihood.entropies(utilities), utilities.marginals().variance)
            total, aleatoric, variance = (part.cpu().numpy() for part in parts)
            yield rows, total, aleatoric, variance

    def blocks(
        self, x: Matrix, lengths: NDArray[np.int64], unseen: NDArray[np.float32] | None = None
    ) -> Iterator[ChainDraws]:
        """All sequences at draws of the posterior, in blocks of a bounded size.

        Args:
            x: the inputs of the sequences, one after the other, CSR or array.
            lengths: of the sequences.
            unseen: sums of squares of the features of each input that x does not have, for there are none in training;
                None where there are none.
        """
        # The chain needs its functions at all draws, a few times over; latents more where their features are wide.
        per_token = 4 * self.n_draws * self._model.mixing.n_utilities + self._conditioned.width
        ends = np.cumsum(lengths)
        for sequences in _parts(lengths, max(1, _DRAWN_ELEMENTS // per_token)):
            yield self._block(x, sequences, lengths[sequences], ends[sequences], unseen)

    @torch.no_grad()
    def _block(
        self,
        x: Matrix,
        sequences: slice,
        lengths: NDArray[np.int64],
        ends: NDArray[np.int64],
        unseen: NDArray[np.float32] | None,
    ) -> ChainDraws:
        likelihood = cast(LinearChain, self._model.likelihood)  # only sequences come here
        starts = ends - lengths
        # Where draws depend on what is drawn together, sequences are drawn one by one.
        together = [(int(starts[0]), int(ends[-1]))]
        spans = together if self._conditioned.alike else zip(starts.tolist(), ends.tolist(), strict=True)
        f = torch.cat([self._draws(x, slice(*span), unseen) for span in spans], dim=1)
        # Draws of the transitions are by a generator of their own, for they must not depend on the inputs.
        return likelihood.draws_of(f, sequences, torch.from_numpy(lengths).to(self._device), self._generator(1))

    def _draws(self, x: Matrix, rows: slice, unseen: NDArray[np.float32] | None) -> Float[Tensor, "R B K"]:
        block, generator = self._inputs(x, rows), self._generator()
        length = torch.tensor([rows.stop - rows.start], device=self._device)
        f = self._model.utilities(self._conditioned, block).draws(length, self.n_draws, generator)
        if unseen is None or not unseen[rows].any():
            return f
        variance = self._conditioned.unseen_variance(torch.from_numpy(unseen[rows]).to(self._like))
        if variance is None:
            return f
        # Functions of features that nothing is known of are independent of all others.
        return f + variance.sqrt() * torch.randn(f.shape, generator=generator, device=f.device, dtype=f.dtype)

    def _generator(self, offset: int = 0) -> torch.Generator:
        return torch.Generator(self._device).manual_seed(self.seed + offset)


def _parts(lengths: NDArray[np.int64], most: int) -> Iterator[slice]:
    """Consecutive sequences whose padded size is at most `most`, or one sequence alone."""
    first, longest = 0, 0
    for i, length in enumerate(lengths.tolist()):
        longest = max(longest, length)
        if i > first and longest * (i - first + 1) > most:
            yield slice(first, i)
            first, longest = i, length
    yield slice(first, len(lengths))


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
    lists = lists_of(given)
    if lists is not None:
        if space is None:
            raise DataError("given holds lists of label names, but the labels have none; pass a matrix of -1, 0 and 1")
        refuse_nested_indicator(lists, "given")
        return space.encode(lists)
    check_label_names(given, space, "given")
    matrix = csr_matrix(check_inputs(given, name="given", of_texts="encode them as -1, 0 and 1"), copy=True)
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
