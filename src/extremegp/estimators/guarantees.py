"""Guarantees: sets of labels that keep a promise, and the file that holds one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from extremegp.data import FloatCSR
from extremegp.errors import DataError, SettingsError
from extremegp.prediction.decisions import Candidates
from extremegp.prediction.guarantees import (
    NEVER,
    Cut,
    HeldOut,
    Labelled,
    Promise,
    cut_of,
    frequency_bands,
    held_out,
    scored,
)
from extremegp.settings.domains import choice, number
from extremegp.storage.streams import atomic_writer

Groups = Literal["all", "band"]
N_BANDS = 5
_MOST_BYTES = 1 << 28
FORMS: dict[Promise, str] = {
    "recall": "sets hold {} % of the true labels",
    "precision": "{} % of the labels of sets are true",
    "all": "{} % of sets hold all true labels",
    "class": "{} % of sets hold the class",
    "tokens": "sets of tokens hold {} % of their labels",
    "labelling": "{} % of sets hold the labelling",
}


@dataclass(frozen=True, eq=False)
class Guarantee:
    """A promise of sets of labels, which `decide` keeps.

    Args:
        promise: what is promised.
        level: how much of it.
        groups: of the labels, K: the promise is kept for each group by itself.
        cuts: how sets of each group are cut.
        confidence: that a promise of precision holds; those of the others are of expectations, and need none.
    """

    promise: Promise
    level: float
    groups: NDArray[np.int64]
    cuts: tuple[Cut, ...]
    confidence: float = 1.0

    @classmethod
    def of(
        cls,
        blocks: Iterable[Labelled],
        groups: NDArray[np.int64],
        *,
        promise: Promise,
        level: float,
        confidence: float = 1.0,
    ) -> Guarantee:
        """The guarantee that rows with known labels allow.

        Raises:
            DataError: they allow none.
        """
        return cls.of_held_out(held_out(promise, blocks, groups), groups, promise, level, confidence)

    @classmethod
    def of_held_out(
        cls,
        found: Sequence[HeldOut],
        groups: NDArray[np.int64],
        promise: Promise,
        level: float,
        confidence: float = 1.0,
    ) -> Guarantee:
        """The guarantee that held-out rows allow; see `of`."""
        cuts = tuple(cut_of(promise, known, level, confidence) for known in found)
        if all(cut.threshold == NEVER for cut in cuts):
            best = "" if promise == "precision" else f": the candidates hold {100 * cuts[0].attainable:.1f} %"
            raise DataError(
                f"{100 * level:g} % cannot be promised on {cuts[0].n_rows} held-out rows{best}; "
                "give more rows, or ask for less"
            )
        return cls(promise, level, groups, cuts, confidence)

    def chosen(self, candidates: Candidates) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which candidates are in the sets, B x C, and which groups the promise is for, B x G."""
        taken = np.zeros(candidates.labels.shape, np.bool_)
        promised = np.zeros((len(taken), len(self.cuts)), np.bool_)
        for group, cut in enumerate(self.cuts):
            p, scores = scored(self.promise, candidates, self.groups, group)
            promised[:, group] = (p.max(axis=1, initial=0) >= cut.least_sureness) & (cut.threshold < NEVER)
            taken |= (p > 0) & (scores >= cut.threshold) & promised[:, group, None]
        return taken, promised

    def told(self) -> list[str]:
        """What is promised of whom, a line for each group of labels."""
        lines, promise = [], FORMS[self.promise].format(f"{100 * self.level:g}")
        for place, cut in enumerate(self.cuts, start=1):
            group = f"group {place} of {len(self.cuts)}: " if len(self.cuts) > 1 else ""
            whom = f"for {100 * cut.kept:.1f} % of rows" if cut.threshold < NEVER else "cannot be promised"
            most = f"; all candidates hold {100 * cut.attainable:.1f} %" if self.promise != "precision" else ""
            lines.append(f"{group}{promise}: {whom} ({cut.n_rows} held out{most})")
        return lines

    def check(self, n_labels: int, promises: Sequence[str]) -> None:
        """Refuse models of other labels, and tasks that it is not for.

        Raises:
            SettingsError: it is for another model.
        """
        if self.promise not in promises:
            raise SettingsError(f"the guarantee promises {self.promise}; this model keeps {', '.join(promises)}")
        if len(self.groups) != n_labels:
            raise SettingsError(
                f"the guarantee is for a model of {len(self.groups)} labels, this one has {n_labels}: guarantee again"
            )

    def save(self, path: str | Path) -> None:
        """Write it as JSON.

        Raises:
            DataError: the file cannot be written.
        """
        cuts = [cut._asdict() for cut in self.cuts]
        content = {
            "extremegp_guarantee": 1,
            "promise": self.promise,
            "level": self.level,
            "confidence": self.confidence,
            "cuts": cuts,
            "groups": self.groups.tolist(),
        }
        with atomic_writer(path) as file:
            file.write(json.dumps(content, allow_nan=False).encode())

    @classmethod
    def load(cls, path: str | Path) -> Guarantee:
        """Read what `save` wrote.

        Raises:
            DataError: it cannot be read, or is something else.
        """
        path = Path(path)
        try:
            if path.stat().st_size > _MOST_BYTES:
                _refuse(path)
            content = json.loads(path.read_text(encoding="utf-8"))
            cuts = tuple(Cut(**cut) for cut in content["cuts"])
            groups = np.asarray(content["groups"], np.int64)
            made = cls(
                choice("promise", content["promise"], get_args(Promise)),
                number("level", content["level"], low=0, high=1, open_low=True),
                groups,
                cuts,
                number("confidence", content["confidence"], low=0, high=1, open_low=True),
            )
            for cut in cuts:
                for name, value in cut._asdict().items():
                    number(name, value, low=0)
        except OSError as error:
            raise DataError(f"cannot be read: {error.strerror or error}", path=path) from error
        except (ValueError, KeyError, TypeError, SettingsError, RecursionError, OverflowError):
            _refuse(path)
        if content.get("extremegp_guarantee") != 1 or groups.ndim != 1 or not 0 < len(cuts) <= len(groups):
            _refuse(path)
        if groups.min() < 0 or groups.max() != len(cuts) - 1:
            _refuse(path)
        return made


