"""Any of the formats of many labels per row, read whole."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from extremegp.data.blocks import Dataset
from extremegp.data.formats import FORMATS, recognise_format
from extremegp.data.mapped import open_dataset
from extremegp.data.svmlight import read_svmlight
from extremegp.data.text import TextDataset, read_jsonl
from extremegp.data.xc import read_xc
from extremegp.errors import SettingsError


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
