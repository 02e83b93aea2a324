"""A label for every token of sequences, which files hold in columns."""

from __future__ import annotations

import io
import sys
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extremegp.cli import columns
from extremegp.cli.app import say
from extremegp.cli.columns import Sequences
from extremegp.cli.console import Report, check_plot, percent, write_plot
from extremegp.cli.inputs import Source
from extremegp.cli.options import Decoding
from extremegp.cli.rows import class_space, naming
from extremegp.cli.tasks import reports
from extremegp.cli.tasks.base import (
    EvaluateRequest,
    Labelled,
    PredictRequest,
    Task,
    Training,
    TrainRequest,
    check_threshold,
)
from extremegp.cli.tasks.tokens import check_writable, given, of_scheme, write_best, write_k_best, write_spans
from extremegp.errors import DataError, SettingsError
from extremegp.presets import SEQUENCE_PRESETS

if TYPE_CHECKING:
    from extremegp.data import Template
    from extremegp.estimators import SequenceGPClassifier
    from extremegp.metrics import SequenceMetrics, SpanScore

_SHARES = ("token_error", "sequence_error", "marginal_error", "span_precision", "span_recall", "span_f1")
_PROBABILITIES = {
    "nll_unstruct": "NLL_unstruct (nats)",
    "nll_unstruct_per_token": "NLL_unstruct (nats/token)",
    "nll_struct": "NLL_struct (nats)",
    "nll_struct_per_token": "NLL_struct (nats/token)",
    "brier": "brier (/token)",
    "ece": "ece",
    "aurc": "aurc",
    "excess_aurc": "excess_aurc",
    "seconds": "seconds (s)",
}
_SHOWN_LABELS = 5
_OF_ROWS = (".jsonl", ".csv", ".npz")


