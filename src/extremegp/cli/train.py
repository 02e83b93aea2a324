"""`extremegp train`: a model from a file."""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_type_hints

import typer

from extremegp.cli.app import say
from extremegp.cli.common import JsonOption, QuietOption, Report, duration, one_of, percent, words_for
from extremegp.cli.inputs import (
    PER_ROW,
    FirstLabelOption,
    FormatOption,
    Known,
    LabelColumnOption,
    LabelsOption,
    Source,
    Task,
    XKeyOption,
    YKeyOption,
    class_codes,
    class_space,
    read,
)
from extremegp.cli.settings import estimator_of, parse_settings
from extremegp.errors import DataError, ModelFormatError, SettingsError

if TYPE_CHECKING:
    from extremegp.estimators import MultiClassGPClassifier, MultiLabelGPClassifier


def train(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="Labelled training data.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="MODEL", help="Folder to write the model to.")],
    labels: LabelsOption = None,
    task: Annotated[
        Literal["auto", "multilabel", "multiclass"],
        typer.Option(
            "--task",
            help="Many labels per row, or one class per row; 'auto' is the latter for arrays, .npz files and tables, "
            "with --labels or --first-label, and for presets of it.",
        ),
    ] = "auto",
    valid: Annotated[
        Path | None,
        typer.Option(
            "--valid",
            metavar="FILE",
            help="Data to choose the best epoch on, by P@1 or accuracy; same format as DATA.",
        ),
    ] = None,
    valid_labels: Annotated[
        Path | None,
        typer.Option("--valid-labels", metavar="FILE", help="The class of every row of --valid, as --labels for DATA."),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option("--preset", metavar="NAME", help="A method of the papers; `extremegp presets` lists them."),
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(
            "--features",
            metavar="NAME",
            help="What to do to the inputs first: 'unit' scales rows to unit norm, 'tfidf' weighs counts, 'raw' leaves "
            "them alone, 'text' makes tf-idf of texts; for classes also 'scale' (all features divided by one number), "
            "'root' (the same for their square roots), 'standard' (each to mean 0 and the same variance) and 'auto', "
            "which chooses. By default 'text' for jsonl, else 'auto' for classes and 'unit' for many labels.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any parameter of MultiLabelGPClassifier or MultiClassGPClassifier, such as n_inducing=600 or "
            "epochs=20; may be repeated, and beats the preset and the other options.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Equal seeds give equal models.")] = 0,
    time_budget: Annotated[
        str | None,
        typer.Option(
            "--time-budget", metavar="TIME", help="Plan training to take so long: 90s, 10m, 1h30m, or seconds."
        ),
    ] = None,
    format: FormatOption = "auto",
    x_key: XKeyOption = None,
    y_key: YKeyOption = None,
    label_column: LabelColumnOption = None,
    first_label: FirstLabelOption = False,
    labels_names: Annotated[
        Path | None,
        typer.Option(
            "--labels-names", metavar="FILE", help="Names of many labels, one a line, in the order of their numbers."
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a model that is at MODEL already.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard the checkpoint of an interrupted run.")] = False,
    json: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Train a model on labelled data and save it to a folder.

    Rows have many labels each, or one class each (--task). Progress is kept in
    the file MODEL.checkpoint: after Ctrl-C, a crash or a power cut the same
    command goes on where the last one stopped, and ends at the same model.

    \b
    Examples:
      extremegp train train.txt --out model --time-budget 10m
      extremegp train docs.jsonl --out model --valid held-out.jsonl
      extremegp train docs.jsonl --out model --set n_inducing=600 --set epochs=20
      extremegp train train.svm.gz --out model --preset ARD-FX

    \b
    Examples with one class per row:
      extremegp train images.npy --labels classes.npy --out model
      extremegp train train.csv --label-column species --out model
      extremegp train train.svm --task multiclass --out model --preset OVE
    """
    started = time.monotonic()
    report = Report(json, quiet)
    source = Source(data, format, labels, x_key, y_key, label_column, first_label)
    of_task, because = _task(source, task, preset)
    source.check(of_task, because=because)
    params = _parameters(of_task, preset, settings or [], features, source, seed, time_budget)
    from extremegp.training import TrainingInterrupted

    _check_destination(out, overwrite)
    checkpoint = Path(f"{out}.checkpoint")
    validation = _validation_source(source, valid, valid_labels, of_task, because)
    if labels_names is not None and of_task == "multiclass":
        raise SettingsError(
            f"--labels-names is for many labels per row, but {because}; --labels takes names of classes"
        )
    classifier = estimator_of(of_task)(**params, checkpoint=checkpoint, verbose=not quiet)
    # Settings that cannot work are refused before the time that reading, features and k-means take.
    classifier.check_params()
    rows = read(source, of_task)
    fit_options: dict[str, Any] = {}
    if labels_names is not None:
        fit_options["label_names"] = _label_names(labels_names, rows.y, source)
    space = class_space(rows.y, source) if of_task == "multiclass" else None
    if validation is not None:
        held = read(validation, of_task, known=Known.of_training(rows, space))
        if space is not None:
            # `fit` would refuse them without naming the file.
            class_codes(held.y, validation, space)
        fit_options["validation"] = held.X, held.y
    resumed = checkpoint.exists() and not fresh
    if fresh:
        checkpoint.unlink(missing_ok=True)
    elif resumed and not quiet:
        say(f"resuming from {checkpoint}")
    try:
        classifier.fit(rows.X, rows.y, **fit_options)
    except TrainingInterrupted as interrupt:
        say(f"interrupted and saved: the same command resumes from {interrupt.saved}; --fresh starts anew")
        raise typer.Exit(130) from interrupt
    except ModelFormatError as error:
        raise ModelFormatError(f"{error}; --fresh discards it") from error
    if rows.feature_names is not None:
        import numpy as np

        classifier.feature_names_in_ = np.array(rows.feature_names, dtype=object)
    classifier.save(out)
    checkpoint.unlink(missing_ok=True)
    n_fitted = _rows_fitted(classifier, valid)
    _summarise(
        report, classifier, out, source, n_dropped=rows.n_dropped, n_fitted=n_fitted, resumed=resumed, started=started
    )


def _task(source: Source, wanted: Literal["auto"] | Task, preset: str | None) -> tuple[Task, str]:
    """The task, and what decided it."""
    task: Task
    of_preset: Task | None = None
    if preset is not None:
        from extremegp.presets import CLASS_PRESETS, PRESETS

        known = (*PRESETS, *CLASS_PRESETS) if wanted == "auto" else PRESETS if wanted == "multilabel" else CLASS_PRESETS
        if preset not in (*PRESETS, *CLASS_PRESETS):
            one_of("--preset", preset, known)
        of_preset = "multiclass" if preset in CLASS_PRESETS else "multilabel"
    if wanted != "auto":
        task, because = wanted, f"--task is {wanted}"
    elif sign := source.sign_of_classes():
        task, because = "multiclass", sign
    elif of_preset is not None:
        task, because = of_preset, f"--preset {preset} is for {PER_ROW[of_preset]}"
    else:
        task, because = "multilabel", "--task is not multiclass"
    if of_preset not in (None, task):
        raise SettingsError(
            f"--preset {preset} is for {PER_ROW[of_preset or task]}, but {because}; `extremegp presets` lists others"
        )
    return task, because


def _parameters(
    task: Task,
    preset: str | None,
    settings: list[str],
    features: str | None,
    source: Source,
    seed: int,
    time_budget: str | None,
) -> dict[str, Any]:
    """Constructor arguments: what is set on its own beats what the preset says."""
    params: dict[str, Any] = {"random_state": seed}
    if time_budget is not None:
        params["time_budget"] = duration(time_budget)
    if preset is not None:
        from extremegp.presets import CLASS_PRESETS, PRESETS

        params |= (CLASS_PRESETS if task == "multiclass" else PRESETS)[preset].settings
    if features is not None:
        params["features"] = features
    params |= parse_settings(settings, task)
    texts = source.kind == "jsonl"
    params.setdefault("features", "auto" if task == "multiclass" else "text" if texts else "unit")
    if texts and params["features"] == "auto":
        params["features"] = "text"
    known = get_args(get_type_hints(estimator_of(task).__init__)["features"])
    fitting = ("text",) if texts else tuple(name for name in known if name != "text")
    if params["features"] not in fitting:
        raise SettingsError(
            f"{source.called}: features must be {' or '.join(fitting)} for {PER_ROW[task]}, not {params['features']!r}"
        )
    return params


def _validation_source(
    source: Source, valid: Path | None, valid_labels: Path | None, task: Task, because: str
) -> Source | None:
    """Where the validation data are: as the training data, in other files."""
    if (valid is None or source.labels is None) and valid_labels is not None:
        missing = "--valid" if valid is None else "--labels"
        raise SettingsError(f"--valid-labels goes with --valid and --labels; {missing} is not given")
    if valid is None:
        return None
    if source.labels is not None and valid_labels is None:
        raise SettingsError("--labels gives the classes of DATA: give those of --valid by --valid-labels")
    validation = replace(source, path=valid, labels=valid_labels)
    if validation.format == "auto" and source.kind in ("xc", "svmlight", "jsonl"):
        validation = replace(validation, format=source.kind)
    validation.check(task, because=because)
    return validation


def _check_destination(out: Path, overwrite: bool) -> None:
    from extremegp.io import check_writable

    check_writable(out)
    if out.is_dir() and any(out.iterdir()) and not overwrite:
        raise DataError("holds a model already; choose another --out, or replace it with --overwrite", path=out)


def _label_names(path: Path, y: Any, source: Source) -> list[str]:
    from extremegp.data._files import line_blocks

    if source.kind == "jsonl":
        raise SettingsError("--labels-names is for data with numbered labels; jsonl data have names already")
    try:
        text = b"".join(line_blocks(path)).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError("not UTF-8 text; convert the file to UTF-8", path=path) from error
    names = [name.strip() for name in text.rstrip("\n").split("\n")]
    if len(names) != y.shape[1]:
        raise DataError(f"has {len(names)} names, but the data have {y.shape[1]} labels", path=path)
    if len(set(names)) < len(names):
        twice, line = next((name, i) for i, name in enumerate(names, 1) if name in names[: i - 1])
        raise DataError(f"the name {twice!r} comes twice; names must be unique", path=path, line=line)
    return names


def _rows_fitted(classifier: MultiLabelGPClassifier | MultiClassGPClassifier, valid: Path | None) -> int:
    held_out = 0 if valid else int(classifier.validation_fraction * classifier.n_rows_)
    return int(classifier.n_rows_) - held_out


def _summarise(
    report: Report,
    classifier: MultiLabelGPClassifier | MultiClassGPClassifier,
    out: Path,
    source: Source,
    *,
    n_dropped: int,
    n_fitted: int,
    resumed: bool,
    started: float,
) -> None:
    score, _, what = words_for(classifier)
    history = classifier.history_
    settings = asdict(classifier.settings_)
    validation = [record[f"validation_{score}"] for record in history if f"validation_{score}" in record]
    result: dict[str, Any] = {
        "model": str(out),
        "estimator": type(classifier).__name__,
        "n_rows": classifier.n_rows_,
        "n_features": settings["n_features"],
        f"n_{what}": settings["n_labels"],
        "features": classifier.features_.kind,
        "settings": settings,
        "epochs": len(history),
        "elbo_per_row": history[-1]["elbo"] / n_fitted,
        f"validation_{score}": max(validation) if validation else None,
        "training_seconds": history[-1]["seconds"],
        "seconds": time.monotonic() - started,
        "resumed": resumed,
    }
    if what == "classes":
        result["n_dropped_rows"] = n_dropped
    rows = [
        ("rows", str(result["n_rows"])),
        *([("rows left out, without label", str(n_dropped))] if n_dropped else []),
        ("features", f"{result['n_features']} ({result['features']})"),
        (what, str(settings["n_labels"])),
        *((name, str(value)) for name, value in settings.items() if name not in ("n_features", "n_labels")),
        ("epochs", str(result["epochs"])),
        ("ELBO per row", f"{result['elbo_per_row']:.4f}"),
        *([(f"validation {score} %", percent(max(validation)))] if validation else []),
        ("training (s)", f"{result['training_seconds']:.1f}"),
    ]
    report.table(f"saved to {out}", ("", "value"), rows)
    report.lines(f"Next: extremegp evaluate {shlex.quote(str(out))} TEST_DATA{source.hint}")
    report.result(result)
