from __future__ import annotations

import signal
import threading

import pytest

from extremegp.training.interrupts import GracefulInterrupt, TrainingInterrupted


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_a_request_and_handlers_come_back(number: signal.Signals):
    before = signal.getsignal(number)
    with GracefulInterrupt() as interrupt:
        assert not interrupt.requested
        assert signal.getsignal(number) != before
        signal.raise_signal(number)
        assert interrupt.requested
        assert signal.getsignal(number) == before
    assert signal.getsignal(number) == before


def test_the_second_signal_acts_at_once():
    with pytest.raises(KeyboardInterrupt), GracefulInterrupt():  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)


def test_handlers_come_back_after_an_error_too():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError), GracefulInterrupt():
        _ = 1 / 0
    assert signal.getsignal(signal.SIGINT) == before


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with GracefulInterrupt() as interrupt:
            signal.raise_signal(signal.SIGINT)
            assert not interrupt.requested
    finally:
        signal.signal(signal.SIGINT, before)


def test_outside_the_main_thread_nothing_changes():
    before, seen = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with GracefulInterrupt() as interrupt:
            seen.append((signal.getsignal(signal.SIGINT), interrupt.requested))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(before, False)]


def test_the_interruption_says_what_was_saved_and_is_no_ordinary_exception():
    error = TrainingInterrupted("run.ckpt")
    assert isinstance(error, KeyboardInterrupt)
    assert not isinstance(error, Exception)
    assert error.saved == "run.ckpt"
    assert "run.ckpt" in str(error)
    assert "nothing was saved" in str(TrainingInterrupted(None))


def test_among_others_more_signals_change_nothing_until_the_block_ends_well():
    before = signal.getsignal(signal.SIGINT)
    with GracefulInterrupt(among_others=True) as interrupt:
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)
        assert interrupt.requested
    assert signal.getsignal(signal.SIGINT) == before


def test_among_others_signals_after_an_error_do_not_cut_off_its_message():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with pytest.raises(ZeroDivisionError), GracefulInterrupt(among_others=True):
            _ = 1 / 0
        signal.raise_signal(signal.SIGTERM)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
