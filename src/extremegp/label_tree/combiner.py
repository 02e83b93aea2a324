"""Learning what the evidence of trees and neighbours is worth, on rows whose labels the trees have not seen."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray

from extremegp.engine.integrals.logistic import expected_sigmoid
from extremegp.engine.model import VariationalModel
from extremegp.engine.part import TrainingData
from extremegp.label_tree.evidence_gain import Gain, gain_of
from extremegp.label_tree.model import LabelTreeModel, combiner_settings, row_blocks
from extremegp.prediction.predictor import Predictor
from extremegp.settings.training import TrainingSettings
from extremegp.training.distributed import World
from extremegp.training.loop import train
from extremegp.training.progress import NoReporter

_MOST_PAIRS = 400_000
_BATCH_SIZE, _STEPS = 2000, 200
_DECIDING_ROWS = 512
_MOST_UNKNOWN, _MOST_SPREAD = 500, 20_000


def train_combiner(
    model: LabelTreeModel,
    x: scipy.sparse.csr_matrix,
    y: scipy.sparse.csr_matrix,
    held_out: NDArray[np.int64],
    *,
    seed: int,
    weights: NDArray[np.float64] | None = None,
    propensities: NDArray[np.float64] | None = None,
) -> list[dict[str, float]]:
    """Learn the Gaussian process of the evidence, what other labels have, and the prior.

    Args:
        model: with its trees and rows in place; the rest of it changes.
        x: inputs of the training rows, N x D.
        y: their labels that are 1, N x K.
        held_out: the rows to learn from.
        seed: decides everything.
        weights: what each row counts, N; None for 1.
        propensities: how likely a label that applies is recorded, K; None where all are. Then labels that are not
            recorded count as far as they apply all the same, by what was learnt of those that are recorded: a step of
            expectation and maximisation for y ~ Bernoulli(e_k p(applies)).

    Returns:
        A record per epoch.

    Raises:
        TrainingInterrupted: on Ctrl-C.
    """
    values, targets, n_missed, n_others = [], [], 0.0, 0.0
    counted: list[NDArray[np.float64]] = []
    labels: list[NDArray[np.int32]] = []
    closeness: list[NDArray[np.float32]] = []
    row_weights = np.ones(x.shape[0]) if weights is None else weights
    for block in row_blocks(len(held_out)):
        rows = held_out[block]
        evidence, truth = model.evidence(x[rows], own=rows), y[rows]
        present = np.asarray(truth[evidence.rows, evidence.labels]).ravel() > 0
        values.append(evidence.values)
        closeness.append(evidence.closeness)
        labels.append(evidence.labels)
        targets.append(present)
        counted.append(row_weights[rows][evidence.rows])
        n_missed += float(np.diff(truth.indptr) @ row_weights[rows] - counted[-1][present].sum())
        n_others += float(truth.shape[1] * row_weights[rows].sum() - counted[-1].sum())
    e, present, of_pairs = np.concatenate(values), np.concatenate(targets), np.concatenate(counted)
    of_labels = np.concatenate(labels)
    # And half a miss among as many labels as have half a label on average, so that none is impossible.
    entries = row_weights.sum() * y.shape[1] / (np.diff(y.indptr) @ row_weights)
    model.background.fill_((n_missed + 0.5) / (n_others + max(1.0, 0.5 * entries)))
    rng = np.random.default_rng([seed, 4])
    n_pairs = len(e)
    if n_pairs > _MOST_PAIRS:
        chosen = np.sort(rng.choice(len(e), _MOST_PAIRS, replace=False))
        e, present, of_pairs, of_labels = e[chosen], present[chosen], of_pairs[chosen], of_labels[chosen]
    spread = e.std(axis=0)
    model.centre.copy_(torch.from_numpy(e.mean(axis=0)))
    model.scale.copy_(torch.from_numpy(np.where(spread > 1e-6, spread, 1).astype(np.float32)))
    inputs = ((e - model.centre.numpy()) / model.scale.numpy()).astype(np.float32)
    pair_weights = None if weights is None else of_pairs
    of_pairs_propensities = None if propensities is None else propensities[of_labels]
    model.combiner.load_state_dict(combiner_settings(model.settings).build().state_dict())
    history = train_on_pairs(model.combiner, inputs, present, seed, pair_weights, of_pairs_propensities)
    model.requires_grad_(False)
    if model.prior is not None:
        unknown = model.rows.exchanged(x[held_out[:_MOST_UNKNOWN]], rng)
        model.prior.learn(np.concatenate(closeness), unknown, _spread(model, inputs))
    return [record | {"elbo": record["elbo"] * n_pairs / len(e)} for record in history]


def gain_of_all_rows(
    model: LabelTreeModel, x: scipy.sparse.csr_matrix, y: scipy.sparse.csr_matrix, held_out: NDArray[np.int64]
) -> Gain:
    """How much more the regression on all rows tells of rows held out than the other evidence does; see `gain_of`."""
    own = held_out[np.linspace(0, len(held_out) - 1, min(len(held_out), _DECIDING_ROWS)).round().astype(np.int64)]
    evidence = model.evidence(x[own], own=own)
    present = np.asarray(y[own][evidence.rows, evidence.labels]).ravel() > 0
    weights = model.rows.row_weights()[own][evidence.rows]
    without = np.delete(evidence.values, model.settings.of_all_rows, axis=1)
    return gain_of(evidence.values, without, present, evidence.rows, weights)


def train_on_pairs(
    combiner: VariationalModel,
    inputs: NDArray[np.float32],
    present: NDArray[np.bool_],
    seed: int,
    weights: NDArray[np.float64] | None,
    propensities: NDArray[np.float64] | None = None,
) -> list[dict[str, float]]:
    """Train the Gaussian process of the evidence on pairs of a row and a label, from its start.

    Args:
        combiner: as it was built.
        inputs: scaled evidence of the pairs.
        present: whether the label is recorded.
        seed: decides everything.
        weights: what each pair counts; None for 1.
        propensities: of the labels of the pairs, see `train_combiner`.

    Returns:
        A record per epoch.
    """
    start = {name: tensor.clone() for name, tensor in combiner.state_dict().items()}
    history = _train(combiner, inputs, present, seed, weights)
    if propensities is not None:
        applying = _applying(combiner, inputs, present, propensities)
        combiner.load_state_dict(start)
        history = _train(combiner, inputs, applying, seed, weights)
    return history


def _train(
    combiner: VariationalModel,
    inputs: NDArray[np.float32],
    targets: NDArray[Any],
    seed: int,
    weights: NDArray[np.float64] | None,
) -> list[dict[str, float]]:
    batch, labels = min(_BATCH_SIZE, len(inputs)), scipy.sparse.csr_matrix(targets[:, None], dtype=np.float32)
    epochs = max(2, math.ceil(_STEPS * batch / len(inputs)))
    settings = TrainingSettings(epochs=epochs, batch_size=batch, learning_rate=0.05, seed=seed)
    combiner.start(TrainingData(inputs, labels, np.random.default_rng([seed, 6]), weights=weights))
    combiner.requires_grad_(True)
    history = train(combiner, inputs, labels, settings, weights=weights, reporter=NoReporter(), world=World())
    combiner.requires_grad_(False)
    return history


def _applying(
    combiner: VariationalModel,
    inputs: NDArray[np.float32],
    recorded: NDArray[np.bool_],
    propensities: NDArray[np.float64],
) -> NDArray[np.float64]:
    """How probable it is that labels apply, given whether they are recorded: r (1 / e - 1) / (1 - r) of those not."""
    moments = [utilities.marginals() for _, utilities in Predictor(combiner).utilities(inputs)]
    mean, variance = (torch.cat([block[part] for block in moments])[:, 0] for part in range(2))
    chances = expected_sigmoid(mean, variance).numpy().astype(np.float64).clip(0, 1 - 1e-6)
    missed = chances * (1 / propensities - 1) / (1 - chances)
    return np.where(recorded, 1.0, np.minimum(missed, 1))


def _spread(model: LabelTreeModel, inputs: NDArray[np.float32]) -> float:
    """The variance of utilities over pairs of a row and a label: of their means, and the mean of their own."""
    some = inputs[np.linspace(0, len(inputs) - 1, min(len(inputs), _MOST_SPREAD)).round().astype(np.int64)]
    moments = [utilities.marginals() for _, utilities in Predictor(model.combiner).utilities(some)]
    mean, variance = (torch.cat([block[part] for block in moments]) for part in range(2))
    return float(mean.var(correction=0) + variance.mean())
