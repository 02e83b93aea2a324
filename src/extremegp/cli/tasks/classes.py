"""One class per row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from extremegp.cli.console import Report, check_plot, percent, write_plot
from extremegp.cli.inputs import Source
from extremegp.cli.options import ModelKind
from extremegp.cli.rows import Known, class_codes, class_space, read
from extremegp.cli.tasks import reports
from extremegp.cli.tasks.base import EvaluateRequest, PredictRequest, TrainRequest
from extremegp.cli.tasks.rows import RowTask, promised_by, sets_of
from extremegp.cli.writing import Best
from extremegp.errors import SettingsError
from extremegp.presets import CLASS_PRESETS

if TYPE_CHECKING:
    from extremegp.data import ClassSpace
    from extremegp.estimators import MultiClassGPClassifier

_PROBABILITIES = {"nlpd": "nlpd (nats/row)", "brier": "brier (/row)", "ece": "ece", "seconds": "seconds (s)"}


class OneClass(RowTask["MultiClassGPClassifier"]):
    """One of K classes per row."""

    name = "multiclass"
    per_row = "one class per row"
    estimators = {"factor": "MultiClassGPClassifier"}  # noqa: RUF012
    presets = CLASS_PRESETS
    label = ("class", "classes")
    one_class = True

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
        from extremegp.metrics import ClassMetrics, ClassRisks

        source, per_class = request.source, request.per_class
        reports.check_per_class(per_class)
        check_plot(request.plot)
        source.check()
        rows = read(source, one_class=True, known=Known.of_model(classifier))
        codes = class_codes(rows.y, source, classifier.label_space_)
        names = [str(name) for name in classifier.classes_]
        quality, risks = ClassMetrics(len(names), ks=request.ks), ClassRisks(len(names))
        for block, probabilities in classifier.predictor().probabilities(classifier.features_.transform_new(rows.X)):
            quality.update(probabilities, codes[block])
            risks.update(probabilities, codes[block])
        areas = risks.compute()
        metrics = quality.compute() | areas | {"seconds": report.seconds}
        each, confusion = quality.per_class(), quality.confusion()
        if per_class is not None:
            reports.write_per_class(per_class, names, each)
        if request.plot is not None:
            from extremegp.plots import class_report

            write_plot(request.plot, class_report(quality.reliability(), confusion, names, title=source.path.name))
        report.table(
            f"{request.model} on {source.path}",
            ("metric", "%"),
            [(name, percent(value)) for name, value in metrics.items() if name not in {*_PROBABILITIES, *areas}],
        )
        report.table(
            "Probabilities",
            ("metric", "value"),
            [(called, f"{metrics[name]:.4g}") for name, called in _PROBABILITIES.items()],
        )
        reports.show_risks(report, risks, {"nlpd": " (nats/row)"})
        reports.show_lowest(report, self.label, self.rows, names, each)
        reports.show_confusions(report, self.label, self.rows, names, confusion)
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
                "classes": reports.labels_by_name(names, each),
                "confusion": reports.confusion_by_name(names, confusion),
            }
        )

    def best(
        self, classifier: MultiClassGPClassifier, predictor: Any, inputs: Any, k: int, request: PredictRequest
    ) -> Iterator[Best]:
        promised = promised_by(request.promise, classifier, ("class",))
        if promised is None:
            return (Best(best.labels, probabilities) for _, best, probabilities in predictor.top(inputs, k))
        from extremegp.prediction.decisions import MOST_LABELS

        blocks = predictor.likeliest(inputs, min(MOST_LABELS, len(classifier.classes_)))
        return (sets_of(candidates, promised.chosen(candidates)[0]) for _, candidates in blocks)
