"""Pictures of the papers' figures, drawn from the kept runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.papers.plans import PLANS
from benchmarks.papers.verdicts import Runs, values_of
from extremegp import plots

PICTURES = {
    "papers-bounds": "The bound of six kernels on Bibtex against epochs",
    "papers-sizes": "P@1 on Bibtex against the number of inducing inputs, for 80 and 159 latent functions",
    "papers-shares": "Error on the first labels of Bibtex against the share of classes sampled at each step",
}
"""By name, and what each shows."""


def draw(folder: Path, runs: Runs) -> None:
    """Draw what there are runs for."""
    makers: dict[str, Callable[[Runs], Figure | None]] = {
        "papers-bounds": _bounds,
        "papers-sizes": _sizes,
        "papers-shares": _shares,
    }
    for name, maker in makers.items():
        if (drawn := maker(runs)) is not None:
            drawn.savefig(folder / f"{name}.png", dpi=110)
            print(f"wrote {folder / name}.png")


def _bounds(runs: Runs) -> Figure | None:
    histories = {}
    for row in PLANS["T-fig4.1"].rows:
        curve = runs.get(row.specs[0].key, {}).get("curve")
        if curve and "elbo" in curve:
            histories[row.method] = [
                {"epoch": epoch, "elbo": elbo} for epoch, elbo in zip(curve["epoch"], curve["elbo"], strict=True)
            ]
    return plots.learning_curve(histories) if histories else None


def _sizes(runs: Runs) -> Figure | None:
    curves = {}
    for latent in (80, 159):
        points = {}
        for row in PLANS["T-fig4.7"].rows:
            size, _, of_latent = row.method.partition(", P = ")
            if of_latent == str(latent) and (values := values_of(row, "P@1", runs)):
                points[int(size.removeprefix("M = "))] = 100 - values[0]
        if points:
            curves[f"P = {latent}"] = (list(points), list(points.values()))
    return plots.error_curve(curves, xlabel="inducing inputs", ylabel="100 - P@1 (%)") if curves else None


def _shares(runs: Runs) -> Figure | None:
    curves: dict[str, tuple[list[int], list[float]]] = {}
    for row in PLANS["X-fig1"].rows:
        name, _, share = row.method.partition(", ")
        if values := values_of(row, "error", runs):
            shares, errors = curves.setdefault(name, ([], []))
            shares.append(int(share.removesuffix(" %")))
            errors.append(values[0])
    xlabel = "share of the classes sampled (%)"
    return plots.error_curve(curves, xlabel=xlabel, ylabel="error (%)") if curves else None
