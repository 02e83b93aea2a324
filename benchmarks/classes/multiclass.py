"""Error, calibration, time and memory of `MultiClassGPClassifier` with its default settings, beside published figures.

Every run has a process of its own. Its time is that of `fit`, its memory the process's peak by the end of it, data
included. With --json FILE, a later call makes only the runs that are missing there (remove it after changing the code).
"""

from __future__ import annotations

from benchmarks import common
from benchmarks.classes import class_data, class_worker
from extremegp.cli.settings import parse_settings

COLUMNS = ("", *class_worker.COLUMNS, "train s", "peak MiB")


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument(
        "--sets", type=common.names, default="mnist,fashion-mnist,bibtex,delicious,rings", metavar="NAME,NAME"
    )
    options.add_argument("--seeds", type=common.integers, default="0,1,2", metavar="N,N")
    options.add_argument("--peers", type=common.names, default="", metavar="NAME", help="logistic: scikit-learn's")
    options.add_argument("--logistic-c", type=float, default=10.0, metavar="C", help="inverse regularisation")
    common.add_parameters(options, "MultiClassGPClassifier")
    args = common.parse(options)
    if unknown := set(args.peers) - {"logistic"}:
        options.error(f"unknown peers {', '.join(sorted(unknown))}; known is logistic")
    params = parse_settings(args.parameters, "MultiClassGPClassifier")
    runs = class_worker.Runs(args.json, args.data)
    for name in args.sets:
        ours = {f"extremegp on {name}, seed {seed}": class_worker.job(name, params, seed=seed) for seed in args.seeds}
        peers = {
            f"logistic regression on {name}": class_worker.job(name, {}, logistic=args.logistic_c) for _ in args.peers
        }
        found, compared = (
            [record for record in runs.make(jobs).values() if "error" not in record] for jobs in (ours, peers)
        )
        rows = [summary(who, records) for who, records in (("extremegp", found), ("logistic regression", compared))]
        rows += [published(figures) for figures in class_data.published(name)]
        described = class_data.describe((found + compared)[0]["split"]) if found + compared else "every run failed"
        common.table(
            f"**{name}**: {described}; mean ± sd over seeds {', '.join(map(str, args.seeds))}",
            COLUMNS,
            [row for row in rows if row],
        )
    runs.finish(args)


def summary(who: str, records: list[class_worker.Record]) -> list[str]:
    """A row of means over seeds; nothing without runs."""
    if not records:
        return []
    costs = (("seconds", 1), ("peak_mib", 0))
    means = (common.mean_sd([record[name] for record in records], digits) for name, digits in costs)
    return [who, *class_worker.cells(records), *means]


def published(figures: class_data.ClassPublished) -> list[str]:
    """A row of figures from elsewhere."""
    nlpd = "-" if figures.nlpd is None else f"{figures.nlpd}"
    return [figures.who, f"{figures.error:.2f}", nlpd, *["-"] * (len(COLUMNS) - 3)]
