"""The finished nodes of trees that grow, saved so that an interrupted run goes on where it was."""

from __future__ import annotations

import math
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from extremegp.errors import ModelFormatError
from extremegp.storage.tensors import read_tensors, write_tensors

_FORMAT = "extremegp label tree checkpoint 2"
NODE_ARRAYS = ("blocks", "features", "entries", "targets", "weights", "precisions", "biases", "bias_variances")
"""What finished nodes are, by name, as `TreeLevel` has them."""


def parts_folder(checkpoint: str | Path) -> Path:
    """Where a checkpoint's finished nodes are kept."""
    return Path(f"{checkpoint}.parts")


class NodeCheckpoint:
    """A file that says what is finished, with a folder beside it that holds it, by the key of a batch of nodes.

    Args:
        path: the file; without one nothing is saved, and time is kept only.
        fingerprint: identifies data and settings.
        writes: whether this process is the one that writes.

    Raises:
        ModelFormatError: there is a checkpoint, damaged or of another run.
    """

    def __init__(self, path: str | Path | None, fingerprint: str, *, writes: bool) -> None:
        self.path = None if path is None else Path(path)
        self._fingerprint, self._writes = fingerprint, writes
        self._started = self._saved_at = time.monotonic()
        self._n_parts, self._seconds_before = 0, 0.0
        self._unsaved: dict[str, NDArray[Any]] = {}
        self._read: dict[str, torch.Tensor] = {}
        if self.path is not None and self.path.exists():
            self._resume(self.path)

    @property
    def resumed(self) -> bool:
        """Whether an earlier run has finished anything."""
        return bool(self._read)

    def seconds(self) -> float:
        """How long this run has taken, with those that it goes on from."""
        return self._seconds_before + time.monotonic() - self._started

    def since_saved(self) -> float:
        """Seconds since progress was saved."""
        return time.monotonic() - self._saved_at

    def finished(self, key: str, *, n_parents: int, n_nodes: int) -> dict[str, NDArray[Any]] | None:
        """Nodes that an earlier run has finished, the children of some parents; None if it has not.

        Raises:
            ModelFormatError: they are not so many.
        """
        if f"{key}.{NODE_ARRAYS[0]}" not in self._read:
            return None
        lengths = {"blocks": n_parents, "biases": n_nodes}
        found: dict[str, NDArray[Any]] = {}
        for name in NODE_ARRAYS:
            tensor = self._read.get(f"{key}.{name}")
            if tensor is None or tensor.ndim != 1 or len(tensor) != lengths.get(name, len(tensor)):
                raise ModelFormatError(f"{self.path}: the finished nodes are not those of such a tree")
            found[name] = tensor.numpy()
        return found

    def keep(self, key: str, nodes: dict[str, NDArray[Any]]) -> None:
        """Remember to save what was not read."""
        if f"{key}.{NODE_ARRAYS[0]}" not in self._read:
            self._unsaved |= {f"{key}.{name}": array for name, array in nodes.items()}

    def save(self) -> None:
        """Write what is not saved yet."""
        self._saved_at = time.monotonic()
        unsaved, self._unsaved = self._unsaved, {}
        if self.path is None or not self._writes:
            return
        if unsaved:
            folder = parts_folder(self.path)
            if not self._n_parts:
                shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True, exist_ok=True)
            tensors = {name: torch.from_numpy(array) for name, array in unsaved.items()}
            write_tensors(folder / f"{self._n_parts}.safetensors", tensors, {})
            self._n_parts += 1
        header = {
            "format": _FORMAT,
            "fingerprint": self._fingerprint,
            "n_parts": self._n_parts,
            "seconds": self.seconds(),
        }
        write_tensors(self.path, {"n_parts": torch.tensor(self._n_parts)}, header)

    def _resume(self, path: Path) -> None:
        _, header = read_tensors(path)
        if header.get("format") != _FORMAT or header.get("fingerprint") != self._fingerprint:
            raise ModelFormatError(
                f"{path}: this checkpoint was written with other data or settings; "
                "repeat the original command, or start anew without resuming"
            )
        n_parts, seconds = header.get("n_parts"), header.get("seconds")
        if not isinstance(n_parts, int) or not isinstance(seconds, (int, float)) or not 0 <= seconds < math.inf:
            raise ModelFormatError(f"{path}: its header does not say what is saved")
        self._n_parts, self._seconds_before = n_parts, seconds
        for number in range(n_parts):
            self._read |= read_tensors(parts_folder(path) / f"{number}.safetensors")[0]
