"""How much of the machine's matrix-product speed a training step reaches, and where its time goes.

The step is that of the training loop itself, on the real data, after a few epochs of training. Operations are those of
dense matrix products, counted as they are dispatched, two for every multiply-add; sparse products, factorisations,
solves and all elementwise work take time but count nothing. The machine's own speed is that of a float32 product of
square matrices, measured between the steps.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import common
from extremegp.engine.batch import Batch
from extremegp.engine.model import VariationalModel
from extremegp.engine.part import TrainingData
from extremegp.engine.utilities import Utilities
from extremegp.settings.model import ModelSettings
from extremegp.settings.parts import KERNEL_NAMES, POSTERIORS
from extremegp.training import NoReporter, TrainingSettings, train

aten = torch.ops.aten
# Where the two factors stand among the arguments; overloads with out= come with the packet.
FACTORS = {
    aten.mm: 0,
    aten.bmm: 0,
    aten.addmm: 1,
    aten.addmm_: 1,
    aten.baddbmm: 1,
    aten.baddbmm_: 1,
    aten.addbmm: 1,
    aten.addbmm_: 1,
}
SECTIONS = ("minibatch", "latents", "likelihood", "KL", "backward", "optimiser")


class ProductCounter(TorchDispatchMode):
    """Operations of dense matrix products by dtype, those inside custom autograd functions included.

    Not `torch.utils.flop_counter`, which leaves out the in-place variants.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        first = FACTORS.get(func.overloadpacket)
        if first is not None:
            left, right = args[first], args[first + 1]
            self.operations[str(left.dtype).removeprefix("torch.")] += 2 * left.numel() * right.shape[-1]
        return func(*args, **(kwargs or {}))


class SectionClock(NoReporter):
    """Wall seconds of the sections of every step, and those of the machine's own product between steps."""

    def __init__(self, matmul_size: int, repeats: int) -> None:
        self.steps: list[dict[str, float]] = []
        self.matmul_seconds: list[float] = []
        self._factors = torch.rand(2, matmul_size, matmul_size)
        self._repeats = repeats
        self._section: dict[str, float] = dict.fromkeys(SECTIONS, 0.0)
        self._at = time.perf_counter()

    def mark(self, section: str) -> None:
        """What passed since the last mark belongs to this section."""
        now = time.perf_counter()
        self._section[section] += now - self._at
        self._at = now

    def step(self, step: int, total_steps: int, elbo: float) -> None:
        self.mark("optimiser")
        self.steps.append(self._section)
        self._section = dict.fromkeys(SECTIONS, 0.0)
        left, right = self._factors
        for _ in range(self._repeats):
            started = time.perf_counter()
            torch.mm(left, right)
            self.matmul_seconds.append(time.perf_counter() - started)
        self._at = time.perf_counter()


