"""Promise what sets of labels hold, from labelled rows that training has not seen.

The promise is kept for rows like these, whatever the probabilities are worth:
--promise recall   a set has at least --level of the true labels of its row,
                   in expectation
          all      a set has all of them with that probability
          precision  so many of the labels of sets are true, in the mean over
                   sets that are not empty, with --confidence
Of one class per row the class is in its set with that probability. With --per
band it is kept for each of five bands of labels by frequency by itself, with
--per class (of classes) for each class. Where the candidates of rows are too
few the promise is for the surest rows alone: the others get no labels.

predict --promise FILE then gives every row the set that keeps it.

\b
--json writes:
  {"model": "model", "out": "promise.json", "promise": "recall", "level": 0.9,
   "n_rows": 2000, "groups": [{"threshold": 0.02, "least_sureness": 0.0,
   "n_rows": 1990, "kept": 1.0, "attainable": 0.98}], "seconds": 2.1}

\b
Examples:
  extremegp guarantee model held-out.jsonl --level 0.9 --out promise.json
  extremegp guarantee model held-out.jsonl --promise precision --level 0.8 \\
      --per band --out precise.json
  extremegp predict model new.jsonl --promise promise.json --out sets.jsonl
"""

from __future__ import annotations

from typing import Any

import typer

from extremegp.cli import options
from extremegp.cli.console import Report, check_input, check_output
from extremegp.cli.inputs import Source
from extremegp.cli.task_options import refuse_foreign
from extremegp.cli.tasks import load_model
from extremegp.cli.tasks.rows import RowTask
from extremegp.errors import SettingsError


def guarantee(
    context: typer.Context,
    model: options.Model,
    data: options.TestData,
    out: options.PromiseOut,
    promise: options.Promised = None,
    level: options.Level = 0.9,
    per: options.PromisedPer = "all",
    confidence: options.Confidence = None,
    labels: options.Labels = None,
    format: options.Format = "auto",
    x_key: options.XKey = None,
    y_key: options.YKey = None,
    label_column: options.LabelColumn = None,
    first_label: options.FirstLabel = False,
    ignore_labels: options.IgnoreLabels = False,
    text_column: options.TextColumn = None,
    labels_column: options.LabelsColumn = None,
    label_separator: options.LabelSeparator = None,
    label_columns: options.LabelColumns = None,
    vector_column: options.VectorColumn = None,
    vectors: options.Vectors = None,
    vocabulary: options.VocabularyFile = None,
    language: options.Language = "en",
    json: options.Json = None,
    quiet: options.Quiet = False,
) -> None:
    """Load the model, predict the rows, and write what they allow to promise."""
    from extremegp.cli.rows import Known, read

    report = Report(json, quiet)
    check_output(out)
    check_input(data)
    source = Source.of(data, context.params)
    classifier, task = load_model(model, quiet=quiet)
    if not isinstance(task, RowTask):
        raise SettingsError(f"{model} is for {task.per_row}: its guarantees are had in Python, by guarantee and decide")
    refuse_foreign(context, task, f"{model} is for {task.per_row}")
    task.check_source(source, f"{model} is for {task.per_row}")
    asked: dict[str, Any] = {"level": level, "per": per}
    if task.one_class and (promise is not None or confidence is not None):
        raise SettingsError(f"--promise and --confidence are for many labels per row; {model} is for {task.per_row}")
    if not task.one_class:
        asked |= {"promise": promise or "recall", "confidence": 0.9 if confidence is None else confidence}
    rows = read(source, one_class=task.one_class, known=Known.of_model(classifier))
    found = classifier.guarantee(rows.X, rows.y, **asked)
    found.save(out)
    report.lines(*rows.notes, *found.told(), f"written to {out}")
    report.result(
        {
            "model": str(model),
            "out": str(out),
            "promise": found.promise,
            "level": level,
            "n_rows": rows.n_rows,
            "groups": [cut._asdict() for cut in found.cuts],
            "seconds": report.seconds,
        }
    )
