"""Ctrl-C that waits for the end of the step."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class GracefulInterrupt:
    """Within the block, the first SIGINT or SIGTERM sets `requested`; a second one acts at once.

    Outside the main thread, where Python allows no signal handlers, the block changes nothing.
    """

    def __init__(self) -> None:
        self.requested = False
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
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()


class TrainingInterrupted(KeyboardInterrupt):
    """Training was interrupted between two steps.

    Attributes:
        saved: path of the checkpoint to resume from, or None where no checkpoint was asked for.
    """

    def __init__(self, saved: str | None) -> None:
        super().__init__(f"interrupted; resume from {saved}" if saved else "interrupted; nothing was saved")
        self.saved = saved
