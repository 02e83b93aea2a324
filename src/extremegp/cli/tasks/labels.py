"""Many labels per row, by a factor model or, of very many labels, by label trees."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extremegp.cli.app import say
from extremegp.cli.console import Report, check_plot, percent, write_plot
from extremegp.cli.given import read_given
from extremegp.cli.inputs import Source
from extremegp.cli.options import ModelKind
from extremegp.cli.rows import Known, Rows, read
from extremegp.cli.settings import parse_settings
from extremegp.cli.tasks import reports
from extremegp.cli.tasks.base import EvaluateRequest, PredictRequest, TrainRequest
from extremegp.cli.tasks.kind_trial import tried_kind
from extremegp.cli.tasks.rows import RowTask, promised_by, sets_of
from extremegp.cli.writing import Best
from extremegp.errors import DataError, SettingsError
from extremegp.presets import PRESETS

if TYPE_CHECKING:
    from extremegp.estimators import MultiLabelEstimator
    from extremegp.estimators.guarantees import Guarantee
    from extremegp.metrics.measured import Measured

FACTOR_LABELS, MOST_TRIED_LABELS = 2000, 100_000
"""With more labels than the first, and no more than the second, a trial decides on the kind of model."""

TREE_LABELS = 20_000
"""Where there is no trial, the default with more labels than this is label trees: measured, see docs/scaling.md."""

DENSE_LABELS = 20_000
"""With more labels only each row's best are looked at."""

TOP_JUDGED = 20
"""The labels of a row whose probabilities are judged then."""

CANDIDATES = 100
"""The labels of a row that curves and best thresholds are computed from then."""

_DECISIONS = (
    "subset_accuracy",
    "hamming_loss",
    "micro_average_precision",
    "macro_average_precision",
    "best_micro_f1",
    "best_macro_f1",
)
_UNITS = {"log_loss": " (nats/row)", "log_loss_top20": " (nats/row and label)", "brier": " (/row)", "seconds": " (s)"}


