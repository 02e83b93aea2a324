"""Whether what was measured is what a paper reports."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

from benchmarks import common
from benchmarks.papers.facts import Entry
from benchmarks.papers.plans import HERE, PLANS, TIMES, Check, Row

Runs = Mapping[str, Mapping[str, Any]]

LOWER_IS_BETTER = frozenset(
    (
        "error",
        "nlpd",
        "nll_unstruct",
        "nll_struct",
        "seconds",
        "hours",
        "minutes",
        "s/epoch",
        "min/epoch",
        "memory GB",
        "ece",
    )
)
HIGHER_IS_BETTER = frozenset(
    (
        *(f"{family}@{k}" for family in ("P", "PSP", "nDCG", "PSnDCG") for k in common.KS),
        "accuracy",
        "coverage",
        "F1",
        "ELBO",
    )
)
COUNTS = frozenset(("parameters (millions)",))
"""Neither: they are equal or they are not."""
POINTS = 0.5
"""Of percentages: as much counts as no difference."""
SHARE = 0.02
"""Of likelihoods and bounds: likewise."""

REPRODUCED, EXCEEDED, DIFFERS, PARTLY = "reproduced", "exceeded", "differs", "partly run"
NOT_RUN, NO_DATA, NO_EXPERIMENT, CANNOT = "not run", "no data", "no experiment", "left out"
MEASURED, CUT_SHORT = "measured", "cut short"


class Cell(NamedTuple):
    """A number of a paper beside ours.

    Attributes:
        mean: over the runs, `deviation` the standard deviation over them.
        ahead: 1 if ours is better by more than the tolerance, -1 if worse, 0 if neither.
        note: how the runs differ from the paper's.
    """

    data: str
    method: str
    metric: str
    paper: float
    mean: float
    deviation: float
    n_runs: int
    ahead: int
    note: str


class Found(NamedTuple):
    """A check and what came of it: the means in its order, and whether they are as the paper says."""

    check: Check
    means: tuple[float, ...]
    holds: bool


class Verdict(NamedTuple):
    """What is said of a table or figure."""

    word: str
    why: str
    cells: tuple[Cell, ...]
    checks: tuple[Found, ...]
    n_made: int
    n_runs: int


def judged(entry: Entry, runs: Runs) -> Verdict:
    """The verdict of a table or figure by the runs that were made.

    "exceeded": no number of ours is worse than the paper's by more than the tolerance, most are better, findings hold;
    "reproduced": none is worse, or there are no numbers, and its findings hold; "differs": something does not;
    "cut short": what does not rests on runs that a time budget ended.
    """
    if (plan := PLANS.get(entry.number)) is None:
        return Verdict(*_no_plan(entry), (), (), 0, 0)
    specs = plan.specs
    made = sum("metrics" in runs.get(spec.key, {}) for spec in specs)
    rows = {(row.data, row.method): row for row in plan.rows}
    compared = {(row.data, row.against or row.method): row for row in plan.rows}
    cells = tuple(
        cell
        for value in entry.values
        if value.method not in plan.uncompared
        and (row := compared.get(value[:2]))
        and (cell := _cell(row, value.metric, value.value, runs)) is not None
    )
    checks = tuple(found for check in plan.checks if (found := _checked(check, rows, runs)) is not None)
    odd = [[rows[cell.data, cell.method]] for cell in cells if cell.ahead < 0]
    odd += [[rows[check.data, method] for method in check.order] for check, _, holds in checks if not holds]
    if made == 0:
        word = NOT_RUN
    elif odd:
        cut = [any(spec.has_budget for row in of_one for spec in row.specs) for of_one in odd]
        word = CUT_SHORT if all(cut) else DIFFERS
    elif made < len(specs):
        word = PARTLY
    elif not cells and not checks:
        word = MEASURED
    elif cells and 2 * sum(cell.ahead > 0 for cell in cells) > len(cells):
        word = EXCEEDED
    else:
        word = REPRODUCED
    return Verdict(word, plan.why, cells, checks, made, len(specs))


def _no_plan(entry: Entry) -> tuple[str, str]:
    if entry.illustration:
        return NO_EXPERIMENT, "nothing is measured in it"
    if not HERE & set(entry.data):
        return NO_DATA, f"its data ({', '.join(entry.data)}) are not to be had here"
    return CANNOT, LEFT_OUT.get(entry.number, "")


LEFT_OUT = {
    "T3.3": "a lengthscale and a variance for each method, which depend on scaling that is not stated",
    "T-fig3.7": "pictures, as in the thesis: `python -m benchmarks run multiclass_methods --only f3.7`",
    "T-fig3.8": "pictures: `python -m benchmarks run multiclass_methods --only f3.8`",
    "T-fig3.9": "pictures: `python -m benchmarks run multiclass_methods --only f3.9`",
    "T-fig4.25": "pictures like T-fig3.7, of another model",
    "T-fig4.21": "a picture of learnt weights; `extremegp info MODEL` tells those of a model",
    "D-fig5.1": "that training fails at one learning rate is of the thesis' program",
    "D-fig5.2": "that training succeeds with frequencies drawn once is of the thesis' program",
    "D-fig5.3": "that training succeeds at a lower learning rate is of the thesis' program",
    "D-fig5.5": "2000 random features in place of 1000, which the thesis finds no better",
    "D-figA.2": "the course of a quantity of the thesis' program, without a finding",
    "D-figA.3": "the course of a quantity of the thesis' program, without a finding",
    "D-figA.4": "the course of a quantity of the thesis' program, without a finding",
}
"""Why nothing is run for a table or figure whose data are here."""


def values_of(row: Row, metric: str, runs: Runs) -> list[float]:
    """A metric of the runs of a row that were made."""
    scale = 60.0 if metric == "minutes" else 1.0
    name = "seconds" if metric == "minutes" else f"{row.prefix}{metric}"
    return [
        float(found["metrics"][name]) / scale
        for spec in row.specs_of(metric)
        if name in (found := runs.get(spec.key, {})).get("metrics", {})
    ]


def _cell(row: Row, metric: str, paper: float, runs: Runs) -> Cell | None:
    if metric not in LOWER_IS_BETTER | HIGHER_IS_BETTER | COUNTS or metric == "ELBO":
        return None
    if not (values := values_of(row, metric, runs)) or len(values) < len(row.specs_of(metric)):
        return None
    mean, deviation = statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0
    gain = (paper - mean) if metric in LOWER_IS_BETTER else (mean - paper)
    least = max(tolerance(metric, paper), deviation / len(values) ** 0.5)
    ahead = int(gain > least) - int(gain < -least)
    if metric in COUNTS:
        ahead = -abs(ahead)
    return Cell(row.data, row.method, metric, paper, mean, deviation, len(values), ahead, row.note)


def tolerance(metric: str, value: float) -> float:
    """A difference in a metric that counts as none."""
    if metric in TIMES:
        return 0.1 * abs(value)
    if metric in ("nlpd", "nll_unstruct", "nll_struct", "ELBO"):
        return SHARE * abs(value)
    if metric in COUNTS:
        # Printed with one digit after the point.
        return 0.05
    return 0.002 if metric == "ece" else POINTS


def _checked(check: Check, rows: Mapping[tuple[str, str], Row], runs: Runs) -> Found | None:
    means = []
    for method in check.order:
        row = rows[check.data, method]
        if len(values := values_of(row, check.metric, runs)) < len(row.specs_of(check.metric)):
            return None
        means.append(statistics.fmean(values))
    sign = -1.0 if check.metric in LOWER_IS_BETTER else 1.0
    steps = [sign * (after - before) for before, after in itertools.pairwise(means)]
    least = tolerance(check.metric, means[0])
    kept = all(step >= -least for step in steps)
    holds = kept and (check.level or sum(steps) > (0.0 if len(means) == 2 and check.metric != "P@1" else least))
    return Found(check, tuple(means), holds)


def tell(entry: Entry, verdict: Verdict) -> None:
    """Print a verdict and what it rests on."""
    print(f"\n{entry.number}: {verdict.word} ({verdict.n_made} of {verdict.n_runs} runs). {entry.what}")
    for cell in verdict.cells:
        mark = {1: "better", 0: "level", -1: "worse"}[cell.ahead]
        print(f"  {cell.data:14} {cell.method:22} {cell.metric:12} {cell.mean:9.4g}  paper {cell.paper:9.4g}  {mark}")
    for found in verdict.checks:
        values = " -> ".join(f"{name} {mean:.4g}" for name, mean in zip(found.check.order, found.means, strict=True))
        print(f"  {found.check.data:14} {found.check.metric}: {values}: {'holds' if found.holds else 'does not hold'}")
    if verdict.why:
        print(f"  {verdict.why}")
