"""What was tried for hyper-parameters beside training, and what won."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self


@dataclass(frozen=True)
class Selection:
    """Hyper-parameters that were chosen together, beside training.

    Attributes:
        by: what was best of those tried, in words.
        chosen: what won, by name.
        tried: all that was tried, by the same names, in its order; "score" is what it was worth, as `by` says. Empty
            where values were learnt by gradients, or nothing could be tried.
    """

    by: str
    chosen: Mapping[str, float | str]
    tried: Sequence[Mapping[str, float | str]] = field(default_factory=list)

    @classmethod
    def of(
        cls, by: str, chosen: Mapping[str, float | str], scores: Iterable[tuple[Sequence[float | str], float]]
    ) -> Self:
        """That of values, in the order of the names, with what each was worth; what has no score is left out."""
        tried = [
            dict(zip((*chosen, "score"), map(_plain, (*values, score)), strict=True))
            for values, score in scores
            if math.isfinite(score)
        ]
        return cls(by, dict(chosen), tried)


def _plain(value: float | str) -> float | str:
    return value if isinstance(value, str) else float(value)
