"""Files of tokens in columns, as CoNLL's shared tasks and CRF++ have them: a token a line, blank lines after each."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, compress
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

from extremegp.errors import DataError, SettingsError
from extremegp.storage.streams import as_stream, atomic_writer, line_blocks

_DOCUMENT_START = "-DOCSTART-"
# Not all that Unicode calls white space: a token may be a no-break or an ideographic space.
_BLANKS = " \t"
_UNWRITABLE = re.compile("[\t\n\r\0]")
_ROUNDING = 1e-4
# "# sent_id = 1", "# newdoc id = a" and "# newpar", as CoNLL-U has them.
_COMMENT = re.compile(r"# *[^\s=]+(?: +id)? *=(?: |$)|# *new(?:doc|par) *$")
# The numbers of words that share a token, and of words that are left unsaid.
_NOT_A_TOKEN = re.compile(r"[0-9]+[-.][0-9]+")


class Columns(NamedTuple):
    """Sequences of tokens.

    Attributes:
        sequences: of each sequence its tokens, at least one, and of each token its columns without the label; all have
            the same number of columns.
        labels: the label of every token; None if the source has none.
    """

    sequences: list[list[tuple[str, ...]]]
    labels: list[list[str]] | None


def read_columns(
    path: str | Path,
    *,
    label_column: int | None = -1,
    separator: str | None = None,
    encoding: str = "utf-8",
    max_sequences: int | None = None,
) -> Columns:
    """Read a file with a token a line, in columns, and blank lines between sequences.

    A line whose first column is ``-DOCSTART-`` separates like a blank one. Comments as of CoNLL-U are left out: lines
    before the first token of a sequence that start with ``#`` and go on like ``# sent_id = 1``, or have no tab (no
    separator) where the token has. So are lines of its words that share a token (``1-2``) and of those left unsaid
    (``1.1``), where the first column numbers the tokens of every sequence from 1. A warning tells of lines left out
    that could be tokens. Any other line that starts with ``#`` is one.

    Args:
        path: the file; .gz, .bz2, .xz and .zst are decompressed.
        label_column: the column of the labels, counted from 0 and from the end if negative; None if there is none.
        separator: what separates columns, which may then be empty; by default runs of spaces and tabs.
        encoding: the encoding of the file, in which ASCII must keep its bytes. A UTF-8 byte-order mark is dropped.
        max_sequences: how many sequences to read; None for all. What follows them is not looked at.

    Raises:
        DataError: the file cannot be read, is not in this encoding, has no sequences, lacks the label column, has a
            line with another number of columns than the first, or a blank label; names the file and the line.
        SettingsError: an option outside its domain.
    """
    _check_options(label_column, separator, encoding, max_sequences)
    path = Path(path)

    def fail(problem: str) -> NoReturn:
        raise DataError(problem, path=path, line=number)

    sequences: list[list[tuple[str, ...]]] = []
    labels: list[list[str]] = []
    tokens: list[tuple[str, ...]] = []
    tags: list[str] = []
    shared: dict[str, str] = {}
    width = first = unnumbered = 0
    comments: list[int] = []
    lines = _without_comments(_lines(path, encoding), separator, comments)
    for number, line in chain(lines, [(0, "")]):
        cells = _cells(line, separator)
        if not cells or cells[0] == _DOCUMENT_START:
            if tokens:
                sequences.append(tokens)
                labels.append(tags)
                tokens, tags = [], []
                if len(sequences) == max_sequences:
                    break
            continue
        if not width:
            width, first = len(cells), number
            if _is_json_object(line):
                fail(
                    "the line is a JSON object, but files of sequences have a token a line, in columns; texts with "
                    "labels are for the tasks multilabel and multiclass"
                )
            _check_label_column(label_column, width, fail)
        if len(cells) != width:
            fail(
                f"the line has {len(cells)} columns, but line {first} has {width}; write all lines alike"
                + ("" if separator else ", or name what separates columns (separator) if cells hold spaces or nothing")
            )
        if not unnumbered and _NOT_A_TOKEN.fullmatch(cells[0]):
            unnumbered = number
        # One object for equal cells: words and tags come again and again.
        cells = [shared.setdefault(cell, cell) for cell in cells]
        if label_column is not None:
            tags.append(cells.pop(label_column))
            if not tags[-1].strip(_BLANKS):
                fail("the label is blank; every token needs one")
        tokens.append(tuple(cells))
    if not sequences:
        raise DataError("the file has no tokens, only blank lines", path=path)
    if comments:
        _warn(path, comments[0], "left out as a comment, and others like it; write tabs between columns to keep tokens")
    if unnumbered and label_column != 0 and _are_numbered(sequences):
        kept = [[not _NOT_A_TOKEN.fullmatch(token[0]) for token in tokens] for tokens in sequences]
        sequences = [[*compress(tokens, which)] for tokens, which in zip(sequences, kept, strict=True)]
        labels = [[*compress(tags, which)] for tags, which in zip(labels, kept, strict=True)]
        _warn(path, unnumbered, "left out, and others like it: its number is that of no token, as in CoNLL-U")
    return Columns(sequences, None if label_column is None else labels)


def first_token_line(path: str | Path, separator: str | None = None, encoding: str = "utf-8") -> int:
    """The number of the line that `read_columns` takes the first token from.

    Raises:
        DataError: the file cannot be read, is not in this encoding, or has no tokens.
    """
    for number, line in _without_comments(_lines(Path(path), encoding), separator, []):
        cells = _cells(line, separator)
        if cells and cells[0] != _DOCUMENT_START:
            return number
    raise DataError("the file has no tokens, only blank lines", path=path)


def write_columns(
    target: str | Path | IO[str],
    sequences: Sequence[Sequence[Sequence[str]]],
    labels: Sequence[Sequence[Any]],
    *,
    probabilities: Sequence[Sequence[float]] | None = None,
    measures: Sequence[Sequence[Sequence[float | bool]]] | None = None,
    encoding: str = "utf-8",
) -> None:
    """Write tokens and their labels so that ``read_columns(path, separator="\\t")`` returns them.

    Args:
        target: a file, which appears complete or not at all, compressed if it ends in .gz, .bz2, .xz or .zst; or a
            text stream, which is written to once, after all checks.
        sequences: of each sequence its tokens, of each token its columns.
        labels: the label of every token, written as ``str`` does after its columns.
        probabilities: a number from 0 to 1 for every token, written after the label with six decimals.
        measures: numbers for every token, as many for each, written after these with six significant digits; of truth
            values true or false.
        encoding: the encoding of a file; a stream has its own.

    Raises:
        DataError: sequences, labels, probabilities and measures do not go together, there are none, a cell cannot be
            written in this format or encoding, or the file cannot be written.
        SettingsError: an unknown encoding.
    """
    _check_encoding(encoding)
    given = {"label sequences": labels, "sequences of probabilities": probabilities, "sequences of measures": measures}
    for name, values in given.items():
        if values is not None and len(values) != len(sequences):
            raise DataError(f"there are {len(sequences)} sequences but {len(values)} {name}; give one to each")
    if not len(sequences):
        raise DataError("there are no sequences to write")
    text = "".join(_written(sequences, labels, probabilities, measures))
    if not isinstance(target, (str, Path)):
        target.write(text)
        return
    try:
        content = text.encode(encoding)
    except UnicodeEncodeError as error:
        raise DataError(
            f"{text[error.start]!r} cannot be written in {encoding}; write UTF-8",
            path=target,
            line=text.count("\n", 0, error.start) + 1,
        ) from error
    with atomic_writer(target) as stream:
        stream.write(content)


def _check_options(label_column: Any, separator: Any, encoding: str, max_sequences: Any) -> None:
    if label_column is not None and (not isinstance(label_column, int) or isinstance(label_column, bool)):
        raise SettingsError(f"label_column must be an integer or None, not {label_column!r}")
    if separator is not None and (not isinstance(separator, str) or not separator or set(separator) & {"\n", "\r"}):
        raise SettingsError(f"separator must be a string such as '\\t', or None, not {separator!r}")
    if max_sequences is not None and (
        not isinstance(max_sequences, int) or isinstance(max_sequences, bool) or max_sequences < 1
    ):
        raise SettingsError(f"max_sequences must be a positive integer or None, not {max_sequences!r}")
    _check_encoding(encoding)


def _check_encoding(encoding: str) -> None:
    plain = "\n\t #-09AZaz"
    try:
        compatible = plain.encode("ascii").decode(encoding) == plain
    except LookupError as error:
        raise SettingsError(f"encoding {encoding!r} is not known; name one such as 'utf-8' or 'latin-1'") from error
    except ValueError:
        compatible = False
    if not compatible:
        raise SettingsError(f"encoding {encoding!r} does not keep the bytes of ASCII; convert the file to UTF-8")


def _check_label_column(label_column: int | None, width: int, fail: Callable[[str], NoReturn]) -> None:
    if label_column is None:
        return
    if not -width <= label_column < width:
        fail(f"there is no label column {label_column}: the line has {width} columns (counted from 0)")
    if width == 1:
        fail(
            "the line has only one column, so beside the label there is nothing; name what separates columns "
            "(separator), or say that there are no labels (label_column=None)"
        )


def _lines(path: Path, encoding: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(as_stream(line_blocks(path)), 1):
        try:
            yield number, line.removesuffix(b"\n").decode(encoding)
        except UnicodeError as error:
            where = f" (byte {error.start} of the line)" if isinstance(error, UnicodeDecodeError) else ""
            problem = f"not {encoding} text{where}; name the encoding of the file (--encoding), or convert it to UTF-8"
            raise DataError(problem, path=path, line=number) from error


def _without_comments(
    lines: Iterable[tuple[int, str]], separator: str | None, doubtful: list[int]
) -> Iterator[tuple[int, str]]:
    """Lines without those before the first token of a sequence that are comments.

    Args:
        lines: with their numbers.
        separator: what separates columns.
        doubtful: takes the numbers of comments that could be tokens.
    """
    waiting: list[tuple[int, str]] = []
    inside = False
    for number, line in chain(lines, [(0, "")]):
        if line.startswith("#") and not inside:
            waiting.append((number, line))
            continue
        for each in waiting:
            sure = _is_comment(each[1], line, separator)
            if sure is False:
                yield each
            elif sure is None:
                doubtful.append(each[0])
        waiting = []
        inside = bool(line.strip(_BLANKS)) and not line.startswith(_DOCUMENT_START)
        if number:
            yield number, line


def _is_comment(line: str, following: str, separator: str | None) -> bool | None:
    """Whether a line before a token is a comment: True or False, or None if it has as many columns as the token."""
    # Between blanks nothing tells a comment but its form.
    mark = separator if separator and separator.strip(_BLANKS) else "\t"
    formed = _COMMENT.match(line) is not None
    alike = len(_cells(line, separator)) == len(_cells(following, separator))
    if mark in line:
        return formed and bool(following) and not alike
    if formed and mark in following:
        return True
    if formed or mark in following:
        return None if alike else True
    return False


def _is_json_object(line: str) -> bool:
    try:
        return line.lstrip().startswith("{") and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _are_numbered(sequences: list[list[tuple[str, ...]]]) -> bool:
    """Whether the first column numbers the tokens of all sequences from 1, but for those that have other numbers."""
    longest = 0
    for tokens in sequences:
        numbers = [token[0] for token in tokens if not _NOT_A_TOKEN.fullmatch(token[0])]
        if not numbers or numbers != [str(i) for i in range(1, len(numbers) + 1)]:
            return False
        longest = max(longest, len(numbers))
    return longest > 1


def _warn(path: Path, line: int, what: str) -> None:
    warnings.warn(f"{path}:{line}: {what}", stacklevel=3)


def _cells(line: str, separator: str | None) -> list[str]:
    if not line.strip(_BLANKS):
        return []
    if separator is not None:
        return line.split(separator)
    return [cell for cell in line.replace("\t", " ").split(" ") if cell]


def _written(
    sequences: Sequence[Sequence[Any]],
    labels: Sequence[Sequence[Any]],
    probabilities: Sequence[Sequence[float]] | None,
    measures: Sequence[Sequence[Sequence[float | bool]]] | None,
) -> Iterator[str]:
    width: int | None = None
    for s, tokens in enumerate(sequences):
        if not len(tokens):
            raise DataError(f"sequence {s} (counted from 0) has no tokens; leave it out")
        tags, certain = labels[s], None if probabilities is None else probabilities[s]
        measured = None if measures is None else measures[s]
        for name, values in (("labels", tags), ("probabilities", certain), ("rows of measures", measured)):
            if values is not None and len(values) != len(tokens):
                raise DataError(f"sequence {s} (counted from 0) has {len(tokens)} tokens but {len(values)} {name}")
        for t, token in enumerate(tokens):
            where = f"token {t} of sequence {s} (counted from 0)"
            cells = _row(token, str(tags[t]), where)
            width = width or len(cells)
            if len(cells) != width:
                raise DataError(f"{where} has {len(cells) - 1} columns, but those before have {width - 1}")
            if certain is not None:
                cells.append(_probability(certain[t], where))
            if measured is not None:
                cells += map(_measure, measured[t])
            yield "\t".join(cells) + "\n"
        yield "\n"


def _row(token: Any, label: str, where: str) -> list[str]:
    if isinstance(token, str):
        raise DataError(f"{where} is the bare string {token!r} where a tuple of columns is meant: ({token!r},)")
    cells = [*token, label]
    for cell in cells:
        if not isinstance(cell, str):
            raise DataError(f"{where} has a {type(cell).__name__} among its columns, which are strings")
        if _UNWRITABLE.search(cell):
            raise DataError(f"{where} has the cell {cell!r}; tabs, line ends and NUL characters cannot be written")
    if not label.strip(_BLANKS):
        raise DataError(f"{where} has a blank label")
    if cells[0] == _DOCUMENT_START:
        raise DataError(f"{where} starts with {_DOCUMENT_START}, which separates sequences")
    return cells


def _measure(value: float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:.6g}"


def _probability(value: float, where: str) -> str:
    # Marginals may pass 0 and 1 by what float32 rounds.
    if not -_ROUNDING <= value <= 1 + _ROUNDING:
        raise DataError(f"{where} has the probability {value}, which is not from 0 to 1")
    return f"{min(max(float(value), 0.0), 1.0):.6f}"
