"""Grids of settings that are dear to try: only as much of one is looked at as leads upwards."""

from __future__ import annotations

from collections.abc import Callable


def climbed(
    score: Callable[[tuple[int, int]], float], at: tuple[int, int], sizes: tuple[int, int], noticed: float
) -> tuple[int, int]:
    """A place of a grid with no better neighbour along either axis, from one place upwards.

    Args:
        score: of a place, a log-likelihood.
        at: where to start.
        sizes: of the grid.
        noticed: by which share a score must be higher to be better.
    """

    def is_better(place: tuple[int, int], other: tuple[int, int]) -> bool:
        return score(place) > score(other) + noticed * abs(score(other))

    while True:
        neighbours = [(at[0], at[1] + 1), (at[0], at[1] - 1), (at[0] + 1, at[1]), (at[0] - 1, at[1])]
        inside = [place for place in neighbours if all(0 <= i < size for i, size in zip(place, sizes, strict=True))]
        better = next((place for place in inside if is_better(place, at)), None)
        if better is None:
            return at
        # On along the same way as long as it leads up, so that few places are tried.
        step = better[0] - at[0], better[1] - at[1]
        at = better
        while all(0 <= i + d < size for i, d, size in zip(at, step, sizes, strict=True)):
            after = at[0] + step[0], at[1] + step[1]
            if not is_better(after, at):
                break
            at = after
