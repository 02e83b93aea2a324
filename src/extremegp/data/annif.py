"""Corpora as Annif has them: short texts as TSV, and folders of texts with their subjects beside."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from extremegp.data.blocks import BEGINNING, Position
from extremegp.data.label_lists import plain_uri
from extremegp.data.text import TextRecords
from extremegp.errors import DataError, located
from extremegp.storage.streams import as_stream, byte_blocks, line_blocks, text_blocks, utf8

_URI_LIST = re.compile(rb"[^\t]*\t\s*<[^<>\s]+>(\s+<[^<>\s]+>)*\s*")
_FILES_AT_A_TIME = 256
CSV_COLUMNS = ("text", "subject_uris")
"""The columns by which a table is a corpus of Annif; its texts' names are in ``document_id``, if anywhere."""


def is_short_texts(path: str | Path) -> bool:
    """Whether the first line of a file is a text, a tab and URIs in angle brackets.

    Raises:
        DataError: the file cannot be read.
    """
    line = next(line_blocks(path, block_bytes=1 << 16)).partition(b"\n")[0]
    return _URI_LIST.fullmatch(line) is not None


def is_documents(path: str | Path) -> bool:
    """Whether a path is a folder with texts."""
    folder = Path(path)
    return folder.is_dir() and any(folder.glob("*.txt"))


def short_texts(path: str | Path, start: Position = BEGINNING, *, labelled: bool = True) -> Iterator[TextRecords]:
    """A file with a text, a tab and its subjects' URIs a line, in blocks, in bounded memory.

    Args:
        path: the file, UTF-8; .gz, .bz2, .xz and .zst are decompressed. URIs are separated by spaces; angle brackets
            around them are left out. Blank lines are skipped.
        start: the beginning, or the `end` of an earlier block.
        labelled: whether the subjects are wanted; a line may then lack its tab, which means no subjects, if not.

    Raises:
        DataError: the file cannot be read, or a line has no tab; names the file and the line.
    """
    path, (_, number, row) = Path(path), start
    for block in text_blocks(path, offset=start.offset):
        texts: list[str] = []
        labels: list[list[str]] = []
        for line in block.lines.split(b"\n")[:-1]:
            number += 1
            # With a tab it is a text of nothing.
            if not line.strip(b" "):
                continue
            with located(path, number):
                text, tab, uris = utf8(line).partition("\t")
                if labelled and not tab:
                    raise DataError("there is no tab between a text and its subjects; write one, even if it has none")
            texts.append(text)
            labels.append([plain_uri(uri) for uri in uris.split()])
        row += len(texts)
        yield TextRecords(texts, labels if labelled else None, Position(block.end, number, row), block.read)


def documents(
    folder: str | Path, start: Position = BEGINNING, *, labelled: bool = True
) -> Iterator[tuple[list[str], TextRecords]]:
    """The texts of a folder, ``NAME.txt`` each, in the order of their names, with these.

    Subjects are in ``NAME.tsv``, a URI, a tab and a name each line, or in ``NAME.key``, a name each line; names serve
    where there is no URI. Files without either have no subjects.

    Args:
        folder: the folder.
        start: the beginning, or the `end` of an earlier block.
        labelled: whether the subjects are wanted: one file at least must then have some.

    Raises:
        DataError: a file cannot be read or is not UTF-8, or no text has subjects; names the file.
    """
    folder = Path(folder)
    paths = sorted(folder.glob("*.txt"))
    # A .tsv, which has URIs, is preferred to a .key.
    subjects = {path.stem: path for suffix in (".key", ".tsv") for path in folder.glob(f"*{suffix}")}
    if labelled and not any(path.stem in subjects for path in paths):
        raise DataError("has no subjects: no NAME.tsv or NAME.key beside its texts NAME.txt", path=folder)
    n_read = sum(path.stat().st_size for path in paths[: start.row])
    for first in range(start.row, len(paths), _FILES_AT_A_TIME):
        some = paths[first : first + _FILES_AT_A_TIME]
        texts = [_text(path) for path in some]
        labels = [_subjects(subjects.get(path.stem)) for path in some] if labelled else None
        n_read += sum(path.stat().st_size for path in some)
        last = first + len(some)
        yield [path.stem for path in some], TextRecords(texts, labels, Position(last, last, last), n_read)


def _text(path: Path) -> str:
    if not path.stat().st_size:
        return ""
    with located(path):
        return utf8(b"".join(byte_blocks(path)).removeprefix(b"\xef\xbb\xbf"))


def _subjects(path: Path | None) -> list[str]:
    """The subjects in a file beside a text: those of a .tsv by their URIs, where they have any."""
    if path is None or not path.stat().st_size:
        return []
    found = []
    for number, line in enumerate(as_stream(line_blocks(path)), 1):
        with located(path, number):
            cells = [cell.strip() for cell in utf8(line).strip("\r\n").split("\t")]
        if any(cells):
            found.append(plain_uri(next(filter(None, cells))))
    return found
