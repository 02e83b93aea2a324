"""Texts with labels as JSON lines: one object ``{"text": "...", "labels": ["a", "b"]}`` per line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from extremegp.data.blocks import BEGINNING, Position
from extremegp.errors import DataError, located
from extremegp.storage.streams import atomic_writer, text_blocks, utf8

_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class TextDataset:
    """Texts and their labels.

    Attributes:
        texts: N texts.
        labels: the label names of each text, possibly none; None if the source has no labels at all, as for prediction.
    """

    texts: list[str]
    labels: list[list[str]] | None = None


def read_jsonl(path: str | Path) -> TextDataset:
    """Read JSON lines with a string "text" and, in either all lines or none, a list of strings "labels".

    Other keys and blank lines are skipped. The file is UTF-8; .gz, .bz2, .xz and .zst are decompressed.

    Raises:
        DataError: the file cannot be read, or a line breaks the format; names the file and the line.
    """
    texts: list[str] = []
    labels: list[list[str]] = []
    for block in text_records(path):
        texts += block.texts
        labels += block.labels or ()
    if not texts:
        raise DataError("the file has no records, only blank lines", path=path)
    return TextDataset(texts, labels or None)


class TextRecords(NamedTuple):
    """Consecutive records: their texts, their labels if the file has any, the place after them, and bytes read."""

    texts: list[str]
    labels: list[list[str]] | None
    end: Position
    read: int


def text_records(
    path: str | Path, start: Position = BEGINNING, *, labelled: bool | None = None
) -> Iterator[TextRecords]:
    """JSON lines as `read_jsonl` takes them, in blocks, in bounded memory.

    Args:
        path: the file.
        start: the beginning, or the `end` of an earlier block.
        labelled: whether the records before `start` have labels.

    Raises:
        DataError: the file cannot be read, or a line breaks the format; names the file and the line.
    """
    path = Path(path)
    _, number, row = start
    for block in text_blocks(path, offset=start.offset):
        texts: list[str] = []
        labels: list[list[str]] = []
        for line in block.lines.split(b"\n")[:-1]:
            number += 1
            if not line.strip():
                continue
            with located(path, number):
                text, row_labels = _record(line)
                if labelled not in (None, row_labels is not None):
                    raise DataError(
                        'either every line must have "labels" or none; write "labels": [] for a text without labels'
                    )
            labelled = row_labels is not None
            texts.append(text)
            labels.append(row_labels or [])
        row += len(texts)
        yield TextRecords(texts, labels if labelled else None, Position(block.end, number, row), block.read)


def write_jsonl(path: str | Path, texts: Sequence[str], labels: Sequence[Sequence[str]] | None = None) -> None:
    """Write texts, and labels if given, so that `read_jsonl` returns them; the file appears complete or not at all.

    Args:
        path: the file; compressed if it ends in .gz, .bz2, .xz or .zst.
        texts: N texts.
        labels: the label names of each text.

    Raises:
        DataError: nothing to write, lengths that differ, entries that are not strings, or the file cannot be written.
    """
    if isinstance(texts, str) or not texts:
        raise DataError("texts must be a list with at least one text", path=path)
    if labels is not None and len(labels) != len(texts):
        raise DataError(f"there are {len(texts)} texts but {len(labels)} label lists; give one to each", path=path)
    with atomic_writer(path) as stream:
        for i, text in enumerate(texts):
            record: dict[str, Any] = {"text": text}
            if labels is not None:
                row_labels = labels[i]
                record["labels"] = row_labels if isinstance(row_labels, str) else list(row_labels)
            try:
                line = json.dumps(record).encode("ascii")
            except TypeError as error:
                raise DataError(f"text {i} or its labels are not strings: {error}", path=path) from error
            with located(path, i + 1):
                _record(line)
            stream.write(line + b"\n")


def _record(line: bytes) -> tuple[str, list[str] | None]:
    text = utf8(line)
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"not valid JSON: {error.msg} at character {error.colno}") from error
    except RecursionError as error:
        raise DataError("not a record: nested too deeply") from error
    if not isinstance(record, dict):
        raise DataError(f'expected an object like {{"text": "...", "labels": ["a"]}}, not {_json_type(record)}')
    if "text" not in record:
        raise DataError('the key "text" is missing')
    text = record["text"]
    if not isinstance(text, str):
        raise DataError(f'"text" must be a string, not {_json_type(text)}')
    labels = record.get("labels")
    if "labels" in record:
        if not isinstance(labels, list):
            raise DataError(f'"labels" must be a list of strings such as ["a", "b"], not {_json_type(labels)}')
        for label in labels:
            if not isinstance(label, str):
                raise DataError(f'"labels" must hold only strings, not {_json_type(label)}; put quotes around it')
    for string in (text, *(labels or ())):
        # JSON can spell half of a surrogate pair, which no UTF-8 file can hold later on.
        if _SURROGATE.search(string):
            raise DataError("a string holds half of a surrogate pair; correct or remove that escape")
    return text, labels


def _json_type(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")
