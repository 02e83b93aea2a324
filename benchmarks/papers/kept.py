"""Runs that were made, kept as JSON with machine and commit, so that a later call makes only those that are missing."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.papers.specs import Spec

Run = dict[str, Any]
RUNS = common.RESULTS / "papers.json"
QUICK = common.RESULTS / "quick.json"


class Kept:
    """A file of runs by their keys."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.runs: dict[str, Run] = {}
        if path.exists():
            try:
                self.runs = dict(json.loads(path.read_text(encoding="utf-8"))["runs"])
            except (ValueError, KeyError, TypeError) as error:
                raise SystemExit(
                    f"{path} does not hold runs of this program: name another file, or remove it"
                ) from error

    def missing(self, specs: Iterable[Spec]) -> list[Spec]:
        """Those that were not made, or failed."""
        return [spec for spec in dict.fromkeys(specs) if "metrics" not in self.runs.get(spec.key, {})]

    def make(self, specs: Iterable[Spec], data: Path, *, stop_at: float | None = None, again: bool = False) -> None:
        """Make the runs that are missing, one after the other, each in a process of its own.

        Args:
            specs: the runs.
            data: folder of the sets.
            stop_at: no run is begun after this time (`time.monotonic`).
            again: make those too that were made before.
        """
        wanted = list(dict.fromkeys(specs)) if again else self.missing(specs)
        for number, spec in enumerate(wanted, 1):
            if stop_at is not None and time.monotonic() > stop_at:
                print(f"out of time: {len(wanted) - number + 1} runs are left for another call", file=sys.stderr)
                return
            print(f"run {number} of {len(wanted)}: {spec.key}", end="", file=sys.stderr, flush=True)
            run = _made(spec, data)
            print(f": {_said(run)}", file=sys.stderr, flush=True)
            # A run that fails now is no reason to lose the one that did not.
            if "metrics" in run or self.missing([spec]):
                self.put(spec.key, run)

    def put(self, key: str, run: Run) -> None:
        """Keep a run; those that another process kept meanwhile stay."""
        if self.path.exists():
            self.runs = dict(json.loads(self.path.read_text(encoding="utf-8"))["runs"])
        self.runs[key] = run
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_name(self.path.name + ".part")
        lines = ",\n".join(
            f"{json.dumps(name)}: {json.dumps(one, allow_nan=False)}" for name, one in sorted(self.runs.items())
        )
        part.write_text('{"runs": {\n' + lines + "\n}}\n", encoding="utf-8")
        part.replace(self.path)


def _made(spec: Spec, data: Path) -> Run:
    about = {"commit": commit(), "machine": common.machine(), "date": time.strftime("%Y-%m-%d")}
    words = [sys.executable, "-m", "benchmarks.papers.worker", str(data)]
    started = time.monotonic()
    try:
        done = subprocess.run(
            words, input=json.dumps(spec), capture_output=True, text=True, timeout=spec.limit, cwd=common.ROOT
        )
    except subprocess.TimeoutExpired:
        return about | {"error": f"given up after {spec.limit} s"}
    except KeyboardInterrupt as error:
        raise SystemExit("\ninterrupted; the runs made before are kept") from error
    if done.returncode:
        return about | {"error": (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]}
    return about | {"wall_seconds": round(time.monotonic() - started, 1)} | json.loads(done.stdout.splitlines()[-1])


def _said(run: Run) -> str:
    if "error" in run:
        return str(run["error"])
    first = [name for name in ("P@1", "error", "s/epoch") if name in run["metrics"]][:1]
    return ", ".join([*(f"{name} {run['metrics'][name]:.2f}" for name in first), f"{run['wall_seconds']} s"])


def commit() -> str:
    """The commit that is checked out, with + where what is run differs from it: kept runs do not count."""
    head = _git("rev-parse", "--short", "HEAD")
    changed = _git("status", "--porcelain", "--", "src", "benchmarks", ":!benchmarks/results")
    return f"{head}{'+' if changed else ''}" if head else "unknown"


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(common.ROOT), *words], capture_output=True, text=True)
    return done.stdout.strip()
