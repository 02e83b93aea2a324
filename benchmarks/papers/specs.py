"""A run: one training and its test, described by what decides its outcome."""

from __future__ import annotations

import json
from typing import Any, Literal, NamedTuple

from extremegp.presets import CLASS_PRESETS, PRESETS, SEQUENCE_PRESETS

Task = Literal["labels", "classes", "sequences"]
DEFAULT = "default"
PEERS = ("logistic", "crfsuite")


class Spec(NamedTuple):
    """A run.

    Attributes:
        task: many labels per row, one class per row, or a label for every token.
        data: a set; of classes those that `class_data.load` knows.
        method: a preset, "default" for an estimator without any, or a peer.
        params: parameters of the estimator as sorted JSON, on top of the preset's.
        seed: random_state; of sequences the number of the fold.
        how: "known" reveals the first label of each test row, "time" measures steps alone,
            "count" counts what is learnt, "" is a run as it is.
        limit: seconds after which the run is given up.
    """

    task: Task
    data: str
    method: str
    params: str = "{}"
    seed: int = 0
    how: str = ""
    limit: int = 3600

    @property
    def key(self) -> str:
        """What tells it from other runs."""
        return "/".join((self.task, self.data, self.method, self.params, str(self.seed), self.how))

    @property
    def has_budget(self) -> bool:
        """Whether training ends after some seconds, whatever it has reached."""
        return "time_budget" in json.loads(self.params)

    @property
    def settings(self) -> dict[str, Any]:
        """Parameters of the estimator, the preset's and its own."""
        presets: dict[str, Any] = {"labels": PRESETS, "classes": CLASS_PRESETS, "sequences": SEQUENCE_PRESETS}[
            self.task
        ]
        named = {} if self.method in (DEFAULT, *PEERS) else dict(presets[self.method].settings)
        return named | json.loads(self.params)


def labels(data: str, method: str, seed: int = 0, how: str = "", limit: int = 3600, **params: Any) -> Spec:
    """Many labels per row."""
    return Spec("labels", data, method, json.dumps(params, sort_keys=True), seed, how, limit)


def classes(data: str, method: str, seed: int = 0, how: str = "", limit: int = 3600, **params: Any) -> Spec:
    """One class per row."""
    return Spec("classes", data, method, json.dumps(params, sort_keys=True), seed, how, limit)


def sequences(data: str, method: str, fold: int, limit: int = 3600, **params: Any) -> Spec:
    """A label for every token."""
    return Spec("sequences", data, method, json.dumps(params, sort_keys=True), fold, "", limit)


def sequence_defaults(data: str) -> tuple[Spec, ...]:
    """The default of sequences on five folds, by three seeds but where a fold takes minutes."""
    seeds = (0,) if data == "basenp" else (0, 1, 2)
    return tuple(
        sequences(data, DEFAULT, fold, **({"random_state": seed} if seed else {}))
        for fold in range(5)
        for seed in seeds
    )
