"""What made a model: the library, the data, the settings and the seed, as models are saved with it."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import numpy as np
import scipy.sparse

from extremegp.__about__ import __version__
from extremegp.data import Template
from extremegp.errors import ModelFormatError

_DATE = "%Y-%m-%dT%H:%M:%SZ"
_UNTOLD = ("checkpoint", "checkpoint_seconds", "random_state", "verbose")
_MOST_NAMES, _LONGEST, _LONGEST_TEXT = 300, 300, 1 << 20


@dataclass(frozen=True)
class DataOrigin:
    """The rows that a model was trained or validated on.

    Attributes:
        n_rows: N, or tokens of sequences.
        n_features: D.
        n_labels: K.
        n_units: what the bound is a sum over: rows, sequences, or rows that label trees hold out.
        content: a hash of features and labels, the same for the same rows in the same order.
        source: the file's name, if they were read from one.
    """

    n_rows: int
    n_features: int
    n_labels: int
    n_units: int
    content: str
    source: str | None = None


@dataclass(frozen=True)
class Origin:
    """What made a model.

    Attributes:
        version: of the library.
        seed: `random_state`, if it was a number.
        drawn_seed: what that became, or was drawn where there was none.
        settings: the parameters of the estimator that are not as by default.
        training: the data.
        validation: those that the best epoch was chosen on.
        command: options of the command line by name.
        trained: when, in UTC.
    """

    version: str
    seed: int | None
    drawn_seed: int
    settings: dict[str, Any]
    training: DataOrigin
    validation: DataOrigin | None = None
    command: dict[str, Any] | None = None
    trained: str | None = None

    @classmethod
    def now(
        cls, estimator: Any, *, drawn_seed: int, training: DataOrigin, validation: DataOrigin | None = None
    ) -> Self:
        """That of an estimator that was fitted at this moment."""
        seed = estimator.random_state
        return cls(
            __version__,
            int(seed) if isinstance(seed, (int, np.integer)) else None,
            drawn_seed,
            chosen_settings(estimator),
            training,
            validation,
            trained=datetime.now(UTC).strftime(_DATE),
        )

    def of_files(self, data: Path, validation: Path | None, command: Mapping[str, Any]) -> Self:
        """The same of the command line.

        Args:
            data: the file of the training data, of which no more than the name is kept.
            validation: that of the validation data.
            command: options by name; of paths no more than the name is kept.
        """
        held = self.validation
        return replace(
            self,
            training=replace(self.training, source=data.name),
            validation=held if held is None or validation is None else replace(held, source=validation.name),
            command={name: _plain(value) for name, value in command.items()},
        )

    def to_config(self) -> dict[str, Any]:
        """All of it but the date as JSON."""
        return {name: value for name, value in asdict(self).items() if name != "trained"}

    @classmethod
    def from_config(cls, values: Any, trained: Any) -> Self:
        """What `to_config` gave, and the date.

        Args:
            values: as from a file: nothing in it is trusted.
            trained: likewise.

        Raises:
            ModelFormatError: names, types or sizes that there are not.
        """
        names = {entry.name for entry in fields(cls)} - {"trained"}
        if not isinstance(values, dict) or values.keys() != names:
            raise ModelFormatError("what it says of its origin is incomplete or of another version")
        validation, command, seed = values["validation"], values["command"], values["seed"]
        sound = (
            _is_text(values["version"])
            and (seed is None or _is_count(seed))
            and _is_count(values["drawn_seed"])
            and _is_told(values["settings"])
            and (command is None or _is_told(command))
            and (trained is None or _is_date(trained))
        )
        if not sound:
            raise ModelFormatError("what it says of its origin is damaged")
        return cls(
            **{name: values[name] for name in ("version", "seed", "drawn_seed", "settings", "command")},
            training=_data(values["training"]),
            validation=None if validation is None else _data(validation),
            trained=trained,
        )


def chosen_settings(estimator: Any) -> dict[str, Any]:
    """The parameters of an estimator that are not as by default, as JSON can hold them."""
    defaults = {name: entry.default for name, entry in inspect.signature(type(estimator)).parameters.items()}
    params = {name: _plain(value) for name, value in estimator.get_params(deep=False).items() if name not in _UNTOLD}
    return {name: value for name, value in params.items() if value != _plain(defaults[name])}


def content_hash(matrices: Iterable[Any]) -> str:
    """Equal for equal matrices in equal forms."""
    digest = hashlib.blake2b(digest_size=16)
    for matrix in matrices:
        names = ("indptr", "indices", "data") if scipy.sparse.issparse(matrix) else ()
        for array in [getattr(matrix, name) for name in names] or [matrix]:
            digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return digest.hexdigest()


def fingerprint(contents: Iterable[str], settings: dict[str, Any]) -> str:
    """Equal for runs on equal data with equal settings; how often progress is saved makes no difference.

    Args:
        contents: hashes of the data.
        settings: that decide the result.
    """
    settings = {name: value for name, value in settings.items() if name != "checkpoint_seconds"}
    text = json.dumps([settings, *contents], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def split_history(history: Iterable[Mapping[str, float]]) -> tuple[list[dict[str, float]], list[float]]:
    """Records of epochs without their seconds, and these: they alone differ between runs with one seed."""
    records = [dict(record) for record in history]
    return records, [record.pop("seconds") for record in records]


def joined_history(records: Any, seconds: Any) -> list[dict[str, float]]:
    """What `split_history` split; earlier versions did not.

    Raises:
        ModelFormatError: the two do not go together, or are no records.
    """
    if isinstance(records, list) and isinstance(seconds, list) and len(seconds) == len(records):
        records = [
            {**record, "seconds": each} if isinstance(record, dict) else record
            for record, each in zip(records, seconds, strict=True)
        ]
    if not isinstance(records, list) or not all(map(_is_record, records)):
        raise ModelFormatError("the records of its epochs are damaged")
    return records


def _is_record(record: Any) -> bool:
    return (
        isinstance(record, dict)
        and {"epoch", "seconds"} <= record.keys()
        and all(isinstance(value, (int, float)) and math.isfinite(value) for value in record.values())
    )


def _plain(value: Any) -> Any:
    """A setting as JSON: of files their name, of parts the class, of arrays and the like no more than the type."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (str, bool, int, type(None))) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, Path):
        return value.name
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value[:_MOST_NAMES]]
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    return str(value) if isinstance(value, Template) else type(value).__name__


def _data(values: Any) -> DataOrigin:
    sizes = ("n_rows", "n_features", "n_labels", "n_units")
    sound = (
        isinstance(values, dict)
        and values.keys() == {entry.name for entry in fields(DataOrigin)}
        and all(_is_count(values[name]) for name in sizes)
        and _is_text(values["content"])
        and (values["source"] is None or _is_text(values["source"]))
    )
    if not sound:
        raise ModelFormatError("what it says of its data is damaged")
    return DataOrigin(**values)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST


def _is_told(values: Any) -> bool:
    return isinstance(values, dict) and len(values) <= _MOST_NAMES and all(map(_is_setting, values.values()))


def _is_setting(value: Any, depth: int = 0) -> bool:
    if isinstance(value, (list, dict)):
        each = value.values() if isinstance(value, dict) else value
        return depth < 3 and len(value) <= _MOST_NAMES and all(_is_setting(part, depth + 1) for part in each)
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, (int, type(None))) or (isinstance(value, str) and len(value) <= _LONGEST_TEXT)


def _is_date(value: Any) -> bool:
    try:
        return isinstance(value, str) and datetime.strptime(value, _DATE).strftime(_DATE) == value
    except ValueError:
        return False
