"""The thesis' comparisons of multi-label methods on Bibtex: kernels, inducing inputs, posteriors, M, P, and time.

Every method runs by its preset's name, with P = 159 and M = 100 unless a figure varies them, and the thesis' mean
function of zero; batches, step sizes and start are the estimator's defaults, so a run equals
`MultiLabelGPClassifier(**settings, mean_function="zero", random_state=seed).fit`. Test rows are scored after epochs and
have no influence on training. Runs that several tables need are made once; they are kept in DIR/runs.json, and a later
call makes only those that are missing there (remove it after changing the code).

For the time per epoch, a few steps of every method are timed in turn, several rounds; the thesis' seconds are those of
its full posterior on a server of its day. Names of tables and figures: "t4.5", "f4.5", or "4.5" for both.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import common
import numpy as np
from method_studies import (
    THESIS_AUTOGRAD_SECONDS,
    THESIS_SECONDS,
    TOLERANCE,
    Study,
    Variant,
    all_studies,
)
from posteriors import StepClock, bound
from scipy.stats import spearmanr
from sklearn.utils import check_random_state

from extremegp import MultiLabelGPClassifier
from extremegp.engine.model import VariationalModel
from extremegp.engine.part import TrainingData
from extremegp.estimators.multilabel import _FIXED
from extremegp.metrics import TopK, precision_at_k
from extremegp.prediction.predictor import Predictor
from extremegp.presets import PRESETS
from extremegp.settings.model import ModelSettings
from extremegp.settings.resolve import model_settings, training_settings
from extremegp.training import NoReporter, TrainingInterrupted, TrainingSettings, train
from extremegp.training.loop import TrainingDivergedError


class Job(NamedTuple):
    """A run to make."""

    variant: Variant
    seed: int
    settings: ModelSettings
    training: TrainingSettings

    def identity(self, dataset: str) -> dict[str, Any]:
        """What decides the run's outcome; equal for variants that come to the same settings."""
        return {"set": dataset, "settings": asdict(self.settings), "training": asdict(self.training)}


class Scorer(NoReporter):
    """Follows a run: the bound of every epoch and, every few epochs, P@k of the test rows ranked by probability."""

    def __init__(self, model: VariationalModel, split: common.Split, *, every: int, epochs: int) -> None:
        self.model, self.split, self.every, self.epochs = model, split, every, epochs
        self.curve: list[dict[str, float]] = []
        self._seconds_scoring = 0.0

    def epoch(self, record: dict[str, float]) -> None:
        point = {key: record[key] for key in ("epoch", "elbo", "kl")}
        point["seconds"] = record["seconds"] - self._seconds_scoring
        started = time.monotonic()
        if record["epoch"] % self.every == 0 or record["epoch"] == self.epochs:
            blocks = [block for _, block in Predictor(self.model).probabilities(self.split.test_x)]
            best = TopK.concatenate([TopK.from_scores(block, max(common.KS)) for block in blocks])
            scores = precision_at_k(self.split.test_y, best, common.KS)
            point |= {f"P@{k}": float(score) for k, score in zip(common.KS, scores, strict=True)}
        self.curve.append(point)
        self._seconds_scoring += time.monotonic() - started


class Runs:
    """The runs made so far, kept in a file."""

    def __init__(self, path: Path, dataset: str) -> None:
        self.path, self.dataset = path, dataset
        try:
            stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"runs": []}
            self.records: list[dict[str, Any]] = stored["runs"]
            self.times: dict[str, Any] | None = stored.get("times")
        except (ValueError, KeyError, TypeError) as error:
            raise SystemExit(f"{path} does not hold runs of this benchmark: name another file, or remove it") from error

    def get(self, job: Job) -> dict[str, Any] | None:
        wanted = job.identity(self.dataset)
        return next((record for record in self.records if record["identity"] == wanted), None)

    def save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_name(self.path.name + ".part")
        part.write_text(json.dumps(self.content(), indent=2, allow_nan=False) + "\n", encoding="utf-8")
        part.replace(self.path)

    def content(self) -> dict[str, Any]:
        return {"runs": self.records, "times": self.times}


