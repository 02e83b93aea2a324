"""Standard input in place of a file of data."""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
from pathlib import Path

from extremegp.cli.options import FormatName
from extremegp.errors import DataError, SettingsError

STANDARD = Path("-")
"""What names standard input, or standard output."""

_NAME = "standard input"
_SUFFIXES = {"jsonl": ".jsonl", "csv": ".csv", "tsv": ".tsv", "annif": ".tsv"}


def opened(path: Path, format: FormatName) -> Path:
    """The file of a path; of "-" one with all that standard input has, which goes when the process ends.

    Readers pass over data twice, to recognise formats and to find words and lines, which a pipe does not allow.

    Raises:
        DataError: standard input is empty, or there is no room for it.
    """
    if path != STANDARD:
        return path
    if sys.stdin is None or sys.stdin.isatty():
        raise SettingsError("'-' reads standard input, but that is a terminal: pipe data in, or name a file")
    from extremegp.storage.streams import compressed_suffix, writing

    source = sys.stdin.buffer
    start = source.read(1 << 16)
    if not start:
        raise DataError("is empty", path=_NAME)
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = folder / f"{_NAME}{_SUFFIXES.get(format, '')}{compressed_suffix(start)}"
    with writing(file), open(file, "wb") as target:
        target.write(start)
        shutil.copyfileobj(source, target, 1 << 20)
    _spooled.append(file)
    return file


def with_its_name(message: str) -> str:
    """A message in which standard input is called so, and not after the file that took it up."""
    for file in _spooled:
        message = message.replace(str(file), _NAME)
    return message


_spooled: list[Path] = []
