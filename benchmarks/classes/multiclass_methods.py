"""Pictures of the papers' methods for classes: bounds by epoch, what inducing inputs become, and reliability.

Parts, by the names of --only: f3.4 (f3.5, f3.6): the bound by epoch; f3.7 (f3.8, f3.9): inducing inputs before and
after; reliability: diagrams of every set. `python -m benchmarks run T3.2 X1` makes the tables.

Every run has a process of its own. Runs are kept in DIR/runs.json (or --json), and a later call makes only those that
are missing there (remove it after changing the code).
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
RELIABLE = (DEFAULT, "OVSE-F", "RM-F", "OVE", "ARSOFT-AMO", "GP-HL", "MLGPF")
"""The methods of the reliability diagrams, as many as there are colours."""
PARTS = (*PAIRS, *(images for images, _ in PAIRS.values()), "reliability")


class Study(NamedTuple):
    """Runs by the names of their lines in a table or a picture, and what shows them."""

    jobs: dict[str, Job]
    show: Callable[[dict[str, Record]], None]


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--only", type=common.names, default=",".join(PARTS), metavar="NAME,NAME", help="parts")
    options.add_argument("--sets", type=common.names, default="mnist,fashion-mnist,bibtex,delicious", metavar="NAME")
    options.add_argument("--methods", type=common.names, default=",".join(METHODS), metavar="NAME,NAME")
    options.add_argument("--images", default="mnist", metavar="NAME", help="the set of f3.4 to f3.9")
    options.add_argument("--epochs", type=int, metavar="N", help="by default as the estimator chooses")
    options.add_argument("--pair-epochs", type=int, metavar="N", help="of methods by class pairs; by default --epochs")
    options.add_argument("--time-budget", type=float, metavar="S", help="seconds to plan every run's training for")
    options.add_argument("--seed", type=int, default=0)
    default = common.RESULTS / "multiclass_methods"
    options.add_argument("--out", type=Path, default=default, metavar="DIR", help="folder for pictures and runs.json")
    args = common.parse(options)
    for what, given, known in (("parts", args.only, PARTS), ("methods", args.methods, METHODS)):
        if unknown := set(given) - set(known):
            options.error(f"unknown {what} {', '.join(sorted(unknown))}; known are {', '.join(known)}")
    runs = class_worker.Runs(args.json or args.out / "runs.json", args.data)
    args.out.mkdir(parents=True, exist_ok=True)
    for study in studies(args):
        study.show({name: record for name, record in runs.make(study.jobs).items() if "error" not in record})
    runs.finish(args)


def studies(args: Any) -> Iterable[Study]:
    """What was asked for, in the order of `PARTS`."""
    pictures = Pictures(args.out)
    for bounds, (images, pair) in PAIRS.items():
        if bounds in args.only:
            yield bound_curves(args, pictures, bounds, pair)
        if images in args.only:
            yield inducing_images(args, pictures, images, pair)
    if "reliability" in args.only:
        for name in args.sets:
            yield reliability(args, pictures, name)


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