class Results:
    """Runs of the variants, one for each seed."""

    def __init__(self, jobs: Iterable[Job], runs: Runs) -> None:
        self._records: dict[Variant, list[dict[str, Any]]] = {}
        for job in jobs:
            record = runs.get(job)
            assert record is not None
            self._records.setdefault(job.variant, []).append(record)

    def of(self, variant: Variant) -> list[dict[str, Any]]:
        """The runs that did not diverge."""
        return [record for record in self._records[variant] if "error" not in record]

    def values(self, variant: Variant, metric: str) -> list[float]:
        return [record["final"][metric] for record in self.of(variant)]


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--set", dest="name", default="bibtex", metavar="NAME", help="the dataset")
    options.add_argument("--only", type=common.names, metavar="NAME,NAME", help="tables and figures; by default all")
    options.add_argument("--seeds", type=common.integers, default="0", metavar="N,N")
    options.add_argument("--epochs", type=int, default=50)
    options.add_argument("--score-every", type=int, default=1, metavar="N", help="epochs from one scoring to the next")
    options.add_argument(
        "--posterior",
        choices=("shared-basis", "full"),
        default="shared-basis",
        help="full also runs the papers' posterior (-FP) for t4.5, t4.6 and t4.10",
    )
    options.add_argument("--inducing-grid", type=common.integers, default="10,50,100,200,400,800", metavar="M,M")
    options.add_argument("--latent-grid", type=common.integers, default="10,20,40,80,159,200,500", metavar="P,P")
    options.add_argument(
        "--time-sizes", type=common.integers, default="159,500,500", metavar="P,M,B", help="latents, inducing, batch"
    )
    options.add_argument("--rounds", type=int, default=3, help="of the timed steps")
    options.add_argument("--steps", type=int, default=2, help="timed steps of a method in a round")
    default = Path(__file__).with_name("results") / "multilabel_methods"
    options.add_argument("--out", type=Path, default=default, metavar="DIR", help="folder for pictures and runs.json")
    args = common.parse(options)
    if min(args.epochs, args.score_every, args.rounds, args.steps) < 1 or len(args.time_sizes) != 3 or not args.seeds:
        options.error("epochs, score-every, rounds and steps are at least 1, time-sizes are three, seeds at least one")
    studies, timed = chosen(args, options.error)

    split = common.load_split(args.data, args.name)
    runs = Runs(args.json or args.out / "runs.json", args.name)
    jobs = [
        prepare(variant, seed, split, args.epochs)
        for variant in dict.fromkeys(variant for study in studies for variant in study.variants)
        for seed in args.seeds
    ]
    make(jobs, runs, split, args.score_every)
    results = Results(jobs, runs)
    for study in studies:
        report(study, results, args)
    if timed:
        times(args, split, runs)
    shape = [line for study in studies for line in shapes(study, results)]
    if shape:
        common.table(
            "**Shape**: rank correlation of P@1 with the thesis, and pairs in the other order than there, if their "
            f"differences here and there are more than {TOLERANCE} points apart",
            ("methods", "Spearman's ρ", "pairs in the other order (ours, thesis)"),
            shape,
        )
    draw(studies, timed, results, args, runs, n_rows=split.x.shape[0])
    common.finish(runs.path, runs.content(), args)


def chosen(args: Any, refuse: Callable[[str], NoReturn]) -> tuple[list[Study], bool]:
    """The studies asked for, and whether times are."""
    of_times = ("t4.8", "t4.10")
    studies = all_studies(sorted(args.inducing_grid), sorted(args.latent_grid), full=args.posterior == "full")
    known = {name for study in studies for name in study.names} | set(of_times)
    wanted = known if args.only is None else set()
    for name in args.only or ():
        found = {name.lower()} & known or {letter + name for letter in "tf"} & known
        if not found:
            refuse(f"unknown table or figure {name!r}; known are {', '.join(sorted(known))}")
        wanted |= found
    return [study for study in studies if wanted & set(study.names)], bool(wanted & set(of_times))


def prepare(variant: Variant, seed: int, split: common.Split, epochs: int, **changes: Any) -> Job:
    """The settings of a run, as the estimator resolves them."""
    params = MultiLabelGPClassifier(mean_function="zero").get_params() | dict(PRESETS[variant.method].settings)
    params |= {"n_latent": variant.n_latent, "n_inducing": variant.n_inducing, "epochs": epochs} | changes | _FIXED
    n_rows, n_features = split.x.shape
    settings = model_settings(params, n_rows=n_rows, n_features=n_features, n_labels=split.y.shape[1])
    drawn = int(check_random_state(seed).randint(2**31 - 1))
    return Job(variant, seed, settings, training_settings(params, model=settings, n_rows=n_rows, seed=drawn))


def start(job: Job, split: common.Split) -> VariationalModel:
    """A model before its first step."""
    model = job.settings.build()
    model.start(TrainingData(split.x, split.y, np.random.default_rng(job.training.seed)))
    return model


