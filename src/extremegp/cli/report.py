"""Write all about a model on labelled data as one page of HTML.

The page has what was trained on what, the figures of `extremegp evaluate`
with 95 % intervals from resampled rows, calibration overall and by how
frequent labels are, what is lost where only the surest rows are predicted,
the labels that are told apart least, whether the data look like those of
training, labels that are probably wrong, examples with explanations where the
model can say, the learning curve, and times.

It is one file that asks for nothing from outside, opens in any browser, reads
on a telephone and prints. Whatever texts and names of labels hold is shown
as text. It shows some rows of DATA: --no-rows leaves out what they say.
DATA may have any of the formats of `evaluate`, and is for all kinds of
models; rows that the model was trained on would flatter it.

\b
--json writes:
  {"out": "report.html", "bytes": 210563, "n_rows": 1910,
   "metrics": {"P@1": 0.66, ...}, "intervals": {"P@1": [0.64, 0.68], ...},
   "seconds": 12.5}

\b
Examples:
  extremegp report model test.jsonl --out report.html
  extremegp report model test.csv --label-column species --out report.html
  extremegp report tagger test.txt --no-rows --out report.html
"""

from __future__ import annotations

import hashlib
from typing import Any

import typer

from extremegp.cli import options
from extremegp.cli.console import Report, check_input, check_output
from extremegp.cli.evaluate import propensity_parameters, ranks
from extremegp.cli.inputs import Source
from extremegp.cli.task_options import refuse_foreign
from extremegp.cli.tasks import load_model
from extremegp.errors import SettingsError


def report(
    context: typer.Context,
    model: options.Model,
    data: options.TestData,
    out: options.ReportFile,
    title: options.Title = None,
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
    id_column: options.IdColumn = None,
    vocabulary: options.VocabularyFile = None,
    language: options.Language = "en",
    ks: options.Ks = "1,3,5",
    propensity: options.Propensity = None,
    threshold: options.Threshold = None,
    decoding: options.DecodingChoice = None,
    separator: options.Separator = None,
    encoding: options.Encoding = None,
    no_rows: options.NoRows = False,
    seed: options.ReportSeed = 0,
    json: options.Json = None,
    quiet: options.Quiet = False,
) -> None:
    """Look up the model's task, read the data as it does, and write the report."""
    told = Report(json, quiet)
    at = ranks(ks)
    if threshold is not None and not 0 < threshold <= 1:
        raise SettingsError(f"--threshold must be a probability above 0 and at most 1; it is {threshold:g}")
    if out.suffix.lower() not in (".html", ".htm"):
        raise SettingsError(f"--out must end in .html; it is {out}")
    check_output(out)
    check_input(data)
    source = Source.of(data, context.params)
    classifier, task = load_model(model, quiet=quiet)
    parameters = propensity_parameters(propensity or "default")
    refuse_foreign(context, task, f"{model} is for {task.per_row}")
    from extremegp.report import make_report
    from extremegp.storage.models import read_config
    from extremegp.storage.streams import atomic_writer

    found = task.labelled(classifier, source, model)
    called = "standard input" if str(data) == "-" else data.name
    facts: dict[str, Any] = {"source": called, **_hash(source), "seed of this report": f"{seed}"}
    with found.naming():
        made = make_report(
            classifier,
            found.X,
            found.y,
            title=title or f"{model.resolve().name} on {called}",
            ids=found.ids,
            titles=found.titles,
            ks=at,
            propensity=parameters,
            threshold=threshold or 0.5,
            decoding=decoding,
            seed=seed,
            show_rows=not no_rows,
            model_facts={"folder": model.resolve().name, "hash of its numbers": str(read_config(model).get("sha256"))},
            data_facts=facts,
            notes=found.notes,
        )
    content = made.html.encode()
    with atomic_writer(out) as stream:
        stream.write(content)
    told.lines(f"{made.n_rows} {task.rows_of_reports}, {len(content):,} bytes: {out}, in {told.seconds:.1f} s")
    told.result(
        {
            "out": str(out),
            "bytes": len(content),
            "n_rows": made.n_rows,
            "metrics": {name: None if value != value else value for name, value in made.metrics.items()},
            "intervals": {name: list(ends) for name, ends in made.intervals.items()},
            "seconds": told.seconds,
        }
    )


def _hash(source: Source) -> dict[str, str]:
    """What tells the file from any other, if it is one."""
    if not source.path.is_file():
        return {}
    with source.path.open("rb") as stream:
        return {"SHA-256 of the file": hashlib.file_digest(stream, "sha256").hexdigest()}
