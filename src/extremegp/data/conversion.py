"""Files of any size to data sets that are mapped from files, in bounded memory and resumable."""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, get_args, runtime_checkable

from extremegp.data.analysis import Analyser, Analyzer
from extremegp.data.blocks import Position, RowStream
from extremegp.data.formats import FORMATS, recognise_format
from extremegp.data.mapped import CONFIG, IDS, LABELS, PROGRESS, VOCABULARY, Config, is_dataset, read_config, read_names
from extremegp.data.mapped_writer import Done, MappedWriter, write_names
from extremegp.data.record_streams import NumberStream, TextFile
from extremegp.data.records import RecordColumns, record_blocks
from extremegp.data.svmlight import SvmlightStream
from extremegp.data.words import WordStream, find_words
from extremegp.data.xc import XCStream
from extremegp.errors import DataError, SettingsError
from extremegp.storage.streams import atomic_writer

SourceFormat = Literal["xc", "svmlight", "jsonl", "annif", "documents", "table"]
_OF_TEXTS = ("jsonl", "annif", "documents")


@runtime_checkable
class Watcher(Protocol):
    """Told how a conversion goes on."""

    def resumed(self, rows: int) -> None:
        """Rows of an interrupted conversion are there already."""

    def restarted(self, reason: str) -> None:
        """An interrupted conversion cannot be gone on with."""

    def reading(self, phase: str, rows: int, read: int, total: int) -> None:
        """After every block: rows so far, and bytes of the source read, of how many."""


class _Silence:
    def resumed(self, rows: int) -> None: ...

    def restarted(self, reason: str) -> None: ...

    def reading(self, phase: str, rows: int, read: int, total: int) -> None: ...


class _Progress(NamedTuple):
    """What ``progress.json`` says: of what conversion, and how far it is."""

    source: dict[str, Any]
    end: Position
    done: Done
    learnt: dict[str, Any]


def convert(
    path: str | Path,
    out: str | Path,
    format: Literal["auto"] | SourceFormat = "auto",
    *,
    columns: RecordColumns | None = None,
    like: str | Path | None = None,
    overwrite: bool = False,
    watch: Watcher | None = None,
    analyzer: Analyzer = "auto",
    ngram_range: tuple[int, int] | Literal["auto"] = "auto",
    lowercase: bool = True,
) -> Config:
    """Convert a text file to a data set that `open_dataset` maps, however large, in bounded memory.

    Progress is kept in the folder after every block of about 16 MB: after any interruption the same call goes on where
    the last one stopped, and the result is the same. Of "jsonl" the words that occur in at least two texts are counted,
    as `TextFeatures` finds them, by a first pass, which starts anew if it is interrupted: features="tfidf" then gives
    what features="text" gives. The words are those of the data set, not of a model: a model takes converted data only.

    Args:
        path: the file; .gz, .bz2, .xz and .zst are decompressed.
        out: the folder to write.
        format: as in `read_dataset`; or "annif" (a text, a tab and URIs a line), "documents" (a folder of texts with
            their subjects beside) or "table".
        columns: of a table, or of JSON lines, which columns hold what: texts, or numbers, and labels.
        like: a folder that was converted before, whose features and labels the data have: test data go like the
            training data. Of "jsonl" other words and labels are left out.
        overwrite: replace a data set that is there.
        watch: told how the conversion goes on.
        analyzer: of "jsonl", what words are, as in `Analyser`; with `like` those of that folder are counted.
        ngram_range: likewise.
        lowercase: likewise.

    Returns:
        The sizes of the data set.

    Raises:
        DataError: the file cannot be read or breaks its format, or the folder cannot be written, holds other things, or
            holds a data set already.
        SettingsError: another format, or an option outside its domain.
    """
    if format not in ("auto", *get_args(SourceFormat)):
        raise SettingsError(f"format must be 'auto' or one of {FORMATS}, not {format!r}")
    if format == "table" and columns is None:
        raise SettingsError("a table needs columns: say which hold the labels")
    path, folder, watch = Path(path), Path(out), watch or _Silence()
    found = recognise_format(path) if format == "auto" else format
    if found == "mapped":
        raise DataError("is a converted data set already", path=path)
    if folder.exists() and not folder.is_dir():
        raise DataError("is a file; name a folder", path=folder)
    finished = (folder / CONFIG).exists()
    if finished and not overwrite:
        raise DataError("holds a data set already; name another folder, or replace it with --overwrite", path=folder)
    if folder.is_dir() and any(folder.iterdir()) and not is_dataset(folder):
        raise DataError("is a folder with other things; name a new one", path=folder)
    model = None if like is None else _Like.of(Path(like))
    file = _File(path, found, columns)
    analyse = Analyser(analyzer, ngram_range, lowercase) if model is None else model.config.analyser
    source = file.fingerprint(model, analyse)
    progress = None if finished else _read_progress(folder / PROGRESS)
    if progress is not None and progress.source != source:
        watch.restarted(f"{path} or how to read it has changed since the conversion began; starting anew")
        progress = None
    # Of a finished data set this makes an unfinished one, before anything else in it changes.
    for name in (CONFIG,) if progress is not None else (CONFIG, PROGRESS, IDS):
        (folder / name).unlink(missing_ok=True)
    return _convert(file, folder, source, progress, model, watch, analyse)


