"""What is known of labels without any row that is like the input, and how far an input is from all rows.

Far from the training rows the evidence says nothing that it could have learnt to weigh, and the Gaussian process of the
evidence extrapolates. There the utility of a label has its prior, N(m_k, a^2), under which the label is as probable
as it is frequent; between, with a share s of trust in the posterior N(m, v), it is
N(s m + (1 - s) m_k, s^2 v + (1 - s^2) a^2).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from extremegp.engine.likelihoods import Likelihood

N_NEAREST = 10
"""Training rows that an input's closeness is the mean cosine with."""
_RARELY_FARTHER, _UNLIKE = 0.02, 0.8
_LEAST = 1e-6


class LabelGroups(NamedTuple):
    """Labels with equally many rows, which have one prior.

    Attributes:
        of_label: the group of each of the K labels.
        sizes: how many labels each has, G.
        means: of the prior, G.
    """

    of_label: NDArray[np.int64]
    sizes: NDArray[np.int64]
    means: NDArray[np.float64]


class UtilityPrior(nn.Module):
    """The prior of utilities, and up to which closeness it is all that is known.

    Attributes:
        unlike: closeness at which rows are no more like the training rows than chance has it: trust is 0 there.
        like: closeness from which on trust is 1.
        variance: a^2.
    """

    unlike: Tensor
    like: Tensor
    variance: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("unlike", torch.zeros(()))
        self.register_buffer("like", torch.ones(()))
        self.register_buffer("variance", torch.ones(()))

    def learn(self, known: NDArray[np.float32], unknown: NDArray[np.float32], variance: float) -> None:
        """Take what is like the training rows from them, and what is not from rows that chance has made.

        Args:
            known: closeness of training rows, each without itself. Of these 2 of 100 are farther than `like`.
            unknown: closeness of rows whose features were exchanged for each other.
            variance: of the utilities of labels over rows.
        """
        like = max(float(np.quantile(known, _RARELY_FARTHER)), _LEAST)
        self.like.fill_(like)
        # Where features say little, rows that chance has made may be as near as others.
        self.unlike.fill_(min(max(float(np.median(unknown)), 0.0), _UNLIKE * like))
        self.variance.fill_(max(variance, _LEAST))

    def groups(
        self, likelihood: Likelihood, counts: NDArray[np.float64], n_rows: float, background: float
    ) -> LabelGroups:
        """The labels by their frequencies.

        Args:
            likelihood: of one label.
            counts: rows with each label, K.
            n_rows: N, or what the rows count.
            background: the most that a label without a row is probable.
        """
        each, of_label, sizes = np.unique(counts, return_inverse=True, return_counts=True)
        least = min(background, 0.5 / n_rows)
        frequencies = np.clip(each / n_rows, least, 1 - 0.5 / max(n_rows, 1))
        means = likelihood.prior_bias(frequencies, math.ceil(0.5 / least), np.full(len(each), float(self.variance)))
        return LabelGroups(of_label, sizes, means)

    def trust(self, closeness: NDArray[np.float32]) -> NDArray[np.float32]:
        """s in [0, 1], B, for rows of some closeness, B."""
        unlike, like = float(self.unlike), float(self.like)
        return np.asarray(np.clip((closeness - unlike) / (like - unlike), 0, 1), dtype=np.float32)

    def mixed(
        self, mean: Any, variance: Any, prior_mean: NDArray[Any], trust: NDArray[Any]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Means and variances of utilities with a share of trust in a posterior; shapes that broadcast.

        The posterior's variance counts for no more than that of the prior: rows cannot make one know less.
        """
        most, square = float(self.variance), np.square(trust)
        found_mean = trust * mean + (1 - trust) * prior_mean
        found_variance = np.broadcast_to(square * np.minimum(variance, most) + (1 - square) * most, found_mean.shape)
        return np.asarray(found_mean, dtype=np.float32), np.array(found_variance, dtype=np.float32)

    def is_sound(self) -> bool:
        """Whether the numbers are such that trust is a share and a variance positive."""
        return bool(0 <= self.unlike < self.like < np.inf and 0 < self.variance < np.inf)