@contextmanager
def timed_sections(model: VariationalModel, clock: SectionClock) -> Iterator[None]:
    """Let the clock know when the training loop passes from one section to the next."""
    condition, expected_log_prob = model.latents.condition, model.likelihood.expected_log_prob

    def after(section: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def marked(*args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            clock.mark(section)
            return result

        return marked

    def conditioned(seed: int = 0) -> Any:
        clock.mark("minibatch")
        result = condition(seed)
        result.kl = after("KL", result.kl)
        return result

    def likelihood(utilities: Utilities, batch: Batch) -> Any:
        # Worked out here, before the likelihood asks for them.
        utilities.latents  # noqa: B018
        clock.mark("latents")
        return after("likelihood", expected_log_prob)(utilities, batch)

    model.latents.condition, model.likelihood.expected_log_prob = conditioned, likelihood  # type: ignore[method-assign]
    hooks = [
        register_optimizer_step_pre_hook(lambda *_: clock.mark("backward")),
        register_optimizer_step_post_hook(lambda *_: clock.mark("optimiser")),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        del model.latents.condition, model.likelihood.expected_log_prob


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--set", dest="name", default="delicious", metavar="NAME", help="the dataset")
    options.add_argument("--n-latent", type=int, default=300)
    options.add_argument("--n-inducing", type=int, default=400)
    options.add_argument("--batch-size", type=int, default=500)
    options.add_argument("--kernel", choices=KERNEL_NAMES, default="ard")
    options.add_argument("--posterior", choices=POSTERIORS, default="shared-basis")
    options.add_argument("--warm-epochs", type=int, default=3, help="epochs of training before anything is measured")
    options.add_argument("--epochs", type=int, default=3, help="epochs of measured steps")
    options.add_argument("--matmul-size", type=int, default=1024)
    options.add_argument("--matmul-repeats", type=int, default=2, help="products after every step")
    options.add_argument("--seed", type=int, default=0)
    args = common.parse(options)

    split = common.load_split(args.data, args.name)
    batch = min(args.batch_size, split.x.shape[0])
    # A whole number of batches, so that every step has the size asked for.
    rows = split.x.shape[0] // batch * batch
    x, y = split.x[:rows], split.y[:rows]
    settings = ModelSettings(
        n_features=x.shape[1],
        n_labels=y.shape[1],
        n_latent=args.n_latent,
        n_inducing=min(args.n_inducing, rows),
        kernel=args.kernel,
        posterior=args.posterior,
    )
    model = settings.build()
    model.start(TrainingData(x, y, np.random.default_rng(args.seed)))

    def steps(epochs: int, reporter: NoReporter, rows: int = rows) -> None:
        plan = TrainingSettings(epochs=epochs, batch_size=batch, learning_rate=0.02, seed=args.seed)
        train(model, x[:rows], y[:rows], plan, reporter=reporter)

    steps(args.warm_epochs, NoReporter())
    counter, clock = ProductCounter(), SectionClock(args.matmul_size, args.matmul_repeats)
    with counter:
        steps(1, NoReporter(), batch)
    with timed_sections(model, clock):
        steps(args.epochs, clock)
    # The first step takes the optimiser's memory.
    common.finish(args.json, report(args, batch, counter.operations, clock, clock.steps[1:] or clock.steps), args)


def report(
    args: Any, batch: int, operations: Counter[str], clock: SectionClock, steps: list[dict[str, float]]
) -> dict[str, Any]:
    """Print the tables."""
    total = sum(operations.values())
    step = statistics.median(sum(sections.values()) for sections in steps)
    peak = 2 * args.matmul_size**3 / statistics.median(clock.matmul_seconds)
    speed = total / step
    by_dtype = ", ".join(f"{count / 1e9:.3f} in {dtype}" for dtype, count in sorted(operations.items()))
    common.table(
        f"**One training step**: {args.name}, P = {args.n_latent}, M = {args.n_inducing}, B = {batch}, {args.kernel}, "
        f"{args.posterior}; medians of {len(steps)} steps and {len(clock.matmul_seconds)} products, interleaved",
        ("", "value"),
        [
            ("step (ms)", f"{1e3 * step:.2f}"),
            (f"matrix products per step (GFLOP): {by_dtype}", f"{total / 1e9:.3f}"),
            ("reached in the step (GFLOP/s)", f"{speed / 1e9:.1f}"),
            (f"float32 product of {args.matmul_size} x {args.matmul_size} (GFLOP/s)", f"{peak / 1e9:.1f}"),
            ("share of that product's speed", f"{100 * speed / peak:.1f} %"),
        ],
    )
    sections = {name: statistics.median(sections[name] for sections in steps) for name in SECTIONS}
    whole = sum(sections.values())
    common.table(
        "Sections of the step (medians); the likelihood computes its gradients in its forward pass",
        ("section", "ms", "share"),
        [(name, f"{1e3 * value:.2f}", f"{100 * value / whole:.1f} %") for name, value in sections.items()],
    )
    return {
        "step_seconds": step,
        "operations": dict(operations),
        "flops": speed,
        "matmul_flops": peak,
        "share": speed / peak,
        "section_seconds": sections,
        "steps": len(steps),
    }
