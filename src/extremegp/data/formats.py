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


def recognise_format(path: str | Path) -> Literal["xc", "svmlight", "jsonl", "mapped"]:
    """The format that `read_dataset` takes a file for, by its suffix or first line, or a folder.

    Raises:
        DataError: the file cannot be read, or its format is not recognised.
    """
    if is_dataset(path):
        return "mapped"
    if base_suffix(path) in (".jsonl", ".ndjson"):
        return "jsonl"
    # A few first lines are enough, and are read without the rest.
    line = next(line_blocks(path, block_bytes=1 << 16)).partition(b"\n")[0]
    if line.lstrip().startswith(b"{"):
        return "jsonl"
    tokens = line.split()
    if len(tokens) in (2, 3) and all(token.isdigit() for token in tokens):
        return "xc"
    if _SVMLIGHT_START.match(line):
        return "svmlight"
    raise DataError(f"the format is not recognised; accepted are {FORMATS}", path=path, line=1)
