"""Training within a time budget that may be too small for the method."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

from extremegp.errors import BudgetWarning, ModelFormatError
from extremegp.estimators.fitting import FittedModel, fit_model
from extremegp.progress import spoken

_LEAST_SHARE = 0.25  # of the steps: with fewer, another method that fits is better
_REMEDY = "give more time, or settings that take less: fewer epochs, n_inducing, n_latent or n_random_features"


class _TooSmallError(Exception):
    """The budget is, for a method."""

    def __init__(self, told: str, measuring: float) -> None:
        super().__init__(told)
        self.measuring = measuring


def fit_within_budget(
    params: dict[str, Any], *data: Any, instead: Sequence[dict[str, Any]] = (), **options: Any
) -> FittedModel:
    """What `fit_model` gives, by the first method that the time budget has room for.

    Warns, as a `BudgetWarning`, where another method takes the place of the one that was asked for, and where none has
    enough time.

    Args:
        params: the estimator's parameters.
        data: as `fit_model` takes them.
        instead: parameters of other methods, the better first.
        options: as `fit_model` takes them.
    """
    told, spent, mismatch = "", 0.0, None
    methods = ({}, *instead)
    for changes in methods:
        last = changes is methods[-1]
        judge = partial(_judge, budget=params["time_budget"], method=_named(changes), last=last)
        try:
            found = fit_model(params | changes, *data, judge=judge, spent=spent, **options)
        except _TooSmallError as error:
            told, spent = str(error), spent + error.measuring
            continue
        except ModelFormatError as error:
            # A checkpoint may be of a method that took the place of this one.
            mismatch = mismatch or error
            if last:
                raise mismatch from None
            continue
        if told:
            text = f"{told}: trained {_named(changes)} instead; give more time to have what was asked for"
            warnings.warn(text, BudgetWarning, stacklevel=4)
        return found
    raise AssertionError("the last method is trained whatever the budget")


def _judge(share: float, needed: float, measuring: float, *, budget: float, method: str, last: bool) -> None:
    """Refuse or warn of a budget that is enough for so small a share of the steps."""
    if share >= _LEAST_SHARE:
        return
    what = method or "these settings"
    told = f"a time budget of {spoken(budget)} is enough for {100 * share:.2g} % of the training that {what} need"
    told += f", about {spoken(needed)}"
    if not last:
        raise _TooSmallError(told, measuring)
    warnings.warn(f"{told}: {_REMEDY}", BudgetWarning, stacklevel=7)


def _named(changes: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in changes.items())
