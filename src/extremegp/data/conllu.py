"""Files of CoNLL-U (https://universaldependencies.org/format.html): words in ten fields, of which one is learnt."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from extremegp.data.columns import read_columns
from extremegp.errors import DataError, SettingsError

FIELDS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
"""The fields of a word, in the order of a file."""

_UNKNOWN = "_"


class Sentences(NamedTuple):
    """Words of sentences.

    Attributes:
        sequences: of each sentence its words, and of each word its columns.
        labels: the label of every word, None where the file has none of it; None if none were to be read.
    """

    sequences: list[list[tuple[str, ...]]]
    labels: list[list[str | None]] | None


def read_conllu(
    path: str | Path,
    *,
    label: str | None = "upos",
    columns: Sequence[str] = ("form",),
    max_sequences: int | None = None,
) -> Sentences:
    """Read the words of sentences. Comments, tokens of several words and words left unsaid are left out.

    Args:
        path: the file; .gz, .bz2, .xz and .zst are decompressed.
        label: the field that has the labels, as in `FIELDS`; None if there is none to read.
        columns: the fields that tokens have as columns, in this order, such as for a template.
        max_sequences: how many sentences to read; None for all.

    Returns:
        The sentences with these columns, and their labels. A label is None where the field says ``_``, which `fit`
        takes for one that is not known.

    Raises:
        DataError: the file cannot be read, or has lines of other than ten fields; names the line.
        SettingsError: there is no such field, or one is both a column and the label.
    """
    if isinstance(columns, str) or not columns:
        raise SettingsError(f"columns must be fields of CoNLL-U in a list, such as ['form']; it is {columns!r}")
    for field in (*columns, *([] if label is None else [label])):
        if field not in FIELDS:
            raise SettingsError(f"columns and label must be fields of CoNLL-U, {', '.join(FIELDS)}; got {field!r}")
    if label in columns:
        raise SettingsError(f"the label {label!r} is among the columns, where it would give itself away; leave it out")
    with warnings.catch_warnings():
        # It is the format that leaves lines out.
        warnings.simplefilter("ignore", UserWarning)
        sequences = read_columns(path, label_column=None, separator="\t", max_sequences=max_sequences).sequences
    if len(sequences[0][0]) != len(FIELDS):
        raise DataError(
            f"words have {len(sequences[0][0])} fields separated by tabs, and in CoNLL-U {len(FIELDS)}", path=path
        )
    chosen = [FIELDS.index(field) for field in columns]
    found = [[tuple(word[field] for field in chosen) for word in words] for words in sequences]
    if label is None:
        return Sentences(found, None)
    place = FIELDS.index(label)
    labels = [[None if word[place] == _UNKNOWN else word[place] for word in words] for words in sequences]
    return Sentences(found, labels)
