"""How good a model of sequences is: what `extremegp evaluate` does with it."""

from __future__ import annotations

import time
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from extremegp.cli.common import Report, percent
from extremegp.cli.evaluate_classes import check_files, write_plot
from extremegp.cli.sequences import ColumnFormat, Decoding, check_width, decoded
from extremegp.errors import DataError

if TYPE_CHECKING:
    from extremegp.estimators import SequenceGPClassifier
    from extremegp.metrics import SequenceMetrics

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


def evaluate_sequences(
    classifier: SequenceGPClassifier,
    model: Path,
    data: Path,
    form: ColumnFormat,
    report: Report,
    *,
    decoding: Decoding | None,
    plot: Path | None,
    started: float,
) -> None:
    """Measure a model, a block of sequences at a time, and show and write what came of it.

    Args:
        classifier: the model.
        model: where it is.
        data: labelled sequences.
        form: how their columns are written.
        report: where the result goes.
        decoding: how labels are predicted; None for what the model was trained with.
        plot: file for the reliability diagram.
        started: when the command started, by the monotonic clock.

    Raises:
        DataError: the data cannot be read or do not fit the model.
        SettingsError: a file cannot be of its suffix.
    """
    check_files(None, plot)
    check_width(classifier, model, data, form, labelled=True)
    import numpy as np
    import torch

    from extremegp.data import encode_label_sequences
    from extremegp.engine import chain as chains

    sequences, labels = form.read_labelled(data)
    x, lengths = classifier.features_.transform(sequences)
    try:
        codes, _ = encode_label_sequences(labels, lengths, classifier.label_space_, "ignore", "the last column")
    except DataError as error:
        raise DataError(str(error), path=data) from error
    names = np.array(list(chain.from_iterable(labels)))
    quality, note = _metrics(classifier)
    first = 0
    for block, predicted, marginals in decoded(classifier, x, lengths, decoding):
        rows = slice(first, first := first + len(predicted))
        own = torch.from_numpy(codes[rows]).to(block.lengths.device).clamp(min=0)
        quality.update(
            names[rows],
            predicted,
            marginals,
            lengths=lengths[block.sequences],
            sequence_log_prob=block.log_prob(chains.pad(own, block.lengths, dim=-1)).cpu().numpy(),
        )
    metrics = quality.compute() | {"seconds": time.monotonic() - started}
    counts = {name: int(metrics.pop(name)) for name in ("n_sequences", "n_tokens", "n_unknown")}
    if plot is not None:
        write_plot(plot, quality.tokens, data.name)
    report.table(
        f"{model} on {data}", ("metric", "%"), [(name, percent(metrics[name])) for name in _SHARES if name in metrics]
    )
    report.table(
        "Probabilities",
        ("metric", "value"),
        [(called, f"{metrics[name]:.4g}") for name, called in _PROBABILITIES.items()],
    )
    spans = quality.span_scores() if "span_f1" in metrics else {}
    if spans:
        report.table(
            "Spans",
            ("type", "spans", "predicted", "precision %", "recall %", "F1 %"),
            [
                (kind, str(each.support), str(each.predicted), *map(percent, (each.precision, each.recall, each.f1)))
                for kind, each in spans.items()
            ],
        )
    if note is not None:
        report.lines(note)
    never_seen = np.unique(names[codes < 0]).tolist()
    if never_seen:
        listed = ", ".join(never_seen[:_SHOWN_LABELS]) + (", ..." if len(never_seen) > _SHOWN_LABELS else "")
        report.lines(
            f"{counts['n_unknown']} of {counts['n_tokens']} tokens have a label that training never saw ({listed}); "
            "they count as wrong, and have no part in the likelihoods."
        )
    report.result(
        {
            "metrics": metrics,
            "n_sequences": counts["n_sequences"],
            "n_tokens": counts["n_tokens"],
            "n_labels": len(classifier.classes_),
            "n_unknown_tokens": counts["n_unknown"],
            "decoding": decoding or classifier.decoding,
            "spans": {kind: {"support": s.support, "predicted": s.predicted, "f1": s.f1} for kind, s in spans.items()},
            "note": note,
        }
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
