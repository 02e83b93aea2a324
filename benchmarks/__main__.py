"""Every measurement of the library, as one program.

python -m benchmarks list                  the papers' tables and figures by number, and the studies
python -m benchmarks run T4.5 X1           make the runs of tables and figures that are missing, and judge them
python -m benchmarks run --all --hours 2   those of all, in pieces
python -m benchmarks run --quick           in an hour: a part of every kind, beside what is kept
python -m benchmarks run peers --set bibtex    a study, with options of its own (--help)
python -m benchmarks report                write docs/papers.md and the tables of the README from what is kept
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from pathlib import Path

from benchmarks import common

ROOMS = ("labels", "classes", "sequences", "speed", "answers")
HEADLINES = "headlines"
HELPERS = ("peer_worker", "class_data", "class_worker", "gpytorch_peer", "sequence_data")


def studies() -> dict[str, str]:
    """The modules of studies by their names."""
    found = {}
    for room in ROOMS:
        for path in sorted(Path(__file__).with_name(room).glob("*.py")):
            if path.stem != "__init__" and path.stem not in HELPERS:
                found[path.stem] = f"benchmarks.{room}.{path.stem}"
    return found


def main() -> None:
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(common.ROOT), os.environ.get("PYTHONPATH"))))
    words = sys.argv[1:]
    if words[:1] == ["run"] and words[1:] and words[1] in studies():
        sys.argv = [f"python -m benchmarks run {words[1]}", *words[2:]]
        importlib.import_module(studies()[words[1]]).main()
        return
    options = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = options.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="what there is")
    report = commands.add_parser("report", help="write the page of the papers and the tables of the README")
    report.add_argument(
        "--check", action="store_true", help="write nothing; fail if a page is not as it would be written"
    )
    run = commands.add_parser("run", help="make runs")
    run.add_argument("names", nargs="*", metavar="NUMBER", help="of tables and figures, such as T4.5")
    run.add_argument("--all", action="store_true", help="all tables and figures")
    run.add_argument("--quick", action="store_true", help="an hour's part of every kind of method, made afresh")
    run.add_argument("--again", action="store_true", help="make runs too that were made before")
    run.add_argument("--hours", type=float, metavar="H", help="begin no run after so long")
    run.add_argument("--data", type=Path, default=common.ROOT.parent / "shared" / "data", metavar="DIR")
    args = options.parse_args(words)
    if args.command == "run" and not (args.names or args.all or args.quick):
        options.error("name tables and figures, or a study; see python -m benchmarks list")
    {"list": _list, "run": _run, "report": _report}[args.command](args)


def _list(_: argparse.Namespace) -> None:
    from benchmarks.papers.facts import entries
    from benchmarks.papers.kept import RUNS, Kept
    from benchmarks.papers.verdicts import judged

    kept = Kept(RUNS)
    for number, entry in entries().items():
        verdict = judged(entry, kept.runs)
        print(f"{number:10} {verdict.word:14} {verdict.n_made:3}/{verdict.n_runs:<3} runs  {entry.what[:90]}")
    print("\nStudies, with options of their own (python -m benchmarks run NAME --help):\n")
    for name, module in studies().items():
        path = common.ROOT / f"{module.replace('.', '/')}.py"
        print(f"  {name:20} {path.read_text(encoding='utf-8').split(chr(10), 1)[0].strip(chr(34)).strip()}")


def _run(args: argparse.Namespace) -> None:
    from benchmarks.papers import headlines, quick
    from benchmarks.papers.facts import entries
    from benchmarks.papers.kept import RUNS, Kept
    from benchmarks.papers.plans import PLANS
    from benchmarks.papers.verdicts import judged, tell

    stop_at = None if args.hours is None else time.monotonic() + 3600 * args.hours
    if args.quick:
        quick.run(args.data, stop_at)
        return
    numbers = list(PLANS) if args.all else [name for name in args.names if name != HEADLINES]
    if unknown := [number for number in numbers if number not in entries()]:
        raise SystemExit(f"no table, figure or study {', '.join(unknown)}: see python -m benchmarks list")
    kept = Kept(RUNS)
    specs = [spec for number in numbers if number in PLANS for spec in PLANS[number].specs]
    if args.all or HEADLINES in args.names:
        specs = [*headlines.specs(), *specs]
    kept.make(specs, args.data, stop_at=stop_at, again=args.again)
    for number in numbers:
        tell(entries()[number], judged(entries()[number], kept.runs))


def _report(args: argparse.Namespace) -> None:
    from benchmarks.papers import page

    page.write(check=args.check)


if __name__ == "__main__":
    main()
