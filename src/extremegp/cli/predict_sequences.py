"""Labels of the tokens of sequences, beside their columns: what `extremegp predict` does with such a model."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extremegp.cli.common import Report, label_names
from extremegp.cli.sequences import ColumnFormat, Decoding, Sequences, check_width, decoded
from extremegp.errors import DataError, SettingsError

if TYPE_CHECKING:
    from extremegp.estimators import SequenceGPClassifier

_OF_ROWS = (".jsonl", ".csv", ".npz")


def predict_sequences(
    classifier: SequenceGPClassifier,
    model: Path,
    data: Path,
    out: Path | None,
    form: ColumnFormat,
    report: Report,
    *,
    decoding: Decoding | None,
    probabilities: bool,
    k_best: int | None,
    started: float,
) -> None:
    """Label sequences and write them.

    Args:
        classifier: the model.
        model: where it is.
        data: the sequences, with labels or without.
        out: where to write; None for standard output.
        form: how columns are written.
        report: where the summary goes.
        decoding: how labels are predicted; None for what the model was trained with.
        probabilities: add the marginal probability of every label.
        k_best: write so many labellings of every sequence; None for one, without its probability.
        started: when the command started, by the monotonic clock.

    Raises:
        DataError: the data cannot be read, do not fit the model, or cannot be written.
        SettingsError: options contradict each other.
    """
    from extremegp.storage.streams import atomic_writer, base_suffix

    if k_best is not None and decoding is not None:
        raise SettingsError("--k-best orders labellings by their probability; leave out --decoding")
    if out is not None and {out.suffix.lower(), base_suffix(out)} & set(_OF_ROWS):
        raise SettingsError(f"--out of sequences is text in columns: let it end in .txt or .tsv; it is {out}")
    check_width(classifier, model, data, form, labelled=False)
    sequences = form.read(data)
    names = label_names(classifier)
    _check_writable(sequences, names, data, form.encoding)
    text = io.StringIO()
    if k_best is None:
        _write_best(text, classifier, sequences, names, decoding, probabilities)
    else:
        _write_k_best(text, classifier, sequences, k_best, probabilities)
    content = text.getvalue().encode(form.encoding)
    if out is None:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
    else:
        with atomic_writer(out) as stream:
            stream.write(content)
    n_tokens, seconds = sum(map(len, sequences)), time.monotonic() - started
    best = "" if k_best is None else f", the {k_best} best labellings each,"
    report.lines(f"{len(sequences)} sequences of {n_tokens} tokens{best} to {out} in {seconds:.1f} s")
    report.result(
        {
            "out": None if out is None else str(out),
            "n_sequences": len(sequences),
            "n_tokens": n_tokens,
            "n_labels": len(names),
            "decoding": None if k_best else decoding or classifier.decoding,
            "k_best": k_best,
            "seconds": seconds,
        }
    )


def _check_writable(sequences: Sequences, names: list[str], data: Path, encoding: str) -> None:
    """Refuse, before the work, cells and labels that columns cannot hold."""
    from extremegp.data import write_columns

    trial = io.StringIO()
    try:
        write_columns(trial, sequences, [["O"] * len(tokens) for tokens in sequences], encoding=encoding)
    except DataError as error:
        raise DataError(str(error), path=data) from error
    write_columns(trial, [[("token",)] * len(names)], [names])
    try:
        "".join(names).encode(encoding)
    except UnicodeEncodeError as error:
        raise SettingsError(
            f"the model has labels that cannot be written in {encoding}; convert {data} to UTF-8"
        ) from error


def _write_best(
    text: io.StringIO,
    classifier: SequenceGPClassifier,
    sequences: Sequences,
    names: list[str],
    decoding: Decoding | None,
    probabilities: bool,
) -> None:
    import numpy as np

    from extremegp.data import write_columns

    labels: list[Sequence[str]] = []
    certain: list[Sequence[float]] = []
    for block, codes, marginals in decoded(classifier, *classifier.features_.transform(sequences), decoding):
        cuts = block.lengths.cumsum(0)[:-1].cpu().numpy()
        labels += [[names[code] for code in own] for own in np.split(codes, cuts)]
        certain += [own.tolist() for own in np.split(marginals[np.arange(len(codes)), codes], cuts)]
    write_columns(text, sequences, labels, probabilities=certain if probabilities else None)


def _write_k_best(
    text: io.StringIO, classifier: SequenceGPClassifier, sequences: Sequences, k: int, probabilities: bool
) -> None:
    import numpy as np

    from extremegp.data import write_columns

    found = classifier.predict_k_best(sequences, k)
    marginals: list[Any] = classifier.predict_marginals(sequences) if probabilities else [None] * len(sequences)
    for tokens, labellings, of_tokens in zip(sequences, found, marginals, strict=True):
        for rank, (labels, log_prob) in enumerate(labellings):
            certain = None
            if of_tokens is not None:
                certain = [of_tokens[np.arange(len(tokens)), classifier.label_space_.encode(labels)]]
            text.write(f"# {rank} {log_prob:.6f}\n")
            write_columns(text, [tokens], [labels.tolist()], probabilities=certain)
