"""What a model was told since it was saved: a file beside it, a call a line, durable before it is answered."""

from __future__ import annotations

import contextlib
import json
import os
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from extremegp.errors import DataError, ModelFormatError
from extremegp.storage.models import JOURNAL, read_config
from extremegp.storage.streams import sync_folder, writing

MOST_CALLS = 1000
"""With more it is time to save the model anew, so that loading it does not do all of them again."""
_FORMAT = "extremegp journal 1"
_WAIT_SECONDS, _TRY_SECONDS = 10.0, 0.05


class Journal:
    """The calls that changed a model since it was saved.

    Every line has a checksum. The first names the saved model that the calls are about; a last line that was cut short
    was never answered, and is left out. One process at a time may hold it.

    Args:
        folder: of the model. It is held until `close`.

    Attributes:
        digest: of the tensors of the saved model.
        n_calls: how many calls it holds.

    Raises:
        DataError: another process holds it.
        ModelFormatError: the folder is no model, or its journal is damaged.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._file, self._held = -1, _hold(self.folder)
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        self.digest, self._file = str(read_config(self.folder).get("sha256")), -1
        self.n_calls = len([*calls(self.folder, self.digest)])

    def append(self, call: Mapping[str, Any]) -> None:
        """Write a call, and return once it is on the disk.

        Raises:
            DataError: it cannot be written; the journal is as it was.
        """
        self._write(call)
        self.n_calls += 1

    def renewed(self) -> None:
        """Go on beside a model that was saved in the place of the one that this was beside."""
        before = self._file, self._held
        self._held = _hold(self.folder)
        self._open()
        _close(*before)

    def close(self) -> None:
        """Let go of the model."""
        _close(self._file, self._held)
        self._file = self._held = -1

    def _write(self, call: Mapping[str, Any]) -> None:
        if self._held < 0:
            raise DataError("its journal was closed", path=self.folder)
        if self._file < 0:
            self._begin()
        text = json.dumps(call, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        line = b"%08x %s\n" % (zlib.crc32(text), text)
        size = os.fstat(self._file).st_size
        with writing(self.folder / JOURNAL):
            try:
                done = 0
                while done < len(line):
                    done += os.write(self._file, line[done:])
                os.fsync(self._file)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file, size)
                raise

    def _begin(self) -> None:
        """Open the file; one that there is goes on where its last whole line ends."""
        path = self.folder / JOURNAL
        with writing(path):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            whole = sum(map(len, _whole_lines(path)))
            os.ftruncate(self._file, whole)
        if not whole:
            self._write({"format": _FORMAT, "model": self.digest})
            sync_folder(self.folder)


def calls(folder: str | Path, digest: str) -> Iterator[dict[str, Any]]:
    """The calls in the journal of a model, in their order.

    Args:
        folder: of the model.
        digest: of its tensors, which the journal must be about.

    Raises:
        ModelFormatError: a line but the last was altered, or it is the journal of another model.
    """
    path = Path(folder) / JOURNAL
    for number, line in enumerate(_whole_lines(path), start=1):
        checksum, _, text = line[:-1].partition(b" ")
        try:
            call = json.loads(text) if checksum == b"%08x" % zlib.crc32(text) else None
        except (ValueError, RecursionError):
            call = None
        if not isinstance(call, dict):
            raise ModelFormatError(f"{path}: line {number} was altered since it was written")
        if number == 1 and call != {"format": _FORMAT, "model": digest}:
            raise ModelFormatError(f"{path}: it is the journal of another model, or of another version")
        if number > 1:
            yield call


def _whole_lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as stream:
            for line in stream:
                if line.endswith(b"\n"):
                    yield line
    except FileNotFoundError:
        return
    except OSError as error:
        raise ModelFormatError(f"{path}: cannot be read ({error.strerror})") from error


def _hold(folder: Path) -> int:
    """A descriptor of the folder, which no other process has while this one does."""
    try:
        import fcntl
    except ImportError:  # Windows has no such locks.
        return os.open(os.devnull, os.O_RDONLY)
    until = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            held = os.open(folder, os.O_RDONLY)
        except OSError as error:
            raise ModelFormatError(f"{folder}: no such model folder") from error
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(held)
            if time.monotonic() > until:
                raise DataError(
                    "another process is changing the model, such as a server: let that learn, or stop it", path=folder
                ) from error
            time.sleep(_TRY_SECONDS)
            continue
        with contextlib.suppress(OSError):
            # While this waited another model may have come in its place.
            if os.stat(folder).st_ino == os.fstat(held).st_ino:
                return held
        os.close(held)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        if descriptor >= 0:
            os.close(descriptor)
