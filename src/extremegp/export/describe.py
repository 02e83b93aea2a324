"""The steps of arithmetic that predictions of a trained model are."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from extremegp.engine.blocks import columns_of
from extremegp.engine.families import FAMILIES
from extremegp.engine.feature_regression import FLOOR, FeatureRegression
from extremegp.engine.integrals.logistic import LOGISTIC_MIXTURE
from extremegp.engine.kept_rows import KeptRows
from extremegp.engine.latents import FeatureGP
from extremegp.engine.latents.regression import RegressionGP
from extremegp.engine.links import NODES, WEIGHTS, Link
from extremegp.engine.mixing import FactorMixing
from extremegp.errors import SettingsError
from extremegp.estimators import GPEstimator
from extremegp.export.portable import PortableModel, Step
from extremegp.settings.latents import CLOSED

_LEAST, _LEAST_LENGTH = 1e-12, 1e-30
_ORDERS = {"matern 5/2": 5, "matern 3/2": 3, "matern 1/2": 1}
_INTEGRATED = 32  # nodes, where variances are small


def described_model(estimator: GPEstimator) -> PortableModel:
    """A trained model as steps of arithmetic.

    It takes what `predict_proba` takes, or of texts and blocks of features what `features_.transform` makes of them.
    Its results are within 1e-5 of the model's.

    Args:
        estimator: fitted, of many labels or classes, whose functions have landmarks or are a regression alone.

    Raises:
        SettingsError: it is of another kind.
    """
    check_is_fitted(estimator, "model_")
    latents = getattr(estimator.settings_, "latents", None)
    if latents not in CLOSED:
        raise SettingsError(
            'only models with latents="landmarks" or "regression", the defaults for moderate data, are plain arithmetic'
        )
    names = [name.item() if isinstance(name, np.generic) else name for name in estimator.classes_]
    writer = _Writer()
    x = writer.features(estimator.features_)
    model: Any = cast(Any, estimator).predictor().model
    of_model = _landmarks if latents == "landmarks" else _regression
    mean, variance = of_model(writer, model, x)
    writer.name(mean, "mean")
    likelihood = model.likelihood
    if likelihood.labels_independent and not likelihood.has_classes:
        writer.name(writer.expected_sigmoid(mean, variance), "probability")
    return PortableModel(writer.steps, writer.constants, names, estimator.settings_.n_features)


def _landmarks(w: _Writer, model: Any, x: str) -> tuple[str, str]:
    latents, mean = cast(FeatureGP, model.latents), cast(FeatureRegression, model.mean_function)
    k = w.covariances(model.features.kept, x)
    basis = _array(model.features.basis)
    means, variances = _array(latents.posterior.q_mean), np.exp(_array(latents.posterior.log_scales))
    a = w.do("MatMul", k, w.constant(basis))
    squares = w.do("Mul", a, a)
    lacking = w.do("Max", w.do("Sub", w.constant(1.0), w.do("SumRows", squares)), w.constant(0.0))
    functions = w.do("MatMul", k, w.constant(basis @ means.T))
    spread = w.do("Add", w.do("MatMul", squares, w.constant(variances.T)), lacking)
    utilities, spread = w.mixed(model.mixing, functions, spread)
    t = w.do(
        "Add", w.do("MatMul", k, w.constant(basis @ _array(mean.coefficients))), w.constant(_array(mean.frequencies))
    )
    linked = w.linked(t, _array(mean.frequencies), mean.link, FLOOR)
    return w.do("Add", utilities, w.do("Mul", w.constant(_array(mean.slopes())), linked)), spread


def _regression(w: _Writer, model: Any, x: str) -> tuple[str, str]:
    latents = cast(RegressionGP, model.latents)
    mean, landmarks = latents.mean, latents.landmarks
    frequencies = _array(mean.frequencies)
    t = w.do(
        "Add", w.do("MatMul", w.covariances(mean, x), w.constant(_array(mean.coefficients))), w.constant(frequencies)
    )
    a = w.do("MatMul", w.covariances(landmarks.kept, x), w.constant(_array(landmarks.basis)))
    rooted = w.do("MatMul", a, w.constant(_array(latents.rooted(torch.eye(len(landmarks), dtype=torch.float64)))))
    lacking = w.do("Sub", w.constant(1.0), w.do("SumRows", w.do("Mul", a, a)))
    left = w.do("Add", w.do("Max", lacking, w.constant(0.0)), w.do("SumRows", w.do("Mul", rooted, rooted)))
    scale = np.sqrt(float(latents.share) * _array(latents.amplitudes))[None]
    deviation = w.do("MatMul", w.do("Sqrt", left), w.constant(scale))
    first, second = w.constant(0.0), w.constant(0.0)
    for node, weight in zip(NODES.tolist(), WEIGHTS.tolist(), strict=True):
        g = w.do("Add", t, w.do("Mul", w.constant(node), deviation))
        value = w.linked(g, frequencies, latents.link, float(latents.floor))
        first = w.do("Add", first, w.do("Mul", w.constant(weight), value))
        second = w.do("Add", second, w.do("Mul", w.constant(weight), w.do("Mul", value, value)))
    slope = w.constant(float(latents.slope))
    variance = w.do("Max", w.do("Sub", second, w.do("Mul", first, first)), w.constant(0.0))
    variance = w.do("Mul", w.do("Mul", slope, slope), variance)
    return w.mixed(model.mixing, w.do("Mul", slope, first), variance)


class _Writer:
    """Writes steps down, and the constants that they need."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.constants: dict[str, NDArray[np.float64]] = {}
        self._known: dict[float, str] = {}

    def constant(self, value: float | NDArray[np.float64]) -> str:
        """A constant, once for each number."""
        if isinstance(value, float) and value in self._known:
            return self._known[value]
        name = f"k{len(self.constants)}"
        self.constants[name] = np.array(value, dtype=np.float64)
        if isinstance(value, float):
            self._known[value] = name
        return name

    def do(self, operation: str, *arguments: str) -> str:
        """A step; the name of its result."""
        self.steps.append((operation, f"r{len(self.steps)}", arguments))
        return self.steps[-1][1]

    def name(self, result: str, name: str) -> None:
        """Have the result of a step under another name."""
        self.steps.append(("Add", name, (result, self.constant(0.0))))

    def features(self, features: Any) -> str:
        """What the features step makes of the inputs; of texts and blocks these are its results already."""
        kind, (_, arrays) = features.kind, features.to_state()
        x = "x"
        if kind == "tfidf":
            there = self.do("Sign", x)
            logs = self.do("Log", self.do("Max", x, self.constant(1.0)))
            weighed = self.do("Mul", there, self.do("Add", logs, self.constant(1.0)))
            x = self.do("Mul", weighed, self.constant(np.asarray(arrays["idf"], np.float64)))
        if kind == "root":
            x = self.do("Mul", self.do("Sign", x), self.do("Sqrt", self.do("Abs", x)))
        if kind in ("scale", "root", "standard"):
            centre, factor = (self.constant(np.asarray(arrays[name], np.float64)) for name in ("centre", "factor"))
            x = self.do("Mul", self.do("Sub", x, centre), factor)
        if kind in ("unit", "tfidf"):
            lengths = self.do("Sqrt", self.do("SumRows", self.do("Mul", x, x)))
            x = self.do("Div", x, self.do("Max", lengths, self.constant(_LEAST_LENGTH)))
        return x

    def covariances(self, kept: KeptRows, x: str) -> str:
        """k(x_i, z_j)."""
        points = kept.scaled_points(torch.float64)
        parts, total = columns_of(kept.blocks), ""
        for part, z, norms, share in zip(parts, points.x, points.norms, points.shares, strict=True):
            rows = x if len(parts) == 1 else self.do("Columns", x, *map(self.constant, map(float, part[:2])))
            rows = self.do("Mul", rows, self.constant(points.scale[part.range].double().numpy()))
            own = self.do("SumRows", self.do("Mul", rows, rows))
            z = z.numpy() if part.dense else z.toarray()
            products = self.do("MatMul", rows, self.constant(z.T))
            distances = self.do("Mul", self.constant(0.5), self.do("Add", own, self.constant(norms.double().numpy())))
            k = self._family(self.do("Min", self.do("Sub", products, distances), self.constant(0.0)), points.family)
            if points.lone and not part.dense:
                there = self.do("Mul", self.do("Sign", own), self.constant((norms > 0).double().numpy()))
                k = self.do("Mul", k, there)
            k = self.do("Mul", k, self.constant(float(share)))
            total = self.do("Add", total, k) if total else k
        return total

    def _family(self, exponent: str, family: int) -> str:
        name = FAMILIES[family]
        if name == "squared exponential":
            return self.do("Exp", exponent)
        one = self.constant(1.0)
        if name == "rational quadratic":
            return self.do("Div", one, self.do("Sub", one, exponent))
        squared = self.do("Max", self.do("Mul", self.constant(-2.0), exponent), self.constant(_LEAST))
        r = self.do("Mul", self.do("Sqrt", squared), self.constant(math.sqrt(_ORDERS[name])))
        decay = self.do("Exp", self.do("Mul", self.constant(-1.0), r))
        polynomial = one if name == "matern 1/2" else self.do("Add", one, r)
        if name == "matern 5/2":
            polynomial = self.do("Add", polynomial, self.do("Div", self.do("Mul", r, r), self.constant(3.0)))
        return self.do("Mul", polynomial, decay)

    def linked(self, t: str, mu: NDArray[np.float64], link: Link, floor: float) -> str:
        """link t - link mu, as `engine.links.linked` has it."""
        e = floor * mu * (1 - mu)
        known = np.log(_positive(mu, e)) - (np.log(_positive(1 - mu, e)) if link == "logit" else 0)
        found = self._log_positive(t, e)
        if link == "logit":
            found = self.do("Sub", found, self._log_positive(self.do("Sub", self.constant(1.0), t), e))
        return self.do("Sub", found, self.constant(known))

    def _log_positive(self, t: str, e: NDArray[np.float64]) -> str:
        floor = self.constant(e)
        # softplus(z) = max(z, 0) + log(1 + exp -|z|), which runtimes have not in float64 as one.
        z = self.do("Div", t, floor)
        decay = self.do("Exp", self.do("Mul", self.constant(-1.0), self.do("Abs", z)))
        rest = self.do("Log", self.do("Add", self.constant(1.0), decay))
        positive = self.do("Mul", self.do("Add", self.do("Max", z, self.constant(0.0)), rest), floor)
        return self.do("Log", self.do("Max", positive, self.constant(_LEAST)))

    def mixed(self, mixing: Any, means: str, variances: str) -> tuple[str, str]:
        """Means and variances of utilities of those of functions."""
        bias = self.constant(_array(mixing.bias))
        if mixing.independent:
            scales = np.exp(_array(mixing.log_scales))
            means, variances = (
                self.do("Mul", means, self.constant(scales)),
                self.do("Mul", variances, self.constant(scales**2)),
            )
        else:
            loadings = _array(cast(FactorMixing, mixing).loadings)
            means = self.do("MatMul", means, self.constant(loadings.T))
            variances = self.do("MatMul", variances, self.constant(loadings.T**2))
        return self.do("Add", means, bias), variances

    def expected_sigmoid(self, mean: str, variance: str) -> str:
        """E sigma(f): by quadrature where the variance is at most 0.9, else with a mixture of normals for sigma'."""
        # One where the variance is larger: a sign, moved from -1..1 to 0..1.
        wide = self.do("Sign", self.do("Max", self.do("Sub", variance, self.constant(0.9)), self.constant(0.0)))
        nodes, weights = np.polynomial.hermite_e.hermegauss(_INTEGRATED)
        deviation = self.do("Sqrt", self.do("Min", variance, self.constant(0.9)))
        narrow, mixture = self.constant(0.0), self.constant(0.0)
        for node, weight in zip(nodes.tolist(), (weights / weights.sum()).tolist(), strict=True):
            f = self.do("Sub", self.do("Mul", self.constant(-node), deviation), mean)
            value = self.do("Div", self.constant(1.0), self.do("Add", self.constant(1.0), self.do("Exp", f)))
            narrow = self.do("Add", narrow, self.do("Mul", self.constant(weight), value))
        for weight, own in LOGISTIC_MIXTURE:
            scaled = self.do("Div", mean, self.do("Sqrt", self.do("Add", variance, self.constant(own))))
            normal = self.do("Erf", self.do("Mul", scaled, self.constant(math.sqrt(0.5))))
            half = self.do("Mul", self.constant(0.5 * weight), self.do("Add", self.constant(1.0), normal))
            mixture = self.do("Add", mixture, half)
        beside = self.do("Mul", narrow, self.do("Sub", self.constant(1.0), wide))
        return self.do("Add", beside, self.do("Mul", mixture, wide))


def _array(tensor: torch.Tensor) -> NDArray[np.float64]:
    return np.asarray(tensor.detach().double().cpu().numpy())


def _positive(t: NDArray[np.float64], e: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.maximum(np.logaddexp(0, t / e) * e, _LEAST))
