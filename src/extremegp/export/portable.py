"""Predictions of a model that was written down as steps of arithmetic, by NumPy and nothing else.

The file may be copied to wherever NumPy is: it imports nothing of this package.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

Array = Any  # of NumPy
Step = tuple[str, str, tuple[str, ...]]
"""What is done, what the result is called, and of what it is made."""

_ERF = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)  # Abramowitz and Stegun 7.1.26
_MOST_STEPS = 100_000


def _erf(x: Array) -> Array:
    """The error function, to 1.5e-7."""
    t = 1 / (1 + 0.3275911 * np.abs(x))
    total = np.zeros_like(x)
    for factor in reversed(_ERF):
        total = (total + factor) * t
    return np.sign(x) * (1 - total * np.exp(-(x**2)))


OPERATIONS: dict[str, tuple[int, Callable[..., Array]]] = {
    "Abs": (1, np.abs),
    "Add": (2, np.add),
    "Columns": (3, lambda x, start, stop: x[:, int(start) : int(stop)]),
    "Div": (2, np.divide),
    "Erf": (1, _erf),
    "Exp": (1, np.exp),
    "Log": (1, np.log),
    "MatMul": (2, np.matmul),
    "Max": (2, np.maximum),
    "Min": (2, np.minimum),
    "Mul": (2, np.multiply),
    "Sign": (1, np.sign),
    "Sqrt": (1, np.sqrt),
    "Sub": (2, np.subtract),
    "SumRows": (1, lambda x: x.sum(axis=1, keepdims=True)),
}
"""What steps may do: how many arguments each has, and how NumPy does it."""


class PortableModel:
    """A model as steps of arithmetic on the inputs "x" (N x D) and on constants.

    Args:
        steps: in order; every argument is "x", a constant or an earlier result.
        constants: by name, in float64.
        names: of the K labels or classes.
        n_features: D.

    Raises:
        ValueError: the steps are none that can be done.
    """

    def __init__(
        self, steps: Sequence[Step], constants: dict[str, Array], names: Sequence[str | int], n_features: int
    ) -> None:
        known = {"x", *constants}
        for operation, result, arguments in steps:
            if operation not in OPERATIONS or OPERATIONS[operation][0] != len(arguments) or not {*arguments} <= known:
                raise ValueError(f"the step {operation!r} cannot be done")
            known.add(result)
        if "mean" not in known:
            raise ValueError("the steps have no result")
        self.steps, self.constants, self.n_features = list(steps), constants, n_features
        self.names = list(names)
        self.has_probabilities = "probability" in known

    def mean(self, X: Array) -> Array:
        """Posterior means of the utilities, N x K: the more, the likelier the label."""
        return self._results(X)["mean"]

    def predict_proba(self, X: Array) -> Array:
        """p(y_ik = 1), N x K.

        Raises:
            ValueError: the model is of classes, whose probabilities are no plain arithmetic.
        """
        if not self.has_probabilities:
            raise ValueError("this model gives means alone: the class with the highest is the likeliest, but for ties")
        return self._results(X)["probability"]

    def save(self, target: str | Path | IO[bytes]) -> None:
        """Write the model as .npz, without pickles."""
        told = {"steps": self.steps, "names": self.names, "n_features": self.n_features}
        text = np.frombuffer(json.dumps(told).encode(), dtype=np.uint8)
        np.savez(target, **{f"c.{name}": value for name, value in self.constants.items()}, model=text)

    @classmethod
    def load(cls, source: str | Path | IO[bytes]) -> PortableModel:
        """What `save` wrote; nothing in it is executed.

        Raises:
            ValueError: it is no such file.
        """
        try:
            with np.load(source, allow_pickle=False) as stored:
                told = json.loads(stored["model"].tobytes())
                constants = {name[2:]: stored[name] for name in stored.files if name.startswith("c.")}
            steps = [(str(what), str(result), tuple(map(str, arguments))) for what, result, arguments in told["steps"]]
            names, n_features = told["names"], told["n_features"]
        except (KeyError, TypeError, ValueError, OSError) as error:
            raise ValueError(f"{source}: this is no model for NumPy ({error})") from error
        sound = isinstance(names, list) and type(n_features) is int and len(steps) <= _MOST_STEPS
        if not sound or not all(value.dtype == np.float64 for value in constants.values()):
            raise ValueError(f"{source}: this is no model for NumPy")
        return cls(steps, constants, names, n_features)

    def _results(self, X: Array) -> dict[str, Array]:
        X = np.asarray(X.toarray() if hasattr(X, "toarray") else X, dtype=np.float64)
        if X.ndim != 2 or X.shape[1] != self.n_features:
            raise ValueError(f"X must be N x {self.n_features}, not {' x '.join(map(str, X.shape))}")
        if not np.isfinite(X).all():
            raise ValueError("X has numbers that are not finite")
        values = {**self.constants, "x": X}
        with np.errstate(divide="ignore", over="ignore", under="ignore", invalid="ignore"):
            for operation, result, arguments in self.steps:
                values[result] = OPERATIONS[operation][1](*(values[name] for name in arguments))
        return values