def make(jobs: list[Job], runs: Runs, split: common.Split, score_every: int) -> None:
    """Make the runs that are missing."""
    missing: list[Job] = []
    for job in jobs:
        known = (job.identity(runs.dataset) == other.identity(runs.dataset) for other in missing)
        if runs.get(job) is None and not any(known):
            missing.append(job)
    started = time.monotonic()
    for number, job in enumerate(missing, 1):
        print(f"run {number} of {len(missing)}: {job.variant}, seed {job.seed}", end="", file=sys.stderr, flush=True)
        try:
            record = run(job, split, score_every)
        except TrainingInterrupted as error:
            raise SystemExit(f"\ninterrupted; the runs made before are in {runs.path}") from error
        runs.records.append(
            {"variant": str(job.variant), "seed": job.seed, "identity": job.identity(runs.dataset)} | record
        )
        runs.save()
        what = record.get("error") or f"P@1 {100 * record['final']['P@1']:.2f} %, {record['seconds']:.1f} s"
        print(f": {what}; {time.monotonic() - started:.0f} s so far", file=sys.stderr, flush=True)


def run(job: Job, split: common.Split, score_every: int) -> dict[str, Any]:
    """Train, and say how it went."""
    model = start(job, split)
    scorer = Scorer(model, split, every=score_every, epochs=job.training.epochs)
    try:
        train(model, split.x, split.y, job.training, reporter=scorer)
    except TrainingDivergedError as error:
        return {"error": f"diverged: {error}"}
    last, (data, kl) = scorer.curve[-1], bound(model, split)
    final = {f"P@{k}": last[f"P@{k}"] for k in common.KS} | {"bound": data - kl, "data": data, "kl": kl}
    return {"seconds": last["seconds"], "final": final, "curve": scorer.curve, "machine": common.machine()}


def report(study: Study, results: Results, args: Any) -> None:
    """Print a study's runs, and whether they are as the thesis says."""
    rows = []
    for variant in study.variants:
        found, thesis = results.of(variant), variant.thesis
        numbers = ["diverged", "-", "-"]
        if found:
            precision = (common.mean_sd([100 * v for v in results.values(variant, f"P@{k}")]) for k in common.KS)
            seconds = common.mean_sd([record["seconds"] for record in found], 1)
            negative = common.mean_sd([-v for v in results.values(variant, "bound")], 0)
            numbers = [" / ".join(precision), seconds, negative]
        printed = " / ".join(f"{value:.2f}" for value in thesis) if thesis else "-"
        rows.append((str(variant), numbers[0], printed, *numbers[1:]))
    common.table(
        f"**{study.title}** ({args.name}, {args.epochs} epochs, seeds {', '.join(map(str, args.seeds))})",
        ("method", "P@1 / 3 / 5 %", "thesis", "training s", "-ELBO"),
        rows,
    )
    claims = []
    for claim in study.claims:
        values = [results.values(variant, claim.metric) for variant in claim.order]
        methods = dict.fromkeys(variant.method for variant in claim.order)
        order = " → ".join(methods) if len(methods) > 1 else "-"
        change, agrees = "diverged", False
        if all(values):
            steps, agrees = claim.judge([statistics.fmean(of_seeds) for of_seeds in values])
            unit = "points" if claim.metric == "P@1" else "% of the bound"
            change = ", ".join(f"{step:+.2f}" for step in steps) + f" {unit}"
        claims.append((claim.text, claim.where, order, change, "yes" if agrees else "no"))
    common.table(
        f"What the thesis says and whether it holds here; {TOLERANCE} points of P@1 or percent of the bound count as "
        "no difference",
        ("claim", "in T", "from → to", "change", "agrees"),
        claims,
    )


def shapes(study: Study, results: Results) -> list[tuple[str, str, str]]:
    """How the order of the methods compares with the thesis', for each posterior with several printed figures."""
    if study.names[0] not in ("t4.5", "t4.6", "t4.7"):
        return []
    lines = []
    for full in (False, True):
        printed = [v for v in study.variants if v.method.endswith("-FP") == full and v.thesis and results.of(v)]
        if len(printed) < 2:
            continue
        thesis = [variant.thesis[0] for variant in printed if variant.thesis]
        ours = [100 * statistics.fmean(results.values(variant, "P@1")) for variant in printed]
        swapped = []
        for i, j in itertools.combinations(range(len(printed)), 2):
            mine, theirs = ours[i] - ours[j], thesis[i] - thesis[j]
            if mine * theirs < 0 and abs(mine - theirs) > TOLERANCE:
                swapped.append(f"{printed[i].method} - {printed[j].method} ({mine:+.2f}, {theirs:+.2f})")
        rho = spearmanr(ours, thesis).statistic if len(set(ours)) > 1 else 0.0
        name = f"T Table {study.names[0][1:]}" + (", full posterior" if full else "")
        lines.append((name, f"{rho:.2f}", "; ".join(swapped) or "none"))
    return lines