def _convert(
    file: _File,
    folder: Path,
    source: dict[str, Any],
    progress: _Progress | None,
    like: _Like | None,
    watch: Watcher,
    analyse: Analyser,
) -> Config:
    words = labels = None
    total = file.texts.n_bytes
    with MappedWriter(folder, done=None if progress is None else progress.done) as writer:
        if progress is not None:
            watch.resumed(progress.done.n_rows)
        else:
            # A folder that is interrupted in the first pass must be known for what it is.
            _write_progress(folder, _Progress(source, Position(), Done(), {}))
        if like is not None:
            words, labels = (like.words if file.has_texts else None), like.labels
        elif progress is not None and file.has_texts and {"words", "names"} <= progress.learnt.keys():
            words = read_names(folder, VOCABULARY, progress.learnt["words"])
            labels = read_names(folder, LABELS, progress.learnt["names"])
        elif file.has_texts:
            words, labels = find_words(
                file.texts, lambda records: watch.reading("words", records.end.row, records.read, total), analyse
            )
            write_names(folder, VOCABULARY, words)
            write_names(folder, LABELS, labels)
            _write_progress(folder, _Progress(source, Position(), Done(), _counts(words, labels)))
        stream = file.stream(like, words, labels, analyse)
        if isinstance(stream, NumberStream):
            labels = stream.names
            write_names(folder, LABELS, labels)
        end = Position()
        if progress is not None and progress.done.n_rows:
            end = progress.end
            if not stream.learnt.keys() <= progress.learnt.keys():
                raise DataError("is damaged; remove the folder to start anew", path=folder / PROGRESS)
            stream.learnt |= {name: progress.learnt[name] for name in stream.learnt}
        for part in stream.parts(end):
            writer.append_block(part.rows)
            learnt = stream.learnt if words is None or labels is None else stream.learnt | _counts(words, labels)
            _write_progress(folder, _Progress(source, part.end, writer.flush(), learnt))
            watch.reading("rows", part.end.row, part.read, total)
        sizes = stream.sizes()
        if file.fingerprint(like, analyse) != source:
            raise DataError("has changed while it was converted; convert it again", path=file.path)
        ids = file.ids()
        if ids is not None:
            write_names(folder, IDS, ids)
        writer.finish(
            sizes.n_features,
            sizes.n_labels,
            label_names=labels,
            vocabulary=words,
            analyse=None if words is None else analyse,
            first_feature=sizes.first_feature,
        )
    return read_config(folder)


