"""Time and memory of training as rows, features or labels grow in number, with everything else held.

Synthetic rows, equally sparse whatever the sizes, are written to a temporary folder a block at a time and mapped: a
topic gives a row half of its features and most of its labels, the others follow Zipf's law. Each point is measured in a
process of its own: the start of the model, the median training step of the factor model with sampled labels, the end
of training, and the peak of memory. Peak memory is what the process allocated (anonymous pages) beyond what it had
when the data were open; pages of mapped data, which the system takes back when it likes, are in the resident peak.

With --one-epoch, instead, `MultiLabelGPClassifier.fit` makes one whole epoch on as many rows, features and labels as
--size says, and single steps at the sizes of two large public datasets tell what an epoch of theirs takes.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import common
from extremegp import MultiLabelGPClassifier
from extremegp.data import MappedWriter, open_dataset
from extremegp.data.blocks import RowBlock
from extremegp.engine.part import TrainingData
from extremegp.estimators.fitting import Examples, labels_per_step
from extremegp.estimators.origin import content_hash
from extremegp.estimators.scatter import instance_noise
from extremegp.prediction.predictor import Predictor
from extremegp.settings.memory import training_memory
from extremegp.settings.model import ModelSettings
from extremegp.settings.resolve import training_settings
from extremegp.training import NoReporter, TrainingSettings, train

_BLOCK_ROWS = 100_000
_TOPICS, _WORDS_OF_A_TOPIC, _LABELS_OF_A_TOPIC = 10_000, 100, 30
_SHUFFLED = 4096  # consecutive rows, as for all mapped data
_PREDICTED = 1000
_ONCE = ("start (s)", "fingerprint (s)", "end (s)")


@dataclass(frozen=True)
class Sizes:
    """N, D, K, and how many features and labels a row has; a few less where one is drawn twice."""

    rows: int
    features: int
    labels: int
    features_of_a_row: int
    labels_of_a_row: int


PUBLIC = {
    "WikiLSHTC-325K": Sizes(1_778_351, 1_617_899, 325_056, 42, 3),
    "Amazon-3M": Sizes(1_717_899, 337_067, 2_812_281, 50, 36),
}


def write(folder: Path, sizes: Sizes, seed: int) -> None:
    """Write such rows for `open_dataset`."""
    rng = np.random.default_rng(seed)
    words = rng.integers(sizes.features, size=(_TOPICS, _WORDS_OF_A_TOPIC), dtype=np.int32)
    names = rng.integers(sizes.labels, size=(_TOPICS, _LABELS_OF_A_TOPIC), dtype=np.int32)
    with MappedWriter(folder) as writer:
        for start in range(0, sizes.rows, _BLOCK_ROWS):
            n_rows = min(_BLOCK_ROWS, sizes.rows - start)
            topics = rng.integers(_TOPICS, size=(n_rows, 1))
            n_features, features = _drawn(words, topics, sizes.features, sizes.features_of_a_row, 0.5, rng)
            n_labels, labels = _drawn(names, topics, sizes.labels, sizes.labels_of_a_row, 0.7, rng)
            values = np.repeat((1 / np.sqrt(n_features)).astype(np.float32), n_features)
            first = labels[np.cumsum(n_labels) - n_labels]
            writer.append_block(RowBlock(n_features, features, values, n_labels, labels, first))
        writer.finish(sizes.features, sizes.labels)


def _drawn(
    of_topics: NDArray[np.int32],
    topics: NDArray[np.int64],
    size: int,
    count: int,
    share: float,
    rng: np.random.Generator,
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """How many columns every row has, and which, ascending: a share from those of its topic, the rest from all."""
    own = round(share * count)
    width = of_topics.shape[1]
    chosen = of_topics[topics, _zipf(width, (len(topics), own), rng)]
    columns = np.concatenate([chosen, _zipf(size, (len(topics), count - own), rng)], axis=1)
    columns.sort(axis=1)
    kept = np.diff(columns, axis=1, prepend=-1) > 0
    return kept.sum(axis=1), columns[kept]


def _zipf(size: int, shape: tuple[int, int], rng: np.random.Generator) -> NDArray[np.int32]:
    """Ranks 0 to size - 1 with probability nearly proportional to 1 / (rank + 1)."""
    # Columns have a stratum each: few ranks come twice, however many there are.
    drawn = (rng.random(shape, dtype=np.float32) + np.arange(shape[1], dtype=np.float32)) / max(1, shape[1])
    ranks = np.exp(math.log(size) * drawn).astype(np.int32) - 1
    return np.minimum(ranks, size - 1, out=ranks)


class Enough(Exception):  # noqa: N818
    """As many steps were made as are to be measured."""


class StepClock(NoReporter):
    """Seconds of every step, up to so many of them."""

    def __init__(self, most: int) -> None:
        self.seconds: list[float] = []
        self._most, self._at = most, time.perf_counter()

    def step(self, step: int, total_steps: int, elbo: float) -> None:
        now = time.perf_counter()
        self.seconds.append(now - self._at)
        self._at = now
        if step >= self._most:
            raise Enough


class MemoryWatch:
    """The largest anonymous memory of this process, in bytes, looked at a hundred times a second."""

    def __init__(self) -> None:
        self.start = self.peak = _anonymous()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.01):
            self.peak = max(self.peak, _anonymous())

    def result(self) -> dict[str, float]:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {"peak_bytes": max(self.peak, _anonymous()) - self.start, "resident_peak_bytes": peak}


def _anonymous() -> int:
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return 1024 * int(line.split()[1])
    return 0


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    started = time.perf_counter()
    result = call()
    return result, time.perf_counter() - started


def measure_steps(args: argparse.Namespace, folder: Path) -> dict[str, float]:
    """The parts of training on the data of a folder, by the engine."""
    data, opened = timed(lambda: open_dataset(folder))
    x, y = data.X, data.Y
    settings = _model_settings(args, x.shape[1], y.shape[1], x.shape[0])
    # Epochs enough for the steps, however few rows there are.
    training = _training_settings(_classifier(args, epochs=args.steps), settings, x.shape[0])
    seconds = {"open": opened}
    rng = np.random.default_rng(args.seed)
    with MemoryWatch() as memory:
        _, seconds["fingerprint"] = timed(lambda: content_hash([x, y]))
        model = settings.build()
        _, seconds["start"] = timed(lambda: model.start(TrainingData(x, y, rng)))
        clock = StepClock(args.steps)
        with suppress(Enough):
            train(model, x, y, training, reporter=clock)
        _, seconds["noise"] = timed(lambda: instance_noise(model, Examples(x, y), None, rng))
        _, predicted = timed(lambda: list(Predictor(model).top(x[:_PREDICTED], 5)))
    # The first steps take the memory of the optimiser.
    steps = clock.seconds[len(clock.seconds) // 4 :]
    plan = {"plan_bytes": float(_planned(settings, training, x, y))}
    times = {f"{name}_seconds": value for name, value in seconds.items()}
    found = {"step_seconds": statistics.median(steps), "first_step_seconds": clock.seconds[0]}
    per_row = {"predict_seconds_per_row": predicted / min(_PREDICTED, x.shape[0])}
    return found | times | per_row | plan | memory.result()


def measure_epoch(args: argparse.Namespace, folder: Path) -> dict[str, float]:
    """One epoch of the estimator on the data of a folder."""
    data = open_dataset(folder)
    classifier = _classifier(args, epochs=1)
    with MemoryWatch() as memory:
        _, seconds = timed(lambda: classifier.fit(data.X, data.Y))
        some = slice(0, _PREDICTED)
        precision = classifier.score(data.X[some], data.Y[some])
    (record,) = classifier.history_
    steps = -(-data.X.shape[0] // args.batch)
    settings = classifier.settings_
    training = _training_settings(classifier, settings, data.X.shape[0])
    return {
        "fit_seconds": seconds,
        "epoch_seconds": record["seconds"],
        "step_seconds": record["seconds"] / steps,
        "steps": steps,
        "training_precision_at_1": precision,
        "plan_bytes": float(_planned(settings, training, data.X, data.Y)),
        **memory.result(),
    }


def _classifier(args: argparse.Namespace, *, epochs: int) -> MultiLabelGPClassifier:
    """Without the linear term, which grows with D; all that the command line does not say is as by default."""
    return MultiLabelGPClassifier(
        features="raw",
        normalise_inducing=True,
        linear_term=False,
        inducing="sparse",
        mean_function="zero",
        n_inducing=args.inducing,
        n_latent=args.latent,
        n_sampled_labels=args.sampled,
        batch_size=args.batch,
        epochs=epochs,
        random_state=args.seed,
        verbose=False,
    )


def _model_settings(args: argparse.Namespace, n_features: int, n_labels: int, n_rows: int) -> ModelSettings:
    return ModelSettings(
        n_features=n_features,
        n_labels=n_labels,
        n_latent=min(args.latent, n_labels),
        n_inducing=min(args.inducing, n_rows),
        kernel="ard",
        inducing="sparse",
        support_size=min(64, n_features),
    )


def _training_settings(classifier: MultiLabelGPClassifier, model: ModelSettings, n_rows: int) -> TrainingSettings:
    params, seed = classifier.get_params(deep=False), classifier.random_state
    return replace(training_settings(params, model=model, n_rows=n_rows, seed=seed), shuffle_rows=_SHUFFLED)


def _planned(settings: ModelSettings, training: TrainingSettings, x: Any, y: Any) -> int:
    """What the plan before training asks for, with nothing for data that are mapped."""
    labels = labels_per_step(y, training)
    sizes = {"n_rows": x.shape[0], "batch_size": training.batch_size, "n_stored": 0}
    return training_memory(settings, **sizes, labels_per_step=labels, optimizer_state=training.optimizer_state)


def point(args: argparse.Namespace, sizes: Sizes, worker: str) -> dict[str, Any]:
    """Data of these sizes, and what a process of its own measures on them."""
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="growth-") as name:
        folder = Path(name) / "data"
        _, written = timed(lambda: write(folder, sizes, args.seed))
        on_disk = sum(file.stat().st_size for file in folder.iterdir())
        command = [
            sys.executable,
            "-m",
            "benchmarks",
            "run",
            "growth",
            *sys.argv[1:],
            "--worker",
            worker,
            "--from",
            str(folder),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{sizes}: {done.stderr}")
    print(f"{sizes}: done", file=sys.stderr)
    return {**asdict(sizes), "write_seconds": written, "data_bytes": on_disk, **json.loads(done.stdout)}


def sweeps(args: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """What grows with rows, features and labels, and the tables of it."""
    base = Sizes(args.base, args.base, args.base, args.features_of_a_row, args.labels_of_a_row)
    known: dict[Sizes, dict[str, Any]] = {}
    results: dict[str, list[dict[str, Any]]] = {}
    for what in ("rows", "features", "labels"):
        results[what] = []
        for size in getattr(args, what):
            sizes = replace(base, **{what: size})
            if sizes not in known:
                known[sizes] = point(args, sizes, "steps")
            results[what].append(known[sizes])
    for what, records in results.items():
        held = ", ".join(f"{other} {args.base:,}" for other in results if other != what)
        common.table(
            f"**{what.capitalize()}** ({held}; P {args.latent}, M {args.inducing}, B {args.batch}, "
            f"{args.sampled} labels sampled)",
            (what, "ms a step", "times the first", "memory (GB)", "planned (GB)", *_ONCE, "ms to predict a row"),
            [_row(record, what, records[0]) for record in records],
        )
    return results


def _row(record: dict[str, Any], what: str, first: dict[str, Any]) -> Sequence[str]:
    return (
        f"{record[what]:,}",
        f"{1e3 * record['step_seconds']:.1f}",
        f"{record['step_seconds'] / first['step_seconds']:.2f}",
        f"{record['peak_bytes'] / 1e9:.2f}",
        f"{record['plan_bytes'] / 1e9:.2f}",
        f"{record['start_seconds']:.1f}",
        f"{record['fingerprint_seconds']:.1f}",
        f"{record['noise_seconds']:.1f}",
        f"{1e3 * record['predict_seconds_per_row']:.2f}",
    )


def one_epoch(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """A whole epoch at one size, single steps at those of public datasets, and the tables of both."""
    whole = Sizes(args.size, args.size, args.size, args.features_of_a_row, args.labels_of_a_row)
    results = {"epoch": point(args, whole, "epoch")}
    for name in args.public:
        # A step costs the same however many rows there are.
        sizes = replace(PUBLIC[name], rows=min(PUBLIC[name].rows, args.public_rows))
        results[name] = point(args, sizes, "steps")
    epoch = results["epoch"]
    common.table(
        f"**One epoch** of {epoch['steps']:,} steps (P {args.latent}, M {args.inducing}, B {args.batch}, "
        f"{args.sampled} labels sampled)",
        ("N = D = K", "epoch (s)", "fit (s)", "ms a step", "memory (GB)", "planned (GB)", "data on disk (GB)"),
        [
            (
                f"{args.size:,}",
                f"{epoch['epoch_seconds']:.0f}",
                f"{epoch['fit_seconds']:.0f}",
                f"{1e3 * epoch['step_seconds']:.1f}",
                f"{epoch['peak_bytes'] / 1e9:.2f}",
                f"{epoch['plan_bytes'] / 1e9:.2f}",
                f"{epoch['data_bytes'] / 1e9:.2f}",
            )
        ],
    )
    if args.public:
        common.table(
            "What an epoch takes at the sizes of public datasets, by the time of a step on synthetic rows",
            ("sizes of", "N", "D", "K", "ms a step", "epoch (min)", "memory (GB)", "planned (GB)"),
            [_public_row(name, results[name], args.batch) for name in args.public],
        )
    return results


def _public_row(name: str, record: dict[str, Any], batch: int) -> Sequence[str]:
    sizes = PUBLIC[name]
    steps = -(-sizes.rows // batch)
    return (
        name,
        *(f"{size:,}" for size in (sizes.rows, sizes.features, sizes.labels)),
        f"{1e3 * record['step_seconds']:.1f}",
        f"{steps * record['step_seconds'] / 60:.1f}",
        f"{record['peak_bytes'] / 1e9:.2f}",
        f"{record['plan_bytes'] / 1e9:.2f}",
    )


def draw(path: Path, results: dict[str, list[dict[str, Any]]]) -> None:
    """Time and memory against each of the sizes, both on logarithmic scales."""
    from extremegp.plots import COLOURS, DASHES, panels

    symbols = {"rows": "N", "features": "D", "labels": "K"}
    with panels(2, width=5.2, height=5.6, share_x=True) as (figure, (times, memory)):
        for (what, records), colour, dash in zip(results.items(), COLOURS, DASHES, strict=False):
            style: dict[str, Any] = {"color": colour, "linestyle": dash, "marker": "o", "markersize": 4}
            sizes = [record[what] for record in records]
            times.plot(sizes, [1e3 * record["step_seconds"] for record in records], label=symbols[what], **style)
            memory.plot(sizes, [record["peak_bytes"] / 1e9 for record in records], **style)
        times.set(xscale="log", yscale="log", ylabel="a training step (ms)")
        memory.set(xscale="log", yscale="log", ylabel="peak memory (GB)", xlabel="rows N, features D or labels K")
        for axis in (times, memory):
            # A flat line should look flat.
            low, high = axis.get_ylim()
            axis.set_ylim(min(low, high / 100), high)
        times.legend(title="what grows")
        figure.savefig(path, dpi=100)


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--rows", type=common.integers, default="10000,100000,1000000,10000000", metavar="N,N")
    options.add_argument("--features", type=common.integers, default="10000,100000,1000000,2000000", metavar="D,D")
    options.add_argument("--labels", type=common.integers, default="1000,10000,100000,1000000", metavar="K,K")
    options.add_argument("--base", type=int, default=100_000, metavar="N", help="what is held: N, D and K")
    options.add_argument("--features-of-a-row", type=int, default=50, metavar="N")
    options.add_argument("--labels-of-a-row", type=int, default=5, metavar="N")
    options.add_argument("--latent", type=int, default=100, metavar="P", help="latent functions")
    options.add_argument("--inducing", type=int, default=400, metavar="M", help="inducing inputs")
    options.add_argument("--batch", type=int, default=500, metavar="B", help="rows of a step")
    options.add_argument("--sampled", type=int, default=2000, metavar="N", help="labels sampled in a step")
    options.add_argument("--steps", type=int, default=40, metavar="N", help="steps of a point; a quarter warms up")
    options.add_argument("--one-epoch", action="store_true", help="a whole epoch in place of single steps")
    options.add_argument("--size", type=int, default=1_000_000, metavar="N", help="N, D and K of that epoch")
    options.add_argument("--public", type=common.names, default=",".join(PUBLIC), metavar="NAME,NAME")
    options.add_argument("--public-rows", type=int, default=200_000, metavar="N", help="rows to time their steps on")
    options.add_argument("--folder", type=Path, metavar="DIR", help="where to write the data")
    options.add_argument("--plot", type=Path, metavar="FILE", help="draw time and memory against the sizes")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--worker", choices=("steps", "epoch"), help=argparse.SUPPRESS)
    options.add_argument("--from", dest="data_folder", type=Path, help=argparse.SUPPRESS)
    args = common.parse(options)
    if args.worker:
        print(json.dumps((measure_steps if args.worker == "steps" else measure_epoch)(args, args.data_folder)))
        return
    if unknown := set(args.public) - set(PUBLIC):
        options.error(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(PUBLIC)}")
    results: dict[str, Any] = one_epoch(args) if args.one_epoch else sweeps(args)
    if args.plot is not None and not args.one_epoch:
        draw(args.plot, results)
    common.finish(args.json, results, args)
