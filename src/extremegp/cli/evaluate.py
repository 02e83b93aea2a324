"""Measure a model on labelled data.

Of many labels per row, ranking metrics order labels by probability: P@k,
nDCG@k, recall R@k, macro_R@k (averaged over labels), propensity-scored PSP@k
and PSnDCG@k (Jain et al. 2016), and the parts of tail labels (under 10
training rows). Probability metrics: log_loss (nats per row, summed over
labels), brier (per row, summed over labels), and calibration errors over all
labels (ece), over each row's 10 best (ece_top) and its k best (ECE@k).
True labels without a training row count as true, and are counted. With more
than 20,000 labels probabilities are judged on each row's 20 best alone:
log_loss_top20 (nats per row and label) and ece_top20.

Of the labels of probability --threshold or more: precision, recall, f1 and
jaccard over all pairs of row and label (micro), averaged over the labels that
occur (macro) and over rows (example), as scikit-learn defines them;
subset_accuracy (rows with all labels right) and hamming_loss. Over all
thresholds: average precision; best_threshold, with the highest micro F1 on
these very rows, best_micro_f1 at it, and best_macro_f1 with the best of each
label: none is applied, and on other rows they do less well. With more than
20,000 labels these are of each row's 100 best; what is missing has no
probability above exact_above.

Where only the surest rows are predicted: of the error of a row's most
probable label and of its log_loss, aurc_error_by_max_p and so on, the mean
over coverages of the mean over the rows kept (the area under the curve of
risk over coverage), with rows ranked by their greatest probability (max_p)
and by the entropy of all (entropy), and the least area of any ranking (best).
Of one class per row the same, of error and nlpd.

Of one class per row: accuracy, error, top3_accuracy and so on (--ks), nlpd
(nats per row), brier, ece of the predicted class, and over the classes that
occur their balanced_accuracy (mean recall), macro_f1 and coverage (the share
with a row predicted right). A class never seen in training counts as wrong.
Of classes and of sequences also what is most often taken for what.

Of sequences, whose labels are the last column: token_error and
sequence_error (the share with any wrong label), for tags such as B-NP the
precision, recall and F1 of spans (as conlleval counts them; needs seqeval),
nll_unstruct (-log p(y_t), summed over tokens), nll_struct (-log p(y_1..y_T),
summed over sequences), brier and ece of the marginals, and aurc, the area
under the curve of risk over coverage. With --decoding viterbi,
marginal_error is the token error of the most probable labels. A label never
seen in training counts as wrong.

The tables show shares in percent, as the papers do; in the JSON they are
fractions from 0 to 1.

\b
JSON:
  {"metrics": {"P@1": 0.66, "log_loss": 9.1, "aurc_error_by_max_p": 0.15,
   "aurc_log_loss_by_entropy": 5.2, "seconds": 2.5, ...},
   "n_rows": 2515, "n_labels": 159, "n_unknown_label_entries": 0,
   "n_unseen_labels": 0, "n_unseen_label_entries": 0, "threshold": 0.5, "exact_above": 0.0,
   "labels": {"python": {"support": 80, "f1": 0.7, "best_threshold": 0.4,
     "average_precision": 0.8, "ece": 0.01, ...}, ...}}
   (labels: up to 20,000; --per-class has them all)
  {"metrics": {"accuracy": 0.97, "nlpd": 0.1, "seconds": 2.5, ...},
   "n_rows": 10000, "n_classes": 10, "n_unknown_rows": 0,
   "classes": {"cat": {"support": 1000, "f1": 0.9, ...}, ...},
   "confusion": [{"true": "cat", "predicted": "dog", "count": 12}, ...]}
  {"metrics": {"token_error": 0.02, "nll_struct": 700.1, ...},
   "n_sequences": 2012, "n_tokens": 47377, "n_unknown_tokens": 0,
   "spans": {"NP": {"support": 12422, "f1": 0.94, ...}, ...},
   "labels": {"B-NP": {...}, ...}, "confusion": [...], ...}

\b
Examples:
  extremegp evaluate model test.txt --json metrics.json
  extremegp evaluate model test.txt --per-class labels.csv --plot labels.png
  extremegp evaluate model test.npy --labels test-classes.npy --plot ece.png
  extremegp evaluate tagger test.txt --decoding viterbi
  extremegp evaluate tagger test.txt --scheme auto
"""

from __future__ import annotations

import typer

from extremegp.cli import options
from extremegp.cli.console import Report, check_input, check_output
from extremegp.cli.inputs import Source
from extremegp.cli.task_options import refuse_foreign
from extremegp.cli.tasks import EvaluateRequest, load_model
from extremegp.errors import SettingsError


def evaluate(
    context: typer.Context,
    model: options.Model,
    data: options.TestData,
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
    ks: options.Ks = "1,3,5",
    propensity: options.Propensity = None,
    by: options.By = None,
    threshold: options.Threshold = None,
    per_class: options.PerClass = None,
    plot: options.Plot = None,
    decoding: options.DecodingChoice = None,
    scheme: options.Scheme = None,
    separator: options.Separator = None,
    encoding: options.Encoding = None,
    json: options.Json = None,
    quiet: options.Quiet = False,
) -> None:
    """Look up the model's task, and let it measure the model."""
    report = Report(json, quiet)
    at = ranks(ks)
    if threshold is not None and not 0 < threshold <= 1:
        raise SettingsError(f"--threshold must be a probability above 0 and at most 1; it is {threshold:g}")
    for file in filter(None, (per_class, plot)):
        check_output(file)
    check_input(data)
    source = Source.of(data, context.params)
    classifier, task = load_model(model, quiet=quiet)
    parameters = propensity_parameters(propensity or "default")
    refuse_foreign(context, task, f"{model} is for {task.per_row}")
    request = EvaluateRequest(
        model, source, at, parameters, by or "probability", threshold or 0.5, per_class, plot, decoding, scheme
    )
    task.evaluate(classifier, request, report)


def ranks(text: str) -> list[int]:
    """What --ks says.

    Raises:
        SettingsError: it is no list of ranks.
    """
    parts = text.split(",")
    if not all(part.strip().isdecimal() and 0 < int(part) <= 10**6 for part in parts):
        raise SettingsError(f"--ks must be positive integers such as 1,3,5; it is {text!r}")
    return sorted({int(part) for part in parts})


def propensity_parameters(text: str) -> tuple[float, float]:
    """What --propensity says.

    Raises:
        SettingsError: it is neither a name nor two numbers.
    """
    from extremegp.metrics import PROPENSITY_PRESETS

    if text in PROPENSITY_PRESETS:
        return PROPENSITY_PRESETS[text]
    try:
        a, b = map(float, text.split(","))
    except ValueError:
        raise SettingsError(
            f"--propensity must be {', '.join(PROPENSITY_PRESETS)}, or two numbers A,B; it is {text!r}"
        ) from None
    return a, b
