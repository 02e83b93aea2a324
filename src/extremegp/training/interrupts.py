"""Ctrl-C that waits for the end of the step."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class GracefulInterrupt:
    """Within the block, the first SIGINT or SIGTERM sets `requested`; a second one acts at once.

    Outside the main thread, where Python allows no signal handlers, the block changes nothing.

    Args:
        among_others: whether this is one process of several that were started together. What starts them passes Ctrl-C
            on to processes that the terminal has sent it already, and ends all when one has ended: signals after the
            first, or after an error has left the block, then do not cut off a checkpoint or a message.
    """

    def __init__(self, *, among_others: bool = False) -> None:
        self.requested, self.among_others = False, among_others
        self._previous: dict[int, signal._HANDLER] = {}

    def __enter__(self) -> GracefulInterrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                previous = signal.getsignal(number)
                if previous is not None and previous is not signal.SIG_IGN:
                    self._previous[number] = previous
                    signal.signal(number, self._request)
        return self

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        if not self.among_others:
            self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or not self.among_others:
            self._restore()


class TrainingInterrupted(KeyboardInterrupt):
    """Training was interrupted between two steps.

    Attributes:
        saved: path of the checkpoint to resume from, or None where no checkpoint was asked for.
    """

    def __init__(self, saved: str | None) -> None:
        super().__init__(f"interrupted; resume from {saved}" if saved else "interrupted; nothing was saved")
        self.saved = saved
