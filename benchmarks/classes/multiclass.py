"""Error, calibration, time and memory of `MultiClassGPClassifier` with its default settings, beside published figures.

Every run has a process of its own. Its time is that of `fit`, its memory the process's peak by the end of it, data
included. With --json FILE, a later call makes only the runs that are missing there (remove it after changing the code).
"""

from __future__ import annotations

from benchmarks import common
from benchmarks.classes import class_data, class_worker
from extremegp.cli.settings import parse_settings

WHO = {"logistic": "logistic regression", "gpytorch": "GPyTorch, sparse GP, softmax, M = 100"}
COLUMNS = ("", *class_worker.COLUMNS, "train s", "peak MiB")


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument(
        "--sets", type=common.names, default="mnist,fashion-mnist,bibtex,delicious,rings", metavar="NAME,NAME"
    )
    options.add_argument("--seeds", type=common.integers, default="0,1,2", metavar="N,N")
    options.add_argument("--peers", type=common.names, default="", metavar="NAME", help="logistic, gpytorch")
    options.add_argument("--gpytorch-epochs", type=int, default=20, metavar="N")
    options.add_argument("--logistic-c", type=float, default=10.0, metavar="C", help="inverse regularisation")
    common.add_parameters(options, "MultiClassGPClassifier")
    args = common.parse(options)
    of_peers = {"logistic": {"logistic": args.logistic_c}, "gpytorch": {"gpytorch": args.gpytorch_epochs}}
    if unknown := set(args.peers) - of_peers.keys():
        options.error(f"unknown peers {', '.join(sorted(unknown))}; known are {', '.join(of_peers)}")
    params = parse_settings(args.parameters, "MultiClassGPClassifier")
    runs = class_worker.Runs(args.json, args.data)
    for name in args.sets:
        ours = {f"extremegp on {name}, seed {seed}": class_worker.job(name, params, seed=seed) for seed in args.seeds}
        peers = {f"{peer} on {name}": class_worker.job(name, {}, **of_peers[peer]) for peer in args.peers}
        found = [record for record in runs.make(ours).values() if "error" not in record]
        made = {who: record for who, record in runs.make(peers).items() if "error" not in record}
        compared = list(made.values())
        rows = [summary("extremegp", found), *(summary(WHO[who.split()[0]], [one]) for who, one in made.items())]
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
