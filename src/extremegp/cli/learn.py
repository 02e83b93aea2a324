"""Teach a saved model more rows, at once: no training, and nothing of it is lost.

The regression in a model knows the rows from then on, in label trees as
neighbours too, and new labels are suggested; what functions beside it or
trees say changes when the model is trained again. Models can learn that are
of trees, or keep their training rows (up to about 30,000 of them). The call
is written to a journal beside the model before it is answered, so that it
survives whatever happens to the process or the machine.

Every row has a name, which `forget` takes: with --ids those of a file, a
line for each row, else numbers that go on from those of training. DATA may
have any of the formats of `train`.

\b
--json writes:
  {"model": "model", "n_learnt": 2, "ids": ["15959", "15960"],
   "new_labels": ["http://..."], "n_rows": 15961, "n_labels": 17262, ...}

\b
Examples:
  extremegp learn model new.jsonl
  extremegp learn model new.jsonl --ids names.txt --new-labels ignore
"""

from __future__ import annotations

import typer

from extremegp.cli import options
from extremegp.cli.console import Report, check_input
from extremegp.cli.inputs import Source
from extremegp.cli.learning import learner, read_ids
from extremegp.cli.rows import Known, read
from extremegp.cli.task_options import refuse_foreign


def learn(
    context: typer.Context,
    model: options.Model,
    data: options.LearntData,
    ids: options.Ids = None,
    new_labels: options.NewLabels = "add",
    labels: options.Labels = None,
    format: options.Format = "auto",
    x_key: options.XKey = None,
    y_key: options.YKey = None,
    label_column: options.LabelColumn = None,
    first_label: options.FirstLabel = False,
    text_column: options.TextColumn = None,
    labels_column: options.LabelsColumn = None,
    label_separator: options.LabelSeparator = None,
    label_columns: options.LabelColumns = None,
    vector_column: options.VectorColumn = None,
    vectors: options.Vectors = None,
    weight_column: options.WeightColumn = None,
    json: options.Json = None,
    quiet: options.Quiet = False,
) -> None:
    """Load the model, and let it learn the rows."""
    report = Report(json, quiet)
    check_input(data)
    source = Source.of(data, context.params)
    with learner(model, quiet=quiet) as (classifier, task):
        refuse_foreign(context, task, f"{model} is for {task.per_row}")
        task.check_source(source, f"{model} is for {task.per_row}")
        rows, n_labels, n_before = read(source, one_class=task.one_class, known=Known.of_model(classifier)), 0, 0
        n_labels, n_before = len(classifier.classes_), classifier.n_rows_
        names = None if ids is None else read_ids(ids)
        classifier.learn(rows.X, rows.y, names, sample_weight=rows.weights, new_labels=new_labels)
    learnt, new = classifier.ids_.names[n_before:], [str(name) for name in classifier.classes_[n_labels:]]
    what = f"{learnt[0]!r}" if len(learnt) == 1 else f"{learnt[0]!r} to {learnt[-1]!r}" if learnt else "none"
    report.lines(f"{len(learnt)} rows learnt ({what}), {len(new)} new labels; the model has {classifier.n_rows_} rows")
    report.result(
        {
            "model": str(model),
            "n_learnt": len(learnt),
            "ids": learnt,
            "new_labels": new,
            "n_rows": classifier.n_rows_,
            "n_labels": len(classifier.classes_),
            "seconds": report.seconds,
        }
    )
