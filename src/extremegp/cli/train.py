"""`extremegp train`: a model from a file."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_type_hints

import typer

from extremegp.cli.common import JsonOption, QuietOption, Report, duration, one_of
from extremegp.cli.fitting import (
    check_destination,
    check_processes,
    checkpoint_of,
    fit,
    leads,
    save,
    summarise,
)
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
from extremegp.cli.sequences import (
    ColumnFormat,
    EncodingOption,
    SeparatorOption,
    refuse_row_options,
    refuse_sequence_options,
)
from extremegp.cli.settings import ModelKind, estimator_of, parameters, parse_settings, presets_of
from extremegp.errors import DataError, SettingsError

if TYPE_CHECKING:
    from extremegp.cli.common import Classifier


TREE_LABELS = 20_000
"""With more labels than this, the default is a model of label trees: measured, see docs/scaling.md."""


def train(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="Labelled training data.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="MODEL", help="Folder to write the model to.")],
    labels: LabelsOption = None,
    task: Annotated[
        Literal["auto", "multilabel", "multiclass", "sequence"],
        typer.Option(
            "--task",
            help="Many labels per row, one class per row, or a label for every token of sequences. 'auto' is "
            "'sequence' with --template, 'multiclass' for arrays, .npz files and tables and with --labels or "
            "--first-label, and what a preset is for.",
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
    model: Annotated[
        Literal["auto", "factor", "tree"],
        typer.Option(
            "--model",
            help="For many labels per row: a factor model (MultiLabelGPClassifier) or label trees "
            "(LabelTreeGPClassifier). 'auto' takes label trees beyond 20,000 labels, unless a preset or --set says "
            "otherwise.",
        ),
    ] = "auto",
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
            help="Any parameter of MultiLabelGPClassifier, LabelTreeGPClassifier, MultiClassGPClassifier or "
            "SequenceGPClassifier, such as n_inducing=600 or epochs=20; may be repeated, and beats the preset and the "
            "other options.",
        ),
    ] = None,
    template: Annotated[
        Path | None,
        typer.Option(
            "--template",
            metavar="FILE",
            help="CRF++ template of the features of tokens, stored in the model. By default every column of the tokens "
            "-2 to 2, its pairs of neighbours, and B. For sequences.",
        ),
    ] = None,
    separator: SeparatorOption = None,
    encoding: EncodingOption = None,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Equal seeds give equal models.")] = 0,
    time_budget: Annotated[
        str | None,
        typer.Option(
            "--time-budget", metavar="TIME", help="Plan training to take so long: 90s, 10m, 1h30m, or seconds."
        ),
    ] = None,
    max_memory: Annotated[
        str | None,
        typer.Option(
            "--max-memory",
            metavar="SIZE",
            help="Plan training to take no more memory than so much, such as 8G or 500M; settings that are not given "
            "are lowered for it. For classes and many labels.",
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
    started = time.monotonic()
    quiet = quiet or not leads()
    report = Report(json if leads() else None, quiet)
    source = Source(data, format, labels, x_key, y_key, label_column, first_label)
    of_task, because = _task(source, task, preset, template)
    check_processes(of_task)
    options: dict[str, Any] = {"random_state": seed}
    if time_budget is not None:
        options["time_budget"] = duration(time_budget)
    if of_task == "sequence":
        refuse_row_options(
            {
                "--labels": labels,
                "--valid-labels": valid_labels,
                "--features": features,
                "--format": None if format == "auto" else format,
                "--x-key": x_key,
                "--y-key": y_key,
                "--label-column": label_column,
                "--first-label": first_label or None,
                "--labels-names": labels_names,
                "--max-memory": max_memory,
            },
            because,
        )
        from extremegp.cli.train_sequences import train_sequences

        params = parameters(of_task, preset, options, settings or [])
        form = ColumnFormat.of_options(separator, encoding)
        train_sequences(
            data,
            out,
            report,
            params,
            template,
            valid,
            form,
            overwrite=overwrite,
            fresh=fresh,
            quiet=quiet,
            started=started,
        )
        return
    refuse_sequence_options({"--separator": separator, "--encoding": encoding}, because)
    source.check(of_task, because=because)
    if features is not None:
        options["features"] = features
    if max_memory is not None:
        options["max_memory"] = max_memory
    kind, may_be_tree = _kind(model, of_task, preset, settings or [])
    params = _with_features(parameters(of_task, preset, options, settings or [], kind), of_task, source)
    check_destination(out, overwrite)
    validation = _validation_source(source, valid, valid_labels, of_task, because)
    if labels_names is not None and of_task == "multiclass":
        raise SettingsError(
            f"--labels-names is for many labels per row, but {because}; --labels takes names of classes"
        )
    # Settings that cannot work are refused before the time that reading, features and k-means take.
    estimator_of(of_task, kind)(**params).check_params()
    rows = read(source, of_task)
    if may_be_tree and number_of_labels(rows.y) > TREE_LABELS:
        kind = "tree"
    classifier = estimator_of(of_task, kind)(**params, checkpoint=checkpoint_of(out), verbose=not quiet)
    fit_options: dict[str, Any] = {}
    if labels_names is not None:
        fit_options["label_names"] = _label_names(labels_names, rows.y, source)
    elif rows.label_names is not None:
        fit_options["label_names"] = rows.label_names
    space = class_space(rows.y, source) if of_task == "multiclass" else None
    if validation is not None:
        held = read(validation, of_task, known=Known.of_training(rows, space))
        if space is not None:
            # `fit` would refuse them without naming the file.
            class_codes(held.y, validation, space)
        fit_options["validation"] = held.X, held.y
    resumed = fit(classifier, rows.X, rows.y, out, fresh=fresh, quiet=quiet, **fit_options)
    if rows.feature_names is not None:
        import numpy as np

        classifier.feature_names_in_ = np.array(rows.feature_names, dtype=object)
    save(classifier, out)
    summarise(
        report,
        classifier,
        out,
        hint=source.hint,
        n_fitted=_rows_fitted(classifier, valid),
        resumed=resumed,
        started=started,
        shown=[("rows left out, without label", str(rows.n_dropped))] if rows.n_dropped else [],
        extra={"n_dropped_rows": rows.n_dropped} if of_task == "multiclass" else {},
    )


def _task(
    source: Source, wanted: Literal["auto"] | Task, preset: str | None, template: Path | None
) -> tuple[Task, str]:
    """The task, and what decided it."""
    task: Task
    tasks: tuple[Task, ...] = get_args(Task)
    of_preset: Task | None = None
    if preset is not None:
        of_preset = next((task for task in tasks if preset in presets_of(task)), None)
        if of_preset is None:
            known = [name for task in tasks if wanted in ("auto", task) for name in presets_of(task)]
            one_of("--preset", preset, known)
    if wanted != "auto":
        task, because = wanted, f"--task is {wanted}"
    elif template is not None:
        task, because = "sequence", "--template is for sequences of tokens"
    elif of_preset == "sequence":
        task, because = of_preset, f"--preset {preset} is for {PER_ROW[of_preset]}"
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
    if task != "sequence":
        refuse_sequence_options({"--template": template}, because)
    return task, because


def _kind(
    wanted: Literal["auto"] | ModelKind, task: Task, preset: str | None, settings: Sequence[str]
) -> tuple[ModelKind, bool]:
    """The kind of model as far as the options say, and whether many labels would make it label trees.

    Raises:
        SettingsError: label trees for another task, or with a preset.
    """
    if wanted == "tree" and (task != "multilabel" or preset is not None):
        because = f"--preset {preset} is another model" if task == "multilabel" else f"this data has {PER_ROW[task]}"
        raise SettingsError(f"--model tree is for {PER_ROW['multilabel']}, but {because}")
    if wanted != "auto" or task != "multilabel" or preset is not None:
        return ("tree" if wanted == "tree" else "factor"), False
    fits: list[ModelKind] = []
    for kind in get_args(ModelKind):
        try:
            parse_settings(settings, task, kind)
        except SettingsError:
            continue
        fits.append(kind)
    # Where neither fits, the message is that of factor models, which have more parameters.
    return ("tree" if fits == ["tree"] else "factor"), len(fits) == 2


def number_of_labels(y: Any) -> int:
    """K of labels as files give them: a matrix, or lists of names."""
    return len({name for names in y for name in names}) if isinstance(y, list) else int(y.shape[1])


def _with_features(params: dict[str, Any], task: Task, source: Source) -> dict[str, Any]:
    """The parameters with a features step that suits the data."""
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


def _label_names(path: Path, y: Any, source: Source) -> list[str]:
    from extremegp.storage.streams import line_blocks

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


def _rows_fitted(classifier: Classifier, valid: Path | None) -> int:
    from extremegp.estimators import LabelTreeGPClassifier

    if isinstance(classifier, LabelTreeGPClassifier):
        return classifier.n_held_out_
    held_out = 0 if valid else int(classifier.validation_fraction * classifier.n_rows_)
    return int(classifier.n_rows_) - held_out
