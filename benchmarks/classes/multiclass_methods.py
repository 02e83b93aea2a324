"""The papers' methods for classes by the names of their presets, and the default, beside the papers' figures.

Parts, by the names of --only:

- methods: every method on every set (T Table 3.2, X Table 1), by the preset's settings and the estimator's defaults for
  all that these leave open. An epoch is as many steps as batches make up the rows, by class pairs too.
- times: seconds per epoch and memory of the thesis' methods at its sizes (T Table 3.2), on a part of the rows.
- f3.2: error by epoch on rings. f3.3: error against M. x1: accuracy against the share of classes sampled (X Fig. 1,
  left).
- f3.4 (f3.5, f3.6): the bound by epoch; f3.7 (f3.8, f3.9): inducing inputs before and after; reliability: diagrams of
  every set. These draw the runs of "methods".

Every run has a process of its own, for its peak memory, data included. Runs are kept in DIR/runs.json (or --json), and
a later call makes only those that are missing there (remove it after changing the code).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import common
from benchmarks.classes import class_data, class_worker
from benchmarks.classes.class_worker import Job, Record
from extremegp import plots
from extremegp.presets import CLASS_PRESETS

DEFAULT = "default"
METHODS = (DEFAULT, *CLASS_PRESETS)
PAIRS = {
    "f3.4": ("f3.7", ("OVSE-P", "OVSE-F")),
    "f3.5": ("f3.8", ("OVSE-P-SH", "OVSE-F-SH")),
    "f3.6": ("f3.9", ("RM-P", "RM-F")),
}
"""The thesis' pictures of bounds, those of inducing inputs, and the methods that they compare."""
OF_CLASS_SHARES = ("OVE-SGD", "ARSOFT-AMO", "ARSOFT-IL", "ARLOGIT-AMO", "ARLOGIT-IL")
RELIABLE = (DEFAULT, "OVSE-F", "RM-F", "OVE", "ARSOFT-AMO", "GP-HL", "MLGPF")
"""The methods of the reliability diagrams, as many as there are colours."""
PARTS = ("methods", "times", "f3.2", "f3.3", *PAIRS, *(images for images, _ in PAIRS.values()), "reliability", "x1")


class Study(NamedTuple):
    """Runs by the names of their lines in a table or a picture, and what shows them."""

    jobs: dict[str, Job]
    show: Callable[[dict[str, Record]], None]


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--only", type=common.names, default=",".join(PARTS), metavar="NAME,NAME", help="parts")
    options.add_argument("--sets", type=common.names, default="mnist,fashion-mnist,bibtex,delicious", metavar="NAME")
    options.add_argument("--methods", type=common.names, default=",".join(METHODS), metavar="NAME,NAME")
    options.add_argument("--images", default="mnist", metavar="NAME", help="the set of times, x1, f3.3 to f3.9")
    options.add_argument("--epochs", type=int, metavar="N", help="by default as the estimator chooses")
    options.add_argument("--pair-epochs", type=int, metavar="N", help="of methods by class pairs; by default --epochs")
    options.add_argument("--time-budget", type=float, metavar="S", help="seconds to plan every run's training for")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--rings", default="rings", metavar="NAME", help="the set of f3.2")
    options.add_argument("--rings-epochs", type=int, default=200, metavar="N")
    options.add_argument("--inducing-grid", type=common.integers, default="10,20,50,100,200,400", metavar="M,M")
    options.add_argument("--shares", type=common.integers, default="10,30,50,70,90", metavar="N,N", help="%%, of x1")
    options.add_argument(
        "--time-sizes", type=common.integers, default="1000,1000,12000", metavar="M,B,N", help="inducing, batch, rows"
    )
    default = common.RESULTS / "multiclass_methods"
    options.add_argument("--out", type=Path, default=default, metavar="DIR", help="folder for pictures and runs.json")
    args = common.parse(options)
    for what, given, known in (("parts", args.only, PARTS), ("methods", args.methods, METHODS)):
        if unknown := set(given) - set(known):
            options.error(f"unknown {what} {', '.join(sorted(unknown))}; known are {', '.join(known)}")
    if len(args.time_sizes) != 3:
        options.error("time-sizes are three")
    runs = class_worker.Runs(args.json or args.out / "runs.json", args.data)
    args.out.mkdir(parents=True, exist_ok=True)
    for study in studies(args):
        study.show({name: record for name, record in runs.make(study.jobs).items() if "error" not in record})
    runs.finish(args)


def studies(args: Any) -> Iterable[Study]:
    """What was asked for, in the order of `PARTS`."""
    pictures = Pictures(args.out)
    if "methods" in args.only:
        for name in args.sets:
            yield methods(args, name)
    if "times" in args.only:
        yield times(args)
    if "f3.2" in args.only:
        yield rings(args, pictures)
    if "f3.3" in args.only:
        yield inducing_sizes(args, pictures)
    for bounds, (images, pair) in PAIRS.items():
        if bounds in args.only:
            yield bound_curves(args, pictures, bounds, pair)
        if images in args.only:
            yield inducing_images(args, pictures, images, pair)
    if "reliability" in args.only:
        for name in args.sets:
            yield reliability(args, pictures, name)
    if "x1" in args.only:
        yield class_shares(args, pictures)


