"""What `learn` and `forget` share: a model that keeps a journal, and the names of rows."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from extremegp.cli.console import check_input
from extremegp.cli.pipes import STANDARD
from extremegp.cli.tasks import load_model
from extremegp.cli.tasks.rows import RowTask
from extremegp.errors import DataError, SettingsError


@contextmanager
def learner(folder: Path, *, quiet: bool) -> Iterator[tuple[Any, RowTask[Any]]]:
    """The model in a folder, whose changes are durable, and which no other process can change.

    Raises:
        SettingsError: models of its kind cannot learn.
        DataError: another process holds it.
    """
    from extremegp.estimators.learning import LearnsRows
    from extremegp.storage.journal import MOST_CALLS, Journal

    with closing(Journal(folder)) as journal:
        classifier, task = load_model(folder, quiet=quiet)
        if not isinstance(task, RowTask) or not isinstance(classifier, LearnsRows):
            raise SettingsError(f"{folder}: a model of sequences can neither learn nor forget: train it anew")
        if (reason := classifier.can_learn()) is not None:
            raise SettingsError(f"{folder}: this model can neither learn nor forget rows: {reason}")
        classifier.keep_journal(journal)
        yield classifier, task
        if journal.n_calls > MOST_CALLS:
            classifier.save(folder)


def read_ids(path: Path) -> list[str]:
    """Names of rows, a line each; "-" is standard input.

    Raises:
        DataError: there are none, or one comes twice; names the file.
    """
    from extremegp.estimators.row_ids import checked_ids

    check_input(path)
    try:
        text = sys.stdin.read() if path == STANDARD else path.read_text(encoding="utf-8-sig")
        names = checked_ids(line for line in text.splitlines() if line)
    except UnicodeDecodeError as error:
        raise DataError("is not UTF-8", path=path) from error
    except DataError as error:
        raise DataError(str(error), path=path) from error
    if not names:
        raise DataError("has no names of rows, a line each", path=path)
    return names
