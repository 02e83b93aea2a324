"""`extremegp train`: a model from a file."""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from extremegp.cli.app import say
from extremegp.cli.common import FormatName, FormatOption, JsonOption, QuietOption, Report, duration, one_of, percent
from extremegp.cli.settings import parse_settings
from extremegp.errors import DataError, ModelFormatError, SettingsError

if TYPE_CHECKING:
    from extremegp.estimators import MultiLabelGPClassifier


def train(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="Labelled training data.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="MODEL", help="Folder to write the model to.")],
    valid: Annotated[
        Path | None,
        typer.Option("--valid", metavar="FILE", help="Data to choose the best epoch on, by P@1; same format as DATA."),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option("--preset", metavar="NAME", help="A method of the papers; `extremegp presets` lists them."),
    ] = None,
    features: Annotated[
        Literal["unit", "tfidf", "raw", "text"] | None,
        typer.Option(
            "--features",
            help="What to do to the inputs first: 'unit' scales rows to unit norm, 'tfidf' weighs counts, 'raw' leaves "
            "them alone, 'text' makes tf-idf of texts. By default 'text' for jsonl, else 'unit'.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any parameter of MultiLabelGPClassifier, such as n_inducing=600 or epochs=20; may be repeated, and "
            "beats the preset and the other options.",
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
    labels_names: Annotated[
        Path | None,
        typer.Option(
            "--labels-names", metavar="FILE", help="Names of the labels, one a line, in the order of their numbers."
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a model that is at MODEL already.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard the checkpoint of an interrupted run.")] = False,
    json: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Train a model on labelled data and save it to a folder.

    Progress is kept in the file MODEL.checkpoint: after Ctrl-C, a crash or a
    power cut the same command goes on where the last one stopped, and ends at the
    same model.

    \b
    Examples:
      extremegp train train.txt --out model --time-budget 10m
      extremegp train docs.jsonl --out model --valid held-out.jsonl
      extremegp train docs.jsonl --out model --set n_inducing=600 --set epochs=20
      extremegp train train.svm.gz --out model --preset ARD-FX
    """
    started = time.monotonic()
    report = Report(json, quiet)
    params = _parameters(preset, settings or [], seed, time_budget)
    from extremegp.estimators import MultiLabelGPClassifier
    from extremegp.estimators.resolve import model_settings, training_settings
    from extremegp.training import TrainingInterrupted

    _check_destination(out, overwrite)
    checkpoint = Path(f"{out}.checkpoint")
    x, y, kind = _read(data, format)
    params.setdefault("features", features or ("text" if kind == "jsonl" else "unit"))
    if (params["features"] == "text") != (kind == "jsonl"):
        fitting = "text" if kind == "jsonl" else "unit, tfidf or raw"
        raise SettingsError(f"{data} holds {kind} data: features must be {fitting}, not {params['features']!r}")
    classifier = MultiLabelGPClassifier(**params, checkpoint=checkpoint, verbose=not quiet)
    # Settings that cannot work are refused before the time that features and k-means take.
    checked = model_settings(classifier.get_params(), n_rows=1, n_features=1, n_labels=1)
    training_settings(classifier.get_params(), model=checked, n_rows=1, seed=0)
    names = None if labels_names is None else _label_names(labels_names, y, kind)
    validation = None if valid is None else _read(valid, kind)[:2]
    resumed = checkpoint.exists() and not fresh
    if fresh:
        checkpoint.unlink(missing_ok=True)
    elif resumed and not quiet:
        say(f"resuming from {checkpoint}")
    try:
        classifier.fit(x, y, validation=validation, label_names=names)
    except TrainingInterrupted as interrupt:
        say(f"interrupted and saved: the same command resumes from {interrupt.saved}; --fresh starts anew")
        raise typer.Exit(130) from interrupt
    except ModelFormatError as error:
        raise ModelFormatError(f"{error}; --fresh discards it") from error
    classifier.save(out)
    checkpoint.unlink(missing_ok=True)
    _summarise(report, classifier, out, n_fitted=_rows_fitted(classifier, valid), resumed=resumed, started=started)


def _parameters(preset: str | None, settings: list[str], seed: int, time_budget: str | None) -> dict[str, Any]:
    """Constructor arguments: what is set on its own beats what the preset says."""
    params: dict[str, Any] = {"random_state": seed}
    if time_budget is not None:
        params["time_budget"] = duration(time_budget)
    if preset is not None:
        from extremegp.presets import PRESETS

        params |= PRESETS[one_of("--preset", preset, PRESETS)].settings
    return params | parse_settings(settings)


def _check_destination(out: Path, overwrite: bool) -> None:
    from extremegp.io import check_writable

    check_writable(out)
    if out.is_dir() and any(out.iterdir()) and not overwrite:
        raise DataError("holds a model already; choose another --out, or replace it with --overwrite", path=out)


def _read(path: Path, format: FormatName) -> tuple[Any, Any, FormatName]:
    """Inputs, labels and the format they came in."""
    from extremegp.data import TextDataset, read_dataset, recognise_format

    kind: FormatName = recognise_format(path) if format == "auto" else format
    data = read_dataset(path, kind)
    if not isinstance(data, TextDataset):
        return data.X, data.Y, kind
    if data.labels is None:
        raise DataError('has no "labels", which training needs', path=path)
    return data.texts, data.labels, kind


def _label_names(path: Path, y: Any, kind: FormatName) -> list[str]:
    from extremegp.data._files import line_blocks

    if kind == "jsonl":
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


def _rows_fitted(classifier: MultiLabelGPClassifier, valid: Path | None) -> int:
    held_out = 0 if valid else int(classifier.validation_fraction * classifier.n_rows_)
    return int(classifier.n_rows_) - held_out


def _summarise(
    report: Report, classifier: MultiLabelGPClassifier, out: Path, *, n_fitted: int, resumed: bool, started: float
) -> None:
    history = classifier.history_
    settings = asdict(classifier.settings_)
    validation = [record["validation_P@1"] for record in history if "validation_P@1" in record]
    result: dict[str, Any] = {
        "model": str(out),
        "n_rows": classifier.n_rows_,
        "n_features": settings["n_features"],
        "n_labels": settings["n_labels"],
        "features": classifier.features_.kind,
        "settings": settings,
        "epochs": len(history),
        "elbo_per_row": history[-1]["elbo"] / n_fitted,
        "validation_P@1": max(validation) if validation else None,
        "training_seconds": history[-1]["seconds"],
        "seconds": time.monotonic() - started,
        "resumed": resumed,
    }
    rows = [
        ("rows", str(result["n_rows"])),
        ("features", f"{result['n_features']} ({result['features']})"),
        ("labels", str(result["n_labels"])),
        *((name, str(value)) for name, value in settings.items() if name not in ("n_features", "n_labels")),
        ("epochs", str(result["epochs"])),
        ("ELBO per row", f"{result['elbo_per_row']:.4f}"),
        *([("validation P@1 %", percent(max(validation)))] if validation else []),
        ("training (s)", f"{result['training_seconds']:.1f}"),
    ]
    report.table(f"saved to {out}", ("", "value"), rows)
    report.lines(f"Next: extremegp evaluate {shlex.quote(str(out))} TEST_DATA")
    report.result(result)
