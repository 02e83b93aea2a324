"""A part of every kind of method, made afresh in an hour, beside what is kept: does a second machine find the same?"""

from __future__ import annotations

from pathlib import Path

from benchmarks import common
from benchmarks.papers.headlines import ROWS
from benchmarks.papers.kept import QUICK, RUNS, Kept
from benchmarks.papers.plans import PLANS, TIMES
from benchmarks.papers.specs import Spec
from benchmarks.papers.verdicts import HIGHER_IS_BETTER, LOWER_IS_BETTER, tolerance

CHOSEN: dict[str, tuple[str, ...]] = {
    "T4.5": ("LINEAR", "ARD", "ours: ARD-SB"),
    "S2": ("LINEAR", "s-SE"),
    "T4.15": ("LINEAR-PP-AG, q(u*)",),
    "T-fig3.2": ("OVSE-P", "OVSE-LIN"),
    "X1": ("OVE-SGD", "ARSOFT-AMO", "ARLOGIT-AMO", "GP-HL"),
    "D5.7": ("MLR", "ours: LOGREG"),
    "D5.6": ("CRF", "GP-Var", "ours: default"),
    "D5.9": ("SDGP1",),
    "D5.8": ("DGP",),
}
"""Methods by the table or figure that they are of."""
SETS = ("bibtex", "bibtex-first", "rings", "segmentation")
FOLDS = 1


def chosen() -> tuple[Spec, ...]:
    """The runs: of the smallest sets, of sequences the first folds, and the default on Bibtex."""
    specs = [
        spec
        for number, methods in CHOSEN.items()
        for row in PLANS[number].rows
        if row.method in methods and row.data in SETS
        for spec in row.specs[:FOLDS]
    ]
    specs += ROWS["labels"][1][1].cells[0][0][:1]
    return tuple(dict.fromkeys(specs))


def run(data: Path, stop_at: float | None) -> None:
    """Make the runs anew, print them beside the kept ones, and fail where one differs by more than it may.

    Args:
        data: folder of the sets.
        stop_at: no run is begun after this time.
    """
    QUICK.unlink(missing_ok=True)
    fresh, kept = Kept(QUICK), Kept(RUNS)
    specs = chosen()
    fresh.make(specs, data, stop_at=stop_at)
    rows, wrong = [], []
    for spec in specs:
        new, old = (runs.runs.get(spec.key, {}).get("metrics", {}) for runs in (fresh, kept))
        if not new or not old:
            rows.append([spec.key, "not made" if not new else "not kept", "", "", ""])
            wrong += [spec.key] * (not new)
            continue
        for name in sorted((HIGHER_IS_BETTER | LOWER_IS_BETTER) - TIMES):
            if name not in new or name not in old:
                continue
            # How far a time budget gets is up to the machine.
            factor = 6 if spec.has_budget else 2
            agrees = abs(new[name] - old[name]) <= factor * tolerance(name, old[name])
            rows.append([spec.key, name, f"{new[name]:.4g}", f"{old[name]:.4g}", "agrees" if agrees else "DIFFERS"])
            wrong += [f"{spec.key} {name}"] * (not agrees)
    common.table("Runs made now, and those that are kept", ("run", "metric", "now", "kept", ""), rows)
    if wrong:
        raise SystemExit("not as kept: " + "; ".join(wrong))
