"""A label for every token: the dissertation D."""

from __future__ import annotations

from typing import Any

from benchmarks.papers.plans.parts import Check, Plan, Row
from benchmarks.papers.specs import DEFAULT, sequence_defaults, sequences

PLANS: dict[str, Plan] = {}

_SEQUENCES = ("basenp", "chunking", "segmentation", "japanesene")
_FOLDS = 5


def _folds(
    method: str, preset: str, budgets: dict[str, float | None], n_folds: int = _FOLDS, **params: Any
) -> tuple[Row, ...]:
    return tuple(
        Row(
            data,
            method,
            tuple(
                sequences(data, preset, fold, **params, **({} if budget is None else {"time_budget": budget}))
                for fold in range(n_folds)
            ),
            note="" if budget is None else f"{budget:.0f} s a fold at most",
        )
        for data, budget in budgets.items()
    )


_ALL: dict[str, float | None] = dict.fromkeys(_SEQUENCES)
_DEFAULT = tuple(
    Row(data, "ours: default", sequence_defaults(data), note="" if data == "basenp" else "three seeds")
    for data in _SEQUENCES
)
_SDGP1 = _folds("SDGP1", "SDGP1", _ALL | {"basenp": 120.0})
_DGP = _folds("DGP", "DGP", {"segmentation": None, "chunking": 60.0, "japanesene": 60.0})
_SDGP2 = _folds("SDGP2", "SDGP2", dict.fromkeys(_SEQUENCES[1:], 60.0))
_LOGREG = _folds("MLR", "logistic", _ALL)
_WHY_LABELS = "labels that a fold does not train on have a probability of 1e-15 in it"


def _order(metric: str, *orders: tuple[str, ...], sets: tuple[str, ...] = _SEQUENCES) -> tuple[Check, ...]:
    return tuple(Check(data, metric, order, level=True) for data in sets for order in orders)


PLANS["D5.5"] = Plan(_LOGREG, (), _WHY_LABELS)
PLANS["D5.7"] = Plan(
    (*(row._replace(against="MLR (tuned C)") for row in _LOGREG), *_folds("ours: LOGREG", "LOGREG", _ALL)),
    (),
    f"C = 1 throughout; {_WHY_LABELS}",
)
PLANS["D5.6"] = Plan(
    (
        *_folds("CRF", "CRF", _ALL),
        *_folds("GP-Var", "GP-VAR", {"segmentation": 60.0, "chunking": 60.0}),
        *_DEFAULT,
    ),
    (),
    "of the published methods CRF and GP-Var are here",
)
PLANS["D5.8"] = Plan(
    (*_DGP, *_DEFAULT), (), "cut at 60 s a fold on Chunking and Japanese NE, half of the steps; Base NP was left out"
)
PLANS["D5.9"] = Plan((*_SDGP1, *_DEFAULT), (), "Base NP is cut at 120 s a fold, which took five minutes")
_DEEP: dict[str, float | None] = dict.fromkeys(_SEQUENCES[1:], 40.0)
PLANS["D5.10"] = Plan(
    (*_folds("SDGP1 (10 layers)", "SDGP1-10", dict(_DEEP)), *_SDGP1),
    _order("error", ("SDGP1 (10 layers)", "SDGP1"), sets=tuple(_DEEP)),
    "cut at the stated seconds a fold; the thesis trained four hours on a GPU. Base NP was left out",
)
PLANS["DA.1"] = Plan(
    (*_folds("SDGP1 (5 layers)", "SDGP1-5", dict(_DEEP)), *_SDGP1),
    _order("error", ("SDGP1 (5 layers)", "SDGP1"), sets=tuple(_DEEP)),
    "cut at the stated seconds a fold; Base NP was left out",
)
PLANS["D5.11"] = Plan(
    (*_SDGP2, *_SDGP1),
    _order("nll_struct", ("SDGP2", "SDGP1"), sets=_SEQUENCES[1:]),
    "cut at 60 s a fold, a part of its steps; Base NP was left out",
)
PLANS["D5.12"] = Plan((*_SDGP1, *_DGP, *_DEFAULT), (), "the default beside the best of the thesis")
PLANS["D5.13"] = Plan(
    tuple(
        Row("conll2000", name, (sequences("conll2000", preset, 0, limit=5000),), against="SDGP1 (deep)")
        for name, preset in (("ours: default", DEFAULT),)
    ),
    (),
    "the flat and deep SDGP1 of a GPU day were not trained again; the default is below both",
)
_TUNING: dict[str, float | None] = {"segmentation": None}
_PARTS = (
    *_folds("SDGP1", "SDGP1", _TUNING, 2),
    *_folds("SDGP1-RBF", "SDGP1-RBF", _TUNING, 2),
    *_folds("SDGP1-PF", "SDGP1-PF", _TUNING, 2),
    *_folds("SDGP1-VR", "SDGP1-VR", _TUNING, 2),
    *_folds("SDGP1-PL", "SDGP1-PL", _TUNING, 2),
)
_WHY_PARTS = "on two folds of Segmentation, with all steps, in place of Base NP, where a fold takes five minutes"
_BY_KERNEL = Check("segmentation", "error", ("SDGP1-RBF", "SDGP1"), level=True)
PLANS["D5.3"] = Plan(_PARTS, (Check("segmentation", "error", ("SDGP1-PF", "SDGP1"), level=True),), _WHY_PARTS)
PLANS["D5.4"] = PLANS["D-fig5.4"] = Plan(_PARTS, (_BY_KERNEL,), _WHY_PARTS)