def _refuse(path: Path) -> NoReturn:
    raise DataError("is no guarantee that `extremegp guarantee` wrote", path=path)


def label_groups(counts: NDArray[Any], per: Groups) -> NDArray[np.int64]:
    """Groups of labels, K: one of all, or five of about as many training labels each, from rare to frequent."""
    choice("per", per, get_args(Groups))
    counts = np.asarray(counts, np.int64)
    return np.zeros(len(counts), np.int64) if per == "all" else frequency_bands(counts, N_BANDS)


def with_truth(
    blocks: Iterator[tuple[slice, Candidates]], y: FloatCSR, n_unknown: NDArray[np.int64], groups: NDArray[np.int64]
) -> Iterator[Labelled]:
    """Candidates with what is known of them.

    Args:
        blocks: of N rows.
        y: their labels, N x K.
        n_unknown: labels of each row that the model does not have, N; they count among the rarest.
        groups: of the labels.
    """
    n_labels, n_groups = len(groups), int(groups.max()) + 1
    member: Any = scipy.sparse.csr_matrix((np.ones(n_labels, np.int64), (np.arange(n_labels), groups)))
    for rows, candidates in blocks:
        own: Any = y[rows].astype(bool)
        n_true = (own.astype(np.int64) @ member).toarray().reshape(-1, n_groups)
        n_true[:, 0] += n_unknown[rows]
        hits = np.zeros(candidates.labels.shape, np.bool_)
        row, place = np.nonzero(candidates.labels >= 0)
        hits[row, place] = own[row, candidates.labels[row, place]].ravel()
        yield Labelled(rows, candidates, hits, n_true)
