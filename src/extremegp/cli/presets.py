"""List the papers' methods that `train --preset` knows.

A preset is a set of parameters, which `--set` can change one by one. The
figures are those of the papers, where they have any: P@1/P@3/P@5 on Bibtex
with n_inducing=100, n_latent=159, epochs=50 for many labels per row, and
errors in percent for one class per row and for the tokens of sequences.

\b
Examples:
  extremegp train train.txt --out model --preset SE --set n_inducing=100
  extremegp train images.npy --labels classes.npy --out model --preset RM-F
  extremegp train tagged.txt --out tagger --preset SDGP1
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from extremegp.cli import options
from extremegp.cli.console import Report
from extremegp.cli.tasks import TASKS
from extremegp.presets import (
    CLASS_PRESETS,
    INDUCING,
    KERNELS,
    POSTERIORS,
    PRESETS,
    SEQUENCE_PARTS,
    SEQUENCE_PRESETS,
    ClassFigures,
    PaperFigures,
    Preset,
    SequenceFigures,
)


def presets(json: options.Json = None, quiet: options.Quiet = False) -> None:
    """Show the presets of all tasks."""
    report = Report(json, quiet)
    report.lines("Many labels per row: a kernel, perhaps with parts after it, such as ARD, ARD-S-B or SE-FX-PP:", "")
    for parts in (KERNELS, INDUCING, POSTERIORS):
        report.lines(*(f"  {name:18}{what.removeprefix(', ')}" for name, (*_, what) in parts.items() if name), "")
    report.table(
        "what the thesis reports for them on Bibtex",
        ("name", "P@1/P@3/P@5", "where"),
        [
            (name, "/".join(f"{value:.2f}" for value in preset.figures.precision), preset.figures.table)
            for name, preset in PRESETS.items()
            if preset.figures
        ],
    )
    _show(report, "One class per row:", CLASS_PRESETS)
    title = "A label for every token of sequences, perhaps with parts after it, such as SDGP1-RBF or SDGP2-3-PF-PL:"
    of_parts = {name: what for parts_ in SEQUENCE_PARTS for name, what in parts_.items() if name}
    plain = {name: preset for name, preset in SEQUENCE_PRESETS.items() if not name.endswith(tuple(of_parts))}
    _show(report, title, plain)
    report.lines(*(f"  {name:18}{what}" for name, what in of_parts.items()), "")
    report.result(
        {
            name: {
                "task": task.name,
                "settings": dict(preset.settings),
                "source": preset.source,
                "description": preset.description,
                "paper": _paper(preset.figures),
            }
            for task in TASKS.values()
            for name, preset in task.presets.items()
        }
    )


def _show(report: Report, title: str, presets: Mapping[str, Preset[Any]]) -> None:
    """Presets by name, and the errors that papers report for them."""
    report.lines(title, "")
    report.lines(*(f"  {name:18}{preset.description}" for name, preset in presets.items()), "")
    datasets = dict.fromkeys(data for preset in presets.values() if preset.figures for data in preset.figures.errors)
    report.table(
        "what the papers report for them: errors in percent",
        ("name", *datasets, "where"),
        [
            (name, *(_error(preset.figures.errors.get(data)) for data in datasets), preset.figures.table)
            for name, preset in presets.items()
            if preset.figures
        ],
    )


def _paper(figures: PaperFigures | ClassFigures | SequenceFigures | None) -> dict[str, Any] | None:
    """What a paper reports, for the JSON."""
    if isinstance(figures, PaperFigures):
        precisions = dict(zip(("P@1", "P@3", "P@5"), figures.precision, strict=True))
        return {"table": figures.table, "dataset": "bibtex", **precisions}
    return figures and figures._asdict()


def _error(error: float | None) -> str:
    return "" if error is None else f"{error:.4g}"
