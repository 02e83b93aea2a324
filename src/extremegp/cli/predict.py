"""Predict the best labels, or the most probable classes, of every row, or the labels of sequences.

Every label comes with its probability, from 0 to 1, the uncertainty of the
model integrated out. Text formats and converted folders are read and
written a block of rows at a time, of any length; the file appears whole or
not at all. Rows are numbered from 0, ranks from 1. Classes are labels here.

\b
Formats by suffix of --out:
  .jsonl      a line per row:
              {"labels": ["a", ...], "probabilities": [0.9, ...]}
  .tsv, .csv  a line per label: row, rank, label, probability
  .txt        a line per row: 17:0.9 4:0.5, labels by number (from 0; of
              classes their place in sorted order)
  .npz        a SciPy CSR matrix of probabilities, rows x labels
Rows that have ids (--id-column, folders of texts) keep them ("id"), labels
that a vocabulary names have these names too ("names", "name").
With --uncertainty .jsonl has the keys total, aleatoric, epistemic, variance
and novelty too, .tsv and .csv have such columns; with --novelty-threshold
the key or column novel, true or false. With --decide a row has the labels of
its set, and none where that is best or --least-f1 says so; likewise with
--promise, where a row that nothing can be promised for has none. With --explain
.jsonl has the key explanations, of every label its documents, features and
parts with their shares, and .txt has these as tables to read.

\b
Sequences: the columns of DATA, its labels among them if it has them, then
the predicted label and perhaps its probability, with tabs between and a
blank line after each sequence. With --uncertainty five more columns follow,
total, aleatoric, epistemic, variance and novelty; with --novelty-threshold
one that is true or false. With --k-best every labelling has a line
'# RANK LOG_PROBABILITY' (blanks, no tab) before it, ranks from 0:
  # 0 -0.105361
  He<TAB>PRP<TAB>B-NP

  # 1 -2.302585
  He<TAB>PRP<TAB>O

With --spans a line for each span, whose columns are the sequence and the first
token, both from 0, the token after the last, the type, the probability and the
tokens (their first columns); in .jsonl a line for each sequence:
  {"tokens": ["He", ...], "spans": [{"start": 0, "end": 1, "type": "NP",
   "probability": 0.98, "text": "He"}, ...]}

\b
Formats of --given, recognised as those of DATA are:
  jsonl          {"labels": ["known", ...], "absent": ["known not", ...]};
                 "absent" may be missing, other keys are ignored
  xc, svmlight   the labels of a row, by number, are those known to be
                 present; features are ignored
Of sequences it is a file like DATA, whose last column has the labels that are
known and --unknown-label (by default _) elsewhere.

\b
Examples:
  extremegp predict model new.jsonl --top-k 3 --out labels.jsonl
  extremegp predict model new.jsonl --given known.jsonl --out more.jsonl
  extremegp predict model new.jsonl --decide f1 --out sets.jsonl
  extremegp predict model new.jsonl --top-k 1 --explain --out why.txt
  extremegp predict model new.txt --approximate 0.98 --out labels.tsv
  extremegp predict model products.csv --text-column title --id-column sku \\
      --out tags.csv
  cat new.jsonl | extremegp predict model - --format jsonl --out - | head
  extremegp predict model images.npy --uncertainty --out classes.csv
  extremegp predict tagger new.txt --probabilities --out tagged.txt
  extremegp predict tagger new.txt --uncertainty --out tagged.tsv
  extremegp predict tagger new.txt --scheme auto --spans --out spans.tsv
  extremegp predict tagger new.txt --given checked.txt --out tagged.txt
"""

from __future__ import annotations

import typer

from extremegp.cli import options
from extremegp.cli.console import Report, check_input, check_output
from extremegp.cli.inputs import Source
from extremegp.cli.pipes import STANDARD
from extremegp.cli.task_options import refuse_foreign
from extremegp.cli.tasks import PredictRequest, load_model
from extremegp.cli.tasks.base import decision_of
from extremegp.errors import SettingsError


def predict(
    context: typer.Context,
    model: options.Model,
    data: options.NewData,
    out: options.Out = None,
    to: options.To = "jsonl",
    top_k: options.TopK = 5,
    by: options.By = None,
    decide: options.Decide = None,
    threshold: options.Threshold = None,
    cost_wrong: options.CostWrong = None,
    cost_missed: options.CostMissed = None,
    least_f1: options.LeastF1 = None,
    promise: options.Promise = None,
    given: options.Given = None,
    unknown_label: options.UnknownLabel = None,
    scheme: options.Scheme = None,
    spans: options.Spans = False,
    uncertainty: options.Uncertainty = False,
    novelty_threshold: options.NoveltyThreshold = None,
    explain: options.Explain = False,
    approximate: options.Approximate = None,
    k_best: options.KBest = None,
    probabilities: options.Probabilities = False,
    decoding: options.DecodingChoice = None,
    separator: options.Separator = None,
    encoding: options.Encoding = None,
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
    """Look up the model's task, and let it label the data."""
    to_standard = out in (None, STANDARD)
    if to_standard and json == "-":
        raise SettingsError("--json - leaves no place for the predictions: name a file for them by --out")
    report = Report(json, quiet or to_standard)
    if out is not None and not to_standard:
        check_output(out)
    check_input(data)
    source = Source.of(data, context.params)
    classifier, task = load_model(model, quiet=quiet)
    refuse_foreign(context, task, f"{model} is for {task.per_row}")
    request = PredictRequest(
        model=model,
        source=source,
        out=out,
        to=to,
        top_k=top_k,
        by=by or "probability",
        decide=decision_of(decide, threshold, cost_wrong, cost_missed, least_f1),
        promise=promise,
        given=given,
        uncertainty=uncertainty,
        novelty_threshold=novelty_threshold,
        explain=explain,
        approximate=approximate,
        k_best=k_best,
        probabilities=probabilities,
        decoding=decoding,
        unknown_label=unknown_label,
        scheme=scheme,
        spans=spans,
        quiet=quiet,
    )
    task.predict(classifier, request, report)
