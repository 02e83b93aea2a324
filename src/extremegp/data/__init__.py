"""Files and user input to checked matrices and labels."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from extremegp.data._files import base_suffix, line_blocks
from extremegp.data.arrays import read_array, read_inputs, read_npz
from extremegp.data.class_files import ClassDataset, classes_of_dataset, read_labels
from extremegp.data.classes import ClassSpace, encode_classes, one_hot
from extremegp.data.columns import Columns, read_columns, write_columns
from extremegp.data.features import FeatureKind, Features, make_features, suited_features
from extremegp.data.images import deskew
from extremegp.data.labels import LabelSpace, encode_targets
from extremegp.data.svmlight import read_svmlight
from extremegp.data.tables import read_table
from extremegp.data.templates import CHUNKING_TEMPLATE, Template
from extremegp.data.text import TextDataset, read_jsonl, write_jsonl
from extremegp.data.tokens import TokenFeatures, encode_label_sequences, stack_arrays
from extremegp.data.validation import FloatCSR, FloatMatrix, check_inputs
from extremegp.data.xc import Dataset, read_xc, write_xc
from extremegp.errors import DataError, SettingsError

__all__ = [
    "CHUNKING_TEMPLATE",
    "ClassDataset",
    "ClassSpace",
    "Columns",
    "Dataset",
    "FeatureKind",
    "Features",
    "FloatCSR",
    "FloatMatrix",
    "LabelSpace",
    "Template",
    "TextDataset",
    "TokenFeatures",
    "check_inputs",
    "classes_of_dataset",
    "deskew",
    "encode_classes",
    "encode_label_sequences",
    "encode_targets",
    "make_features",
    "one_hot",
    "read_array",
    "read_columns",
    "read_dataset",
    "read_inputs",
    "read_jsonl",
    "read_labels",
    "read_npz",
    "read_svmlight",
    "read_table",
    "read_xc",
    "recognise_format",
    "stack_arrays",
    "suited_features",
    "write_columns",
    "write_jsonl",
    "write_xc",
]

_FORMATS = (
    "'xc' (a header 'N D K', then rows 'l1,l2 f:v f:v'), 'svmlight' (such rows without header) and "
    """'jsonl' (lines like {"text": "...", "labels": ["a"]})"""
)
_SVMLIGHT_START = re.compile(rb"\s*(#|[0-9]+:|[-+0-9.,]+(\s+(qid|[0-9]+):|\s*$))")


def read_dataset(
    path: str | Path,
    format: Literal["auto", "xc", "svmlight", "jsonl"] = "auto",
    *,
    n_features: int | None = None,
    n_labels: int | None = None,
    zero_based: bool | Literal["auto"] = "auto",
) -> Dataset | TextDataset:
    """Read a data set in any of the accepted formats.

    Args:
        path: the file; .gz, .bz2, .xz and .zst are decompressed.
        format: "xc", "svmlight" or "jsonl"; "auto" decides by the suffix .jsonl or .ndjson and else by the first line.
        n_features: D of the model that the data are for (not for "jsonl").
        n_labels: K of the model that the data are for (not for "jsonl").
        zero_based: whether features count from 0 (only for "svmlight").

    Returns:
        A `TextDataset` for "jsonl", else a `Dataset`.

    Raises:
        DataError: the file cannot be read, breaks its format, or its format is not recognised.
        SettingsError: another `format`.
    """
    if format not in ("auto", "xc", "svmlight", "jsonl"):
        raise SettingsError(f"format must be 'auto' or one of {_FORMATS}, not {format!r}")
    if format == "auto":
        format = recognise_format(path)
    if format == "jsonl":
        return read_jsonl(path)
    if format == "xc":
        return read_xc(path, n_features=n_features, n_labels=n_labels)
    return read_svmlight(path, n_features=n_features, n_labels=n_labels, zero_based=zero_based)


def recognise_format(path: str | Path) -> Literal["xc", "svmlight", "jsonl"]:
    """The format that `read_dataset` takes a file for, by its suffix or first line.

    Raises:
        DataError: the file cannot be read, or its format is not recognised.
    """
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
    raise DataError(f"the format is not recognised; accepted are {_FORMATS}", path=path, line=1)