def times(args: Any, split: common.Split, runs: Runs) -> None:
    """Time every method, or take the times of an earlier call with the same options, and print the table."""
    n_latent, n_inducing, batch = args.time_sizes
    batch = min(batch, split.x.shape[0] // 2)
    methods = list(THESIS_SECONDS)
    if args.posterior == "full":
        methods += [f"{method}-FP" for method in THESIS_SECONDS if not method.endswith("-PP")]
    options = {name: getattr(args, name) for name in ("name", "time_sizes", "rounds", "steps")} | {"methods": methods}
    if runs.times is None or runs.times["options"] != options:
        # Equal batches, so that every step is of the size asked for.
        rows = min(batch * (args.steps + 1), split.x.shape[0])
        n_steps = -(-split.x.shape[0] // batch)
        jobs = [
            prepare(Variant(name, n_latent, n_inducing), args.seeds[0], split, 1, batch_size=batch) for name in methods
        ]
        models = [start(job, split) for job in jobs]
        seconds: dict[str, list[float]] = {name: [] for name in methods}
        for round_number in range(args.rounds):
            for job, model in zip(jobs, models, strict=True):
                clock = StepClock()
                train(model, split.x[:rows], split.y[:rows], job.training, reporter=clock)
                seconds[job.variant.method] += clock.seconds
                model.zero_grad(set_to_none=True)
            print(f"times: round {round_number + 1} of {args.rounds}", file=sys.stderr, flush=True)
        runs.times = {
            "options": options,
            "step_seconds": seconds,
            "epoch_seconds": {name: n_steps * statistics.median(values) for name, values in seconds.items()},
            "machine": common.machine(),
        }
        runs.save()
    ours = runs.times["epoch_seconds"]
    lines = []
    for name in methods:
        thesis = THESIS_SECONDS[name.removesuffix("-FP")]
        ratios = (thesis / ours[name], ours[name] / ours["ARD"], thesis / THESIS_SECONDS["ARD"])
        lines.append((name, f"{ours[name]:.2f}", f"{thesis}", *(f"{ratio:.2f}" for ratio in ratios)))
    other = THESIS_AUTOGRAD_SECONDS
    lines.append(("ARD-PP-AG", "-", f"{other}", "-", "-", f"{other / THESIS_SECONDS['ARD']:.2f}"))
    common.table(
        f"**T Tables 4.8 and 4.10: seconds per epoch** ({args.name}, P = {n_latent}, M = {n_inducing}, B = {batch}), "
        f"extrapolated from the median of {args.rounds} x {args.steps} steps, in turn. ARD-PP-AG is the thesis' other "
        "implementation",
        ("method", "s/epoch", "thesis s/epoch", "thesis / ours", "ours / our ARD", "thesis / its ARD"),
        lines,
    )


def draw(studies: list[Study], timed: bool, results: Results, args: Any, runs: Runs, *, n_rows: int) -> None:
    """Draw the pictures, if matplotlib is there."""
    try:
        import method_pictures as pictures
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("matplotlib"):
            raise
        print("matplotlib is missing (pip install 'extremegp[plot]'): no pictures", file=sys.stderr)
        return
    args.out.mkdir(parents=True, exist_ok=True)

    def lines(variants: Iterable[Variant], label: str) -> list[pictures.Line]:
        return [
            pictures.Line(
                label.format(v=variant),
                [record["curve"] for record in results.of(variant)],
                [record["final"] for record in results.of(variant)],
                n_rows,
                thesis=variant.thesis[0] if variant.thesis else None,
            )
            for variant in variants
            if results.of(variant)
        ]

    for study in studies:
        if study.names[0] not in ("f4.7", "f4.9"):
            what = "table" if study.names[0].startswith("t") else "figure"
            path = args.out / f"{what}_{study.names[0][1:]}.png"
            if found := lines(study.variants, "{v.method}"):
                pictures.methods(path, found)
            continue
        by_m, part = (True, "a") if study.names[0] == "f4.7" else (False, "b")
        label, fixed = ("M = {v.n_inducing}", "n_latent") if by_m else ("P = {v.n_latent}", "n_inducing")
        groups = {
            f"{'P' if by_m else 'M'} = {value}": found
            for value in dict.fromkeys(getattr(variant, fixed) for variant in study.variants)
            if (found := lines((v for v in study.variants if getattr(v, fixed) == value), label))
        }
        named = (("P@1", study.names[0], "4.11"), ("bound", study.names[1], "4.12"))
        for metric, curves, bars in named if groups else ():
            pictures.grid_curves(args.out / f"figure_{curves[1:]}.png", metric, groups)
            pictures.grid_bars(args.out / f"figure_{bars}{part}.png", metric, groups)
    if timed and runs.times is not None:
        thesis = {name: THESIS_SECONDS[name.removesuffix("-FP")] for name in runs.times["epoch_seconds"]}
        pictures.seconds(args.out / "table_4.10.png", runs.times["epoch_seconds"], thesis)
    print(f"pictures are in {args.out}", file=sys.stderr)


if __name__ == "__main__":
    main()