def run_of(args: Any, method: str, name: str, **changes: Any) -> Job:
    """A method's run on a set as "methods" makes it, with some parameters changed."""
    params = {} if method == DEFAULT else settings(method, name)
    by_pairs = params.get("class_sampling") == "pair" and args.pair_epochs is not None
    plan = {"epochs": args.pair_epochs if by_pairs else args.epochs, "time_budget": args.time_budget}
    params |= {key: value for key, value in plan.items() if value is not None} | changes
    return class_worker.job(name, params, seed=args.seed)


def settings(method: str, name: str) -> dict[str, Any]:
    """A method's preset and, on images, the papers' features step."""
    step = {"features": class_data.PIXELS[name]} if name in class_data.PIXELS else {}
    return dict(CLASS_PRESETS[method].settings) | step


def methods(args: Any, name: str) -> Study:
    def show(found: dict[str, Record]) -> None:
        lines = []
        for line, method in zip(jobs, args.methods, strict=True):
            record = found.get(line)
            figures = None if method == DEFAULT else CLASS_PRESETS[method].figures
            error = figures.errors.get(name) if figures else None
            nlpd = class_data.nlpd(method, name)
            papers = ("-" if error is None else f"{error:.2f}", "-" if nlpd is None else f"{nlpd:.4g}")
            if record is None:
                lines.append([method, "failed", *papers, *["-"] * 7])
                continue
            wrong, mine, *others = class_worker.cells([record])
            each = record["epoch_seconds"]
            costs = (
                f"{len(record['history'])}",
                "-" if each is None else f"{each:.3g}",
                f"{record['seconds']:.0f}",
                f"{record['peak_mib']:.0f}",
            )
            lines.append([method, wrong, papers[0], mine, papers[1], *others, *costs])
        described = class_data.describe(next(iter(found.values()))["split"]) if found else "every run failed"
        costs = ("epochs", "s/epoch", "train s", "peak MiB")
        error, nlpd, *others = class_worker.COLUMNS
        columns = ("method", error, "papers", nlpd, "thesis", *others, *costs)
        common.table(f"**{name}**, T Table 3.2 and X Table 1 ({described}; seed {args.seed})", columns, lines)

    jobs = {f"{method} on {name}": run_of(args, method, name) for method in args.methods}
    return Study(jobs, show)


