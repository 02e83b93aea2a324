"""The exceptions raised at the doors of the library; each message says what was wrong, where, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class ExtremeGPError(ValueError):
    """Base of every error that bad input or impossible settings raise."""


class DataError(ExtremeGPError):
    """Input data that cannot be used.

    Args:
        problem: what is wrong and what to do about it, one line.
        path: the file it was found in.
        line: 1-based line number in that file.
    """

    def __init__(self, problem: str, *, path: str | Path | None = None, line: int | None = None) -> None:
        where = "" if path is None else f"{path}:{line}: " if line is not None else f"{path}: "
        super().__init__(where + problem)
        self.path = path
        self.line = line


@contextmanager
def located(path: str | Path, line: int | None = None) -> Iterator[None]:
    """Add the file, and the line, to errors of data that name none."""
    try:
        yield
    except DataError as error:
        if error.path is None:
            raise DataError(str(error), path=path, line=line) from error.__cause__
        raise


class SettingsError(ExtremeGPError):
    """A hyper-parameter or option outside its domain, or a combination that cannot work."""


class BudgetWarning(UserWarning):
    """A time budget that is too small for what is to be trained within it."""


class MemoryPlanError(ExtremeGPError, MemoryError):
    """The settings need more memory than is available; the message names the settings to lower."""


class ModelFormatError(ExtremeGPError):
    """A saved model that is missing, truncated, altered, or of another version."""
