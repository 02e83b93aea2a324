"""`extremegp evaluate`: how good a model is on data it has not seen."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from extremegp.cli.common import (
    JsonOption,
    ModelArgument,
    QuietOption,
    Report,
    check_output,
    load_model,
    only_for_labels,
    percent,
)
from extremegp.cli.inputs import (
    PER_ROW,
    FirstLabelOption,
    FormatOption,
    Known,
    LabelColumnOption,
    LabelsOption,
    Source,
    Task,
    XKeyOption,
    YKeyOption,
    read,
)
from extremegp.cli.sequences import (
    ColumnFormat,
    DecodingOption,
    EncodingOption,
    SeparatorOption,
    refuse_row_options,
    refuse_sequence_options,
)
from extremegp.errors import SettingsError

if TYPE_CHECKING:
    from extremegp.prediction.predictor import Ranked

_KS = "1,3,5"

DENSE_LABELS = 20_000
"""With more labels only each row's best are looked at."""

TOP_JUDGED = 20
"""The labels of a row whose probabilities are judged then."""


def evaluate(
    model: ModelArgument,
    data: Annotated[Path, typer.Argument(metavar="DATA", help="Labelled data that the model was not trained on.")],
    labels: LabelsOption = None,
    format: FormatOption = "auto",
    x_key: XKeyOption = None,
    y_key: YKeyOption = None,
    label_column: LabelColumnOption = None,
    first_label: FirstLabelOption = False,
    ks: Annotated[str, typer.Option("--ks", metavar="K,K,...", help="Ranks to evaluate at.")] = _KS,
    propensity: Annotated[
        str | None,
        typer.Option(
            "--propensity",
            metavar="NAME|A,B",
            help="Propensities of the PSP metrics: 'default' (0.55,1.5), 'wikipedia' (0.5,0.4), 'amazon' (0.6,2.6), or "
            "two numbers; with the label counts of the training data. For many labels per row.",
        ),
    ] = None,
    by: Annotated[
        Literal["probability", "utility"] | None,
        typer.Option(
            "--by",
            help="Rank by probability, the default, or by mean utility as in the papers. For many labels per row.",
        ),
    ] = None,
    per_class: Annotated[
        Path | None,
        typer.Option(
            "--per-class",
            metavar="FILE",
            help="Write a line per class to a .csv or .tsv file: class, support, predicted, precision, recall, f1. For "
            "one class per row.",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Draw the reliability diagram of the predicted classes, or labels of tokens, to a .png, .svg or .pdf "
            "file. For one class per row, and for sequences.",
        ),
    ] = None,
    decoding: DecodingOption = None,
    separator: SeparatorOption = None,
    encoding: EncodingOption = None,
    json: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Measure a model on labelled data.

    Of many labels per row, ranking metrics order labels by probability: P@k,
    nDCG@k, recall R@k, macro_R@k (averaged over labels), propensity-scored PSP@k
    and PSnDCG@k (Jain et al. 2016), and the parts of tail labels (under 10
    training rows). Probability metrics: log_loss (nats per row, summed over
    labels), brier (per row, summed over labels), and calibration errors over all
    labels (ece) and over each row's 10 best (ece_top). With more than 20,000
    labels probabilities are judged on each row's 20 best alone: log_loss_top20
    (nats per row and label) and ece_top20.

    Of one class per row: accuracy, error, top3_accuracy and so on (--ks), nlpd
    (nats per row), brier, ece of the predicted class, and over the classes that
    occur their balanced_accuracy (mean recall), macro_f1 and coverage (the share
    with a row predicted right). A class never seen in training counts as wrong.

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
      {"metrics": {"P@1": 0.66, "log_loss": 9.1, "seconds": 2.5, ...},
       "n_rows": 2515, "n_labels": 159, "n_unknown_label_entries": 0}
      {"metrics": {"accuracy": 0.97, "nlpd": 0.1, "seconds": 2.5, ...},
       "n_rows": 10000, "n_classes": 10, "n_unknown_rows": 0}
      {"metrics": {"token_error": 0.02, "nll_struct": 700.1, ...},
       "n_sequences": 2012, "n_tokens": 47377, "n_unknown_tokens": 0, ...}

    \b
    Examples:
      extremegp evaluate model test.txt --json metrics.json
      extremegp evaluate model test.npy --labels test-classes.npy --plot ece.png
      extremegp evaluate tagger test.txt --decoding viterbi
    """
    started = time.monotonic()
    report = Report(json, quiet)
    ranks = _ranks(ks)
    a, b = _propensity_parameters(propensity or "default")
    for file in filter(None, (per_class, plot)):
        check_output(file)
    from extremegp.estimators import MultiClassGPClassifier, SequenceGPClassifier

    source = Source(data, format, labels, x_key, y_key, label_column, first_label)
    classifier = load_model(model)
    of_sequences = {"--decoding": decoding, "--separator": separator, "--encoding": encoding}
    if isinstance(classifier, SequenceGPClassifier):
        refuse_row_options(
            {
                "--labels": labels,
                "--format": None if format == "auto" else format,
                "--x-key": x_key,
                "--y-key": y_key,
                "--label-column": label_column,
                "--first-label": first_label or None,
                "--ks": None if ks == _KS else ks,
                "--propensity": propensity,
                "--by": by,
                "--per-class": per_class,
            },
            f"{model} is for {PER_ROW['sequence']}",
        )
        from extremegp.cli.evaluate_sequences import evaluate_sequences

        form = ColumnFormat.of_options(separator, encoding)
        evaluate_sequences(classifier, model, data, form, report, decoding=decoding, plot=plot, started=started)
        return
    task: Task = "multiclass" if isinstance(classifier, MultiClassGPClassifier) else "multilabel"
    refuse_sequence_options(of_sequences, f"{model} is for {PER_ROW[task]}")
    if isinstance(classifier, MultiClassGPClassifier):
        only_for_labels({"--propensity": propensity, "--by": by}, model)
        from extremegp.cli.evaluate_classes import evaluate_classes

        title = f"{model} on {data}"
        evaluate_classes(classifier, source, report, title, ks=ranks, per_class=per_class, plot=plot, started=started)
        return
    for option, value in {"--per-class": per_class, "--plot": plot}.items():
        if value is not None:
            raise SettingsError(f"{option} is for one class per row, but {model} is for many labels per row")
    from extremegp.metrics import propensities

    source.check("multilabel", because=f"{model} is for many labels per row")
    x, given, *_ = read(source, "multilabel", known=Known.of_model(classifier))
    y = classifier.encode_labels(given)
    n_unknown = sum(len(set(labels)) for labels in given) - int(y.nnz) if isinstance(given, list) else 0
    inputs, predictor = classifier.features_.transform(x), classifier.predictor()
    counts = classifier.label_counts_
    of_labels = propensities(counts, classifier.n_rows_, a, b)
    if y.shape[1] > DENSE_LABELS:
        ranked = predictor.top(inputs, max(TOP_JUDGED, *ranks), by or "probability")
        metrics = measure_top(ranked, y, ks=ranks, propensity=of_labels, train_counts=counts)
    else:
        blocks = predictor.mean_utilities_and_probabilities(inputs)
        scored = ((rows, means if by == "utility" else p, p) for rows, means, p in blocks)
        metrics = measure(scored, y, ks=ranks, propensity=of_labels, train_counts=counts)
    metrics["seconds"] = time.monotonic() - started
    report.table(f"{model} on {data}", ("metric, %", *(f"@{k}" for k in ranks)), ranking_rows(metrics, ranks))
    report.table("Probabilities", ("metric", "value"), other_rows(metrics))
    if n_unknown:
        report.lines(f"{n_unknown} labels that training never saw are left out of the truth.")
    report.result(
        {"metrics": metrics, "n_rows": y.shape[0], "n_labels": y.shape[1], "n_unknown_label_entries": n_unknown}
    )


def measure(
    blocks: Iterable[tuple[slice, Any, Any]], truth: Any, *, ks: Sequence[int], propensity: Any, train_counts: Any
) -> dict[str, float]:
    """All metrics from one pass over blocks of (rows, scores to rank by, probabilities).

    Args:
        blocks: cover all N rows in order; scores and probabilities are B x K.
        truth: N x K indicator.
        ks: ranks to evaluate at.
        propensity: K propensities.
        train_counts: training rows with each label (K).

    Returns:
        Metrics by name; those of ranking as fractions.
    """
    from extremegp.metrics import ProbabilityMetrics, TopK, evaluate_topk

    best, quality = [], ProbabilityMetrics()
    for rows, scores, probabilities in blocks:
        best.append(TopK.from_scores(scores, max(ks)))
        quality.update(probabilities, truth[rows])
    ranking = evaluate_topk(truth, TopK.concatenate(best), propensity, ks, train_counts=train_counts)
    return ranking | quality.compute()


def measure_top(
    ranked: Iterable[Ranked], truth: Any, *, ks: Sequence[int], propensity: Any, train_counts: Any
) -> dict[str, float]:
    """The metrics that need no more than the best labels of every row, from what `Predictor.top` and its like give.

    Args:
        ranked: covers all N rows in order, with at least max(ks) labels each, and `TOP_JUDGED` of them judged.
        truth: N x K indicator.
        ks: ranks to evaluate at.
        propensity: K propensities.
        train_counts: training rows with each label (K).

    Returns:
        Metrics by name; those of ranking as fractions.
    """
    from extremegp.metrics import TopK, TopProbabilityMetrics, evaluate_topk

    best, quality = [], TopProbabilityMetrics(TOP_JUDGED)
    for rows, of_block, probabilities in ranked:
        best.append(of_block)
        quality.update(of_block, probabilities, truth[rows])
    ranking = evaluate_topk(truth, TopK.concatenate(best), propensity, ks, train_counts=train_counts)
    return ranking | quality.compute()


def shown(name: str, value: float) -> str:
    """A metric as tables show it: percent for those at a rank."""
    return percent(value) if "@" in name else f"{value:.4g}"


def ranking_rows(metrics: dict[str, float], ranks: Sequence[int]) -> list[tuple[str, ...]]:
    """Ranking metrics, one per row, in percent at each rank."""
    names = dict.fromkeys(name.partition("@")[0] for name in metrics if "@" in name)
    return [(name, *(percent(metrics[f"{name}@{k}"]) for k in ranks)) for name in names]


def other_rows(metrics: dict[str, float]) -> list[tuple[str, str]]:
    """The other metrics with their units."""
    units = {
        "log_loss": " (nats/row)",
        "log_loss_top20": " (nats/row and label)",
        "brier": " (/row)",
        "seconds": " (s)",
    }
    return [(name + units.get(name, ""), shown(name, value)) for name, value in metrics.items() if "@" not in name]


def _ranks(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and 0 < int(part) <= 10**6 for part in parts):
        raise SettingsError(f"--ks must be positive integers such as 1,3,5; it is {text!r}")
    return sorted({int(part) for part in parts})


def _propensity_parameters(text: str) -> tuple[float, float]:
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
