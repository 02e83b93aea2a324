"""Sections on what was trained on what, on new rows, on training, and on time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from extremegp.__about__ import __version__
from extremegp.errors import ExtremeGPError
from extremegp.estimators.origin import DataOrigin
from extremegp.progress import spoken
from extremegp.report.inputs import drawn, some
from extremegp.report.markup import Column, Markup, details, element, facts, joined, paragraph, table, text
from extremegp.report.pictures import Line, histogram, line_chart

_MOST_NOVELTY, _BARS, _TOLD = 5000, 20, 200


def origin(model: Any, model_facts: Mapping[str, str], data_facts: Mapping[str, str]) -> Markup:
    """What was trained on what, and what it was measured on."""
    made, settings = model.origin_ if hasattr(model, "origin_") else None, asdict(model.settings_)
    rows: list[tuple[str, Any]] = [("estimator", type(model).__name__), *model_facts.items()]
    if made is None:
        rows.append(("trained", "by a version that did not say when and from what"))
        given: Mapping[str, Any] = {}
    else:
        given = made.settings if made.command is None else made.command
        seed = f"{made.seed}" if made.seed is not None else f"none given; {made.drawn_seed} was drawn"
        when = "unknown" if made.trained is None else made.trained.replace("T", " ").replace("Z", " UTC")
        rows += [
            ("trained", f"{when} by extremegp {made.version}"),
            ("on", _data(made.training)),
            ("hash of its data", made.training.content),
            *([] if made.validation is None else [("validated on", _data(made.validation))]),
            ("seed", seed),
        ]
    rows += [
        ("rows it has now", f"{model.n_rows_:,}"),
        ("features", f"{settings['n_features']:,} ({model.features_.kind})"),
        ("labels", f"{len(model.classes_):,}"),
        ("settings given", text(", ".join(f"{k}={_short(v)}" for k, v in given.items()) or "all as by default", 1000)),
    ]
    everything = [(name, _short(value)) for name, value in settings.items()]
    chosen = [
        (f"{name} ({selection.by})", _short(value))
        for selection in model.hyperparameters_ or ()
        for name, value in selection.chosen.items()
    ]
    return joined(
        [
            facts("The model", rows),
            facts("The data of this report", [*data_facts.items(), ("read by", f"extremegp {__version__}")]),
            details("All settings", facts("Settings, as they were resolved", everything)),
            details("Hyper-parameters", facts("What was chosen, and by what", chosen)) if chosen else "",
        ]
    )


def _data(data: DataOrigin) -> str:
    source = "" if data.source is None else f"{data.source}: "
    return f"{source}{data.n_rows:,} rows, {data.n_features:,} features, {data.n_labels:,} labels"


def _short(value: Any) -> str:
    shown = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    return shown[:_TOLD] + ("…" if len(shown) > _TOLD else "")


def novelty(model: Any, X: Any, n_rows: int, unit: str, seed: int) -> Markup:
    """Whether the data look like the training data."""
    rows = drawn(n_rows, _MOST_NOVELTY, seed)
    if model.novelty_ is None:
        return paragraph("The model was saved by an earlier version, which kept nothing to compare rows with.")
    try:
        found = model.predict_novelty(some(X, rows.tolist()))
    except ExtremeGPError as error:
        return paragraph(f"This cannot be told: {error}.")
    p = np.concatenate(found) if isinstance(found, list) else np.asarray(found)
    unit = "tokens" if isinstance(found, list) else unit
    heights = np.histogram(p, _BARS, (0, 1))[0] / len(p)
    below = [float(np.mean(p <= level)) for level in (0.05, 0.01)]
    verdict = "like those of training"
    if below[0] > 0.1:
        verdict = "in part unlike those of training: believe the figures, and predictions, of these the less"
    elif below[0] > 0.065:
        verdict = "a little unlike those of training"
    told = (
        f"{100 * below[0]:.1f} % of the {unit} have a p-value of 0.05 or less, and {100 * below[1]:.1f} % one of 0.01 "
        f"or less; of {unit} that come from where the training {unit} came from about 5 % and 1 % have. These are "
        f"{verdict}."
    )
    sample = "" if len(rows) == n_rows else f" Of {n_rows:,}, {len(rows):,} were drawn at random."
    what = f"P-values of {len(p):,} {unit} beside those of training; dashed: how they are if nothing is new"
    picture = histogram(what, heights, x="p-value", y=f"share of {unit}", expected=1 / _BARS)
    return joined([paragraph(told + sample), element("div", picture, class_="pictures")])


def training(model: Any) -> Markup:
    """How training went."""
    history = model.history_
    if not history or "elbo" not in history[-1]:
        seconds = f", in {spoken(history[-1]['seconds'])}" if history else ""
        return paragraph(f"There is no learning curve: the posterior is had in closed form, without steps{seconds}.")
    made = getattr(model, "origin_", None)
    n_units = model.n_rows_ if made is None else made.training.n_units
    epochs = np.array([record["epoch"] for record in history], dtype=np.float64)
    curves = {"ELBO per row": np.array([record["elbo"] for record in history]) / max(1, n_units)}
    for name in dict.fromkeys(key for record in history for key in record if key.startswith("validation")):
        curves[name.replace("_", " ")] = np.array([record.get(name, np.nan) for record in history])
    pictures, lines = [], []
    for name, values in curves.items():
        known = np.isfinite(values)
        # The first epochs, in which curves rise steeply, would leave no room for the others.
        first = len(values) // 10
        shown = values[first:][known[first:]]
        low, high = float(shown.min()), float(shown.max())
        margin = 0.05 * (high - low) or 0.5
        curve = Line("", epochs[known], values[known], points=int(known.sum()) < 12)
        pictures.append(
            line_chart(f"{name} by epoch", [curve], x="epoch", y=name, y_range=(low - margin, high + margin))
        )
    for record in _some(history):
        lines.append([f"{record['epoch']:g}", *(f"{value:.5g}" for name, value in record.items() if name != "epoch")])
    names = [name.replace("_", " ") for name in history[0] if name != "epoch"]
    numbers: Any = ""
    if all(len(line) == len(names) + 1 for line in lines):
        numbers = details("The numbers", table("Epochs", [Column("epoch"), *map(Column, names)], lines, sortable=False))
    told = f"{len(history)} epochs in {spoken(history[-1]['seconds'])}."
    return joined([paragraph(told), element("div", *pictures, class_="pictures"), numbers])


def _some(history: Sequence[Mapping[str, float]]) -> list[Mapping[str, float]]:
    places: NDArray[np.int64] = np.unique(np.linspace(0, len(history) - 1, min(len(history), 50)).round().astype(int))
    return [history[place] for place in places.tolist()]


def times(seconds: Mapping[str, float], n_rows: int, unit: str) -> Markup:
    """What took how long."""
    rows = [(name, f"{value:.2f} s") for name, value in seconds.items()]
    predicting = seconds.get("predictions and figures")
    if predicting:
        rows.append((f"predictions and figures, a {unit}", f"{1000 * predicting / max(1, n_rows):.3g} ms"))
    return facts("Seconds on the machine that wrote this", rows)
