"""One run in a process of its own: a spec comes as JSON on standard input, what came of it goes to standard output.

python -m benchmarks.papers.worker DATA
"""

from __future__ import annotations

import json
import math
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import common
from benchmarks.classes import class_data
from benchmarks.labels import conditional
from benchmarks.papers.specs import DEFAULT, Spec
from benchmarks.sequences import sequence_data
from extremegp import MultiClassGPClassifier, MultiLabelGPClassifier
from extremegp.data import CHUNKING_TEMPLATE, encode_classes
from extremegp.metrics import ClassMetrics, propensities
from extremegp.metrics.measured import measure
from extremegp.prediction.predictor import Predictor
from extremegp.settings.model import ModelSettings
from extremegp.settings.resolve import model_settings, training_settings

BLOCK_ELEMENTS = 1 << 24
CURVE_POINTS = 60
TIMED_STEPS = 6


def main() -> None:
    spec, data = Spec(*json.load(sys.stdin)), Path(sys.argv[1])
    made = {"labels": _labels, "classes": _classes, "sequences": _sequences}[spec.task](spec, data)
    made["metrics"] |= {"memory GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}
    rounded = {name: float(f"{value:.6g}") for name, value in made["metrics"].items() if math.isfinite(value)}
    print(json.dumps(made | {"metrics": rounded}, allow_nan=False))


def _labels(spec: Spec, data: Path) -> dict[str, Any]:
    split = common.load_split(conditional.folder_of(data, spec.data), spec.data)
    model = MultiLabelGPClassifier(**spec.settings, random_state=spec.seed, verbose=False)
    if spec.how == "time":
        return {"metrics": _step_times(model, split)}
    if spec.how == "count":
        return {"metrics": _parameters(model, split)}
    started = time.perf_counter()
    model.fit(split.x, split.y)
    metrics = _times(model.history_, time.perf_counter() - started)
    if spec.how == "known":
        return {"metrics": metrics | _known(model, split)}
    counts = np.bincount(split.y.indices, minlength=split.y.shape[1])
    found = measure(
        ((rows, scores, scores) for rows, scores in model.predictor().probabilities(split.test_x)),
        split.test_y,
        ks=common.KS,
        propensity=propensities(counts, split.y.shape[0]),
        train_counts=counts,
    ).metrics
    ranking = {
        name: 100 * found[name]
        for family in ("P", "PSP", "nDCG", "PSnDCG")
        for k in common.KS
        if (name := f"{family}@{k}") in found
    }
    metrics |= ranking | {name: found[name] for name in ("log_loss", "brier", "ece") if name in found}
    return {"metrics": metrics, "curve": _curve(model.history_)}


def _known(model: MultiLabelGPClassifier, split: common.Split) -> dict[str, float]:
    """P@k of the labels other than the first of each test row, without it and with it (T Table 4.15)."""
    labelled = np.flatnonzero(np.diff(split.test_y.indptr))
    x, y = split.test_x[labelled], split.test_y[labelled]
    given = conditional.first_labels(y)
    rest = y - given
    rest.eliminate_zeros()
    found = {}
    predictor = Predictor(model.model_, model.instance_noise_)
    for conditions, mark in ((False, "without"), (True, "with")):
        best, _ = conditional.judge(predictor, x, given, rest, conditions=conditions)
        values = conditional.precision_at_k(rest, best, common.KS)
        found |= {f"{mark} P@{k}": 100 * float(value) for k, value in zip(common.KS, values, strict=True)}
    return found


def _parameters(model: MultiLabelGPClassifier, split: common.Split) -> dict[str, float]:
    """Numbers that are learnt, in millions; of a triangular matrix its lower half."""
    count = 0
    for name, values in _settings(model, split)[1].build().named_parameters():
        size, n_values = values.shape[-1] if values.ndim else 1, values.numel()
        learnt = n_values * (size + 1) // (2 * size) if name.endswith("raw_factors") else n_values
        count += learnt * values.requires_grad
    return {"parameters (millions)": count / 1e6}


def _settings(model: MultiLabelGPClassifier, split: common.Split) -> tuple[dict[str, Any], ModelSettings]:
    from extremegp.estimators.multilabel import _FIXED

    params = model.get_params() | {"epochs": 1, "latents": "gp"} | _FIXED
    n_rows, n_features = split.x.shape
    return params, model_settings(params, n_rows=n_rows, n_features=n_features, n_labels=split.y.shape[1])


def _step_times(model: MultiLabelGPClassifier, split: common.Split) -> dict[str, float]:
    """Seconds an epoch takes, from the median of a few steps."""
    from benchmarks.labels.posteriors import StepClock
    from extremegp.engine.part import TrainingData
    from extremegp.training import train

    params, settings = _settings(model, split)
    n_rows = split.x.shape[0]
    training = training_settings(params, model=settings, n_rows=n_rows, seed=0)
    built = settings.build()
    built.start(TrainingData(split.x, split.y, np.random.default_rng(0)))
    rows = min(n_rows, training.batch_size * (TIMED_STEPS + 1))
    clock = StepClock()
    train(built, split.x[:rows], split.y[:rows], training, reporter=clock)
    return {"s/epoch": statistics.median(clock.seconds) * -(-n_rows // training.batch_size)}


def _classes(spec: Spec, data: Path) -> dict[str, Any]:
    split = class_data.load(data, spec.data.removesuffix("-first"))
    step = (
        {"features": class_data.PIXELS[spec.data]} if spec.method != DEFAULT and spec.data in class_data.PIXELS else {}
    )
    model = MultiClassGPClassifier(
        **{"features": split.features} | step | spec.settings, random_state=spec.seed, verbose=False
    )
    started = time.perf_counter()
    model.fit(split.x, split.y)
    found = _times(model.history_, time.perf_counter() - started)
    codes, metrics = model.encode_labels(split.test_y), ClassMetrics(len(encode_classes(split.y)[1]))
    block = max(1, BLOCK_ELEMENTS // len(model.classes_))
    for start in range(0, len(codes), block):
        rows = slice(start, start + block)
        metrics.update(model.predict_proba(split.test_x[rows]), codes[rows])
    judged = metrics.compute()
    found |= {"error": 100 * judged["error"], "accuracy": 100 * (1 - judged["error"]), "nlpd": judged["nlpd"]}
    found |= {"coverage": 100 * judged["coverage"], "ece": judged["ece"]}
    return {"metrics": found, "curve": _curve(model.history_)}


def _sequences(spec: Spec, data: Path) -> dict[str, Any]:
    if spec.data == "conll2000":
        fold, known = sequence_data.conll2000(data, CHUNKING_TEMPLATE), None
    else:
        whole, folds = sequence_data.gpstruct(data, spec.data)
        fold, known = folds[spec.seed], sorted({label for of_one in whole.y for label in of_one})
    method = sequence_data.PEERS.get(spec.method) or sequence_data.estimator(spec.settings, known)
    return {"metrics": sequence_metrics(sequence_data.measure(method, *fold, known))}


def sequence_metrics(found: dict[str, float]) -> dict[str, float]:
    """By the papers' names."""
    kept = {name: found[name] for name in ("nll_unstruct", "nll_struct", "ece", "ece_if_exact", "seconds")}
    spans = {"F1": 100 * found["span_f1"]} if "span_f1" in found else {}
    errors = {"error": 100 * found["token_error"], "error of surest 80 %": 100 * found["error_of_surest"]}
    return {**errors, **kept, **spans}


def _times(history: Sequence[dict[str, float]], seconds: float) -> dict[str, float]:
    found = {"seconds": seconds, "hours": seconds / 3600}
    if len(history) > 1:
        found["s/epoch"] = statistics.median(np.diff([epoch["seconds"] for epoch in history]))
        found["min/epoch"] = found["s/epoch"] / 60
    if history and "elbo" in history[-1]:
        last = history[-max(1, len(history) // 10) :]
        found["ELBO"] = statistics.fmean(epoch["elbo"] for epoch in last)
    return found


def _curve(history: Sequence[dict[str, float]]) -> dict[str, list[float]]:
    shown = history[:: max(1, len(history) // CURVE_POINTS)]
    named = [name for name in ("epoch", "elbo") if shown and name in shown[0]]
    return {name: [float(f"{epoch[name]:.6g}") for epoch in shown] for name in named}


if __name__ == "__main__":
    main()
