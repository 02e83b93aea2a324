"""What a step of training looks at."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from jaxtyping import Float, Int
from torch import Tensor

from extremegp.engine.sparse import Inputs, SparseRows


@dataclass(frozen=True)
class Batch:
    """B rows and what is known of them, on the device of the model.

    Where several processes share the work, `x`, `rows` and `lengths` are of this process's rows.

    Attributes:
        x: the inputs, B x D.
        y: the labels that are 1, or what they are of soft labels, in (0, 1] and of classes adding up to 1, or counts,
            for a likelihood of counts, B x L.
        scale: how many rows each of the batch stands for: N / B where all are drawn alike.
        rows: the numbers of the inputs among all training rows; None for rows that are not trained on.
        lengths: of the S sequences that the rows are, one after the other; None where rows stand alone.
        weights: what the log-likelihood of each row counts, or of each sequence; None for 1 throughout.
        label_weights: weights of the L labels in sums over labels, 1 for every label that some row has; None for 1
            throughout. Weights by which a sample of the others stands for all make the sum an estimate.
        mean_logits: what the mean function scales, where it is known; for rows that it was fitted to, its predictions
            without them.
        seed: decides what is drawn at random; it differs from step to step.
        n_draws: R, how many draws an expectation without closed form is estimated from.
    """

    x: Inputs
    y: SparseRows
    scale: float = 1.0
    rows: Int[Tensor, " B"] | None = None
    lengths: Int[Tensor, " S"] | None = None
    weights: Float[Tensor, " n"] | None = None
    label_weights: Float[Tensor, " L"] | None = None
    mean_logits: Float[Tensor, "B L"] | None = None
    seed: int = 0
    n_draws: int = 1

    def sum(self, terms: Float[Tensor, "*R n"]) -> Float[Tensor, ""]:
        """sum_i w_i t_i over the rows, or the sequences, and over all R."""
        return weighted_sum(terms, self.weights)

    @cached_property
    def weighted_y(self) -> SparseRows:
        """w_i y_ik, of rows that stand alone."""
        if self.weights is None:
            return self.y
        return replace(self.y, values=self.y.values * self.weights.index_select(0, self.y.rows))


def weighted_sum(terms: Float[Tensor, "*R n"], weights: Float[Tensor, " n"] | None) -> Float[Tensor, ""]:
    """sum_i w_i t_i over all R; weights are 1 by default."""
    return terms.sum() if weights is None else (terms * weights).sum()
