"""The kernel of the regression of the labels: family, weights and noise, by what it says of rows left out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from extremegp.engine.blocks import Block
from extremegp.engine.families import FAMILIES, covariances_of
from extremegp.engine.lengthscales import (
    Learnt,
    columns_in,
    exponents_of,
    frequencies_of,
    label_projection,
    learn_lengthscales,
    noises,
)
from extremegp.engine.linalg import cholesky
from extremegp.engine.selection import Selection
from extremegp.engine.sparse import Matrix

_FEW_ROWS, _MORE_ROWS = 1000, 3000
_SCALES, _NOISES, _MORE_NOISES = (1.0, 1 / 3), (1.0, 1 / 3), (3.0, 1.0, 1 / 3)
_CHANCE = 3.0  # standard errors
_BY = (
    f"the squared error of the regression of the labels, each row left out ({FAMILIES[0]}, unless another is better by "
    f"{_CHANCE:g} standard errors, and by what more rows change is for all)"
)


def learn_kernel(
    x: Matrix,
    y: scipy.sparse.csr_matrix,
    *,
    rng: np.random.Generator,
    weights: NDArray[np.float64] | None = None,
    blocks: Sequence[Block] = (),
) -> Learnt:
    """Family, weights of the features and noise that predict rows left out best; see `learn_lengthscales`.

    Weights are learnt for the first family. Where another predicts some rows better with these weights, by more than
    chance makes of them, they are learnt further for that one, and both are tried on more rows. What a family gains
    falls or grows about linearly with the logarithm of the number of rows: by this the other one has to be better with
    all rows.
    """
    first = learn_lengthscales(x, y, rng=rng, weights=weights, blocks=blocks)
    few = _Rows.drawn(x, y, _FEW_ROWS, rng, weights)
    tried = {
        key: errors
        for scale in _SCALES
        for family in range(len(FAMILIES))
        for key, errors in few.tried(first._replace(family=family), scale, _NOISES, blocks).items()
    }
    of_first = _best(tried, 0)
    other = min(range(1, len(FAMILIES)), key=lambda family: float(tried[_best(tried, family)].mean()))
    of_other = _best(tried, other)
    won, key = first, of_first
    if _gain(tried[of_first], tried[of_other]) > 0:
        start = first._replace(
            log_weights=first.log_weights + np.float32(math.log(of_other.weight_scale)),
            noise=of_other.noise_scale * first.noise,
            family=other,
        )
        second = learn_lengthscales(x, y, rng=rng, weights=weights, blocks=blocks, start=start)
        gains: list[tuple[int, float]] = []
        for rows in (few, *([_Rows.drawn(x, y, _MORE_ROWS, rng, weights)] if x.shape[0] > _FEW_ROWS else [])):
            found = [rows.tried(learnt, 1.0, _MORE_NOISES, blocks) for learnt in (first, second)]
            best = [_best(errors, learnt.family) for errors, learnt in zip(found, (first, second), strict=True)]
            tried |= found[0] | found[1]
            gains.append((len(rows), _gain(found[0][best[0]], found[1][best[1]])))
            of_first, of_other = best
        key = of_first
        if min(gain for _, gain in gains) > 0 and _with_all(gains, x.shape[0]) > 0:
            won, key = second, of_other
    selection = Selection.of(
        _BY,
        _named(key),
        [([*_named(each).values()], float(errors.mean())) for each, errors in tried.items()],
    )
    return won._replace(tried=selection)


class _Tried(NamedTuple):
    family: int
    rows: int
    weight_scale: float
    noise_scale: float


def _named(tried: _Tried) -> dict[str, float | str]:
    return tried._asdict() | {"family": FAMILIES[tried.family]}


def _best(tried: dict[_Tried, NDArray[np.float64]], family: int) -> _Tried:
    """Of a family, what has the least error."""
    return min((key for key in tried if key.family == family), key=lambda key: float(tried[key].mean()))


def _gain(errors: NDArray[np.float64], fewer: NDArray[np.float64]) -> float:
    """The share of the errors that is gained; 0 where chance may be the reason."""
    gains = errors - fewer
    gain = float(gains.mean())
    return gain / float(errors.mean()) if gain > _CHANCE * float(gains.std()) / math.sqrt(len(gains)) else 0.0


def _with_all(gains: Sequence[tuple[int, float]], n_rows: int) -> float:
    """The gain with all rows, from those with fewer and with more."""
    if len(gains) == 1:
        return gains[0][1]
    (few, of_few), (more, of_more) = gains
    return of_more + (of_more - of_few) * math.log(n_rows / more) / math.log(more / few)


class _Rows(NamedTuple):
    """Rows that kernels are tried on."""

    x: Matrix
    targets: Float[Tensor, "B K"]
    precisions: Tensor | None
    counts: Float[Tensor, " B"]

    @classmethod
    def drawn(
        cls,
        x: Matrix,
        y: scipy.sparse.csr_matrix,
        most: int,
        rng: np.random.Generator,
        weights: NDArray[np.float64] | None,
    ) -> _Rows:
        """As many rows as there may be, at random."""
        rows = np.sort(rng.choice(x.shape[0], size=min(most, x.shape[0]), replace=False))
        projection = label_projection(y.shape[1], rng)
        own = None if weights is None else weights[rows]
        targets = torch.from_numpy(y[rows].toarray()).float() - torch.from_numpy(frequencies_of(y[rows], own))
        targets = targets if projection is None else targets @ projection
        if own is None:
            return cls(x[rows], targets, None, torch.ones(len(targets)))
        precisions = torch.from_numpy(own).float()
        return cls(x[rows], targets, precisions, precisions / precisions.mean())

    def __len__(self) -> int:
        return len(self.targets)

    @torch.no_grad()
    def tried(
        self, learnt: Learnt, scale: float, factors: Sequence[float], blocks: Sequence[Block]
    ) -> dict[_Tried, NDArray[np.float64]]:
        """Squared errors of the rows, each left out, times what they count, with the weights and the noise scaled."""
        log_weights = torch.from_numpy(learnt.log_weights) + math.log(scale)
        covariance = torch.zeros(len(self), len(self))
        for part, share in zip(columns_in(self.x, blocks), learnt.shares.tolist(), strict=True):
            exponents = exponents_of(part.of_matrix(self.x), log_weights[part.range])
            covariance += share * covariances_of(exponents, learnt.family)
        return {
            _Tried(learnt.family, len(self), scale, factor): self._errors(covariance, factor * learnt.noise)
            for factor in factors
        }

    def _errors(self, covariance: Tensor, noise: float) -> NDArray[np.float64]:
        noisy = covariance.clone()
        noisy.diagonal().add_(noise if self.precisions is None else noises(noise, self.precisions))
        precision = torch.cholesky_inverse(cholesky(noisy))
        errors = (precision @ self.targets) / precision.diagonal().unsqueeze(1)
        return np.asarray((self.counts * errors.square().sum(1)).double())
