"""Files and user input to checked matrices and labels."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from extremegp.data.arrays import read_array, read_inputs, read_npz
from extremegp.data.block_features import BlockFeatures
from extremegp.data.blocks import Dataset
from extremegp.data.class_files import ClassDataset, classes_of_dataset, read_labels
from extremegp.data.classes import ClassSpace, encode_classes, one_hot
from extremegp.data.columns import Columns, read_columns, write_columns
from extremegp.data.conversion import convert
from extremegp.data.features import chosen_features, make_features, suited_features
from extremegp.data.features_base import FeatureKind, Features
from extremegp.data.formats import FORMATS, recognise_format
from extremegp.data.images import deskew
from extremegp.data.labels import LabelSpace, encode_targets
from extremegp.data.mapped import open_dataset
from extremegp.data.mapped_writer import MappedWriter
from extremegp.data.svmlight import read_svmlight
from extremegp.data.tables import read_table
from extremegp.data.templates import CHUNKING_TEMPLATE, Template
from extremegp.data.text import TextDataset, read_jsonl, write_jsonl
from extremegp.data.tokens import TokenFeatures, encode_label_sequences, stack_arrays
from extremegp.data.validation import check_inputs
from extremegp.data.xc import read_xc, write_xc
from extremegp.engine.matrices import FloatCSR, FloatMatrix
from extremegp.errors import SettingsError

__all__ = [
    "CHUNKING_TEMPLATE",
    "BlockFeatures",
    "ClassDataset",
    "ClassSpace",
    "Columns",
    "Dataset",
    "FeatureKind",
    "Features",
    "FloatCSR",
    "FloatMatrix",
    "LabelSpace",
    "MappedWriter",
    "Template",
    "TextDataset",
    "TokenFeatures",
    "check_inputs",
    "chosen_features",
    "classes_of_dataset",
    "convert",
    "deskew",
    "encode_classes",
    "encode_label_sequences",
    "encode_targets",
    "make_features",
    "one_hot",
    "open_dataset",
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


def read_dataset(
    path: str | Path,
    format: Literal["auto", "xc", "svmlight", "jsonl", "mapped"] = "auto",
    *,
    n_features: int | None = None,
    n_labels: int | None = None,
    zero_based: bool | Literal["auto"] = "auto",
) -> Dataset | TextDataset:
    """Read a data set in any of the accepted formats.

    Args:
        path: the file; .gz, .bz2, .xz and .zst are decompressed. Or a folder that `convert` wrote.
        format: "xc", "svmlight", "jsonl" or, for such a folder, "mapped"; "auto" decides by the suffix .jsonl or
            .ndjson and else by the first line.
        n_features: D of the model that the data are for (not for "jsonl").
        n_labels: K of the model that the data are for (not for "jsonl").
        zero_based: whether features count from 0 (only for "svmlight").

    Returns:
        A `TextDataset` for "jsonl", else a `Dataset`; "mapped" is as `open_dataset` gives it.

    Raises:
        DataError: the file cannot be read, breaks its format, or its format is not recognised.
        SettingsError: another `format`.
    """
    if format not in ("auto", "xc", "svmlight", "jsonl", "mapped"):
        raise SettingsError(f"format must be 'auto' or one of {FORMATS}, not {format!r}")
    if format == "auto":
        format = recognise_format(path)
    if format == "jsonl":
        return read_jsonl(path)
    if format == "mapped":
        return open_dataset(path, n_features=n_features, n_labels=n_labels)
    if format == "xc":
        return read_xc(path, n_features=n_features, n_labels=n_labels)
    return read_svmlight(path, n_features=n_features, n_labels=n_labels, zero_based=zero_based)
