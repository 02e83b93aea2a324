"""Work on the next item while the current one is used."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from extremegp.threads import compute_alone

A = TypeVar("A")
B = TypeVar("B")


def ahead(work: Callable[[A], B], items: Iterable[A]) -> Generator[B, None, None]:
    """work(item) of every item in order, each done in one background thread while the result before it is used.

    An exception of the work comes where its result would have come. Closing the iterator waits for the work under way.
    """
    # With helpers of its own it would compete with the thread that it works for.
    with ThreadPoolExecutor(1, initializer=compute_alone) as thread:
        following: Future[B] | None = None
        for item in items:
            current, following = following, thread.submit(work, item)
            if current is not None:
                yield current.result()
        if following is not None:
            yield following.result()
