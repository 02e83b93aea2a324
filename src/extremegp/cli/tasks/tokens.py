"""What `predict` writes of sequences: their columns, labels, and what is told of these."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

from extremegp.cli import columns
from extremegp.cli.app import say
from extremegp.cli.columns import Sequences
from extremegp.cli.inputs import Source
from extremegp.cli.options import SchemeName
from extremegp.cli.rows import naming
from extremegp.cli.tasks.base import PredictRequest
from extremegp.errors import DataError, SettingsError

Given: TypeAlias = list[list[Any]]

if TYPE_CHECKING:
    from extremegp.estimators import SequenceGPClassifier

_UNKNOWN = "_"


def given(classifier: SequenceGPClassifier, request: PredictRequest, sequences: Sequences) -> Given | None:
    """The labels that are known of the tokens to be predicted."""
    if request.given is None:
        if request.unknown_label is not None:
            raise SettingsError("--unknown-label goes with --given")
        return None
    source, unknown = request.source.at(request.given), request.unknown_label or _UNKNOWN
    found, known = (
        columns.read_given(source, sequences, unknown),
        {str(name): name for name in classifier.label_space_.names},
    )
    strange = next((label for label in chain.from_iterable(found) if label is not None and label not in known), None)
    if strange is not None:
        raise DataError(
            f"has the label {strange!r}, which the model does not know; write {unknown} where there is none "
            "(--unknown-label)",
            path=request.given,
        )
    return [[None if label is None else known[label] for label in own] for own in found]


def check_writable(sequences: Sequences, names: list[str], source: Source, encoding: str) -> None:
    """Refuse, before the work, cells and labels that columns cannot hold."""
    from extremegp.data import write_columns

    trial = io.StringIO()
    with naming(source):
        write_columns(trial, sequences, [["O"] * len(tokens) for tokens in sequences], encoding=encoding)
    write_columns(trial, [[("token",)] * len(names)], [names])
    try:
        "".join(names).encode(encoding)
    except UnicodeEncodeError as error:
        raise SettingsError(
            f"the model has labels that cannot be written in {encoding}; convert {source.path} to UTF-8"
        ) from error


def write_best(
    text: io.StringIO,
    classifier: SequenceGPClassifier,
    sequences: Sequences,
    names: list[str],
    request: PredictRequest,
    given: Given | None,
) -> None:
    import numpy as np

    from extremegp.data import write_columns
    from extremegp.estimators.decoding import decoded

    labels: list[Sequence[str]] = []
    certain: list[Sequence[float]] = []
    lengths, blocks = classifier.blocks(sequences, given)
    for block, codes, marginals in decoded(classifier, blocks, request.decoding):
        cuts = lengths[block.sequences].cumsum()[:-1]
        labels += [[names[code] for code in own] for own in np.split(codes, cuts)]
        certain += [own.tolist() for own in np.split(marginals[np.arange(len(codes)), codes], cuts)]
    measures = _measured(classifier, sequences, request, given)
    write_columns(text, sequences, labels, probabilities=certain if request.probabilities else None, measures=measures)


def _measured(
    classifier: SequenceGPClassifier, sequences: Sequences, request: PredictRequest, given: Given | None
) -> list[list[tuple[float | bool, ...]]] | None:
    """What is told of every token: its uncertainty, and whether it is new."""
    threshold = request.novelty_threshold
    if not request.uncertainty:
        if threshold is None:
            return None
        return [[(p < threshold,) for p in part.tolist()] for part in classifier.predict_novelty(sequences)]
    found = []
    for each in classifier.predict_uncertainty(sequences, given):
        of_tokens = zip(*(part.tolist() for part in each), strict=True)
        novel = [() if threshold is None else (p < threshold,) for p in each.novelty.tolist()]
        found.append([(*told, *mark) for told, mark in zip(of_tokens, novel, strict=True)])
    return found


def write_k_best(
    text: io.StringIO,
    classifier: SequenceGPClassifier,
    sequences: Sequences,
    k: int,
    probabilities: bool,
    given: Given | None,
) -> None:
    import numpy as np

    from extremegp.data import write_columns

    found = classifier.predict_k_best(sequences, k, given)
    marginals: list[Any] = [None] * len(sequences)
    if probabilities:
        marginals = [*classifier.predict_marginals(sequences, given)]
    for tokens, labellings, of_tokens in zip(sequences, found, marginals, strict=True):
        for rank, (labels, log_prob) in enumerate(labellings):
            certain = None
            if of_tokens is not None:
                certain = [of_tokens[np.arange(len(tokens)), classifier.label_space_.encode(labels)]]
            text.write(f"# {rank} {log_prob:.6f}\n")
            write_columns(text, [tokens], [labels.tolist()], probabilities=certain)


def of_scheme(classifier: SequenceGPClassifier, scheme: SchemeName | None) -> None:
    """Let a model keep the rules of a scheme.

    Raises:
        SettingsError: its labels are no tags of the scheme.
    """
    from extremegp.data import legal_tags

    if scheme is not None:
        classifier.set_params(scheme=None if scheme == "none" else scheme)
    if classifier.scheme_ is not None:
        legal_tags(classifier.label_space_.names, classifier.scheme_)
    elif scheme == "auto":
        say("the training labels are of no scheme: predictions may have any labels")


def write_spans(
    text: io.StringIO,
    classifier: SequenceGPClassifier,
    sequences: Sequences,
    request: PredictRequest,
    given: Given | None,
) -> None:
    """A line for each span, or as JSON for each sequence.

    Raises:
        SettingsError: labels are no tags, or nothing says in which format spans are to be written.
    """
    from extremegp.storage.streams import base_suffix

    suffix = ".tsv" if request.out is None else base_suffix(request.out)
    if suffix not in (".tsv", ".txt", ".jsonl"):
        raise SettingsError(f"--out of spans ends in .tsv, .txt or .jsonl; it is {request.out}")
    if request.decoding is not None:
        classifier.set_params(decoding=request.decoding)
    for s, (tokens, spans) in enumerate(zip(sequences, classifier.predict_spans(sequences, given), strict=True)):
        words = [token[0] for token in tokens]
        texts = [" ".join(words[span.start : span.end]) for span in spans]
        if suffix == ".jsonl":
            found = [{**span._asdict(), "text": own} for span, own in zip(spans, texts, strict=True)]
            text.write(json.dumps({"tokens": words, "spans": found}, ensure_ascii=False) + "\n")
            continue
        for span, own in zip(spans, texts, strict=True):
            text.write(f"{s}\t{span.start}\t{span.end}\t{span.type}\t{span.probability:.6f}\t{own}\n")