class _File(NamedTuple):
    """What is converted."""

    path: Path
    format: SourceFormat
    columns: RecordColumns | None

    @property
    def has_texts(self) -> bool:
        """Whether rows are texts, and not numbers."""
        return self.format in _OF_TEXTS or bool(self.columns and self.columns.texts)

    @property
    def texts(self) -> TextFile:
        """The file as one of texts."""
        return TextFile(self.path, self.format, self.columns)  # type: ignore[arg-type]

    def stream(
        self, like: _Like | None, words: list[str] | None, labels: list[str] | None, analyse: Analyser
    ) -> RowStream:
        """The rows, once words and labels are known."""
        if self.has_texts:
            if words is None or labels is None:
                raise DataError("texts go like texts, but the folder of --like was made of numbers", path=self.path)
            return WordStream(self.texts, words, labels, analyse)
        if like is not None and like.words is not None:
            raise DataError("numbers go like numbers, but the folder of --like was made of texts", path=self.path)
        if self.columns is not None:
            return NumberStream(self.path, self.columns, labels)
        if like is None:
            return XCStream(self.path) if self.format == "xc" else SvmlightStream(self.path)
        sizes = {"n_features": like.config.n_features, "n_labels": like.config.n_labels}
        if self.format == "xc":
            return XCStream(self.path, **sizes)
        return SvmlightStream(self.path, **sizes, zero_based=like.config.first_feature == 0)

    def ids(self) -> list[str] | None:
        """What the rows are called, if anything."""
        if self.format == "documents":
            return [path.stem for path in sorted(self.path.glob("*.txt"))]
        if self.columns is None or self.columns.ids is None:
            return None
        blocks = record_blocks(self.path, self.columns.without_labels())
        return [" ".join(name.split("\n")) for block in blocks for name in block.ids or ()]

    def fingerprint(self, like: _Like | None, analyse: Analyser) -> dict[str, Any]:
        """What an interrupted conversion is recognised by."""
        try:
            status = self.path.stat()
        except OSError as error:
            raise DataError(f"cannot be read: {error.strerror}", path=self.path) from error
        columns = {} if self.columns is None else {"columns": json.loads(json.dumps(astuple(self.columns)))}
        return columns | {
            "bytes": status.st_size,
            "modified_ns": status.st_mtime_ns,
            "format": self.format,
            "like": None if like is None else [*like.config, like.modified_ns],
            "words": analyse.to_config() if self.has_texts else None,
        }


@dataclass(frozen=True)
class _Like:
    """The features and labels of a converted data set, which others are made to fit."""

    config: Config
    words: list[str] | None
    labels: list[str] | None
    modified_ns: int

    @classmethod
    def of(cls, folder: Path) -> _Like:
        config = read_config(folder)
        words = read_names(folder, VOCABULARY, config.n_features) if config.vocabulary else None
        labels = read_names(folder, LABELS, config.n_labels) if config.label_names else None
        return cls(config, words, labels, (folder / CONFIG).stat().st_mtime_ns)


def _counts(words: list[str], labels: list[str]) -> dict[str, int]:
    return {"words": len(words), "names": len(labels)}


def _write_progress(folder: Path, progress: _Progress) -> None:
    with atomic_writer(folder / PROGRESS) as stream:
        stream.write(json.dumps(progress._asdict()).encode())


def _read_progress(path: Path) -> _Progress | None:
    """How far an interrupted conversion came; None where there is none, or nothing that can be gone on with."""
    try:
        source, end, done, learnt = (json.loads(path.read_bytes())[name] for name in _Progress._fields)
        progress = _Progress(source, Position(*end), Done(*done), learnt)
        numbers = (*progress.end, *progress.done)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    sound = all(type(number) is int and number >= 0 for number in numbers) and isinstance(learnt, dict)
    return progress if sound else None