class LabelledTokens(Task["SequenceGPClassifier"]):
    """A label for every token."""

    name = "sequence"
    per_row = "a label for every token of sequences"
    estimators = {"factor": "SequenceGPClassifier"}  # noqa: RUF012
    presets = SEQUENCE_PRESETS
    rows = "tokens"
    unit = "sequence"
    rows_of_reports = "sequences"

    def prepare(self, request: TrainRequest) -> Training[SequenceGPClassifier]:
        source, path = request.source, request.template
        params = self.parameters(request)
        if params.get("scheme") == "none":
            params["scheme"] = None
        n_columns = _n_columns(source)
        template = None if path is None else _read_template(path)
        request.check_destination()
        classifier = self.estimator()(**params, template=template)
        # What cannot work is refused before the time that reading takes.
        classifier.check_params()
        if template is None or path is None:
            template = _default_template(n_columns, quiet=request.quiet)
        else:
            _check_columns(template, path, n_columns, source)
        classifier.set_params(template=str(template))
        held = None if request.valid is None else source.at(request.valid)
        if held is not None and (width := columns.width(held)) != n_columns + 1:
            raise DataError(
                f"the line has {columns.counted(width)}, but {source.path} has {n_columns + 1}",
                path=held.path,
                line=columns.first_token_line(held),
            )
        X, y = columns.read_partly(source, request.unknown_label)
        # `fit` would refuse labels that nothing can be learnt from without naming the file.
        known = [label for label in chain.from_iterable(y) if label is not None]
        class_space(known, source, name="the last column")
        return Training(
            classifier,
            X,
            y,
            n_units=len(X),
            options={} if held is None else {"validation": columns.read_partly(held, request.unknown_label)},
            shown=[("sequences", str(len(X))), *_labelled(X, known), *_schemes(y)],
            extra={
                "n_sequences": len(X),
                "n_columns": n_columns,
                "n_labelled": len(known),
                "template": str(template),
            },
        )

    def evaluate(self, classifier: SequenceGPClassifier, request: EvaluateRequest, report: Report) -> None:
        source, names = request.source, [str(name) for name in classifier.classes_]
        reports.check_per_class(request.per_class)
        check_plot(request.plot)
        columns.check_width(classifier, request.model, source, labelled=True)
        of_scheme(classifier, request.scheme)
        quality, note = _metrics(classifier)
        never_seen = _measure(quality, classifier, source, request.decoding)
        metrics = quality.compute() | {"seconds": report.seconds}
        counts = {name: int(metrics.pop(name)) for name in ("n_sequences", "n_tokens", "n_unknown")}
        each, confusion = quality.per_label(), quality.confusion()
        if request.per_class is not None:
            reports.write_per_class(request.per_class, names, each)
        if request.plot is not None:
            from extremegp.plots import class_report

            diagram = quality.tokens.reliability()
            write_plot(request.plot, class_report(diagram, confusion, names, title=source.path.name))
        spans = quality.span_scores() if "span_f1" in metrics else {}
        _show(report, f"{request.model} on {source.path}", metrics, spans)
        reports.show_lowest(report, self.label, self.rows, names, each)
        reports.show_confusions(report, self.label, self.rows, names, confusion)
        if note is not None:
            report.lines(note)
        if never_seen:
            listed = ", ".join(never_seen[:_SHOWN_LABELS]) + (", ..." if len(never_seen) > _SHOWN_LABELS else "")
            wrong = f"{counts['n_unknown']} of {counts['n_tokens']} tokens have a label that training never saw"
            report.lines(f"{wrong} ({listed}); they count as wrong, and have no part in the likelihoods.")
        report.result(
            {
                "metrics": metrics,
                "n_sequences": counts["n_sequences"],
                "n_tokens": counts["n_tokens"],
                "n_labels": len(classifier.classes_),
                "n_unknown_tokens": counts["n_unknown"],
                "decoding": request.decoding or classifier.decoding,
                "scheme": classifier.scheme_,
                "spans": {kind: _span_report(score) for kind, score in spans.items()},
                "labels": reports.labels_by_name(names, each),
                "confusion": reports.confusion_by_name(names, confusion),
                "note": note,
            }
        )

    def labelled(self, classifier: SequenceGPClassifier, source: Source, model: Path) -> Labelled:
        columns.check_width(classifier, model, source, labelled=True)
        sequences, labels = columns.read(source, labelled=True)
        return Labelled(sequences, labels or [], partial(naming, source))

    def predict(self, classifier: SequenceGPClassifier, request: PredictRequest, report: Report) -> None:
        from extremegp.storage.streams import atomic_writer, base_suffix

        source, out, k_best = request.source, request.out, request.k_best
        if k_best is not None and request.decoding is not None:
            raise SettingsError("--k-best orders labellings by their probability; leave out --decoding")
        if k_best is not None and (request.uncertainty or request.novelty_threshold is not None):
            asked = "--uncertainty" if request.uncertainty else "--novelty-threshold"
            raise SettingsError(f"{asked} tells of tokens, and --k-best of whole labellings: leave out one of them")
        check_threshold(request.novelty_threshold)
        if request.spans and (k_best is not None or request.uncertainty or request.novelty_threshold is not None):
            raise SettingsError("--spans tells of spans: leave out --k-best, --uncertainty and --novelty-threshold")
        of_scheme(classifier, request.scheme)
        if out is not None and not request.spans and {out.suffix.lower(), base_suffix(out)} & set(_OF_ROWS):
            raise SettingsError(f"--out of sequences is text in columns: let it end in .txt or .tsv; it is {out}")
        columns.check_width(classifier, request.model, source, labelled=False)
        sequences = columns.read(source, labelled=False).sequences
        known = given(classifier, request, sequences)
        names = [str(name) for name in classifier.classes_]
        encoding = source.encoding or "utf-8"
        check_writable(sequences, names, source, encoding)
        text = io.StringIO()
        if request.spans:
            write_spans(text, classifier, sequences, request, known)
        elif k_best is None:
            write_best(text, classifier, sequences, names, request, known)
        else:
            write_k_best(text, classifier, sequences, k_best, request.probabilities, known)
        content = text.getvalue().encode(encoding)
        if out is None:
            sys.stdout.flush()
            sys.stdout.buffer.write(content)
        else:
            with atomic_writer(out) as stream:
                stream.write(content)
        n_tokens, seconds = sum(map(len, sequences)), report.seconds
        best = "" if k_best is None else f", the {k_best} best labellings each,"
        report.lines(f"{len(sequences)} sequences of {n_tokens} tokens{best} to {out} in {seconds:.1f} s")
        report.result(
            {
                "out": None if out is None else str(out),
                "n_sequences": len(sequences),
                "n_tokens": n_tokens,
                "n_labels": len(names),
                "decoding": None if k_best else request.decoding or classifier.decoding,
                "k_best": k_best,
                "scheme": classifier.scheme_,
                "seconds": seconds,
            }
        )

    def details(self, classifier: SequenceGPClassifier) -> dict[str, Any]:
        template = classifier.features_.template
        return {"n_columns": classifier.features_.n_columns, "template": template and str(template)}


