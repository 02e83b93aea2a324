"""What training takes whatever the task: a place for the model, a checkpoint to resume from, and a summary."""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from extremegp.cli.app import say
from extremegp.cli.common import Report, percent, words_for
from extremegp.errors import DataError, ModelFormatError, SettingsError

if TYPE_CHECKING:
    from extremegp.cli.common import Classifier


def leads() -> bool:
    """Whether this process is alone, or the one of several that `torchrun` started which prints and writes files."""
    return os.environ.get("RANK", "0") == "0"


def check_processes(task: str) -> None:
    """Refuse several processes where they cannot share the work.

    Raises:
        SettingsError: labels are of sequences.
    """
    if task == "sequence" and {"RANK", "WORLD_SIZE"} <= os.environ.keys() and os.environ["WORLD_SIZE"] != "1":
        raise SettingsError(
            f"sequences of labels cannot be shared out over {os.environ['WORLD_SIZE']} processes: "
            "start it as one process, without torchrun"
        )


def check_destination(out: Path, overwrite: bool) -> None:
    """Fail now rather than after training where a model cannot be saved.

    Raises:
        DataError: it cannot be written, or one is there already and may not be replaced.
    """
    from extremegp.storage.models import check_writable

    if not leads():
        return
    check_writable(out)
    if out.is_dir() and any(out.iterdir()) and not overwrite:
        raise DataError("holds a model already; choose another --out, or replace it with --overwrite", path=out)


def checkpoint_of(out: Path) -> Path:
    """Where the progress of training a model is kept."""
    return Path(f"{out}.checkpoint")


def fit(classifier: Classifier, X: Any, y: Any, out: Path, *, fresh: bool, quiet: bool, **options: Any) -> bool:
    """Train, from the checkpoint if an interrupted run left one.

    Args:
        classifier: not fitted yet; its checkpoint is `checkpoint_of(out)`.
        X: inputs.
        y: labels.
        out: where the model will be saved.
        fresh: discard the checkpoint.
        quiet: do not say that the run resumes.
        options: of `fit`.

    Returns:
        Whether the run resumed.

    Raises:
        ModelFormatError: the checkpoint is of another run.
        typer.Exit: interrupted; the progress is saved.
    """
    from extremegp.training import TrainingInterrupted

    checkpoint = checkpoint_of(out)
    if fresh and leads():
        _discard(checkpoint)
    resumed = leads() and checkpoint.exists()
    if resumed and not quiet:
        say(f"resuming from {checkpoint}")
    try:
        classifier.fit(X, y, **options)
    except TrainingInterrupted as interrupt:
        if leads():
            say(f"interrupted and saved: the same command resumes from {interrupt.saved}; --fresh starts anew")
        raise typer.Exit(130) from interrupt
    except ModelFormatError as error:
        raise ModelFormatError(f"{error}; --fresh discards it") from error
    return resumed


def save(classifier: Classifier, out: Path) -> None:
    """Save the model, after which its checkpoint has no use."""
    if not leads():
        return
    classifier.save(out)
    _discard(checkpoint_of(out))


def summarise(
    report: Report,
    classifier: Classifier,
    out: Path,
    *,
    hint: str,
    n_fitted: int,
    resumed: bool,
    started: float,
    shown: Sequence[tuple[str, str]] = (),
    extra: dict[str, Any] | None = None,
) -> None:
    """Show and write what training came to.

    Args:
        report: where it goes.
        classifier: the fitted model.
        out: where it is.
        hint: options that data for it need.
        n_fitted: how many units the evidence is a sum over.
        resumed: whether training resumed.
        started: when the command started, by the monotonic clock.
        shown: lines of the table that only this task has.
        extra: the same of the JSON.
    """
    score, _, what, rows, unit = words_for(classifier)
    history = classifier.history_
    settings = asdict(classifier.settings_)
    validation = [record[f"validation_{score}"] for record in history if f"validation_{score}" in record]
    result: dict[str, Any] = {
        "model": str(out),
        "estimator": type(classifier).__name__,
        f"n_{rows}": classifier.n_rows_,
        "n_features": settings["n_features"],
        f"n_{what}": settings["n_labels"],
        "features": classifier.features_.kind,
        "settings": settings,
        "epochs": len(history),
        f"elbo_per_{unit}": history[-1]["elbo"] / n_fitted,
        f"validation_{score}": max(validation) if validation else None,
        "training_seconds": history[-1]["seconds"],
        "seconds": time.monotonic() - started,
        "resumed": resumed,
        **(extra or {}),
    }
    lines = [
        (rows, str(classifier.n_rows_)),
        *shown,
        ("features", f"{settings['n_features']} ({classifier.features_.kind})"),
        (what, str(settings["n_labels"])),
        *((name, str(value)) for name, value in settings.items() if name not in ("n_features", "n_labels")),
        ("epochs", str(len(history))),
        (f"ELBO per {unit}", f"{result[f'elbo_per_{unit}']:.4f}"),
        *([(f"validation {score} %", percent(max(validation)))] if validation else []),
        ("training (s)", f"{result['training_seconds']:.1f}"),
    ]
    report.table(f"saved to {out}", ("", "value"), lines)
    report.lines(f"Next: extremegp evaluate {shlex.quote(str(out))} TEST_DATA{hint}")
    report.result(result)


def _discard(checkpoint: Path) -> None:
    from extremegp.label_tree import parts_folder

    checkpoint.unlink(missing_ok=True)
    shutil.rmtree(parts_folder(checkpoint), ignore_errors=True)
