"""Counts for those who watch a server, in the text format of Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from extremegp.server.served import ServedModel

_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Requests by route and status, and how long they took."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._within: Counter[tuple[str, float]] = Counter()
        self._seconds: Counter[str] = Counter()

    def count(self, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self._requests[route, status] += 1
        self._seconds[route] += seconds  # type: ignore[assignment]
        self._within.update((route, bound) for bound in _BOUNDS if seconds <= bound)

    def text(self, models: Iterable[ServedModel]) -> str:
        """All of it."""
        lines = ["# TYPE extremegp_requests_total counter"]
        lines += [
            f'extremegp_requests_total{{route="{route}",status="{status}"}} {count}'
            for (route, status), count in sorted(self._requests.items())
        ]
        lines.append("# TYPE extremegp_request_seconds histogram")
        for route, seconds in sorted(self._seconds.items()):
            total = sum(count for (of, _), count in self._requests.items() if of == route)
            lines += [
                f'extremegp_request_seconds_bucket{{route="{route}",le="{bound:g}"}} {self._within[route, bound]}'
                for bound in _BOUNDS
            ]
            lines.append(f'extremegp_request_seconds_bucket{{route="{route}",le="+Inf"}} {total}')
            lines.append(f'extremegp_request_seconds_sum{{route="{route}"}} {seconds:.6f}')
            lines.append(f'extremegp_request_seconds_count{{route="{route}"}} {total}')
        kinds = {"documents": "counter", "batches": "counter", "learnt": "counter", "waiting": "gauge"}
        for name, kind in kinds.items():
            suffix = "_total" if kind == "counter" else ""
            lines.append(f"# TYPE extremegp_{name}{suffix} {kind}")
            for model in models:
                lines.append(
                    f'extremegp_{name}{suffix}{{model="{_escaped(model.name)}"}} {getattr(model, f"n_{name}")}'
                )
        return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
