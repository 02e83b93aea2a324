"""Which labels a step looks at, where there are too many for all of them (T 4.32, ML 4.2).

Labels that some row of the batch has are few and carry most of the information: they are always in, with weight 1. A
sample shared by the batch stands for the others, label k drawn with probability pi_k and weighed by 1 / pi_k. Given the
batch, sums over labels are then estimated without bias.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from extremegp.engine.sparse import SparseRows
from extremegp.settings.training import LabelSampling

# Third words of the seeds, so that the streams differ from each other and from that of the order of the rows.
_ORDER, _DRAW = 1, 2


@dataclass(frozen=True)
class LabelBatch:
    """The labels of a step.

    Attributes:
        labels: their columns in ascending order.
        weights: what each counts in sums over all labels.
        y: the labels of the batch that are 1, with columns renumbered to `labels`: B x L.
    """

    labels: Int[Tensor, " L"]
    weights: Float[Tensor, " L"]
    y: SparseRows

    def including(self, certain: Int[Tensor, " C"]) -> LabelBatch:
        """With some labels, whether drawn or not, that count 1: chosen whatever the draw, they leave no bias."""
        labels = torch.unique(torch.cat([self.labels, certain]))
        places = torch.searchsorted(labels, self.labels)
        weights = torch.ones_like(labels, dtype=self.weights.dtype).index_copy_(0, places, self.weights)
        weights[torch.searchsorted(labels, certain)] = 1.0
        y = SparseRows(self.y.offsets, places[self.y.columns], self.y.values, len(labels))
        return LabelBatch(labels, weights, y)

    def of_rows(self, rows: slice) -> LabelBatch:
        """The same labels, of some of the rows."""
        return LabelBatch(self.labels, self.weights, self.y.part(rows))


class LabelSampler:
    """Draws the labels of a step: a pure function of the seed and the step.

    Systematic sampling (Madow 1949): the inclusion probabilities lie end to end in an order shuffled once, and the
    points u, u + 1, ..., u + n - 1 for one uniform u pick the labels they fall on. So exactly n are drawn, none twice,
    and a draw costs n binary searches, whatever K.

    Args:
        label_counts: training rows with each label, K.
        n_sampled: n, from 1 to K.
        sampling: "uniform" draws all labels alike, "frequency" in proportion to the square root of 1 + their count.
        seed: decides the draws.
    """

    def __init__(self, label_counts: NDArray[np.int64], n_sampled: int, sampling: LabelSampling, *, seed: int) -> None:
        sizes = np.sqrt(label_counts + 1.0) if sampling == "frequency" else np.ones(len(label_counts))
        self.inclusion = inclusion_probabilities(sizes, n_sampled)
        self._n_sampled, self._seed = n_sampled, seed
        self._order = np.random.default_rng([seed, 0, _ORDER]).permutation(len(label_counts))
        self._ends = np.cumsum(self.inclusion[self._order])

    def draw(self, step: int) -> NDArray[np.int64]:
        """The sample of a step, in ascending order."""
        return self.drawn_from(np.random.default_rng([self._seed, step, _DRAW]).random())

    def drawn_from(self, start: float) -> NDArray[np.int64]:
        """The sample for a start u in [0, 1), in ascending order."""
        places = np.searchsorted(self._ends, start + np.arange(self._n_sampled), side="right")
        # By rounding, the last point may lie beyond the last end, or two on one label.
        return np.unique(self._order[np.minimum(places, len(self._ends) - 1)])

    def batch(
        self,
        y: scipy.sparse.csr_matrix,
        drawn: NDArray[np.int64],
        *,
        dtype: torch.dtype,
        device: torch.device,
        within: slice = slice(None),
    ) -> LabelBatch:
        """The labels that some row of y (B x K) has, and of the sample `drawn` those that none has.

        Of those only the labels of a range, numbered from its start, if `within` gives one.
        """
        if within.start is not None:
            y = y[:, within]
            drawn = drawn[slice(*np.searchsorted(drawn, [within.start, within.stop]))] - within.start
        positives = np.unique(y.indices)
        labels = np.union1d(positives, drawn)
        weights = 1.0 / self.inclusion[within][labels]
        weights[np.searchsorted(labels, positives)] = 1.0
        columns = np.searchsorted(labels, y.indices)
        return LabelBatch(
            torch.from_numpy(labels).to(device),
            torch.from_numpy(weights).to(device=device, dtype=dtype),
            SparseRows(
                torch.from_numpy(y.indptr.astype(np.int64)).to(device),
                torch.from_numpy(columns).to(device),
                torch.from_numpy(y.data).to(device=device, dtype=dtype),
                len(labels),
            ),
        )


def inclusion_probabilities(sizes: NDArray[np.float64], n_sampled: int) -> NDArray[np.float64]:
    """Probabilities proportional to positive sizes, K, that add up to `n_sampled` of at most K; capped at 1.

    Where a label would need more than 1 it gets 1, and the others share what is left.
    """
    if n_sampled >= len(sizes):
        return np.ones(len(sizes))
    order = np.argsort(-sizes)
    ordered = sizes[order]
    remaining = np.cumsum(ordered[::-1])[::-1]
    left = n_sampled - np.arange(len(sizes))
    # The first label that stays below 1 once all larger ones have 1; so do all after it.
    n_certain = int(np.argmax(left * ordered < remaining))
    inclusion = np.ones(len(sizes))
    inclusion[order[n_certain:]] = left[n_certain] * ordered[n_certain:] / remaining[n_certain]
    return inclusion
