"""Which of the formats of many labels per row a file has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from extremegp.data.mapped import is_dataset
from extremegp.errors import DataError
from extremegp.storage.streams import base_suffix, line_blocks

FORMATS = (
    "'xc' (a header 'N D K', then rows 'l1,l2 f:v f:v'), 'svmlight' (such rows without header) and "
    """'jsonl' (lines like {"text": "...", "labels": ["a"]})"""
)
_SVMLIGHT_START = re.compile(rb"\s*(#|[0-9]+:|[-+0-9.,]+(\s+(qid|[0-9]+):|\s*$))")
_LABELS_ALONE = re.compile(rb"\s*[-+0-9.,]+\s*")
_FEATURE = re.compile(rb"(^|\s)[0-9]+:")
# Two or three numbers and nothing else: three with blanks between them are a header already.
_NEARLY_A_HEADER = re.compile(
    rb"[^\w#]*[0-9][0-9.]*(?:e[+-]?[0-9]+)?(?:[^\w.:]+[0-9][0-9.]*(?:e[+-]?[0-9]+)?){1,2}\W*", re.I
)


def recognise_format(path: str | Path, *, labels_alone: bool = False) -> Literal["xc", "svmlight", "jsonl", "mapped"]:
    """The format that `read_dataset` takes a file for, by its suffix or first line, or a folder.

    Args:
        path: the file or folder.
        labels_alone: whether rows may have labels and no features at all, as of known labels.

    Raises:
        DataError: the file cannot be read, or its format is not recognised; or it starts with numbers that are neither
            a header nor, for all that the first lines show, rows with features.
    """
    if is_dataset(path):
        return "mapped"
    if base_suffix(path) in (".jsonl", ".ndjson"):
        return "jsonl"
    # A few first lines are enough, and are read without the rest.
    block = next(line_blocks(path, block_bytes=1 << 16))
    line = block.partition(b"\n")[0]
    if line.lstrip().startswith(b"{"):
        return "jsonl"
    tokens = line.split()
    if len(tokens) in (2, 3) and all(token.isdigit() for token in tokens):
        return "xc"
    if not labels_alone:
        _refuse_numbers_alone(path, block, line)
    if _SVMLIGHT_START.match(line):
        return "svmlight"
    raise DataError(f"the format is not recognised; accepted are {FORMATS}", path=path, line=1)


def _refuse_numbers_alone(path: str | Path, block: bytes, line: bytes) -> None:
    """Refuse what would be read as rows of labels without features, but is hardly meant so."""
    remedy = "if rows have labels without features, name the format svmlight (--format svmlight)"
    if _NEARLY_A_HEADER.fullmatch(line):
        text = line.decode("utf-8", errors="backslashreplace").strip()
        raise DataError(
            f"{text!r} looks like a header, which is three integers 'N D K' (rows, features, labels) with blanks "
            f"between them: write it so; {remedy}",
            path=path,
            line=1,
        )
    if _LABELS_ALONE.fullmatch(line) and not _FEATURE.search(block):
        raise DataError(
            f"no line has a feature 'f:v', as xc and svmlight have; let a table end in .csv or .tsv; {remedy}",
            path=path,
            line=1,
        )