def times(args: Any) -> Study:
    n_inducing, batch, n_rows = args.time_sizes

    def show(found: dict[str, Record]) -> None:
        lines = []
        for method, record in found.items():
            _, thesis, gigabytes = class_data.THESIS[method]
            # Batches make up the part of the rows and the whole alike.
            parts = -(-record["split"]["n_rows"] // batch) / -(-min(n_rows, record["split"]["n_rows"]) // batch)
            ours, memory = parts * record["epoch_seconds"], record["peak_mib"] / 1024
            theirs = ["-" if value is None else f"{value:g}" for value in (thesis, gigabytes)]
            ratio = "-" if thesis is None else f"{thesis / ours:.2f}"
            lines.append([method, f"{ours:.2f}", theirs[0], ratio, f"{memory:.2f}", theirs[1]])
        common.table(
            f"**T Table 3.2: time and memory** ({args.images}, M = {n_inducing}, B = {batch}), extrapolated from "
            f"epochs of {n_rows} rows; the thesis measured on a laptop of its day",
            ("method", "s/epoch", "thesis s/epoch", "thesis / ours", "peak GiB", "thesis GB"),
            lines,
        )

    sizes = {"n_inducing": n_inducing, "batch_size": batch, "epochs": 3}
    jobs = {}
    for method in class_data.THESIS:
        params = settings(method, args.images) | sizes
        jobs[method] = class_worker.job(args.images, params, seed=args.seed, n_rows=n_rows, score=False)
    return Study(jobs, show)


def rings(args: Any, pictures: Pictures) -> Study:
    def show(found: dict[str, Record]) -> None:
        curves = {
            method: (
                [epoch["epoch"] for epoch in record["history"]],
                [100 * (1 - epoch["validation_accuracy"]) for epoch in record["history"]],
            )
            for method, record in found.items()
        }
        described = class_data.describe(next(iter(found.values()))["split"]) if found else "every run failed"
        thesis = {figures.who.split()[0]: figures.error for figures in class_data.published("rings")}
        common.table(
            f"**T 3.8.2 and Figure 3.2: {args.rings}** ({described}; {args.rings_epochs} epochs, the thesis' 2000)",
            ("method", "error % at the end", "thesis", "after a tenth of the epochs"),
            [
                (method, f"{errors[-1]:.2f}", f"{thesis[method]}", f"{errors[len(errors) // 10]:.2f}")
                for method, (_, errors) in curves.items()
            ],
        )
        if curves:
            pictures.draw(
                "figure_3.2", lambda: plots.error_curve(curves, xlabel="epoch", ylabel="error on test rows (%)")
            )

    # M and the posterior are the presets'; the estimator chooses the batches.
    jobs = {
        method: class_worker.job(
            args.rings,
            settings(method, args.rings) | {"epochs": args.rings_epochs},
            seed=args.seed,
            follow=True,
            score=False,
        )
        for method in ("OVSE-P", "OVSE-LIN")
    }
    return Study(jobs, show)


def inducing_sizes(args: Any, pictures: Pictures) -> Study:
    method, reference = "OVSE-P", "OVSE-LIN"

    def show(found: dict[str, Record]) -> None:
        by_m = {m: 100 * found[name]["metrics"]["error"] for name, m in sizes.items() if name in found}
        linear = {reference: 100 * found[reference]["metrics"]["error"]} if reference in found else {}
        lines = [(str(m), f"{error:.2f}") for m, error in by_m.items()]
        lines += [(name, f"{error:.2f}") for name, error in linear.items()]
        common.table(f"**T Figure 3.3: {method} against M** ({args.images})", ("M", "error %"), lines)
        if by_m:
            curve = {method: (list(by_m), list(by_m.values()))}
            pictures.draw("figure_3.3", lambda: plots.error_curve(curve, ylabel="error (%)", reference=linear))

    sizes = {f"{method}, M = {m}": m for m in sorted(args.inducing_grid)}
    jobs = {name: run_of(args, method, args.images, n_inducing=m) for name, m in sizes.items()}
    return Study(jobs | {reference: run_of(args, reference, args.images)}, show)


def bound_curves(args: Any, pictures: Pictures, figure: str, pair: tuple[str, str]) -> Study:
    def show(found: dict[str, Record]) -> None:
        histories = {method: record["history"] for method, record in found.items()}
        if histories:
            pictures.draw(f"figure_{figure[1:]}b", lambda: plots.learning_curve(histories))

    return Study({method: run_of(args, method, args.images) for method in pair}, show)


def inducing_images(args: Any, pictures: Pictures, figure: str, pair: tuple[str, str]) -> Study:
    start = f"start of {pair[0]}"

    def show(found: dict[str, Record]) -> None:
        if start in found and len(found) > 1:
            after = {method: class_worker.inducing(found[method]) for method in pair if method in found}
            before = class_worker.inducing(found[start])
            pictures.draw(f"figure_{figure[1:]}", lambda: plots.inducing_images(before, after))

    # The same seed draws the same start, which inducing inputs that are not learnt keep; a step or so is enough.
    still = {"learn_inducing": False, "epochs": 1, "time_budget": 1e-3}
    jobs = {start: run_of(args, pair[0], args.images, **still) | {"score": False}}
    return Study(jobs | {method: run_of(args, method, args.images) for method in pair}, show)


def reliability(args: Any, pictures: Pictures, name: str) -> Study:
    def show(found: dict[str, Record]) -> None:
        diagrams = {method: class_worker.reliability(record) for method, record in found.items()}
        if diagrams:
            title = f"{name}: the predicted class"
            pictures.draw(f"reliability_{name}", lambda: plots.reliability_diagram(diagrams, title=title))

    return Study({method: run_of(args, method, name) for method in RELIABLE if method in args.methods}, show)


def class_shares(args: Any, pictures: Pictures) -> Study:
    def show(found: dict[str, Record]) -> None:
        curves = {
            method: {share: 100 * found[line]["metrics"]["error"] for share, line in by_share.items() if line in found}
            for method, by_share in lines.items()
        }
        common.table(
            f"**X Figure 1, left: accuracy % by the share of classes sampled** ({args.images})",
            ("method", *(f"{share} %" for share in shares)),
            [
                (method, *(f"{100 - errors[share]:.2f}" if share in errors else "-" for share in shares))
                for method, errors in curves.items()
            ],
        )
        drawn = {method: (list(errors), list(errors.values())) for method, errors in curves.items() if errors}
        if drawn:
            xlabel = "share of the classes sampled (%)"
            pictures.draw("x_figure_1", lambda: plots.error_curve(drawn, xlabel=xlabel, ylabel="error (%)"))

    shares = sorted(args.shares)
    lines = {method: {share: f"{method}, {share} %" for share in shares} for method in OF_CLASS_SHARES}
    jobs = {
        line: run_of(args, method, args.images, n_sampled_classes=share / 100)
        for method, by_share in lines.items()
        for share, line in by_share.items()
    }
    return Study(jobs, show)


class Pictures:
    """A folder of pictures, that stays empty without matplotlib."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.possible = folder, True

    def draw(self, name: str, picture: Callable[[], Any]) -> None:
        if not self.possible:
            return
        try:
            picture().savefig(self.folder / f"{name}.png", dpi=160)
        except ImportError as error:
            print(f"{error}: there are the tables only", file=sys.stderr)
            self.possible = False
            return
        print(f"{self.folder / name}.png", file=sys.stderr)
