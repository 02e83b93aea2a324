"""Convert data to a folder that train, evaluate and predict read without loading it into memory.

Any size will do: memory is bounded. Progress is kept in the folder: after
Ctrl-C, a crash or a power cut the same command goes on where the last one
stopped. Of texts (jsonl) the words of at least two texts are counted, so
that --features tfidf weighs them.

With --scheme DATA is a file of tokens in columns, whose last are tags of spans,
and OUT one with the same spans in this scheme. With --label-field DATA is a file
of CoNLL-U, and OUT one in columns, for train --task sequence.

\b
Examples:
  extremegp convert train.txt.gz train
  extremegp convert test.txt.gz test --like train
  extremegp convert products.csv products --text-column title \\
      --labels-column tags --label-separator ';' --id-column sku
  extremegp train train --out model
  extremegp evaluate model test
  extremegp convert train.txt train.iobes.txt --scheme IOBES
  extremegp convert en-ud-train.conllu train.txt --label-field upos --fields form,lemma
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import typer

from extremegp.cli import columns, options
from extremegp.cli.app import say
from extremegp.cli.console import Report
from extremegp.cli.inputs import Source
from extremegp.cli.pipes import STANDARD
from extremegp.cli.rows import naming
from extremegp.cli.settings import one_of, parse_settings
from extremegp.errors import DataError, SettingsError
from extremegp.progress import ProgressBar

_WORDS = ("analyzer", "ngram_range", "lowercase")


def convert(
    context: typer.Context,
    data: options.SourceData,
    out: options.Folder,
    format: options.SourceFormat = "auto",
    text_column: options.TextColumn = None,
    labels_column: options.LabelsColumn = None,
    label_separator: options.LabelSeparator = None,
    label_columns: options.LabelColumns = None,
    vector_column: options.VectorColumn = None,
    id_column: options.IdColumn = None,
    like: options.Like = None,
    settings: options.WordSettings = None,
    scheme: options.TargetScheme = None,
    label_field: options.LabelField = None,
    fields: options.Fields = "form",
    separator: options.Separator = None,
    encoding: options.Encoding = None,
    overwrite: options.Overwrite = False,
    json: options.Json = None,
    quiet: options.Quiet = False,
) -> None:
    """Convert, showing how far it is."""
    report = Report(json, quiet)
    if scheme is not None or label_field is not None:
        if scheme is not None and label_field is not None:
            raise SettingsError("--scheme and --label-field are for files of different kinds: give one of them")
        if out == STANDARD:
            raise SettingsError("sequences are converted to a file: name one for it, not '-'")
        if out.exists() and not overwrite:
            raise DataError("exists already; replace it by --overwrite, or name another file", path=out)
        if label_field is not None:
            _convert_fields(data, out, label_field, fields.split(","), report)
        elif scheme is not None:
            _convert_tags(Source.of(data, context.params), out, scheme, report)
        return
    for option, value in {"--separator": separator, "--encoding": encoding}.items():
        if value is not None:
            raise SettingsError(f"{option} is for files in columns, and goes with --scheme")
    from extremegp.data import convert as convert_file

    if out == STANDARD:
        raise SettingsError("a data set is a folder: name one for it, not '-'")
    watch, source = Watch(quiet), Source.of(data, context.params)
    source.check()
    kind = source.kind
    if kind == "array" or kind == "npz" or kind == "sparse":
        raise DataError("arrays cannot be converted; train on them as they are", path=data)
    with_columns = kind == "table" or (kind == "jsonl" and source.in_records)
    named = source.columns if with_columns else None
    words = _words(settings or [], like)
    try:
        sizes = convert_file(
            source.path,
            out,
            "auto" if kind == "mapped" else kind,
            columns=named,
            like=like,
            overwrite=overwrite,
            watch=watch,
            **words,
        )
    except KeyboardInterrupt as interrupt:
        watch.bar.close()
        say("interrupted; what is done is kept: the same command goes on")
        raise typer.Exit(130) from interrupt
    finally:
        watch.bar.close()
    features = " --features tfidf" if sizes.vocabulary else ""
    report.lines(
        f"{out}: {sizes.n_rows} rows, {sizes.n_features} features, {sizes.n_labels} labels",
        f"Next: extremegp train {shlex.quote(str(out))} --out MODEL{features}",
    )
    report.result({"out": str(out), **sizes._asdict(), "seconds": report.seconds})


def _convert_fields(data: Path, out: Path, label: str, fields: list[str], report: Report) -> None:
    """Write the words of a file of CoNLL-U in columns, a field of each as its label."""
    from extremegp.data import read_conllu, write_columns

    sequences, labels = read_conllu(data, label=label, columns=fields)
    assert labels is not None
    n_unlabelled = sum(own.count(None) for own in labels)
    write_columns(out, sequences, [["_" if tag is None else tag for tag in own] for own in labels])
    n_tokens = sum(map(len, labels))
    mark = " --unknown-label _" if n_unlabelled else ""
    report.lines(
        f"{out}: {len(labels)} sequences, {n_tokens} words" + (f", {n_unlabelled} without a label" if mark else ""),
        f"Next: extremegp train {shlex.quote(str(out))} --task sequence --separator '\\t'{mark} --out MODEL",
    )
    found = {"n_sequences": len(labels), "n_tokens": n_tokens, "n_unlabelled": n_unlabelled}
    report.result({"out": str(out), **found, "seconds": report.seconds})


def _convert_tags(source: Source, out: Path, scheme: str, report: Report) -> None:
    """Write a file in columns with its labels, which are the last, in another scheme."""
    from extremegp.data import convert_tags, detect_scheme, write_columns

    sequences, labels = columns.read(source, labelled=True)
    assert labels is not None
    found = detect_scheme(labels)
    with naming(source):
        converted = convert_tags(labels, scheme)
    write_columns(out, sequences, converted, encoding=source.encoding or "utf-8")
    n_changed = sum(a != b for own, new in zip(labels, converted, strict=True) for a, b in zip(own, new, strict=True))
    n_tokens = sum(map(len, labels))
    report.lines(f"{out}: {len(labels)} sequences, {n_changed} of {n_tokens} labels changed; they were {found}")
    report.result(
        {
            "out": str(out),
            "n_sequences": len(labels),
            "n_tokens": n_tokens,
            "n_changed": n_changed,
            "scheme": found.name,
            "n_illegal": found.n_illegal,
            "seconds": report.seconds,
        }
    )


def _words(settings: list[str], like: Path | None) -> dict[str, Any]:
    """What --set says of words."""
    words = parse_settings(settings)
    for name in words:
        one_of("--set: the parameter", name, _WORDS)
    if words and like is not None:
        raise SettingsError("--like takes words as the other data set has them: leave out --set")
    return words


class Watch:
    """Tells a person how a conversion goes on."""

    def __init__(self, quiet: bool) -> None:
        self._quiet, self._phase = quiet, ""
        self.bar = ProgressBar(patience=0.0, quiet=quiet)

    def resumed(self, rows: int) -> None:
        if not self._quiet:
            say(f"resuming after {rows} rows")

    def restarted(self, reason: str) -> None:
        say(reason)

    def reading(self, phase: str, rows: int, read: int, total: int) -> None:
        if phase != self._phase:
            self._phase = phase
            self.bar.restart()
        name, text = f"{phase}: {rows} rows", f"{read / 2**20:.0f} of {total / 2**20:.0f} MiB"
        self.bar.show(name, read, total, f"{name}, {text}, ", text)
