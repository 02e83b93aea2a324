"""What is trained on, and what is held out of it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from extremegp.data import FloatCSR, FloatMatrix
from extremegp.data.rows import take_rows
from extremegp.engine.blocks import Block
from extremegp.engine.matrices import suited_form
from extremegp.errors import SettingsError
from extremegp.estimators.origin import DataOrigin
from extremegp.settings.domains import number


class Examples(NamedTuple):
    """Labelled rows, or the elements of sequences one after the other.

    Attributes:
        x: inputs, N x D.
        y: labels, N x K, or probabilities of labels or classes; of a class never seen in training a row has none.
        lengths: of the sequences; None where rows stand alone.
        weights: what each row counts, or each sequence, none of them 0; None where all count once.
        blocks: of the features; none where all are of one kind.
        labelled: which elements of sequences have a label that is known; None where all have.
    """

    x: FloatMatrix
    y: FloatCSR
    lengths: NDArray[np.int64] | None = None
    weights: NDArray[np.float64] | None = None
    blocks: tuple[Block, ...] = ()
    labelled: NDArray[np.bool_] | None = None

    @property
    def n_units(self) -> int:
        """How many rows or sequences."""
        return self.x.shape[0] if self.lengths is None else len(self.lengths)

    @property
    def row_weights(self) -> NDArray[np.float64] | None:
        """What each row counts: that of its sequence."""
        if self.weights is None or self.lengths is None:
            return self.weights
        return np.repeat(self.weights, self.lengths)

    @property
    def counted(self) -> NDArray[np.float64] | None:
        """What each row counts in a score: nothing where its label is not known."""
        if self.labelled is None:
            return self.row_weights
        known = self.labelled.astype(np.float64)
        return known if self.row_weights is None else known * self.row_weights

    def part(self, units: NDArray[np.int64]) -> Examples:
        """Some of the rows or sequences."""
        weights = None if self.weights is None else self.weights[units]
        if self.lengths is None:
            return self._replace(x=take_rows(self.x, units), y=take_rows(self.y, units), weights=weights)
        ends, lengths = np.cumsum(self.lengths)[units], self.lengths[units]
        rows = np.concatenate([np.arange(end - n, end) for end, n in zip(ends, lengths, strict=True)])
        labelled = None if self.labelled is None else self.labelled[rows]
        return Examples(self.x[rows], self.y[rows], lengths, weights, labelled=labelled)

    def in_suited_form(self) -> Examples:
        """With inputs in the form that is faster for them, CSR or an array: equal numbers then train equal models."""
        return self if self.blocks else self._replace(x=suited_form(self.x))

    def origin(self, content: str) -> DataOrigin:
        """What is told of it, whose hash is known."""
        (n_rows, n_features), n_labels = self.x.shape, self.y.shape[1]
        return DataOrigin(n_rows, n_features, n_labels, self.n_units, content)

    def arrays(self) -> list[Any]:
        """All of it, for a fingerprint."""
        return [part for part in (self.x, self.y, self.lengths, self.weights) if part is not None]


def split(
    data: Examples, *, fraction: Any, patience: Any, rng: np.random.Generator
) -> tuple[Examples, Examples | None]:
    """Training part and validation part, if any.

    Raises:
        SettingsError: `fraction` is outside its domain, or there is patience without validation.
    """
    held = int(number("validation_fraction", fraction, low=0, high=0.9) * data.n_units)
    if not held:
        if patience is not None:
            raise SettingsError("patience needs validation data: set validation_fraction, or pass validation")
        return data, None
    order = rng.permutation(data.n_units)
    return data.part(order[held:]), data.part(order[:held])
