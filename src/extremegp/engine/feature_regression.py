"""A mean function for utilities: ridge regression of the labels on features, in closed form.

With features a(x) of a Gaussian process (`Landmarks`) this is its posterior under squared loss (Rasmussen and Williams
2006, 2.1.2 and 2.2): one division for all labels, since A'A is diagonal. Its leave-one-out predictions (5.4.2) show the
classifier in training what the regression says of rows that it has not seen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from extremegp.engine.links import Link, linked
from extremegp.engine.matrices import column_means
from extremegp.engine.part import Part
from extremegp.engine.selection import Selection
from extremegp.engine.sparse import Inputs, fill

NOISES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Variances of the noise, beside covariances of 1, that are tried."""
FLOOR = 2.2  # of what the link takes, beside the variance of the label
_CHOOSING_ROWS, _PIECE = 3000, 4096
_MOST_LEVERAGE = 1 - 1e-4
_BY = "the squared error of the regression of the labels, each row left out"


class Regressed(NamedTuple):
    """What came of a regression.

    Attributes:
        logits: what it says of each of its own training rows without the row itself, N x K.
        selection: the noise that was chosen.
    """

    logits: NDArray[np.float32]
    selection: Selection


class FeatureRegression(Part):
    """c_k (link t_k(x) - link mu_k), with t_k(x) = mu_k + a(x)'b_k the regression of label k.

    Far from the training rows, where a = 0, this is zero. The link is the logit of labels that are present or not, and
    the logarithm of one class out of K, as `linked` has them. One c is learnt, beside functions of the labels; labels
    that have none, because they came later, have c = 1.

    Args:
        n_features: M.
        n_labels: K.
        link: "logit" or "log".
    """

    value_limits = {"noise": (1e-30, 1e30), "taught": (0.0, 1.0)}  # noqa: RUF012 (a mapping that nothing changes)

    coefficients: Float[Tensor, "M K"]
    frequencies: Float[Tensor, " K"]
    noise: Float[Tensor, ""]
    taught: Float[Tensor, " K"] | None

    def __init__(self, n_features: int, n_labels: int, *, link: Link = "logit") -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.ones(1))
        self.register_buffer("coefficients", torch.zeros(n_features, n_labels))
        self.register_buffer("frequencies", torch.full((n_labels,), 0.5))
        self.register_buffer("noise", torch.ones(()))
        self.register_buffer("taught", torch.ones(n_labels))
        self.link: Link = link

    def expect(self, names: Collection[str]) -> None:
        """Models of earlier versions know neither the noise nor that labels may have come later."""
        if "noise" not in names:
            self._buffers.pop("noise", None)
        if "taught" not in names:
            self.taught = None

    def forward(self, a: Inputs) -> Float[Tensor, "B K"]:
        """c_k (link t_k - link mu_k) of inputs with features a."""
        return self.scaled(self.logits(a))

    def scaled(self, logits: Float[Tensor, "B K"]) -> Float[Tensor, "B K"]:
        """c_k times what `logits` gave; of some of the labels only where all were taught."""
        return self.slopes() * logits

    def slopes(self) -> Float[Tensor, " *K"]:
        """c_k, one number where it is the same of all."""
        if self.taught is None or bool((self.taught == 1).all()):
            return self.slope
        return torch.where(self.taught == 1, self.slope, 1.0)

    def logits(self, a: Inputs) -> Float[Tensor, "B K"]:
        """link t_k - link mu_k of inputs with features a, B x M."""
        assert isinstance(a, Tensor)
        return self.linked(self.regressed(a))

    def regressed(self, a: Float[Tensor, "B M"]) -> Float[Tensor, "B K"]:
        """t_k of inputs with features a."""
        return self.frequencies + a.to(self.coefficients) @ self.coefficients

    def linked(self, t: Float[Tensor, "B K"]) -> Float[Tensor, "B K"]:
        """link t - link mu of regressions t."""
        return linked(t, self.frequencies, link=self.link, floor=FLOOR)

    @torch.no_grad()
    def leave_out(self) -> None:
        """Be zero everywhere, for good."""
        self.slope.zero_()
        self.slope.requires_grad_(False)

    @property
    def is_left_out(self) -> bool:
        """Whether it is zero everywhere, for good."""
        return float(self.slope.detach()) == 0

    def step_scales(self) -> dict[nn.Parameter, float]:
        # One number for all, that many steps agree about.
        return {self.slope: 5.0}

    @torch.no_grad()
    def fit(
        self,
        a: Float[Tensor, "N M"],
        y: scipy.sparse.csr_matrix,
        *,
        weights: NDArray[np.float64] | None = None,
    ) -> Regressed:
        """Become the regression of the labels; what it says of its own training rows when each is left out.

        The variance of the noise is that of `NOISES` whose leave-one-out predictions have the least squared error, on
        some of the rows.

        Args:
            a: features of the rows, whose weighted sum of squares is diagonal.
            y: labels, N x K.
            weights: what each row counts; None for 1.
        """
        n_rows = len(a)
        own = torch.ones(n_rows) if weights is None else torch.from_numpy(weights).float()
        counted = float(own.sum())
        fill(self.frequencies, limited(column_means(y, weights), counted))
        squares, projected = torch.zeros(a.shape[1]), torch.zeros(a.shape[1], y.shape[1])
        for rows, part, labels in _pieces(a, y):
            weighed = part * own[rows, None]
            squares += (weighed * part).sum(0)
            projected.addmm_(weighed.T, labels - self.frequencies)
        some = np.linspace(0, n_rows - 1, min(n_rows, _CHOOSING_ROWS)).round().astype(np.int64)
        of_some, labels = a[some], torch.from_numpy(y[some].toarray()).float()

        def left_out(part: Tensor, labels: Tensor, noise: float, own: Tensor) -> Tensor:
            precision = squares + noise
            hat = (own * (part.square() @ precision.reciprocal())).clamp(max=_MOST_LEVERAGE).unsqueeze(1)
            fitted = self.frequencies + part @ (projected / precision.unsqueeze(1))
            return (fitted - hat * labels) / (1 - hat)

        def error(noise: float) -> float:
            residuals = (labels - left_out(of_some, labels, noise, own[some])).square().sum(1)
            return float((own[some] * residuals).sum() / own[some].sum())

        errors = {noise: error(noise) for noise in NOISES}
        noise = min(NOISES, key=lambda noise: errors[noise])
        self.noise.fill_(noise)
        if self.taught is not None:
            self.taught.fill_(1.0)
        self.coefficients.copy_(projected / (squares + noise).unsqueeze(1))
        logits = np.empty(y.shape, dtype=np.float32)
        for rows, part, of_rows in _pieces(a, y):
            logits[rows] = self.linked(left_out(part, of_rows, noise, own[rows])).numpy()
        scores = (((noise,), error) for noise, error in errors.items())
        return Regressed(logits, Selection.of(_BY, {"noise_variance": noise}, scores))


def limited(frequencies: NDArray[np.float64], n_rows: float) -> NDArray[np.float64]:
    """Frequencies of labels of so many rows, those of no row and of all a little away from zero and one."""
    least = 0.3 / (n_rows + 1)
    return np.clip(frequencies, least, 1 - least)


def _pieces(a: Float[Tensor, "N M"], y: scipy.sparse.csr_matrix) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Blocks of rows, with their features and labels."""
    for start in range(0, len(a), _PIECE):
        rows = slice(start, min(start + _PIECE, len(a)))
        yield rows, a[rows], torch.from_numpy(y[rows].toarray()).float()
