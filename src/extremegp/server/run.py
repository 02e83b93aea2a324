"""The process of a server: its socket, its life, and its end."""

from __future__ import annotations

import asyncio
import socket
import warnings
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from extremegp.errors import SettingsError

_HEADER_SECONDS, _LAST_SECONDS, _MOST_CONNECTIONS, _HEADER_BYTES = 10.0, 30, 512, 1 << 16


class _Impatient(H11Protocol):
    """HTTP whose clients must have sent the head of a request some seconds after they came."""

    _limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._limit = asyncio.get_running_loop().call_later(_HEADER_SECONDS, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._limit is not None:
            self._limit.cancel()
        super().connection_lost(exc)

    def _give_up(self) -> None:
        if getattr(self, "cycle", None) is None:
            self.transport.close()


def run(app: Any, *, host: str, port: int, announce: Callable[[str], None] | None = None) -> None:
    """Answer until SIGINT or SIGTERM, and then what has been asked already.

    Args:
        app: to answer with.
        host: to listen on.
        port: to listen on; 0 for any that is free.
        announce: is told where it listens.

    Raises:
        SettingsError: the address cannot be had.
    """
    # They are answered all the same. Filters are the process's, so that threads must not change them.
    warnings.filterwarnings("ignore", message=".*no word that is known", category=UserWarning)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=_Impatient,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=_MOST_CONNECTIONS,
        h11_max_incomplete_event_size=_HEADER_BYTES,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=_LAST_SECONDS,
    )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol by its number, or asyncio lets answers wait for acknowledgements, 40 ms each.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        # Who comes before the server is ready waits.
        listening.listen(_MOST_CONNECTIONS)
    except (OSError, OverflowError) as error:
        listening.close()
        raise SettingsError(
            f"cannot listen on {host}, port {port}: {error}; choose others by --host and --port"
        ) from error
    if announce is not None:
        shown = f"[{host}]" if ":" in host else host
        announce(f"listening on http://{shown}:{listening.getsockname()[1]}/ (Ctrl-C stops)")
    uvicorn.Server(config).run(sockets=[listening])
