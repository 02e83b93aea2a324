"""A part of the rows on which settings of landmarks are tried, and rows held out of it."""

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

from extremegp.engine.batch import Batch
from extremegp.engine.blocks import Block
from extremegp.engine.feature_regression import FeatureRegression
from extremegp.engine.landmarks import Landmarks
from extremegp.engine.latents import FeatureGP
from extremegp.engine.lengthscales import Learnt, chosen
from extremegp.engine.likelihoods.base import Likelihood
from extremegp.engine.matrices import column_means
from extremegp.engine.mean import points_kept
from extremegp.engine.mixing import IdentityMixing
from extremegp.engine.model import VariationalModel
from extremegp.engine.part import TrainingData
from extremegp.engine.sparse import Matrix, SparseRows, fill
from extremegp.training.label_variances import LabelVariances, evidence_bounds, label_variances
from extremegp.training.schedule import batches_per_epoch, epoch_batches, one_cycle

TRIAL_ROWS = 2400
_HELD, _LANDMARKS, _LABELS = 0.25, 500, 200
_EPOCHS, _LEAST_STEPS, _BATCH, _STEP, _RATE = 8, 100, 120, 0.3, 0.05


class HeldOut(NamedTuple):
    """Log-likelihoods of rows held out.

    Attributes:
        scores: N.
        weights: what each row counts; None for 1.
    """

    scores: NDArray[np.float64]
    weights: NDArray[np.float64] | None

    @property
    def mean(self) -> float:
        return float(np.average(self.scores, weights=self.weights))

    def is_better(self, simpler: HeldOut, errors: float) -> bool:
        """Whether they are higher than those of something simpler, by so many standard errors of the mean."""
        gains = self.scores - simpler.scores
        shares = np.full(len(gains), 1 / len(gains)) if self.weights is None else self.weights / self.weights.sum()
        mean = float(shares @ gains)
        return mean > errors * math.sqrt(float(shares**2 @ (gains - mean) ** 2))


class SomeRows(NamedTuple):
    """Some rows with landmarks among them, whose features depend on the weights."""

    landmarks: Landmarks
    x: Matrix
    y: scipy.sparse.csr_matrix
    row_weights: NDArray[np.float64] | None

    @classmethod
    def of(cls, data: TrainingData, rows: NDArray[np.int64], learnt: Learnt, blocks: Sequence[Block]) -> SomeRows:
        x = data.x[rows]
        kept, n_stored = points_kept(x, min(_LANDMARKS, len(rows)), blocks)
        landmarks = Landmarks(kept, n_stored, data.x.shape[1], blocks=blocks)
        points = landmarks.kept
        points.keep(x[chosen(len(rows), kept)])
        points.set_kernel(learnt)
        return cls(landmarks, x, data.y[rows], None if data.weights is None else data.weights[rows])

    @classmethod
    def drawn(cls, data: TrainingData, most: int, learnt: Learnt, blocks: Sequence[Block]) -> SomeRows:
        """As many rows as there may be, at random."""
        rows = data.rng.choice(data.n_rows, min(most, data.n_rows), replace=False)
        return cls.of(data, np.sort(rows), learnt, blocks)

    @torch.no_grad()
    def features(self, log_weights: NDArray[np.float32]) -> Float[Tensor, "N M"]:
        fill(self.landmarks.kept.weights, np.exp(log_weights))
        return self.landmarks.rotate(self.x, self.row_weights)

    def variances(
        self, log_weights: NDArray[np.float32], likelihood: Likelihood, labels: NDArray[np.int64]
    ) -> LabelVariances:
        """What the evidence says of variances of these labels."""
        some = likelihood.select(torch.from_numpy(labels))
        bounds = evidence_bounds(self.features(log_weights), self.y[:, labels], some, self.row_weights)
        return label_variances(bounds)


