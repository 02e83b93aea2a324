"""Whether training takes the memory that is planned for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse
from torch import nn
from torch.profiler import ProfilerActivity, profile

from extremegp.engine.part import TrainingData
from extremegp.settings.memory import training_memory
from extremegp.settings.model import ModelSettings
from extremegp.settings.training import TrainingSettings
from extremegp.training import NoReporter, train


def check_memory(settings: ModelSettings, *, batch_size: int = 4096, factor: float = 3.0) -> None:
    """Check what the parts of a model say that a step of training takes against what it takes, on a CPU.

    Args:
        settings: the model, of rows; with a likelihood or a kernel as an object, it is they that are checked.
        batch_size: B, large enough for what grows with it to count.
        factor: how far the plan may be off, either way.

    Raises:
        AssertionError: it is further off.
    """
    rng, n_rows = np.random.default_rng(0), 2 * batch_size
    x = rng.normal(size=(n_rows, settings.n_features)).astype(np.float32)
    y = np.zeros((n_rows, settings.n_labels), dtype=np.float32)
    y[np.arange(n_rows), rng.integers(settings.n_labels, size=n_rows)] = 1.0
    data = TrainingData(x, scipy.sparse.csr_matrix(y), rng, inducing_start="rows")
    model = settings.build()
    model.start(data)
    training = TrainingSettings(epochs=1, batch_size=batch_size, learning_rate=1e-3)
    peak = peak_bytes(lambda: train(model, x, data.y, training, reporter=NoReporter()), model)
    planned = training_memory(settings, n_rows=n_rows, batch_size=batch_size, n_stored=0)
    assert planned / factor <= peak <= planned * factor, (
        f"training takes {peak / 2**20:.1f} MB, and {planned / 2**20:.1f} MB are planned for it: what a likelihood "
        "takes follows from its step_arrays, of any part from its step_elements() and step_bytes()"
    )


def peak_bytes(run: Callable[[], Any], model: nn.Module) -> int:
    """Bytes that PyTorch holds at most while it runs, the model included, by its own profiler."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    held = sum(part.numel() * part.element_size() for part in (*model.parameters(), *model.buffers()))
    return int(np.cumsum(changes).max()) + held
