"""Feature templates of CRF++ (https://taku910.github.io/crfpp/): from columns around a token to its features."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from extremegp.errors import DataError, SettingsError, located

_MACRO = re.compile(r"%x\[(-?[0-9]{1,4}),([0-9]{1,4})\]")
_MAX_OFFSET = 1000
_MAX_COLUMNS = 10_000


class _Rule(NamedTuple):
    """A line of a template.

    Attributes:
        line: as written.
        format: the line with a %s for each macro; it has no other % in it.
        macros: the row offset and the column of each macro.
    """

    line: str
    format: str
    macros: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Template:
    """A CRF++ template; `parse` makes it, and ``str`` gives its lines back, without comments.

    A line that starts with U is a feature of every token, one that starts with B a feature of every pair of
    neighbouring labels. In both, ``%x[row,column]`` stands for a column, counted from 0, of the token `row` tokens
    further on. Beyond the ends of the sequence stand ``_B-1``, ``_B-2``, ... and ``_B+1``, ``_B+2``, ...
    """

    rules: tuple[_Rule, ...]

    @classmethod
    def parse(cls, text_or_lines: str | Iterable[str], *, name: str = "template") -> Template:
        """Read a template. Blank lines and lines that start with # are comments; blanks at line ends are dropped.

        Args:
            text_or_lines: the text, or its lines.
            name: what to call the template in messages, such as the path of its file.

        Raises:
            DataError: a line starts with neither U nor B, a macro is malformed or more than 1000 tokens away, a line
                comes twice (its features would count double), or there is no line; names the line.
        """
        lines = text_or_lines.split("\n") if isinstance(text_or_lines, str) else text_or_lines
        rules: list[_Rule] = []
        first_at: dict[str, int] = {}
        for number, line in enumerate(lines, 1):
            line = (line.removeprefix("\ufeff") if number == 1 else line).rstrip(" \t\r\n")
            if not line or line.startswith("#"):
                continue
            with located(name, number):
                if line in first_at:
                    raise DataError(
                        f"the same as line {first_at[line]}: its features would count double; remove one of them"
                    )
                first_at[line] = number
                rules.append(_rule(line))
        if not rules:
            raise DataError("the template has no lines; write some such as U00:%x[0,0]", path=name)
        return cls(tuple(rules))

    def __str__(self) -> str:
        return "".join(f"{rule.line}\n" for rule in self.rules)

    @cached_property
    def has_bigrams(self) -> bool:
        """Whether neighbouring labels have features at all: whether there is a B line."""
        return any(rule.line.startswith("B") for rule in self.rules)

    @property
    def indexed(self) -> bool:
        """Whether those features depend on the tokens: whether a B line has a macro."""
        return bool(self._binary)

    @cached_property
    def n_columns(self) -> int:
        """How many columns tokens must have at least."""
        return max((column + 1 for rule in self.rules for _, column in rule.macros), default=0)

    @cached_property
    def _unary(self) -> tuple[_Rule, ...]:
        return tuple(rule for rule in self.rules if rule.line.startswith("U"))

    @cached_property
    def _binary(self) -> tuple[_Rule, ...]:
        return tuple(rule for rule in self.rules if rule.line.startswith("B") and rule.macros)

    def expand(self, sequence: Sequence[Sequence[str]]) -> list[list[str]]:
        """The features of every token, one for each U line, in the order of the template.

        Args:
            sequence: of each token its columns, at least `n_columns`.

        Raises:
            DataError: a token has fewer columns, or is not a list or tuple of strings.
        """
        return self._expand(self._unary, sequence)

    def expand_binary(self, sequence: Sequence[Sequence[str]]) -> list[list[str]]:
        """For every token the features of its label together with the label before, one for each B line with a macro.

        CRF++ makes no use of the first token's. B lines without macro are the same everywhere and left out.

        Args:
            sequence: of each token its columns, at least `n_columns`.

        Raises:
            DataError: a token has fewer columns, or is not a list or tuple of strings.
        """
        return self._expand(self._binary, sequence)

    def _expand(self, rules: tuple[_Rule, ...], sequence: Any) -> list[list[str]]:
        self._check(sequence)
        shifted = {macro: _shifted(sequence, *macro) for macro in {macro for rule in rules for macro in rule.macros}}
        by_rule = [
            list(map(rule.format.__mod__, zip(*(shifted[macro] for macro in rule.macros), strict=True)))
            if rule.macros
            else [rule.line] * len(sequence)
            for rule in rules
        ]
        return list(map(list, zip(*by_rule, strict=True))) if by_rule else [[] for _ in sequence]

    def _check(self, sequence: Any) -> None:
        if isinstance(sequence, (str, bytes)):
            raise DataError(f"expected a list of tokens, not {type(sequence).__name__}")
        for t, token in enumerate(sequence):
            if not isinstance(token, (list, tuple)):
                raise DataError(
                    f"token {t} (counted from 0) is of type {type(token).__name__}, not a tuple of columns; a token of "
                    "one column is (column,)"
                )
            if len(token) < self.n_columns:
                line = next(rule.line for rule in self.rules if any(c >= len(token) for _, c in rule.macros))
                raise DataError(
                    f"token {t} (counted from 0) has {len(token)} columns, but the template's line {line!r} asks for "
                    "one beyond them; columns are counted from 0, without the label"
                )
            if not all(isinstance(cell, str) for cell in token):
                raise DataError(f"token {t} (counted from 0) has columns that are not strings: {token!r}")


def _rule(line: str) -> _Rule:
    if line[0] not in "UB":
        raise DataError(
            f"a line starts with U (features of a label), B (of two neighbouring labels) or #, not {line[:40]!r}"
        )
    if "%" in _MACRO.sub("", line):
        raise DataError(
            f"a % starts a macro %x[row,column] of two integers without blanks, such as %x[-1,0]; found {line[:80]!r}"
        )
    macros = tuple((int(row), int(column)) for row, column in _MACRO.findall(line))
    for row, _ in macros:
        if abs(row) > _MAX_OFFSET:
            raise DataError(f"the row {row} is beyond {_MAX_OFFSET} tokens; macros are %x[row,column]")
    return _Rule(line, _MACRO.sub("%s", line), macros)


def _shifted(sequence: Sequence[Sequence[str]], row: int, column: int) -> list[str]:
    """What ``%x[row,column]`` stands for at every token."""
    cells = [token[column] for token in sequence]
    n_outside = min(abs(row), len(cells))
    if row < 0:
        return [f"_B-{-row - t}" for t in range(n_outside)] + cells[: len(cells) - n_outside]
    return cells[n_outside:] + [f"_B+{row - n_outside + i}" for i in range(1, n_outside + 1)]


def default_template(n_columns: int) -> Template:
    """A template for columns of which nothing is known, as CRF++'s examples are for words and tags.

    Args:
        n_columns: the columns of a token, without the label.

    Returns:
        Of each column lines for the tokens -2 to 2 and for the pairs of neighbours (-1, 0) and (0, 1), and a bare B.

    Raises:
        SettingsError: there is no column, or more than the macros of a template can name.
    """
    if not 1 <= n_columns <= _MAX_COLUMNS:
        raise SettingsError(f"n_columns must be an integer from 1 to {_MAX_COLUMNS}; it is {n_columns!r}")
    rows = ((-2,), (-1,), (0,), (1,), (2,), (-1, 0), (0, 1))
    lines = [
        f"U{column}.{i}:" + "/".join(f"%x[{row},{column}]" for row in together)
        for column in range(n_columns)
        for i, together in enumerate(rows)
    ]
    return Template.parse([*lines, "B"])


CHUNKING_TEMPLATE = Template.parse(
    """\
U00:%x[-2,0]
U01:%x[-1,0]
U02:%x[0,0]
U03:%x[1,0]
U04:%x[2,0]
U05:%x[-1,0]/%x[0,0]
U06:%x[0,0]/%x[1,0]
U10:%x[-2,1]
U11:%x[-1,1]
U12:%x[0,1]
U13:%x[1,1]
U14:%x[2,1]
U15:%x[-2,1]/%x[-1,1]
U16:%x[-1,1]/%x[0,1]
U17:%x[0,1]/%x[1,1]
U18:%x[1,1]/%x[2,1]
U20:%x[-2,1]/%x[-1,1]/%x[0,1]
U21:%x[-1,1]/%x[0,1]/%x[1,1]
U22:%x[0,1]/%x[1,1]/%x[2,1]
B
"""
)
"""What CRF++ comes with for the chunks of CoNLL-2000: words and tags two tokens around, pairs and triples of them."""