class Trial(NamedTuple):
    """Rows to train on and rows held out, and what is the same whatever is tried."""

    rows: SomeRows
    labels: NDArray[np.int64]
    tested: tuple[Matrix, scipy.sparse.csr_matrix, NDArray[np.float64] | None]
    likelihood: Likelihood
    seed: int

    @classmethod
    def of(cls, data: TrainingData, likelihood: Likelihood, learnt: Learnt, blocks: Sequence[Block]) -> Trial | None:
        """Some rows; None where there are too few of them."""
        rng, n_rows = data.rng, min(TRIAL_ROWS, data.n_rows)
        order = rng.choice(data.n_rows, n_rows, replace=False)
        held = round(_HELD * n_rows)
        if held < 1:
            return None
        fitted, tested = np.sort(order[held:]), np.sort(order[:held])
        labels = np.arange(data.y.shape[1])
        if likelihood.labels_independent and not likelihood.has_classes and len(labels) > _LABELS:
            labels = np.sort(rng.choice(len(labels), _LABELS, replace=False))
            likelihood = likelihood.select(torch.from_numpy(labels))
        rows = SomeRows.of(data, fitted, learnt, blocks)
        rows = rows._replace(y=rows.y[:, labels])
        held_weights = None if data.weights is None else data.weights[tested]
        held_out = data.x[tested], data.y[tested][:, labels], held_weights
        return cls(rows, labels, held_out, likelihood, int(rng.integers(2**31)))

    def variances(self, log_weights: NDArray[np.float32]) -> NDArray[np.float64]:
        """Of labels, by the evidence of the rows that are trained on."""
        return self.rows.variances(log_weights, self.likelihood, np.arange(len(self.labels))).variances

    def scores(
        self, log_weights: NDArray[np.float32], variance: float | NDArray[np.float64], *, with_mean: bool = True
    ) -> HeldOut:
        """Log-likelihoods of the rows held out."""
        x, y, weights = self.tested
        a = self.rows.features(log_weights)
        with torch.no_grad():
            held = self.rows.landmarks(x)
        variances = np.full(self.likelihood.n_utilities(y.shape[1]), variance)
        of_rows = self.rows.y, self.rows.row_weights
        model, logits = of_features(a, of_rows[0], self.likelihood, variances, of_rows[1], with_mean=with_mean)
        natural_fit(model, a, *of_rows, logits, seed=self.seed)
        with torch.no_grad():
            predicted = self.likelihood.predict(model.utilities(model.latents.condition(), held)).expectations
        return HeldOut(
            log_scores(recorded(self.likelihood, predicted), y, classes=self.likelihood.has_classes), weights
        )


def of_features(
    a: Float[Tensor, "N M"],
    y: scipy.sparse.csr_matrix,
    likelihood: Likelihood,
    variances: NDArray[np.float64],
    weights: NDArray[np.float64] | None,
    *,
    with_mean: bool = True,
) -> tuple[VariationalModel, NDArray[np.float32]]:
    """The model of features, as it starts, and what its mean function says of each row without the row itself."""
    n_utilities = likelihood.n_utilities(y.shape[1])
    frequencies = column_means(y, weights)
    scales = torch.from_numpy(0.5 * np.log(variances)).float()
    bias = likelihood.prior_bias(frequencies, y.shape[0], variances)
    mixing = IdentityMixing(scales, torch.from_numpy(bias).float(), learn_scales=False, learn_bias=False)
    latents = FeatureGP(n_utilities, a.shape[1])
    latents.spread(a, variances * likelihood.curvature(frequencies))
    assert likelihood.link is not None
    mean = FeatureRegression(a.shape[1], y.shape[1], link=likelihood.link)
    logits = mean.fit(a, y, weights=weights).logits
    if not with_mean:
        mean.leave_out()
    return VariationalModel(latents, mixing, likelihood, mean), logits


def natural_fit(
    model: VariationalModel,
    a: Float[Tensor, "N M"],
    y: scipy.sparse.csr_matrix,
    weights: NDArray[np.float64] | None,
    mean_logits: NDArray[np.float32],
    *,
    seed: int,
) -> None:
    """A few passes over few rows, and more over very few."""
    assert model.mean_function is not None
    optimizer = torch.optim.Adam([model.mean_function.slope], lr=_RATE)
    n_rows = len(a)
    epochs = max(_EPOCHS, math.ceil(_LEAST_STEPS / batches_per_epoch(n_rows, _BATCH)))
    batches = [rows for epoch in range(epochs) for rows in epoch_batches(n_rows, _BATCH, seed=seed, epoch=epoch)]
    for step, rows in enumerate(batches):
        batch = Batch(
            a[rows],
            SparseRows.from_scipy(y[rows], dtype=a.dtype, device=a.device),
            scale=n_rows / len(rows),
            weights=None if weights is None else torch.from_numpy(weights[rows]).float(),
            mean_logits=torch.from_numpy(mean_logits[rows]),
        )
        model.zero_grad()
        (-model.elbo(batch).bound / n_rows).backward()  # type: ignore[no-untyped-call]
        share = one_cycle(step / len(batches))
        model.latents.natural_step(_STEP * share, n_rows)
        optimizer.param_groups[0]["lr"] = _RATE * share
        optimizer.step()


def recorded(likelihood: Likelihood, applies: Float[Tensor, "B K"]) -> Float[Tensor, "B K"]:
    """How likely labels are recorded that apply with these probabilities."""
    propensities = getattr(likelihood, "propensities", None)
    return applies if propensities is None else applies * propensities


def log_scores(expectations: Float[Tensor, "B K"], y: scipy.sparse.csr_matrix, *, classes: bool) -> NDArray[np.float64]:
    """Log-likelihoods of the labels of every row under what is expected of them, B."""
    p = expectations.double().clamp(1e-12, 1 - 1e-12)
    present = y.tocoo()
    rows, columns, values = (torch.from_numpy(part) for part in (present.row, present.col, present.data.astype(float)))
    rows, columns = rows.long(), columns.long()
    found = p[rows, columns]
    if classes:
        of_rows, terms = torch.zeros(len(p), dtype=torch.float64), found.log()
    else:
        of_rows, terms = torch.log1p(-p).sum(1), torch.logit(found)
    scores: NDArray[np.float64] = of_rows.index_add_(0, rows, values * terms).numpy()
    return scores
