"""One training of a class model in a process of its own, for its peak memory; started by the benchmarks of classes.

    python class_worker.py

A job comes as JSON on standard input, and what came of it goes as JSON to standard output.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import common
from benchmarks.classes import class_data
from extremegp import MultiClassGPClassifier
from extremegp.data import encode_classes
from extremegp.engine.inducing import InducingInputs
from extremegp.errors import ExtremeGPError
from extremegp.metrics import ClassMetrics
from extremegp.metrics.probability import Reliability

BLOCK_ELEMENTS = 1 << 24
N_SHOWN = 4
"""Inducing inputs that are kept as images."""

Job = dict[str, Any]
Record = dict[str, Any]


def job(name: str, params: dict[str, Any], *, seed: int = 0, **how: Any) -> Job:
    """What a run does.

    Args:
        name: the data set, see `class_data.load`.
        params: of `MultiClassGPClassifier`.
        seed: its random_state.
        how: ``score=False`` leaves the test rows out,
            ``logistic=C`` takes logistic regression instead, ``gpytorch=EPOCHS`` the sparse GP of `gpytorch_peer`.
    """
    return {"set": name, "params": params, "seed": seed} | how


class Runs:
    """Runs made so far. They are kept in a file, if it is given, so that a later call makes only those that miss."""

    def __init__(self, path: Path | None, folder: Path) -> None:
        self.path, self.folder = path, folder
        self.records: list[Record] = []
        self.failed: list[str] = []
        if path is not None and path.exists():
            try:
                self.records = json.loads(path.read_text(encoding="utf-8"))["runs"]
            except (ValueError, KeyError, TypeError) as error:
                raise SystemExit(
                    f"{path} does not hold runs of a benchmark: name another file, or remove it"
                ) from error

    def get(self, wanted: Job) -> Record | None:
        return next((record for record in self.records if record["job"] == wanted), None)

    def make(self, jobs: dict[str, Job]) -> dict[str, Record]:
        """The records of jobs by name; those that failed are left out."""
        missing = {name: wanted for name, wanted in jobs.items() if self.get(wanted) is None}
        for number, (name, wanted) in enumerate(missing.items(), 1):
            print(f"run {number} of {len(missing)}: {name}", end="", file=sys.stderr, flush=True)
            if (record := self.get(wanted)) is None:
                record = self._make(name, wanted)
            print(f": {_said(record)}", file=sys.stderr, flush=True)
        found = {name: self.get(wanted) for name, wanted in jobs.items()}
        return {name: record for name, record in found.items() if record is not None}

    def _make(self, name: str, wanted: Job) -> Record:
        text = json.dumps(wanted | {"data": str(self.folder)})
        try:
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.classes.class_worker"], input=text, capture_output=True, text=True
            )
        except KeyboardInterrupt as error:
            where = "" if self.path is None else f"; the runs made before are in {self.path}"
            raise SystemExit(f"\ninterrupted{where}") from error
        if done.returncode:
            self.failed.append(name)
            return {"error": (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]}
        record: Record = {"job": json.loads(json.dumps(wanted))} | json.loads(done.stdout)
        self.records.append(record)
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part = self.path.with_name(self.path.name + ".part")
            part.write_text(json.dumps({"runs": self.records}, indent=2, allow_nan=False) + "\n", encoding="utf-8")
            part.replace(self.path)
        return record

    def finish(self, args: Any) -> None:
        """Write all, and say what failed."""
        common.finish(self.path, {"runs": self.records}, args)
        if self.failed:
            raise SystemExit(f"failed: {', '.join(self.failed)}")


def _said(record: Record) -> str:
    if "error" in record:
        return str(record["error"])
    error = f"error {100 * record['metrics']['error']:.2f} %, " if "metrics" in record else ""
    return f"{error}{record['seconds']:.1f} s"


def measure(wanted: Job) -> Record:
    """Train and judge."""
    split = class_data.load(Path(wanted["data"]), wanted["set"])
    x, y = split.x, split.y
    record: Record = {
        "split": {
            "n_rows": len(split.y),
            "n_test": len(split.test_y),
            "n_features": x.shape[1],
            "n_classes": len(np.unique(split.y)),
            "n_dropped": split.n_dropped,
            "best_error": split.best_error,
        },
        "data_mib": peak_mib(),
        "machine": common.machine(),
    }
    started = time.perf_counter()
    if "logistic" in wanted:
        predict, codes, n_classes = _logistic(split, wanted["logistic"])
        record["seconds"] = time.perf_counter() - started
    elif "gpytorch" in wanted:
        predict, codes, n_classes = _gpytorch(split, wanted["gpytorch"])
        record["seconds"] = time.perf_counter() - started
    else:
        params = {"features": split.features, **wanted["params"]}
        model = MultiClassGPClassifier(**params, random_state=wanted["seed"], verbose=False)
        try:
            model.fit(x, y)
        except ExtremeGPError as error:
            return record | {"error": f"{type(error).__name__}: {error}"}
        record["seconds"] = time.perf_counter() - started
        record |= _trained(model, wanted["params"], images=split.image_shape is not None)
        codes, n_classes = model.encode_labels(split.test_y), len(model.classes_)

        def predict(start: int, stop: int) -> NDArray[np.float32]:
            return model.predict_proba(split.test_x[start:stop])

    record["peak_mib"] = peak_mib()
    if not wanted.get("score", True):
        return record
    started = time.perf_counter()
    metrics, step = ClassMetrics(n_classes), max(1, BLOCK_ELEMENTS // n_classes)
    for start in range(0, len(codes), step):
        metrics.update(predict(start, start + step), codes[start : start + step])
    record["predict_seconds"] = time.perf_counter() - started
    bins = metrics.reliability()
    parts = {name: np.nan_to_num(getattr(bins, name)).tolist() for name in ("confidence", "frequency", "count")}
    return record | {"metrics": metrics.compute(), "reliability": parts}


def _trained(model: MultiClassGPClassifier, params: dict[str, Any], *, images: bool) -> Record:
    """What training left: its course, and inducing inputs to look at."""
    history = model.history_
    seconds = np.diff([0.0, *(epoch["seconds"] for epoch in history)])
    # The last epoch of a time budget may be a part of one, and the first takes the optimiser's memory.
    whole = seconds[:-1] if params.get("time_budget") else seconds
    found: Record = {
        "history": history,
        "epoch_seconds": statistics.median(whole[1:] if len(whole) > 1 else whole) if len(whole) else None,
    }
    inducing = next((m for m in model.model_.modules() if isinstance(m, InducingInputs)), None)
    if images and inducing is not None and model.features_.kind == "scale":
        z = inducing().detach().numpy()
        # Grey values up to a factor, in which the background is zero.
        z = z.reshape(-1, z.shape[-1]) - model.features_.transform(np.zeros((1, z.shape[-1])))
        shown = z[np.linspace(0, len(z), N_SHOWN, endpoint=False).astype(int)]
        found["inducing"] = [" ".join(f"{value:.4g}" for value in row) for row in shown]
    return found


def _logistic(split: class_data.ClassSplit, strength: float) -> tuple[Any, NDArray[np.int64], int]:
    from sklearn.linear_model import LogisticRegression

    x, codes, test_x, known, n_classes = _encoded(split)
    model = LogisticRegression(C=strength, max_iter=300).fit(x, codes)
    return lambda start, stop: model.predict_proba(test_x[start:stop]), known, n_classes


def _gpytorch(split: class_data.ClassSplit, epochs: int) -> tuple[Any, NDArray[np.int64], int]:
    from benchmarks.classes.gpytorch_peer import Peer

    x, codes, test_x, known, n_classes = _encoded(split)
    peer = Peer(x, codes, n_classes, epochs=epochs)
    # Draws of all functions at a block of rows are held at once.
    step = max(1, BLOCK_ELEMENTS // (100 * n_classes))

    def predict(start: int, stop: int) -> NDArray[np.float32]:
        blocks = range(start, min(stop, test_x.shape[0]), step)
        return np.concatenate([peer.predict(test_x[i : min(i + step, stop)]) for i in blocks])

    return predict, known, n_classes


def _encoded(split: class_data.ClassSplit) -> tuple[Any, NDArray[np.int64], Any, NDArray[np.int64], int]:
    """Rows after the features step and codes of their classes, of training and test; -1 for a class that is new."""
    x, test_x = class_data.transformed(split)
    codes, classes = encode_classes(split.y)
    of_test = np.searchsorted(classes, split.test_y).clip(max=len(classes) - 1)
    return x, codes, test_x, np.where(classes[of_test] == split.test_y, of_test, -1), len(classes)


def peak_mib() -> float:
    """Greatest memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def inducing(record: Record) -> NDArray[np.float64]:
    """The inducing inputs that a run kept, as rows."""
    return np.array([row.split() for row in record["inducing"]], dtype=np.float64)


def reliability(record: Record) -> Reliability:
    """The reliability diagram of a run."""
    return Reliability(**{name: np.array(values) for name, values in record["reliability"].items()})


def cells(records: list[Record]) -> list[str]:
    """What most tables say of the runs of a method: error, NLPD, ECE, coverage, top-5, as means over seeds."""
    wanted = (
        ("error", 100, 2),
        ("nlpd", 1, 4),
        ("ece", 1, 4),
        ("coverage", 100, 1),
        ("top5_accuracy", 100, 2),
    )
    return [common.mean_sd([by * r["metrics"][name] for r in records], digits) for name, by, digits in wanted]


COLUMNS = ("error %", "NLPD", "ECE", "coverage %", "top-5 %")
"""Of `cells`."""


if __name__ == "__main__":
    print(json.dumps(measure(json.load(sys.stdin)), allow_nan=False))
