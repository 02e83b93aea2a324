"""List labels that are probably missing or wrong, and rows that are alike but labelled otherwise.

DATA may be the file that the model was trained on, or any other with labels.
Rows that the model keeps are judged as if it had not been trained on them
(models that can learn keep theirs: `extremegp learn --help`), other rows by
what it predicts. Rows are numbered from 0. The most probable errors come first.

\b
Formats by suffix of --out:
  .csv, .tsv  columns row, id, text, label, kind, probability, recorded, p,
              suggested, near (ids of training rows, with blanks between)
  .jsonl      an object a line with the same keys; near is a list
kind is "missing" (not recorded, probably applies), "wrong" (recorded, probably
does not) or "duplicate" (recorded of one of two rows that are alike).

\b
--json writes:
  {"model": "model", "out": "issues.csv", "n_rows": 900, "n_issues": 120,
   "kinds": {"missing": 70, "wrong": 48, "duplicate": 2}, "seconds": 3.1}

\b
Examples:
  extremegp audit train.txt --model model --out issues.csv
  extremegp audit train.jsonl --model model --kind wrong --least 0.5 \\
      --out issues.jsonl
"""

from __future__ import annotations

import csv
import io
import json as json_
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from extremegp.cli import options
from extremegp.cli.console import Report, check_input, check_output
from extremegp.cli.inputs import Source
from extremegp.cli.rows import Known, read
from extremegp.cli.task_options import refuse_foreign
from extremegp.cli.tasks import load_model
from extremegp.cli.tasks.rows import RowTask
from extremegp.errors import SettingsError

_COLUMNS = ("row", "id", "text", "label", "kind", "probability", "recorded", "p", "suggested", "near")
_SEPARATORS = {".csv": ",", ".tsv": "\t"}


def audit(
    context: typer.Context,
    data: options.LearntData,
    model: Annotated[Path, typer.Option("--model", metavar="MODEL", help="The model folder.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="File of the issues: .csv, .tsv or .jsonl.")],
    kind: Annotated[
        list[str] | None,
        typer.Option("--kind", metavar="KIND", help="missing, wrong or duplicate; may be repeated; all by default."),
    ] = None,
    n: Annotated[int, typer.Option("--n", metavar="N", help="How many issues, at most.")] = 1000,
    least: Annotated[float, typer.Option("--least", metavar="P", help="The least probability of an issue.")] = 0.0,
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
    json: options.Json = None,
    quiet: options.Quiet = False,
) -> None:
    """Load the model, and let it judge the labels of the rows."""
    report = Report(json, quiet)
    if out.suffix not in (*_SEPARATORS, ".jsonl"):
        raise SettingsError(f"--out must end in .csv, .tsv or .jsonl; it is {out}")
    check_output(out)
    check_input(data)
    source = Source.of(data, context.params)
    classifier, task = load_model(model, quiet=quiet)
    if not isinstance(task, RowTask):
        raise SettingsError(f"{model}: labels of sequences are not audited")
    refuse_foreign(context, task, f"{model} is for {task.per_row}")
    task.check_source(source, f"{model} is for {task.per_row}")
    rows = read(source, one_class=task.one_class, known=Known.of_model(classifier))
    chosen: dict[str, Any] = {"kinds": kind} if kind else {}
    issues = classifier.find_label_issues(rows.X, rows.y, n=n, least=least, **chosen)
    _write(out, issues, rows.X if isinstance(rows.X, list) else None)
    kinds = Counter(issue.kind for issue in issues)
    told = ", ".join(f"{count} {name}" for name, count in kinds.items()) or "none"
    report.lines(f"{rows.n_rows} rows, {len(issues)} issues ({told}) to {out}")
    result = {"model": str(model), "out": str(out), "n_rows": rows.n_rows, "n_issues": len(issues)}
    report.result(result | {"kinds": dict(kinds), "seconds": report.seconds})


def _write(out: Path, issues: list[Any], texts: list[str] | None) -> None:
    """The issues in a file that appears whole or not at all."""
    from extremegp.storage.streams import atomic_writer

    with atomic_writer(out) as stream:
        if out.suffix in _SEPARATORS:
            stream.write((_SEPARATORS[out.suffix].join(_COLUMNS) + "\n").encode())
        for issue in issues:
            told = issue._asdict() | {"label": str(issue.label), "text": None if texts is None else texts[issue.row]}
            told |= {name: float(f"{told[name]:.6g}") for name in ("probability", "p")}
            told["suggested"] = None if issue.suggested is None else str(issue.suggested)
            record = {name: told[name] for name in _COLUMNS}
            if out.suffix == ".jsonl":
                stream.write((json_.dumps(record, ensure_ascii=False) + "\n").encode())
                continue
            line = io.StringIO()
            writer = csv.writer(line, delimiter=_SEPARATORS[out.suffix], lineterminator="\n")
            writer.writerow(list((record | {"near": " ".join(issue.near)}).values()))
            stream.write(line.getvalue().encode())
