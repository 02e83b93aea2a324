"""From a text to the words that are counted, in any script."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self, get_args

from sklearn.feature_extraction.text import CountVectorizer

from extremegp.errors import SettingsError

Analyzer = Literal["auto", "word", "char", "char_wb"]

# Letters, with their marks, of scripts that put no spaces between words, without digits and punctuation. First those
# that are morphemes or syllables: Han, Bopomofo, Kana, Yi.
_SYLLABLES = (
    "\u3005-\u3007\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3105-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\ua000-\ua48c\uf900-\ufaff\uff66-\uff9f\U00016fe0-\U00016fff\U0001b000-\U0001b16f"
    "\U00020000-\U0003ffff"
)
# Those that are sounds: Thai, Lao, Tibetan, Myanmar, Khmer, Tai Le, New Tai Lue, Tai Tham, Balinese, Javanese, Tai
# Viet.
_SOUNDS = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ecf\u0edc-\u0edf\u0f00\u0f18-\u0f19\u0f35\u0f37\u0f39\u0f40-\u0f84"
    "\u0f86-\u0fbc\u1000-\u103f\u1050-\u108f\u109a-\u109f\u1780-\u17d3\u17d7\u17dc\u17dd\u1950-\u19cf\u1a20-\u1a7e"
    "\u1b00-\u1b4c\ua980-\ua9c0\ua9e0-\ua9ef\ua9fa-\ua9fe\uaa60-\uaac2\uaadb-\uaadd"
)
# Letters and marks of Indic scripts: they have spaces, but marks that \w does not match would cut their words.
_INDIC = "\u0900-\u0963\u0966-\u0dff"
_RUNS = re.compile(f"[{_SYLLABLES}]+|[{_SOUNDS}]+")
_IS_OF_SYLLABLES = re.compile(f"[{_SYLLABLES}]")
_MARKED = re.compile(f"[{_INDIC}]")
_MARKED_WORDS = rf"(?u)[{_INDIC}][{_INDIC}\u200c\u200d]+|\b\w\w+\b"
_OF_SYLLABLES, _OF_SOUNDS = (1, 2), (2, 4)
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Analyser:
    """What the words of a text are: called with one, it gives them in a list. Names and meanings are scikit-learn's.

    Args:
        analyzer: "word" takes for words two or more letters, digits or underscores beside each other; "auto" does so
            too, but of scripts without spaces between words it takes sequences of characters: of Han, Kana and the like
            1 and 2, of Thai, Lao, Khmer, Myanmar and the like 2 to 4; and it keeps words of Indic scripts whole, which
            "word" cuts at vowel signs. "char" takes sequences of characters, "char_wb" those within words.
        ngram_range: the shortest and the longest sequence, of words or of characters, that counts as one; "auto" is (1,
            1) of words and (2, 4) of characters.
        lowercase: whether letters are made small first.

    Raises:
        SettingsError: one is outside its domain.
    """

    analyzer: Analyzer = "auto"
    ngram_range: tuple[int, int] | Literal["auto"] = "auto"
    lowercase: bool = True

    def __post_init__(self) -> None:
        if self.analyzer not in get_args(Analyzer):
            raise SettingsError(f"analyzer must be one of {', '.join(get_args(Analyzer))}, not {self.analyzer!r}")
        if not isinstance(self.lowercase, bool):
            raise SettingsError(f"lowercase must be True or False, not {self.lowercase!r}")
        if self.ngram_range == "auto":
            object.__setattr__(self, "ngram_range", (2, 4) if self._of_characters else (1, 1))
        pair: Any = self.ngram_range
        if not (isinstance(pair, tuple) and len(pair) == 2 and all(map(_is_length, pair)) and pair[0] <= pair[1]):
            raise SettingsError(
                f"ngram_range must be 'auto' or two positive integers (shortest, longest), not {self.ngram_range!r}"
            )

    def __call__(self, text: str) -> list[str]:
        if self._of_characters:
            # What the vocabulary is stored in can hold neither line breaks nor halves of surrogate pairs.
            return self._plain(" ".join(_SURROGATE.sub("\ufffd", text).split()))
        if self.analyzer == "word" or text.isascii():
            return self._plain(text)
        words, end = [], 0
        for run in _RUNS.finditer(text):
            words += self._spaced(text[end : run.start()])
            words += _sequences(run[0], *(_OF_SYLLABLES if _IS_OF_SYLLABLES.match(run[0]) else _OF_SOUNDS))
            end = run.end()
        return words + self._spaced(text[end:])

    def to_config(self) -> dict[str, Any]:
        """What `from_config` takes, as JSON."""
        return {"analyzer": self.analyzer, "ngram_range": [*self.ngram_range], "lowercase": self.lowercase}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """What `to_config` gave; where there is nothing, it is of a version that knew words alone.

        Raises:
            SettingsError: it is none.
        """
        pair = config.get("ngram_range", [1, 1])
        return cls(
            config.get("analyzer", "word"),
            tuple(pair) if isinstance(pair, list) else pair,
            config.get("lowercase", True),
        )

    @property
    def _of_characters(self) -> bool:
        return self.analyzer in ("char", "char_wb")

    def _spaced(self, text: str) -> list[str]:
        """The words of a text with spaces."""
        return self._marked(text) if _MARKED.search(text) else self._plain(text)

    @cached_property
    def _plain(self) -> Callable[[str], list[str]]:
        return self._made(analyzer=self.analyzer if self._of_characters else "word")

    @cached_property
    def _marked(self) -> Callable[[str], list[str]]:
        return self._made(token_pattern=_MARKED_WORDS)

    def _made(self, **options: Any) -> Callable[[str], list[str]]:
        analyse: Callable[[str], list[str]] = CountVectorizer(
            ngram_range=self.ngram_range, lowercase=self.lowercase, **options
        ).build_analyzer()
        return analyse


def _sequences(run: str, shortest: int, longest: int) -> list[str]:
    """All sequences of so many characters; of a shorter run, itself."""
    if len(run) < shortest:
        return [run]
    sizes = range(shortest, longest + 1)
    return [run[start : start + size] for size in sizes for start in range(len(run) - size + 1)]


def _is_length(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
