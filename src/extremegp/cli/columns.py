"""Sequences of tokens in columns, and how files of them must fit a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from extremegp.cli.inputs import Source
from extremegp.errors import DataError, SettingsError

if TYPE_CHECKING:
    from extremegp.data import Columns
    from extremegp.estimators import SequenceGPClassifier

Sequences: TypeAlias = list[list[tuple[str, ...]]]


def read(source: Source, *, labelled: bool, max_sequences: int | None = None) -> Columns:
    """The sequences of a file: with all their columns, or with the last one as their labels.

    Raises:
        DataError: the file cannot be read; names the line.
        SettingsError: there is no such separator or encoding.
    """
    from extremegp.data import read_columns

    return read_columns(
        source.path,
        label_column=-1 if labelled else None,
        separator=_separator(source),
        encoding=source.encoding or "utf-8",
        max_sequences=max_sequences,
    )


def read_partly(source: Source, unknown: str | None) -> tuple[Sequences, list[list[str | None]]]:
    """The sequences of a file and their labels, None where these are `unknown`.

    Raises:
        DataError: as `read`.
    """
    sequences, labels = read(source, labelled=True)
    return sequences, [[None if label == unknown else label for label in own] for own in labels or ()]


def read_given(source: Source, sequences: Sequences, unknown: str) -> list[list[str | None]]:
    """Labels that are known of the tokens of sequences: the last column of a file that has the same tokens.

    Raises:
        DataError: as `read`, or the file has other sequences.
    """
    found = read(source, labelled=False).sequences
    if len(found) != len(sequences):
        raise DataError(f"has {len(found)} sequences, but there are {len(sequences)} to predict", path=source.path)
    for s, (own, tokens) in enumerate(zip(found, sequences, strict=True)):
        if len(own) != len(tokens):
            raise DataError(
                f"has {len(own)} tokens in sequence {s} (counted from 0), but there are {len(tokens)} to predict",
                path=source.path,
            )
    return [[None if token[-1] == unknown else token[-1] for token in own] for own in found]


def width(source: Source) -> int:
    """How many columns a file has, the label among them; its first sequence tells."""
    return len(read(source, labelled=False, max_sequences=1).sequences[0][0])


def counted(n_columns: int) -> str:
    """A number of columns."""
    return f"{n_columns} column" + "s" * (n_columns != 1)


def check_width(classifier: SequenceGPClassifier, model: Path, source: Source, *, labelled: bool) -> None:
    """Refuse a file whose columns are not those of training, before it is read.

    It must have a label if `labelled`, and may have one if not.
    """
    if classifier.features_.template is None:
        raise SettingsError(
            f"{model} has no template, so files in columns do not have its features; use it from Python"
        )
    found, known = width(source), classifier.features_.n_columns
    assert known is not None
    if found not in ((known + 1,) if labelled else (known, known + 1)):
        beside = "and the label" if labelled else "(one more with the label)"
        raise DataError(
            f"the line has {counted(found)}, but {model} was trained on {known} {beside}; correct the file, "
            "or name what separates columns by --separator",
            path=source.path,
            line=first_token_line(source),
        )


def first_token_line(source: Source) -> int:
    """The number of the line of the first token."""
    from extremegp.data.columns import first_token_line as first_of

    return first_of(source.path, _separator(source), source.encoding or "utf-8")


def _separator(source: Source) -> str | None:
    """A shell hands over \\t as a separator in two characters."""
    return source.separator and source.separator.replace(r"\t", "\t")
