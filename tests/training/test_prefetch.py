from __future__ import annotations

import threading
from contextlib import closing

import pytest

from extremegp.training.prefetch import ahead


def test_results_come_in_order_whatever_there_is_to_do():
    for n in (0, 1, 2, 7):
        assert list(ahead(lambda item: 10 * item, range(n))) == [10 * item for item in range(n)]


def test_the_next_item_is_worked_on_in_one_other_thread_while_the_current_one_is_used():
    started, threads = [threading.Event() for _ in range(5)], set()

    def work(item: int) -> int:
        threads.add(threading.get_ident())
        started[item].set()
        return item

    for item in ahead(work, range(5)):
        if item < 4:
            assert started[item + 1].wait(10)
        assert not any(event.is_set() for event in started[item + 2 :])
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_an_error_comes_where_its_result_would_have_come():
    seen = []
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        for result in ahead(lambda item: 1 // (2 - item), range(5)):
            seen.append(result)
    assert seen == [0, 1]


def test_closing_ends_the_thread():
    before = threading.active_count()
    with closing(ahead(lambda item: item, range(100))) as results:
        assert next(results) == 0
        assert threading.active_count() == before + 1
    assert threading.active_count() == before
