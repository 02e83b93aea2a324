"""How good a model of one class per row is: what `extremegp evaluate` does with it."""

from __future__ import annotations

import csv
import importlib.util
import io
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from extremegp.cli.common import Report, label_names, percent
from extremegp.cli.inputs import Known, Source, class_codes, read
from extremegp.errors import SettingsError

if TYPE_CHECKING:
    from extremegp.estimators import MultiClassGPClassifier
    from extremegp.metrics import ClassMetrics, PerClass

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_PICTURES = (".png", ".svg", ".pdf")
_WORST = 5
_PROBABILITIES = {"nlpd": "nlpd (nats/row)", "brier": "brier (/row)", "ece": "ece", "seconds": "seconds (s)"}


def evaluate_classes(
    classifier: MultiClassGPClassifier,
    source: Source,
    report: Report,
    title: str,
    *,
    ks: Sequence[int],
    per_class: Path | None,
    plot: Path | None,
    started: float,
) -> None:
    """Measure a model, a block of rows at a time, and show and write what came of it.

    Args:
        classifier: the model.
        source: labelled data.
        report: where the result goes.
        title: what the tables are of.
        ks: ranks of the top-k accuracies.
        per_class: file for a line per class.
        plot: file for the reliability diagram.
        started: when the command started, by the monotonic clock.

    Raises:
        DataError: the data cannot be read or do not fit the model.
        SettingsError: options contradict each other, or a file cannot be of its suffix.
    """
    check_files(per_class, plot)
    source.check("multiclass", because="the model is for one class per row")
    from extremegp.metrics import ClassMetrics
    from extremegp.prediction.predictor import Predictor

    rows = read(source, "multiclass", known=Known.of_model(classifier))
    codes = class_codes(rows.y, source, classifier.label_space_)
    names = label_names(classifier)
    quality = ClassMetrics(len(names), ks=ks)
    for block, probabilities in Predictor(classifier.model_).probabilities(classifier.features_.transform(rows.X)):
        quality.update(probabilities, codes[block])
    metrics = quality.compute() | {"seconds": time.monotonic() - started}
    each = quality.per_class()
    if per_class is not None:
        _write_classes(per_class, names, each)
    if plot is not None:
        write_plot(plot, quality, source.path.name)
    report.table(
        title,
        ("metric", "%"),
        [(name, percent(value)) for name, value in metrics.items() if name not in _PROBABILITIES],
    )
    report.table(
        "Probabilities",
        ("metric", "value"),
        [(called, f"{metrics[name]:.4g}") for name, called in _PROBABILITIES.items()],
    )
    occurring = (code for code, support in enumerate(each.support) if support)
    worst = sorted(occurring, key=lambda code: (each.f1[code], -each.support[code], code))[:_WORST]
    report.table(
        "Classes with the lowest F1",
        ("class", "rows", "predicted", "precision %", "recall %", "F1 %"),
        [
            (
                names[code],
                str(each.support[code]),
                str(each.predicted[code]),
                *(percent(part[code]) for part in (each.precision, each.recall, each.f1)),
            )
            for code in worst
        ],
    )
    if quality.n_unknown:
        report.lines(f"{quality.n_unknown} rows have a class that training never saw; they count as wrong.")
    if rows.n_dropped:
        report.lines(f"{rows.n_dropped} rows without a label are left out.")
    report.result(
        {
            "metrics": metrics,
            "n_rows": len(codes),
            "n_classes": len(names),
            "n_unknown_rows": quality.n_unknown,
            "n_dropped_rows": rows.n_dropped,
        }
    )


def check_files(per_class: Path | None, plot: Path | None) -> None:
    """Refuse files that could not be written, before the work."""
    from extremegp.storage.streams import base_suffix

    if per_class is not None and base_suffix(per_class) not in _DELIMITERS:
        raise SettingsError(f"--per-class must end in .csv or .tsv, perhaps with .gz after it; it is {per_class}")
    if plot is not None and plot.suffix.lower() not in _PICTURES:
        raise SettingsError(f"--plot must end in {', '.join(_PICTURES)}; it is {plot}")
    if plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise SettingsError("--plot needs Matplotlib: pip install 'extremegp[plot]'")


def _write_classes(path: Path, names: list[str], each: PerClass) -> None:
    from extremegp.storage.streams import atomic_writer, base_suffix

    text = io.StringIO()
    writer = csv.writer(text, delimiter=_DELIMITERS[base_suffix(path)], lineterminator="\n")
    writer.writerow(("class", "support", "predicted", "precision", "recall", "f1"))
    for code, name in enumerate(names):
        shares = (f"{part[code]:.6g}" for part in (each.precision, each.recall, each.f1))
        writer.writerow((name, each.support[code], each.predicted[code], *shares))
    with atomic_writer(path) as stream:
        stream.write(text.getvalue().encode())


def write_plot(path: Path, quality: ClassMetrics, title: str) -> None:
    from extremegp.plots import reliability_diagram
    from extremegp.storage.streams import atomic_writer

    figure = reliability_diagram(quality.reliability(), title=title)
    with atomic_writer(path) as stream:
        figure.savefig(stream, format=path.suffix[1:].lower(), dpi=150)
