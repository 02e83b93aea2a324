"""Maximisation of a bound that has no noise, on all data at once: L-BFGS (Liu and Nocedal 1989)."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import scipy.optimize
import scipy.sparse
import torch
from numpy.typing import NDArray
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from extremegp.engine.model import VariationalModel
from extremegp.engine.sparse import Matrix
from extremegp.settings.training import TrainingSettings
from extremegp.training.distributed import World
from extremegp.training.interrupts import GracefulInterrupt, TrainingInterrupted
from extremegp.training.progress import Reporter
from extremegp.training.shards import Shards
from extremegp.training.steps import Steps, TrainingDivergedError

_MOST_ITERATIONS, _PAIRS = 200, 6
_ALONE = World()
GAIN = 1e-6
"""The share of the objective that an iteration gains at the least."""


def train_whole(
    model: VariationalModel,
    x: Matrix,
    y: scipy.sparse.csr_matrix,
    settings: TrainingSettings,
    *,
    reporter: Reporter,
    lengths: NDArray[np.int64] | None = None,
    weights: NDArray[np.float64] | None = None,
    spent: float = 0.0,
    gain: float = GAIN,
    world: World = _ALONE,
) -> list[dict[str, float]]:
    """Train in place, from where the model stands, until an iteration gains little.

    Args:
        model: one whose bound is the same at every evaluation: all of it is points.
        x: inputs, N x D.
        y: labels, N x K.
        settings: `kl_weight` and `time_budget` of them count.
        reporter: told of every iteration.
        lengths: of the sequences that the rows are.
        weights: what each sequence counts, or each row.
        spent: seconds of the time budget that are gone already.
        gain: the least share of the objective that an iteration gains.
        world: the processes that share the sequences, or rows, out; where these are fewer, each takes them all.

    Returns:
        One record, of the whole: epoch, elbo, kl, iterations and seconds.

    Raises:
        TrainingInterrupted: on Ctrl-C, after an iteration.
        TrainingDivergedError: the bound is not finite.
        ProcessLostError: another process ended.
    """
    started = time.monotonic()
    n_units = x.shape[0] if lengths is None else len(lengths)
    shards = Shards(model, world if n_units >= world.size else _ALONE)
    steps = Steps(x, y, settings, lengths=lengths, weights=weights, mean_logits=None, shards=shards)
    every = steps.load(np.arange(steps.n_units), 0)
    last: dict[str, float] = {}
    n_iterations, stopped = 0, [False, False]

    def loss(vector: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        with torch.no_grad():
            vector_to_parameters(torch.from_numpy(vector).to(steps.parameters[0]), steps.parameters)
        elbo = steps.gradients(every, n_draws=1)
        last["elbo"], last["kl"] = float(elbo.bound.detach()), float(elbo.kl.detach())
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in steps.parameters]
        value = -elbo.tempered(settings.kl_weight).detach() / x.shape[0]
        found = torch.cat([value.reshape(1).double(), parameters_to_vector(grads).double()]).cpu()
        # Processors of several kinds round differently, which must not lead the processes apart.
        world.of_first(found)
        if not found[0].isfinite():
            raise TrainingDivergedError(f"the bound is {-float(found[0])}: scale the features")
        return float(found[0]), found[1:].numpy()

    # SciPy looks at the name of the argument.
    def told(intermediate_result: Any) -> None:
        nonlocal n_iterations
        n_iterations += 1
        reporter.step(n_iterations, _MOST_ITERATIONS, -float(intermediate_result.fun))
        late = settings.time_budget is not None and seconds() * (1 + 1 / n_iterations) > settings.time_budget
        stopped[:] = world.any(interrupt.requested, late)
        if any(stopped):
            raise StopIteration

    def seconds() -> float:
        return spent + time.monotonic() - started

    start = parameters_to_vector(steps.parameters).detach().double().cpu().numpy()
    options: Any = {"maxiter": _MOST_ITERATIONS, "maxcor": _PAIRS, "ftol": gain, "gtol": 0.0}
    try:
        with GracefulInterrupt(among_others=world.size > 1) as interrupt:
            best: Any = scipy.optimize.minimize(
                loss, start, jac=True, method="L-BFGS-B", callback=told, options=options
            )
        if stopped[0]:
            raise TrainingInterrupted(None)
        loss(best.x)
        record = {"epoch": 1.0, **last, "iterations": float(n_iterations), "seconds": world.most(seconds())[0]}
        reporter.epoch(record)
    finally:
        reporter.close()
    return [record]
