"""`extremegp convert`: a text file to a data set that may be larger than memory."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from extremegp.cli.app import say
from extremegp.cli.common import JsonOption, QuietOption, Report
from extremegp.cli.inputs import FormatName


def convert(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="Data with many labels per row.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write the data set to.")],
    format: Annotated[
        FormatName,
        typer.Option("--format", help="Format of DATA; 'auto' looks at the suffix and the first line."),
    ] = "auto",
    like: Annotated[
        Path | None,
        typer.Option(
            "--like",
            metavar="FOLDER",
            help="A converted data set whose features and labels DATA have: convert test data like training data.",
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a data set that is at OUT already.")] = False,
    json: JsonOption = None,
    quiet: QuietOption = False,
) -> None:
    """Convert data to a folder that train, evaluate and predict read without loading it into memory.

    Any size will do: memory is bounded. Progress is kept in the folder: after
    Ctrl-C, a crash or a power cut the same command goes on where the last one
    stopped. Of texts (jsonl) the words of at least two texts are counted, so
    that --features tfidf weighs them.

    \b
    Examples:
      extremegp convert train.txt.gz train
      extremegp convert test.txt.gz test --like train
      extremegp train train --out model
      extremegp evaluate model test
    """
    started, report = time.monotonic(), Report(json, quiet)
    from extremegp.data import convert as convert_file

    watch = _Bar(quiet)
    try:
        sizes = convert_file(data, out, format, like=like, overwrite=overwrite, watch=watch)
    except KeyboardInterrupt as interrupt:
        watch.close()
        say("interrupted; what is done is kept: the same command goes on")
        raise typer.Exit(130) from interrupt
    finally:
        watch.close()
    features = " --features tfidf" if sizes.vocabulary else ""
    report.lines(
        f"{out}: {sizes.n_rows} rows, {sizes.n_features} features, {sizes.n_labels} labels",
        f"Next: extremegp train {shlex.quote(str(out))} --out MODEL{features}",
    )
    report.result({"out": str(out), **sizes._asdict(), "seconds": time.monotonic() - started})


class _Bar:
    """A progress bar on a terminal, or a line every ten seconds elsewhere."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._bar: Any = None
        self._phase, self._first_read = "", 0
        self._start = self._last_line = time.monotonic()

    def resumed(self, rows: int) -> None:
        if not self._quiet:
            say(f"resuming after {rows} rows")

    def restarted(self, reason: str) -> None:
        say(reason)

    def reading(self, phase: str, rows: int, read: int, total: int) -> None:
        if self._quiet:
            return
        now = time.monotonic()
        if phase != self._phase:
            self._phase, self._first_read, self._start, self._last_line = phase, read, now, now
            self.close()
        if sys.stderr.isatty():
            self._show(phase, rows, read, total)
        elif now - self._last_line >= 10:
            self._last_line = now
            left = (now - self._start) / max(read - self._first_read, 1) * (total - read)
            say(f"{phase}: {rows} rows, {read / 2**20:.0f} of {total / 2**20:.0f} MiB, {left:.0f} s left")

    def _show(self, phase: str, rows: int, read: int, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        if self._bar is None:
            columns = (
                TextColumn(f"{phase}: {{task.fields[rows]}} rows"),
                BarColumn(),
                DownloadColumn(binary_units=True),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar.add_task(phase, total=total, rows=rows)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=read, rows=rows)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
