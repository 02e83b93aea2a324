"""A model of sequences from a file in columns: what `extremegp train` does with it."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extremegp.cli.app import say
from extremegp.cli.common import Report
from extremegp.cli.fitting import check_destination, checkpoint_of, fit, save, summarise
from extremegp.cli.sequences import ColumnFormat, counted, first_token_line
from extremegp.errors import DataError

if TYPE_CHECKING:
    from extremegp.data import Template


def train_sequences(
    data: Path,
    out: Path,
    report: Report,
    params: dict[str, Any],
    template_file: Path | None,
    valid: Path | None,
    form: ColumnFormat,
    *,
    overwrite: bool,
    fresh: bool,
    quiet: bool,
    started: float,
) -> None:
    """Train a model and save it.

    Args:
        data: training data, the last column of which is the label.
        out: folder to save to.
        report: where the summary goes.
        params: constructor arguments.
        template_file: a CRF++ template; None for the default one.
        valid: data to choose the best epoch on.
        form: how the columns of both are written.
        overwrite: replace a model that is there.
        fresh: discard a checkpoint.
        quiet: show only errors.
        started: when the command started, by the monotonic clock.

    Raises:
        DataError: a file cannot be used, or does not fit the others.
        SettingsError: a parameter is outside its domain.
    """
    from extremegp.data import Template
    from extremegp.data.templates import default_template
    from extremegp.estimators import SequenceGPClassifier

    check_destination(out, overwrite)
    template = None if template_file is None else Template.parse(_text(template_file), name=str(template_file))
    classifier = SequenceGPClassifier(**params, template=template, checkpoint=checkpoint_of(out), verbose=not quiet)
    # What cannot work is refused before the time that reading takes.
    classifier.check_params()
    n_columns = _n_columns(data, form)
    if template is None or template_file is None:
        template = default_template(n_columns)
        if not quiet:
            say(
                f"no --template: features are the column{'s' * (n_columns > 1)} of the tokens -2 to 2, pairs (-1,0) "
                "and (0,1) of neighbours, and B; `extremegp info` shows the template"
            )
    else:
        _check_columns(template, template_file, n_columns, data)
    classifier.set_params(template=str(template))
    if valid is not None and (width := form.width(valid)) != n_columns + 1:
        raise DataError(
            f"the line has {counted(width, 'column')}, but {data} has {n_columns + 1}",
            path=valid,
            line=first_token_line(valid),
        )
    sequences, labels = form.read_labelled(data)
    _check_labels(labels, data)
    options: dict[str, Any] = {}
    if valid is not None:
        options["validation"] = form.read_labelled(valid)
    resumed = fit(classifier, sequences, labels, out, fresh=fresh, quiet=quiet, **options)
    save(classifier, out)
    n_held_out = 0 if valid else int(classifier.validation_fraction * len(sequences))
    summarise(
        report,
        classifier,
        out,
        hint=form.hint,
        n_fitted=len(sequences) - n_held_out,
        resumed=resumed,
        started=started,
        shown=[("sequences", str(len(sequences)))],
        extra={"n_sequences": len(sequences), "n_columns": n_columns, "template": str(template)},
    )


def _text(path: Path) -> str:
    from extremegp.storage.streams import line_blocks

    try:
        return b"".join(line_blocks(path)).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError("not UTF-8 text; convert the template to UTF-8", path=path) from error


def _n_columns(data: Path, form: ColumnFormat) -> int:
    """Columns beside the label."""
    n_columns = form.width(data) - 1
    if not n_columns:
        raise DataError(
            "the line has only one column, so beside the label, which is the last, there is nothing; name what "
            "separates columns by --separator",
            path=data,
            line=first_token_line(data),
        )
    return n_columns


def _check_columns(template: Template, path: Path, n_columns: int, data: Path) -> None:
    """Refuse a template with macros of columns that the data do not have."""
    for rule in template.rules:
        beyond = [column for _, column in rule.macros if column >= n_columns]
        if beyond:
            lines = [line.rstrip(" \t\r") for line in _text(path).split("\n")]
            raise DataError(
                f"{rule.line!r} asks for column {beyond[0]}, but {data} has {counted(n_columns, 'column')} beside the "
                "label; columns are counted from 0",
                path=path,
                line=lines.index(rule.line) + 1,
            )


def _check_labels(labels: list[list[str]], data: Path) -> None:
    """Refuse labels that nothing can be learnt from; `fit` would without naming the file."""
    from extremegp.data import ClassSpace, encode_classes

    try:
        ClassSpace(encode_classes(list(chain.from_iterable(labels)), "the last column")[1])
    except DataError as error:
        raise DataError(str(error), path=data) from error
