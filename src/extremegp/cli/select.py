"""Choose which rows of a pool without labels to annotate next.

DATA has what `predict` takes. Its rows are chosen one after the other, each
beside those before it, by what the posterior of the model does not know of
their labels, or by one of the other measures of --by. Rows that the model has
learnt already do not belong into the pool.

\b
Formats by suffix of --out, or by --to:
  .csv    columns row, id, score, labels, titles, probabilities, text;
          labels, titles and probabilities are JSON lists
  .jsonl  a line per row with the same keys
  .json   tasks for Label Studio (--to label-studio), with predictions for a
          Choices tag "labels" of a Text tag "text"; for texts
Rows are numbered from 0 and stand in the order in which they were chosen;
id, titles and text are there where the data, the vocabulary and the rows have
them.

\b
--json writes:
  {"out": "next.csv", "n_rows": 100, "n_pool": 15959, "by": "posterior", ...}

\b
Examples:
  extremegp select model pool.jsonl --n 100 --out next.csv
  extremegp select model pool.jsonl --n 100 --out tasks.json
  extremegp select model pool.tsv --n 20 --by bald --out - | head
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from extremegp.cli import options
from extremegp.cli.console import Report, check_input, check_output
from extremegp.cli.input_blocks import InputBlock, input_blocks, joined
from extremegp.cli.inputs import Source
from extremegp.cli.pipes import STANDARD
from extremegp.cli.rows import Known
from extremegp.cli.selection_files import ToAnnotate, content, format_of
from extremegp.cli.task_options import refuse_foreign
from extremegp.cli.tasks import load_model
from extremegp.cli.tasks.rows import RowTask
from extremegp.errors import SettingsError

if TYPE_CHECKING:
    from extremegp.prediction.selection import Selected


def select(
    context: typer.Context,
    model: options.Model,
    data: options.Pool,
    n: options.NChosen,
    out: options.Chosen = STANDARD,
    to: options.ToTasks = None,
    by: options.ChosenBy = "posterior",
    seed: options.ChoiceSeed = 0,
    top_k: options.TopK = 5,
    format: options.Format = "auto",
    x_key: options.XKey = None,
    label_column: options.LabelColumn = None,
    text_column: options.TextColumn = None,
    vector_column: options.VectorColumn = None,
    vectors: options.Vectors = None,
    id_column: options.IdColumn = None,
    vocabulary: options.VocabularyFile = None,
    language: options.Language = "en",
    json: options.Json = None,
    quiet: options.Quiet = False,
) -> None:
    """Load the model and the pool, choose, and write the chosen rows."""
    to_standard = out == STANDARD
    if to_standard and json == "-":
        raise SettingsError("--json - leaves no place for the rows: name a file for them by --out")
    report, kind = Report(json, quiet or to_standard), format_of(out, to)
    if not to_standard:
        check_output(out)
    check_input(data)
    source = Source.of(data, context.params)
    classifier, task = load_model(model, quiet=quiet)
    if not isinstance(task, RowTask):
        raise SettingsError(f"{model} is for {task.per_row}: which of these to annotate is not chosen")
    refuse_foreign(context, task, f"{model} is for {task.per_row}", own=("--by",))
    task.check_source(source, f"{model} is for {task.per_row}", labelled=False)
    if kind == "label-studio" and source.inputs == "feature vectors":
        raise SettingsError(f"tasks of Label Studio show texts, but {source.called}: write .csv or .jsonl")
    pool = joined(input_blocks(source, Known.of_model(classifier), one_class=task.one_class))
    chosen = classifier.select(pool.X, n, by, seed=seed)
    rows = _described(classifier, task, source, pool, chosen, top_k)
    _write(out, content(rows, kind))
    report.lines(f"{len(rows)} of {pool.n_rows} rows, by {by}, to {out} in {report.seconds:.1f} s")
    result = {"out": str(out), "n_rows": len(rows), "n_pool": pool.n_rows, "by": by, "seed": seed}
    report.result(result | {"rows": chosen.rows.tolist(), "seconds": report.seconds})


def _described(
    classifier: Any, task: RowTask[Any], source: Source, pool: InputBlock, chosen: Selected, top_k: int
) -> list[ToAnnotate]:
    """The chosen rows with what the model suggests for them."""
    X, names = _taken(pool.X, chosen.rows), [str(name) for name in classifier.classes_]
    titles = task.titles(classifier, source.read_vocabulary())
    texts = X["text"] if isinstance(X, dict) else X if isinstance(X, list) else None
    found: list[ToAnnotate] = []
    inputs = classifier.features_.transform_new(X)
    for _, best, probabilities in classifier.predictor().top(inputs, min(top_k, len(names))):
        for labels, p in zip(best.labels.tolist(), probabilities.tolist(), strict=True):
            place, likeliest = len(found), [label for label in labels if label >= 0]
            row = int(chosen.rows[place])
            found.append(
                ToAnnotate(
                    row,
                    None if pool.ids is None else pool.ids[row],
                    float(f"{chosen.scores[place]:.6g}"),
                    [names[label] for label in likeliest],
                    None if titles is None else [titles[label] for label in likeliest],
                    [float(f"{chance:.6g}") for chance in p[: len(likeliest)]],
                    None if texts is None else str(texts[place]),
                )
            )
    return found


def _taken(X: Any, rows: Any) -> Any:
    """Some rows of inputs of any form."""
    if isinstance(X, dict):
        return {name: _taken(part, rows) for name, part in X.items()}
    return [X[row] for row in rows.tolist()] if isinstance(X, list) else X[rows]


def _write(out: Path, data: bytes) -> None:
    if out == STANDARD:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    from extremegp.storage.streams import atomic_writer

    with atomic_writer(out) as stream:
        stream.write(data)
