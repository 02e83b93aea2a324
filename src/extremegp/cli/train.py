"""Train a model on labelled data and save it to a folder.

Rows have many labels each, or one class each, or the tokens of sequences
have a label each (--task). Progress is kept in the file MODEL.checkpoint:
after Ctrl-C, a crash or a power cut the same command goes on where the last
one stopped, and ends at the same model.

Sequences are files as of CoNLL and CRF++: a token a line, in columns, of
which the last is the label, and blank lines between sequences.

\b
Examples:
  extremegp train train.txt --out model --time-budget 10m
  extremegp train docs.jsonl --out model --valid held-out.jsonl
  extremegp train docs.jsonl --out model --set n_inducing=600 --set epochs=20
  extremegp train train.svm.gz --out model --preset ARD-FX
  extremegp train products.csv --text-column title --text-column description \\
      --labels-column tags --label-separator ';' --out model
  extremegp train embeddings.npy --labels tags.txt --label-separator ';' --out model
  extremegp train corpus.tsv --vocabulary subjects.ttl --out model

\b
Examples with one class per row:
  extremegp train images.npy --labels classes.npy --out model
  extremegp train train.csv --label-column species --out model
  extremegp train train.svm --task multiclass --out model --preset OVE

\b
Examples with sequences:
  extremegp train train.txt --task sequence --out tagger
  extremegp train train.txt --template chunking.template --out tagger
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal

import typer

from extremegp.cli import options
from extremegp.cli.app import say
from extremegp.cli.console import Report, check_input, load_libraries, percent
from extremegp.cli.inputs import Source
from extremegp.cli.options import TaskName
from extremegp.cli.settings import duration, one_of
from extremegp.cli.task_options import given, refuse_foreign
from extremegp.cli.tasks import TASKS, Task, Training, TrainRequest
from extremegp.errors import DataError, ModelFormatError, SettingsError


def train(
    context: typer.Context,
    data: options.TrainingData,
    out: options.ModelFolder,
    labels: options.Labels = None,
    text_column: options.TextColumn = None,
    labels_column: options.LabelsColumn = None,
    label_separator: options.LabelSeparator = None,
    label_columns: options.LabelColumns = None,
    label_column: options.LabelColumn = None,
    vector_column: options.VectorColumn = None,
    vectors: options.Vectors = None,
    id_column: options.IdColumn = None,
    weight_column: options.WeightColumn = None,
    task: options.TaskChoice = "auto",
    valid: options.Valid = None,
    valid_labels: options.ValidLabels = None,
    valid_vectors: options.ValidVectors = None,
    model: options.ModelChoice = "auto",
    preset: options.PresetName = None,
    features: options.Features = None,
    settings: options.Settings = None,
    template: options.Template = None,
    unknown_label: options.UnknownLabel = None,
    scheme: options.Scheme = None,
    separator: options.Separator = None,
    encoding: options.Encoding = None,
    seed: options.Seed = 0,
    time_budget: options.TimeBudget = None,
    max_memory: options.MaxMemory = None,
    format: options.Format = "auto",
    x_key: options.XKey = None,
    y_key: options.YKey = None,
    first_label: options.FirstLabel = False,
    ignore_labels: options.IgnoreLabels = False,
    labels_names: options.LabelsNames = None,
    vocabulary: options.VocabularyFile = None,
    language: options.Language = "en",
    overwrite: options.OverwriteModel = False,
    fresh: options.Fresh = False,
    json: options.Json = None,
    quiet: options.Quiet = False,
) -> None:
    """Look up the task, let it read the data, train its estimator and save it."""
    quiet = quiet or not _leads()
    report = Report(json if _leads() else None, quiet)
    source = Source.of(data, context.params)
    chosen, because = _task(source, task, preset, template)
    refuse_foreign(context, chosen, because)
    checkpoint = Path(f"{out}.checkpoint")
    named = {
        "time_budget": None if time_budget is None else duration(time_budget),
        "features": features,
        "max_memory": max_memory,
        "scheme": scheme,
    }
    request = TrainRequest(
        source=source,
        because=because,
        asked=task != "auto",
        params={name: value for name, value in named.items() if value is not None}
        | {"random_state": seed, "checkpoint": checkpoint, "verbose": not quiet},
        settings=settings or [],
        preset=preset,
        kind=model,
        valid=valid,
        valid_labels=valid_labels,
        valid_vectors=valid_vectors,
        labels_names=labels_names,
        template=template,
        unknown_label=unknown_label,
        quiet=quiet,
        check_destination=partial(
            _check_files, out, (valid, labels, valid_labels, labels_names), overwrite=overwrite, quiet=quiet
        ),
    )
    training = chosen.prepare(request)
    for note in training.notes:
        say(note)
    resumed = _fit(training, checkpoint, fresh=fresh, quiet=quiet)
    if _leads():
        classifier = training.classifier
        classifier.origin_ = classifier.origin_.of_files(data, valid, given(context))
        classifier.save(out)
        _discard(checkpoint)
    result = {"model": str(out)} | _summarise(report, chosen, training, str(out), validated=valid is not None)
    report.lines(f"Next: extremegp evaluate {shlex.quote(str(out))} TEST_DATA{source.hint}")
    report.result(result | {"seconds": report.seconds, "resumed": resumed, **training.extra})


def _task(
    source: Source, wanted: Literal["auto"] | TaskName, preset: str | None, template: Path | None
) -> tuple[Task[Any], str]:
    """The task, and what decided it."""
    of_preset = next((task for task in TASKS.values() if preset in task.presets), None)
    if preset is not None and of_preset is None:
        known = [name for task in TASKS.values() if wanted in ("auto", task.name) for name in task.presets]
        one_of("--preset", preset, known, listed_by="`extremegp presets`")
    by_preset = of_preset and f"--preset {preset} is for {of_preset.per_row}"
    if wanted != "auto":
        task, because = TASKS[wanted], f"--task is {wanted}"
    elif template is not None:
        task, because = TASKS["sequence"], "--template is for sequences of tokens"
    elif of_preset and by_preset and of_preset.name == "sequence":
        task, because = of_preset, by_preset
    elif sign := source.sign_of_many_labels():
        task, because = TASKS["multilabel"], sign
    elif sign := source.sign_of_classes():
        task, because = TASKS["multiclass"], sign
    elif of_preset and by_preset:
        task, because = of_preset, by_preset
    else:
        task, because = TASKS["multilabel"], "--task is not multiclass"
    if of_preset not in (None, task):
        raise SettingsError(f"{by_preset}, but {because}; `extremegp presets` lists others")
    return task, because


def _leads() -> bool:
    """Whether this process is alone, or the one of several that `torchrun` started which prints and writes files."""
    return os.environ.get("RANK", "0") == "0"


def _check_files(out: Path, inputs: Iterable[Path | None], *, overwrite: bool, quiet: bool) -> None:
    """Fail now rather than after training where a model cannot be saved, or is there already, or data are not."""
    for path in filter(None, inputs):
        check_input(path)
    # All that can be told to be wrong without PyTorch has been told.
    load_libraries(quiet)
    from extremegp.storage.models import check_writable

    if not _leads():
        return
    check_writable(out)
    if out.is_dir() and any(out.iterdir()) and not overwrite:
        raise DataError("holds a model already; choose another --out, or replace it with --overwrite", path=out)


def _fit(training: Training[Any], checkpoint: Path, *, fresh: bool, quiet: bool) -> bool:
    """Train, from the checkpoint if an interrupted run left one.

    Returns:
        Whether the run resumed.

    Raises:
        ModelFormatError: the checkpoint is of another run.
        typer.Exit: interrupted; the progress is saved.
    """
    from extremegp.training import TrainingInterrupted

    if fresh and _leads():
        _discard(checkpoint)
    resumed = _leads() and checkpoint.exists()
    if resumed and not quiet:
        say(f"resuming from {checkpoint}")
    classifier = training.classifier
    try:
        classifier.fit(training.X, training.y, **training.options)
    except TrainingInterrupted as interrupt:
        if _leads():
            say(f"interrupted and saved: the same command resumes from {interrupt.saved}; --fresh starts anew")
        raise typer.Exit(130) from interrupt
    except ModelFormatError as error:
        raise ModelFormatError(f"{error}; --fresh discards it") from error
    if training.feature_names is not None:
        import numpy as np

        classifier.feature_names_in_ = np.array(training.feature_names, dtype=object)
    if training.vocabulary is not None:
        classifier.label_titles_ = training.vocabulary.titles(classifier.classes_)
    return resumed


def _discard(checkpoint: Path) -> None:
    from extremegp.label_tree import parts_folder

    checkpoint.unlink(missing_ok=True)
    shutil.rmtree(parts_folder(checkpoint), ignore_errors=True)


def _summarise(
    report: Report, task: Task[Any], training: Training[Any], out: str, *, validated: bool
) -> dict[str, Any]:
    """Show what training came to, and give it for the JSON."""
    classifier, what = training.classifier, task.label[1]
    history, settings = classifier.history_, asdict(classifier.settings_)
    bound = history[-1].get("elbo")  # none where the posterior is closed
    evidence = None if bound is None else bound / task.n_fitted(classifier, training.n_units, validated=validated)
    validation = max((record[key] for record in history if (key := f"validation_{task.score}") in record), default=None)
    lines = [
        (task.rows, str(classifier.n_rows_)),
        *training.shown,
        ("features", f"{settings['n_features']} ({classifier.features_.kind})"),
        (what, str(settings["n_labels"])),
        *((name, str(value)) for name, value in settings.items() if name not in ("n_features", "n_labels")),
        ("epochs", str(len(history))),
        *([] if evidence is None else [(f"ELBO per {task.unit}", f"{evidence:.4f}")]),
        *([] if validation is None else [(f"validation {task.score} %", percent(validation))]),
        ("training (s)", f"{history[-1]['seconds']:.1f}"),
    ]
    report.table(f"saved to {out}", ("", "value"), lines)
    return {
        "estimator": type(classifier).__name__,
        f"n_{task.rows}": classifier.n_rows_,
        "n_features": settings["n_features"],
        f"n_{what}": settings["n_labels"],
        "features": classifier.features_.kind,
        "settings": settings,
        "epochs": len(history),
        f"elbo_per_{task.unit}": evidence,
        f"validation_{task.score}": validation,
        "training_seconds": history[-1]["seconds"],
    }
