"""docs/papers.md with a row for each table and figure of the papers, and the README's tables, from the kept runs."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable

from benchmarks import common
from benchmarks.papers import pictures
from benchmarks.papers.facts import PAPERS, Entry, entries
from benchmarks.papers.headlines import ROWS, Headline
from benchmarks.papers.kept import RUNS, Kept
from benchmarks.papers.verdicts import (
    CANNOT,
    CUT_SHORT,
    DIFFERS,
    EXCEEDED,
    MEASURED,
    NO_DATA,
    NO_EXPERIMENT,
    NOT_RUN,
    PARTLY,
    POINTS,
    REPRODUCED,
    SHARE,
    Cell,
    Runs,
    Verdict,
    judged,
)

PAGE = common.ROOT / "docs" / "papers.md"
README = common.ROOT / "README.md"
IMAGES = common.ROOT / "docs" / "images"
SHOWN_CELLS = 4
_WORDS = {
    EXCEEDED: "no number of ours is worse than the paper's by more than counts as no difference, most are better, and "
    "what the paper finds holds; where a method of ours stands in for the paper's, the row says so",
    REPRODUCED: "none is worse, or there are no numbers to compare, and what the paper finds holds",
    DIFFERS: "a number is worse or a finding does not hold: the row says which",
    CUT_SHORT: "a number is worse or a finding does not hold, by runs that a time budget ended long before the paper's",
    MEASURED: "run, but the text has no number or finding to compare with",
    PARTLY: "not all runs were made; of those that were nothing is worse",
    NOT_RUN: "it could be run and was not",
    CANNOT: "its data are here, and nothing was run: the row says why",
    NO_DATA: "its data are not to be had here",
    NO_EXPERIMENT: "a diagram, a table of sizes or of settings",
}


def write(*, check: bool = False) -> None:
    """Write the page, its pictures and the README's tables.

    Args:
        check: write nothing, and fail where a text is not as it would be written.
    """
    runs = Kept(RUNS).runs
    if not check:
        # The page shows those that there are.
        pictures.draw(IMAGES, runs)
    texts = {PAGE: page(runs), README: readme(README.read_text(encoding="utf-8"), runs)}
    for path, text in texts.items():
        if check and (not path.exists() or path.read_text(encoding="utf-8") != text):
            raise SystemExit(f"{path} is not what `python -m benchmarks report` writes")
        if not check:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path}")


def page(runs: Runs) -> str:
    """The text of docs/papers.md."""
    verdicts = {number: judged(entry, runs) for number, entry in entries().items()}
    counts = Counter(verdict.word for verdict in verdicts.values())
    lines = [
        "# The papers, table by table",
        "",
        f"Every table and figure of the five papers, {len(verdicts)} in all: what it shows, what was run for it, and "
        "whether the same was found. `python -m benchmarks list` names them, `python -m benchmarks run T4.5` makes the "
        "runs of one and prints every number beside the paper's, `python -m benchmarks report` writes this page from "
        "the runs that `benchmarks/results/papers.json` keeps, each with its settings, seed, commit and machine.",
        "",
        "Methods run under the papers' names as the papers have them: a covariance for each latent function, Adam. "
        "`-SB` is this library's shared basis with natural gradients, *default* what an estimator does without any "
        "setting; how that was chosen, [the protocol](benchmarks.md#protocol) tells.",
        "",
        "| verdict | number | meaning |",
        "|---|---:|---|",
        *(f"| {word} | {counts[word]} | {what} |" for word, what in _WORDS.items() if counts[word]),
        "",
        f"No difference are {POINTS} points of a percentage, {SHARE:.0%} of a likelihood or bound, 10 % of a time, or "
        "one standard error over seeds or folds if that is more. Times of the papers are of their servers and graphics "
        "cards, ours of one thread of two cores that did other work too.",
        "",
        *_pictures(),
    ]
    for paper, title in PAPERS.items():
        lines += [
            "",
            f"## {paper}: {title}",
            "",
            "| | what it shows | verdict | ours, and the paper's | why |",
            "|---|---|---|---|---|",
        ]
        lines += [_row(entry, verdicts[number]) for number, entry in entries().items() if entry.paper == paper]
    return "\n".join(lines) + "\n"


def _pictures() -> list[str]:
    found = []
    for name, about in pictures.PICTURES.items():
        if (IMAGES / f"{name}.png").exists():
            found += [f"![{about}](images/{name}.png)", ""]
    return found[:-1]


def _row(entry: Entry, verdict: Verdict) -> str:
    word = f"**{verdict.word}**" if verdict.word in (EXCEEDED, REPRODUCED, DIFFERS) else verdict.word
    why = "; ".join(filter(None, (verdict.why, _noted(entry))))
    return f"| {entry.number} | {_cell(entry.what)} | {word} | {_cell(_numbers(verdict))} | {_cell(why)} |"


def _noted(entry: Entry) -> str:
    garbled = ("OCR", "garbled", "misprint", "typo", "erratum", "contradict")
    return entry.note if any(word in entry.note for word in garbled) else ""


def _numbers(verdict: Verdict) -> str:
    if not verdict.cells and not verdict.checks:
        return ""
    parts = []
    if verdict.cells:
        counts = Counter(cell.ahead for cell in verdict.cells)
        parts.append(f"{counts[1]} of {len(verdict.cells)} numbers better, {counts[0]} level, {counts[-1]} worse")
        first = next(iter(verdict.cells)).metric
        shown = [cell for cell in verdict.cells if cell.ahead < 0 or cell.metric == first][:SHOWN_CELLS]
        parts += [
            f"{cell.data} {cell.method}{_aside(cell)} {cell.metric} {cell.mean:.4g}{_spread(cell)} ({cell.paper:g})"
            for cell in shown
        ]
    held = sum(found.holds for found in verdict.checks)
    if verdict.checks:
        parts.append(f"{held} of {len(verdict.checks)} findings hold")
    parts += [
        f"not {found.check.data} {found.check.metric}: "
        + " → ".join(f"{name} {mean:.4g}" for name, mean in zip(found.check.order, found.means, strict=True))
        for found in verdict.checks
        if not found.holds
    ]
    return "; ".join(parts)


def _aside(cell: Cell) -> str:
    return f" [{cell.note}]" if cell.note else ""


def _spread(cell: Cell) -> str:
    return f" ± {cell.deviation:.2g}" if cell.n_runs > 1 else ""


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").strip()


def readme(text: str, runs: Runs) -> str:
    """The README with its tables of results made anew."""
    for name, table in _tables(runs):
        marks = (f"<!-- table: {name}, begin -->", f"<!-- table: {name}, end -->")
        pattern = re.compile(f"{re.escape(marks[0])}.*?{re.escape(marks[1])}", re.DOTALL)
        if found := pattern.search(text):
            made = "\n".join((marks[0], *table, marks[1]))
            text = text[: found.start()] + made + text[found.end() :]
    return text


def _tables(runs: Runs) -> Iterable[tuple[str, list[str]]]:
    for name, (columns, rows) in ROWS.items():
        lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
        yield name, lines + [f"| {' | '.join(cells)} |" for row in rows if (cells := _headline(row, runs))]


def _headline(row: Headline, runs: Runs) -> list[str]:
    cells = [row.title]
    for specs, metrics, form in row.cells:
        made = [runs[spec.key]["metrics"] for spec in specs if "metrics" in runs.get(spec.key, {})]
        if len(made) < len(specs) or not made:
            return []
        if metrics == ("seconds",):
            # They depend on what else ran.
            ends = {format(end(run["seconds"] for run in made), form) for end in (min, max)}
            cells.append(" to ".join(sorted(ends, key=float)))
            continue
        means = [statistics.fmean(metrics_[name] for metrics_ in made) for name in metrics]
        shown = " / ".join(format(mean, form) for mean in means)
        if len(made) > 1 and row.deviations:
            spread = " / ".join(format(statistics.stdev(m[name] for m in made), form) for name in metrics)
            shown += f" ± {spread}"
        cells.append(shown)
    return [*cells, *row.papers]