def _labelled(sequences: Sequences, known: list[str]) -> list[tuple[str, str]]:
    """How many tokens have a label, where not all have."""
    n_tokens = sum(map(len, sequences))
    return [("labelled tokens", f"{len(known)} of {n_tokens}")] if len(known) < n_tokens else []


def _schemes(y: list[list[str | None]]) -> list[tuple[str, str]]:
    """What is told of labels that are tags."""
    from extremegp.data import detect_scheme

    found = detect_scheme(y)
    return [("scheme of tags", str(found))] if found.n_tags else []


def _read_template(path: Path) -> Template:
    from extremegp.data import Template

    return Template.parse(_text(path), name=str(path))


def _text(path: Path) -> str:
    from extremegp.storage.streams import line_blocks

    try:
        return b"".join(line_blocks(path)).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError("not UTF-8 text; convert the template to UTF-8", path=path) from error


def _default_template(n_columns: int, *, quiet: bool) -> Template:
    from extremegp.data.templates import default_template

    if not quiet:
        say(
            f"no --template: features are the column{'s' * (n_columns > 1)} of the tokens -2 to 2, pairs (-1,0) "
            "and (0,1) of neighbours, and B; `extremegp info` shows the template"
        )
    return default_template(n_columns)


def _n_columns(source: Source) -> int:
    """Columns beside the label."""
    n_columns = columns.width(source) - 1
    if not n_columns:
        raise DataError(
            "the line has only one column, so beside the label, which is the last, there is nothing; name what "
            "separates columns by --separator",
            path=source.path,
            line=columns.first_token_line(source),
        )
    return n_columns


def _check_columns(template: Template, path: Path, n_columns: int, source: Source) -> None:
    """Refuse a template with macros of columns that the data do not have."""
    for rule in template.rules:
        beyond = [column for _, column in rule.macros if column >= n_columns]
        if beyond:
            lines = [line.rstrip(" \t\r") for line in _text(path).split("\n")]
            raise DataError(
                f"{rule.line!r} asks for column {beyond[0]}, but {source.path} has {columns.counted(n_columns)} "
                "beside the label; columns are counted from 0",
                path=path,
                line=lines.index(rule.line) + 1,
            )


def _metrics(classifier: SequenceGPClassifier) -> tuple[SequenceMetrics, str | None]:
    """The metrics, and what is to be told of those that cannot be had."""
    from extremegp.metrics import SequenceMetrics

    names = classifier.classes_.tolist()
    try:
        return SequenceMetrics(names), None
    except ImportError:
        note = "F1 of spans is left out: it needs seqeval, pip install 'extremegp[sequences]'"
        return SequenceMetrics(names, spans=False), note


def _measure(
    quality: SequenceMetrics, classifier: SequenceGPClassifier, source: Source, decoding: Decoding | None
) -> list[str]:
    """Add all sequences of a file to the metrics, and give the labels in it that training never saw."""
    from extremegp.estimators.decoding import labelled_blocks

    sequences, labels = columns.read(source, labelled=True)
    with naming(source):
        found = labelled_blocks(classifier, sequences, labels or (), decoding, "the last column")
    for block in found.blocks:
        quality.update(
            block.truth,
            block.predicted,
            block.marginals,
            lengths=block.lengths,
            sequence_log_prob=block.sequence_log_prob,
        )
    return found.never_seen


def _span_report(score: SpanScore) -> dict[str, float]:
    return {name: getattr(score, name) for name in ("support", "predicted", "precision", "recall", "f1")}


def _show(report: Report, title: str, metrics: dict[str, float], spans: dict[str, SpanScore]) -> None:
    report.table(title, ("metric", "%"), [(name, percent(metrics[name])) for name in _SHARES if name in metrics])
    report.table(
        "Probabilities",
        ("metric", "value"),
        [(called, f"{metrics[name]:.4g}") for name, called in _PROBABILITIES.items()],
    )
    if spans:
        report.table(
            "Spans",
            ("type", "spans", "predicted", "precision %", "recall %", "F1 %"),
            [
                (kind, str(each.support), str(each.predicted), *map(percent, (each.precision, each.recall, each.f1)))
                for kind, each in spans.items()
            ],
        )
