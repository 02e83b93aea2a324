"""The bundled real dataset: descriptions of Debian packages, labelled with debtags and archive sections."""

from __future__ import annotations

import json
import lzma
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal, overload

from extremegp.errors import SettingsError


@dataclass(frozen=True)
class DebtagsDataset:
    """One part of the debtags dataset; row i is a package.

    Attributes:
        texts: N package descriptions as Debian publishes them: a summary line, then paragraphs set apart by lines
            ``.``.
        labels: the labels of each row, sorted; every row has at least one.
        names: N package names, sorted and unique.
        label_names: all K labels of the training part, sorted; the same list for both parts. Not every one of them
            occurs in the test part.
    """

    texts: list[str]
    labels: list[list[str]]
    names: list[str]
    label_names: list[str]


@overload
def load_debtags(split: Literal["train", "test"]) -> DebtagsDataset: ...
@overload
def load_debtags(split: None = None) -> tuple[DebtagsDataset, DebtagsDataset]: ...


def load_debtags(
    split: Literal["train", "test"] | None = None,
) -> DebtagsDataset | tuple[DebtagsDataset, DebtagsDataset]:
    """Load the debtags dataset (multi-label text); needs no network.

    Each row is a package of Debian 12. Its labels are the debtags that volunteers gave it (``role::program``,
    ``works-with::image``, ...) and its archive section (``section::graphics``). Packages that look like relatives, by
    name or by wording, are on the same side of the split.

    | | train | test |
    |---|---|---|
    | rows | 6616 | 1910 |
    | labels | 423 | 413 |
    | labels per row | 8.28 | 8.31 |

    Source: the package index of Debian 12 "bookworm", component main. Licence: each description is part of its package
    and under that package's free licence; ``data/bundled/README.md`` has the details.

    Args:
        split: "train" or "test" for one part; None for both.

    Returns:
        The part asked for, or the pair ``(train, test)`` when ``split`` is None.

    Raises:
        SettingsError: ``split`` is none of these.

    Examples:
        >>> train, test = load_debtags()
        >>> len(train.texts), len(test.texts), len(train.label_names)
        (6616, 1910, 423)
    """
    if split not in ("train", "test", None):
        raise SettingsError(f"split must be 'train', 'test' or None, not {split!r}")
    records = _read("train")
    label_names = sorted({label for record in records for label in record["labels"]})
    train = _dataset(records, label_names)
    if split == "train":
        return train
    test = _dataset(_read("test"), label_names)
    return test if split == "test" else (train, test)


def _read(part: str) -> list[dict[str, Any]]:
    packed = files("extremegp").joinpath("data", "bundled", f"debtags-{part}.jsonl.xz").read_bytes()
    # Not splitlines: descriptions may hold characters that it, unlike JSON, takes for line ends.
    return [json.loads(line) for line in lzma.decompress(packed).decode().rstrip("\n").split("\n")]


def _dataset(records: list[dict[str, Any]], label_names: list[str]) -> DebtagsDataset:
    return DebtagsDataset(
        texts=[record["text"] for record in records],
        labels=[record["labels"] for record in records],
        names=[record["name"] for record in records],
        label_names=list(label_names),
    )
