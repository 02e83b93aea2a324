"""Sequence labelling on the published five folds of Base NP, Chunking, Segmentation and Japanese NE (D section 5.3.1).

Methods are presets of `SequenceGPClassifier`, "default" for it without any, "logistic" for scikit-learn's multinomial
logistic regression and "crfsuite". With --json FILE, a later call makes only the runs that are missing there (remove it
after changing the code).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.sequences import sequence_data
from extremegp.cli.settings import parse_settings
from extremegp.presets import SEQUENCE_PRESETS, SequenceFigures

DEFAULT = "default"
ALL = (
    *sequence_data.PEERS,
    DEFAULT,
    *("LOGREG", "CRF", "CRF-GAUSSIAN", "GP-VAR", "GP-ARCCOS"),
    *(f"{name}{depth}" for name in ("DGP", "SDGP1", "SDGP2") for depth in ("", "-2", "-3", "-5", "-10")),
    *(f"{name}{part}" for name in ("DGP", "SDGP1", "SDGP2") for part in ("-RBF", "-PF", "-VR", "-PL")),
)
"""The thesis' methods at every depth, and flat ones with the other kernel, frequencies and objective."""
COLUMNS = (
    "",
    "error %",
    "NLL unstruct",
    "NLL struct",
    "ECE",
    "if exact",
    "of surest 80 %: error %",
    "seconds a fold",
    "thesis: error %",
    "NLL unstruct",
    "NLL struct",
)
BEST = SequenceFigures(
    "D Table 5.12",
    {"basenp": 4.96, "chunking": 8.50, "segmentation": 14.5, "japanesene": 5.06},
    {"basenp": 566, "chunking": 386, "segmentation": 249, "japanesene": 318},
    {},
)
"""The best of all methods there."""


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--preset", type=common.names, default=DEFAULT, metavar="NAME,NAME", help="methods; 'all'")
    options.add_argument("--sets", type=common.names, default=",".join(sequence_data.SETS), metavar="NAME,NAME")
    options.add_argument("--folds", type=int, default=5, metavar="N", help="how many of the folds")
    common.add_parameters(options, "SequenceGPClassifier")
    args = common.parse(options)
    every = (*sequence_data.PEERS, DEFAULT, *SEQUENCE_PRESETS)
    methods = [name for name in ALL if name in every] if args.preset == ["all"] else args.preset
    if unknown := set(methods) - set(every):
        options.error(f"unknown presets {', '.join(sorted(unknown))}; known are {', '.join(every)}")
    for name in sequence_data.missing(methods):
        print(f"{name} is left out: pip install 'extremegp[bench]'")
        methods.remove(name)
    given = parse_settings(args.parameters, "SequenceGPClassifier")
    runs = _read(args.json)
    for name in args.sets:
        data, folds = sequence_data.gpstruct(args.data, name)
        labels = sorted({label for sequence in data.y for label in sequence})
        rows = []
        for method in methods:
            own = [
                _run(
                    runs,
                    f"{method}/{name}/{number}/{json.dumps(given, sort_keys=True)}",
                    method,
                    given,
                    fold,
                    labels,
                    args.json,
                )
                for number, fold in enumerate(folds[: args.folds])
            ]
            preset = SEQUENCE_PRESETS.get(method)
            rows.append([method, *_cells(own), *_published(preset.figures if preset else None, name)])
        rows.append(["best in the thesis", *["-"] * 7, *_published(BEST, name)])
        tokens = sum(map(len, data.X))
        common.table(f"**{name}**: {len(data.X)} sequences, {tokens} tokens; mean ± sd over folds", COLUMNS, rows)
    common.finish(args.json, {"runs": runs}, args)


def _run(
    runs: dict[str, Any],
    key: str,
    method: str,
    given: dict[str, Any],
    fold: tuple[sequence_data.Labelled, sequence_data.Labelled],
    labels: list[str],
    path: Path | None,
) -> dict[str, float]:
    if key not in runs:
        preset = SEQUENCE_PRESETS.get(method)
        parameters = {**(preset.settings if preset else {}), **given}
        made = sequence_data.PEERS.get(method) or sequence_data.estimator(parameters, labels)
        runs[key] = sequence_data.measure(made, *fold, labels)
        if path is not None:
            path.write_text(json.dumps({"runs": runs}) + "\n", encoding="utf-8")
    found: dict[str, float] = runs[key]
    return found


def _read(path: Path | None) -> dict[str, Any]:
    if path is None or not path.exists():
        return {}
    runs: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["runs"]
    return runs


def _cells(runs: list[dict[str, float]]) -> list[str]:
    columns = (
        ("token_error", 100, 2),
        ("nll_unstruct", 1, 0),
        ("nll_struct", 1, 0),
        ("ece", 1, 3),
        ("ece_if_exact", 1, 3),
        ("error_of_surest", 100, 2),
        ("seconds", 1, 1),
    )
    return [common.mean_sd([run[name] * factor for run in runs], digits) for name, factor, digits in columns]


def _published(figures: SequenceFigures | None, name: str) -> list[str]:
    if figures is None:
        return ["-"] * 3
    parts = ((figures.errors, ".2f"), (figures.nll_unstruct, ".0f"), (figures.nll_struct, ".0f"))
    return [format(values[name], form) if name in values else "-" for values, form in parts]