class ManyLabels(RowTask["MultiLabelEstimator"]):
    """Any number of labels per row."""

    name = "multilabel"
    per_row = "many labels per row"
    estimators = {"factor": "MultiLabelGPClassifier", "tree": "LabelTreeGPClassifier"}  # noqa: RUF012
    presets = PRESETS
    score = "P@1"
    one_class = False

    def check_source(self, source: Source, because: str, *, labelled: bool = True) -> None:
        for option, value in {"--label-column": source.label_column, "--first-label": source.first_label}.items():
            if labelled and value:
                raise SettingsError(f"{option} is for one class per row, but {because}")
        source.check(labelled=labelled)

    def kinds(self, request: TrainRequest) -> list[ModelKind]:
        if request.kind == "tree" and request.preset is not None:
            raise SettingsError(f"--model tree is for {self.per_row}, but --preset {request.preset} is another model")
        if request.kind != "auto":
            return [request.kind]
        if request.preset is not None:
            return ["factor"]
        fitting: list[ModelKind] = []
        for kind in self.estimators:
            try:
                parse_settings(request.settings, self.estimators[kind])
            except SettingsError:
                continue
            fitting.append(kind)
        # Where neither fits, the message is that of factor models, which have more parameters.
        return fitting or ["factor"]

    def kind_for(self, rows: Rows, kinds: list[ModelKind], params: dict[str, Any]) -> tuple[ModelKind, tuple[str, ...]]:
        # Files give labels as a matrix, or as lists of names.
        y = rows.y
        n_labels = len({name for names in y for name in names}) if isinstance(y, list) else y.shape[1]
        if len(kinds) == 1 or n_labels <= FACTOR_LABELS:
            return kinds[0], ()
        found = None
        if n_labels <= MOST_TRIED_LABELS and "time_budget" not in params:
            say(f"Trying {' and '.join(kinds)} models on some of the rows, for there are {n_labels} labels ...")
            quietly = {"verbose": False, "checkpoint": None}
            found = tried_kind(rows, {kind: self.estimator(kind)(**params | quietly) for kind in kinds})
        if found is None:
            return kinds[-1] if n_labels > TREE_LABELS else kinds[0], ()
        return found.kind, (found.told,)

    def fit_options(self, request: TrainRequest, rows: Rows) -> dict[str, Any]:
        names = rows.label_names
        if request.labels_names is not None:
            if isinstance(rows.y, list) or names is not None:
                raise SettingsError("--labels-names is for data with numbered labels; these have names already")
            names = _read_names(request.labels_names, rows.y.shape[1])
        return {} if names is None else {"label_names": names}

    def n_fitted(self, classifier: MultiLabelEstimator, n_units: int, *, validated: bool) -> int:
        # Trees say how many rows they hold out: the evidence is what a Gaussian process learns on these.
        held_out = getattr(classifier, "n_held_out_", None)
        return super().n_fitted(classifier, n_units, validated=validated) if held_out is None else held_out

    def evaluate(self, classifier: MultiLabelEstimator, request: EvaluateRequest, report: Report) -> None:
        import numpy as np

        from extremegp.engine.matrices import column_counts
        from extremegp.metrics import propensities
        from extremegp.metrics.measured import measure, measure_top

        source, ks = request.source, request.ks
        reports.check_per_class(request.per_class)
        check_plot(request.plot)
        self.check_source(source, f"{request.model} is for {self.per_row}")
        rows = read(source, one_class=False, known=Known.of_model(classifier))
        x, given = rows.X, rows.y
        y = classifier.encode_labels(given)
        n_unknown = sum(len(set(labels)) for labels in given) - int(y.nnz) if isinstance(given, list) else 0
        inputs, predictor = classifier.features_.transform_new(x), classifier.predictor()
        counts = classifier.label_counts_
        # Numbered labels have columns, whether or not a training row has them.
        without_rows = column_counts(y)[np.asarray(counts) == 0]
        n_unseen, n_unseen_entries = int(np.count_nonzero(without_rows)), int(without_rows.sum())
        of_labels = propensities(counts, classifier.n_rows_, *request.propensity)
        if y.shape[1] > DENSE_LABELS:
            ranked = predictor.top(inputs, max(CANDIDATES, TOP_JUDGED, *ks), request.by)
            found = measure_top(
                ranked,
                y,
                ks=ks,
                propensity=of_labels,
                train_counts=counts,
                threshold=request.threshold,
                top=TOP_JUDGED,
            )
        else:
            blocks = predictor.mean_utilities_and_probabilities(inputs)
            scored = ((rows, means if request.by == "utility" else p, p) for rows, means, p in blocks)
            found = measure(scored, y, ks=ks, propensity=of_labels, train_counts=counts, threshold=request.threshold)
        names, each = [str(name) for name in classifier.classes_], found.labels.per_label()
        titles = self.titles(classifier, rows.vocabulary)
        if request.per_class is not None:
            reports.write_per_class(request.per_class, names, each, titles)
        if request.plot is not None:
            from extremegp.plots import label_report

            curve = found.labels.precision_recall()
            write_plot(request.plot, label_report(found.reliability, curve, title=source.path.name))
        metrics = found.metrics | {"seconds": report.seconds}
        _show(report, f"{request.model} on {source.path}", ks, metrics, found)
        reports.show_lowest(report, self.label, self.rows, classifier.shown_labels(titles), each)
        report.lines(*rows.notes)
        if n_unknown:
            report.lines(f"{n_unknown} labels that training never saw are left out of the truth.")
        if n_unseen:
            share = percent(n_unseen_entries / y.nnz)
            report.lines(
                f"{n_unseen_entries} of the true labels ({share} %) have no training row, {n_unseen} of them "
                "different: they count as true, and ranking metrics are the lower for them."
            )
        result: dict[str, Any] = {
            "metrics": {name: reports.or_null(value) for name, value in metrics.items()},
            "n_rows": y.shape[0],
            "n_labels": y.shape[1],
            "n_unknown_label_entries": n_unknown,
            "n_unseen_labels": n_unseen,
            "n_unseen_label_entries": n_unseen_entries,
            "threshold": request.threshold,
            "exact_above": found.labels.exact_above,
        }
        if len(names) <= DENSE_LABELS:
            result["labels"] = reports.labels_by_name(names, each, titles)
        report.result(result)

    def predict(self, classifier: MultiLabelEstimator, request: PredictRequest, report: Report) -> None:
        if request.approximate is not None and request.given is not None:
            raise SettingsError("--approximate cannot take given labels into account: leave out it or --given")
        if request.approximate is not None and not 0 < request.approximate <= 1:
            raise SettingsError(f"--approximate must be a recall above 0 and at most 1; it is {request.approximate:g}")
        for option, value in {"given": request.given, "approximate": request.approximate}.items():
            if value is not None and option in classifier.cannot_take:
                raise SettingsError(classifier.cannot_take[option])
        for option, is_asked in {"decide": request.decide is not None, "promise": request.promise is not None}.items():
            if is_asked and (request.given is not None or request.approximate is not None):
                raise SettingsError(f"--{option} looks at all labels: leave out it, or --given and --approximate")
        if request.decide is not None and request.promise is not None:
            raise SettingsError("--decide and --promise both say what sets to give: leave out one")
        super().predict(classifier, request, report)

    def best(
        self, classifier: MultiLabelEstimator, predictor: Any, inputs: Any, k: int, request: PredictRequest
    ) -> Iterator[Best]:
        if request.promise is not None or request.decide is not None:
            rule = promised_by(request.promise, classifier, ("recall", "precision", "all"))
            yield from _sets(classifier, predictor, inputs, request, rule)
            return
        if request.approximate is not None:
            index = classifier.label_index()
            index.tune(inputs, k, request.approximate, request.by)
            ranked = index.top(inputs, k, request.by)
        else:
            names = [str(name) for name in classifier.classes_]
            known = () if request.given is None else (read_given(request.given, names, inputs.shape[0]),)
            ranked = predictor.top(inputs, k, request.by, *known)
        yield from (Best(best.labels, probabilities) for _, best, probabilities in ranked)

    def told_of_search(
        self, classifier: MultiLabelEstimator, request: PredictRequest, report: Report
    ) -> dict[str, Any]:
        if request.approximate is None:
            return {}
        index = classifier.label_index()
        setting = index.setting
        found = "not measured on so few rows" if setting.recall is None else f"{setting.recall:.4f}"
        report.lines(
            f"approximate: recall {found} of the exact best ({setting.n_rows} rows; {setting.n_probe} of "
            f"{index.n_lists} groups of labels, {setting.candidates} candidates)"
        )
        return {"approximate": setting._asdict()}


