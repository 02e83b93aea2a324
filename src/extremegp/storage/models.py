"""Saved models: a folder of config.json and tensors.safetensors, written atomically and never trusted when read."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from extremegp.errors import DataError, ModelFormatError
from extremegp.storage.streams import writing
from extremegp.storage.tensors import StoredTensors, read_tensors, write_tensors

FORMAT_VERSION = 2
_READ_VERSIONS = (1, 2)
_CONFIG, _TENSORS = "config.json", "tensors.safetensors"
JOURNAL = "journal.jsonl"
"""What a model was told since it was saved, where there is any: see `Journal`."""
_MAX_CONFIG_BYTES = 1 << 28


def write_model(folder: str | Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write a model folder; an existing model there is replaced only once the new one is complete.

    Raises:
        DataError: the folder cannot be written, or is something other than a saved model.
    """
    folder = Path(folder)
    staging = _staging_folder(folder)
    try:
        with writing(folder):
            new, old = staging / "new", staging / "old"
            new.mkdir()
            write_tensors(new / _TENSORS, tensors, {})
            checked = {"format_version": FORMAT_VERSION, "sha256": _digest(new / _TENSORS), **config}
            text = json.dumps(checked, indent=1, ensure_ascii=False, allow_nan=False)
            (new / _CONFIG).write_text(text, encoding="utf-8")
            if folder.exists() and _exchanged(new, folder):
                return
            if folder.exists():
                folder.rename(old)
            try:
                new.rename(folder)
            except OSError:
                if old.exists():
                    old.rename(folder)
                raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def check_writable(folder: str | Path) -> None:
    """Fail now rather than after training where `write_model` could not write.

    Raises:
        DataError: as `write_model` would.
    """
    _staging_folder(Path(folder)).rmdir()


def read_model(folder: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read what `write_model` wrote, checking that nothing is missing, cut short or altered.

    Raises:
        ModelFormatError: the folder is not an intact model of a version that this library reads.
    """
    config = read_config(folder)
    return config, read_model_tensors(folder, config)


def read_config(folder: str | Path) -> dict[str, Any]:
    """The configuration of a model, of a version that this library reads.

    Raises:
        ModelFormatError: there is none.
    """
    folder = Path(folder)
    path = folder / _CONFIG
    if not folder.is_dir():
        raise ModelFormatError(f"{folder}: no such model folder")
    try:
        if path.stat().st_size > _MAX_CONFIG_BYTES:
            raise ModelFormatError(f"{path}: larger than any model's configuration")
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelFormatError(f"{path}: cannot be read ({error.strerror}): not a saved model") from error
    except (ValueError, RecursionError) as error:
        raise ModelFormatError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(config, dict) or "format_version" not in config:
        raise ModelFormatError(f"{path}: not the configuration of a saved model")
    if config["format_version"] not in _READ_VERSIONS:
        versions = " and ".join(map(str, _READ_VERSIONS))
        raise ModelFormatError(
            f"{path}: format version {config['format_version']!r}, and this library reads {versions}; "
            "install the version of extremegp that wrote it"
        )
    return config


def read_model_tensors(folder: str | Path, config: Mapping[str, Any], *, mapped: Sequence[str] = ()) -> StoredTensors:
    """The tensors that belong to a configuration.

    Args:
        folder: the model folder.
        config: what `read_config` read there.
        mapped: see `read_tensors`. All of the file is read once, to check it, however it is held.

    Raises:
        ModelFormatError: they are missing, cut short or altered.
    """
    folder = Path(folder)
    tensors, _ = read_tensors(folder / _TENSORS, mapped=mapped)
    if _digest(folder / _TENSORS) != config.get("sha256"):
        raise ModelFormatError(f"{folder / _TENSORS}: its contents changed since it was saved; copy the model again")
    return tensors


def _staging_folder(folder: Path) -> Path:
    """A new folder beside the model, which must be none, empty or a model."""
    with writing(folder):
        model = folder.is_dir() and {entry.name for entry in folder.iterdir()} - {JOURNAL} in (
            set(),
            {_CONFIG, _TENSORS},
        )
        if folder.is_symlink() or (folder.exists() and not model):
            raise DataError("exists and is not a saved model; choose another folder", path=folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))


def _exchanged(new: Path, folder: Path) -> bool:
    """Put a folder in the place of another at once, so that there is one at every moment; whether the system can."""
    if sys.platform != "linux":
        return False
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    here, exchange = -100, 2
    return rename is not None and rename(here, os.fsencode(new), here, os.fsencode(folder), exchange) == 0


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
