"""One class per row."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extremegp.cli.console import Report, check_plot, percent, write_plot
from extremegp.cli.inputs import Source
from extremegp.cli.options import ModelKind
from extremegp.cli.rows import Known, class_codes, class_space, read
from extremegp.cli.tasks.base import EvaluateRequest, PredictRequest, TrainRequest
from extremegp.cli.tasks.rows import RowTask
from extremegp.cli.writing import Best
from extremegp.errors import SettingsError
from extremegp.presets import CLASS_PRESETS

if TYPE_CHECKING:
    from extremegp.data import ClassSpace
    from extremegp.estimators import MultiClassGPClassifier
    from extremegp.metrics import PerClass

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_WORST = 5
_PROBABILITIES = {"nlpd": "nlpd (nats/row)", "brier": "brier (/row)", "ece": "ece", "seconds": "seconds (s)"}


class OneClass(RowTask["MultiClassGPClassifier"]):
    """One of K classes per row."""

    name = "multiclass"
    per_row = "one class per row"
    estimators = {"factor": "MultiClassGPClassifier"}  # noqa: RUF012
    presets = CLASS_PRESETS
    label = ("class", "classes")
    one_class = True
    measures = ("total", "aleatoric", "epistemic")

    def usual_features(self, source: Source) -> str:
        return "auto"

    def kinds(self, request: TrainRequest) -> list[ModelKind]:
        if request.kind == "tree":
            raise SettingsError(f"--model tree is for many labels per row, but this data has {self.per_row}")
        return ["factor"]

    def space(self, y: Any, source: Source, *, asked: bool) -> ClassSpace:
        from extremegp.data.label_lists import sign_of_lists

        if not asked and (sign := sign_of_lists(y)):
            raise SettingsError(
                f"{source.labels or source.path}: {sign}: if rows have many labels, say --task multilabel and "
                "--label-separator (with --labels, or --labels-column in place of --label-column); if each is the name "
                "of one class, say --task multiclass"
            )
        return class_space(y, source)

    def evaluate(self, classifier: MultiClassGPClassifier, request: EvaluateRequest, report: Report) -> None:
        from extremegp.metrics import ClassMetrics

        source, per_class = request.source, request.per_class
        _check_suffix(per_class)
        check_plot(request.plot)
        source.check()
        rows = read(source, one_class=True, known=Known.of_model(classifier))
        codes = class_codes(rows.y, source, classifier.label_space_)
        names = [str(name) for name in classifier.classes_]
        quality = ClassMetrics(len(names), ks=request.ks)
        for block, probabilities in classifier.predictor().probabilities(classifier.features_.transform(rows.X)):
            quality.update(probabilities, codes[block])
        metrics = quality.compute() | {"seconds": report.seconds}
        each = quality.per_class()
        if per_class is not None:
            _write_classes(per_class, names, each)
        if request.plot is not None:
            write_plot(request.plot, quality, source.path.name)
        report.table(
            f"{request.model} on {source.path}",
            ("metric", "%"),
            [(name, percent(value)) for name, value in metrics.items() if name not in _PROBABILITIES],
        )
        report.table(
            "Probabilities",
            ("metric", "value"),
            [(called, f"{metrics[name]:.4g}") for name, called in _PROBABILITIES.items()],
        )
        _show_worst(report, names, each)
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

    def best(
        self, classifier: MultiClassGPClassifier, predictor: Any, inputs: Any, k: int, request: PredictRequest
    ) -> Iterator[Best]:
        import numpy as np

        from extremegp.metrics import TopK

        if not request.uncertainty:
            for _, best, probabilities in predictor.top(inputs, k):
                yield Best(best.labels, probabilities)
            return
        for _, probabilities, total, aleatoric in predictor.class_uncertainty(inputs):
            best = TopK.from_scores(probabilities, k)
            yield Best(best.labels, best.scores, np.stack([total, aleatoric, total - aleatoric], axis=1))


def _check_suffix(per_class: Path | None) -> None:
    """Refuse a file that could not be written, before the work."""
    from extremegp.storage.streams import base_suffix

    if per_class is not None and base_suffix(per_class) not in _DELIMITERS:
        raise SettingsError(f"--per-class must end in .csv or .tsv, perhaps with .gz after it; it is {per_class}")


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


def _show_worst(report: Report, names: list[str], each: PerClass) -> None:
    """The classes that are told apart least."""
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