def _sets(
    classifier: MultiLabelEstimator, predictor: Any, inputs: Any, request: PredictRequest, promised: Guarantee | None
) -> Iterator[Best]:
    """The sets of labels of rows, a block at a time."""
    from extremegp.estimators.decisions import Rule
    from extremegp.prediction.decisions import MOST_LABELS, expected_f1

    asked, n_labels = request.decide, len(classifier.classes_)
    rule: Rule | Guarantee | None = promised
    if asked is not None:
        rule = Rule.of(
            asked.by,
            n_labels,
            cost_wrong=asked.cost_wrong,
            cost_missed=asked.cost_missed,
            size=request.top_k,
            threshold=asked.threshold,
        )
    assert rule is not None
    for _, candidates in predictor.likeliest(inputs, min(MOST_LABELS, n_labels)):
        chosen, _ = rule.chosen(candidates)
        if asked is not None and asked.least_f1 is not None:
            chosen &= (expected_f1(candidates, chosen) >= asked.least_f1)[:, None]
        yield sets_of(candidates, chosen)


def _show(report: Report, title: str, ks: Sequence[int], metrics: dict[str, float], found: Measured) -> None:
    """Show the tables of metrics, and say what was chosen on the data and what was left out."""
    from extremegp.metrics.labels import AVERAGES, MEASURES

    labels = found.labels
    rankings = dict.fromkeys(name.partition("@")[0] for name in metrics if "@" in name and not name.startswith("ECE"))
    report.table(
        title,
        ("metric, %", *(f"@{k}" for k in ks)),
        [(name, *(percent(metrics[f"{name}@{k}"]) for k in ks)) for name in rankings],
    )
    averages = {f"{average}_{measure}" for average in AVERAGES for measure in MEASURES}
    elsewhere = {*averages, *_DECISIONS, "best_threshold", *found.risks.compute()}
    of_probabilities = [name for name in metrics if name.partition("@")[0] not in rankings and name not in elsewhere]
    report.table(
        "Probabilities",
        ("metric", "value"),
        [(name + _UNITS.get(name, ""), f"{metrics[name]:.4g}") for name in of_probabilities],
    )
    reports.show_risks(report, found.risks, _UNITS)
    report.table(
        f"Labels of probability {labels.threshold:g} or more",
        ("average", "precision %", "recall %", "F1 %", "Jaccard %"),
        [(average, *(percent(metrics[f"{average}_{measure}"]) for measure in MEASURES)) for average in AVERAGES],
    )
    report.table("Decisions", ("metric", "%"), [(name, percent(metrics[name])) for name in _DECISIONS])
    if not math.isnan(metrics["best_threshold"]):
        report.lines(
            f"best_micro_f1 is with the threshold {metrics['best_threshold']:.3g}, best_macro_f1 with one for each "
            "label. Both are chosen on these rows, and not applied: on others they do less well."
        )
    if labels.exact_above:
        least = "" if labels.exact_above == 1 else f"; no probability above {labels.exact_above:.3g} is missing"
        report.lines(f"Average precision and best thresholds are of the most probable labels alone{least}.")


def shown(name: str, value: float) -> str:
    """A metric as tables show it: percent for those at a rank."""
    return percent(value) if "@" in name else f"{value:.4g}"


def _read_names(path: Path, n_labels: int) -> list[str]:
    """The names of all labels from a file with one a line."""
    from extremegp.storage.streams import line_blocks

    try:
        text = b"".join(line_blocks(path)).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError("not UTF-8 text; convert the file to UTF-8", path=path) from error
    names = [name.strip() for name in text.rstrip("\n").split("\n")]
    if len(names) != n_labels:
        raise DataError(f"has {len(names)} names, but the data have {n_labels} labels", path=path)
    if len(set(names)) < len(names):
        twice, line = next((name, i) for i, name in enumerate(names, 1) if name in names[: i - 1])
        raise DataError(f"the name {twice!r} comes twice; names must be unique", path=path, line=line)
    return names
