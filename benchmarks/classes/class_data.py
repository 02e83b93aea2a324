"""The data sets of the benchmarks of classes, the figures to compare with, and data that are made up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ive

from benchmarks import common
from extremegp.data import (
    FloatMatrix,
    classes_of_dataset,
    deskew,
    make_features,
    read_inputs,
    read_labels,
    read_npz,
    read_xc,
    suited_features,
)
from extremegp.presets import CLASS_PRESETS

RING_RADII = (1.0, 2.0, 3.0, 4.0, 5.0)
RING_NOISE = 0.28
"""Standard deviation of both coordinates: of points so near each other about 6 % lie nearer another ring."""


PIXELS = dict.fromkeys(("mnist", "fashion-mnist"), "scale")
"""The features step of the papers' methods on images: grey values as they are, up to one factor."""


class ClassSplit(NamedTuple):
    """Rows of one class each, as they come: no features step has been applied.

    Attributes:
        features: the features step that the estimator is to apply.
        n_dropped: training rows without a label, which are left out.
        image_shape: height and width of rows that are images.
        best_error: of the test rows under the distribution that they were drawn from, where it is known.
    """

    x: FloatMatrix
    y: NDArray[Any]
    test_x: FloatMatrix
    test_y: NDArray[Any]
    features: str = "auto"
    n_dropped: int = 0
    image_shape: tuple[int, int] | None = None
    best_error: float | None = None


class ClassPublished(NamedTuple):
    """An error in percent that is published, and by whom."""

    who: str
    error: float
    nlpd: float | None = None


NLPD = {
    "OVSE-P": 0.1377,
    "OVSE-F": 0.1128,
    "OVSE-P-SH": 0.2295,
    "OVSE-F-SH": 0.3578,
    "RM-P": 0.1192,
    "RM-F": 0.081,
}
"""T Table 3.2, on MNIST with M = 100."""

_OTHERS = {
    "mnist": [
        ClassPublished("linear classifier (T Table 3.5)", 12.0),
        ClassPublished("GP latent variable model (T Table 3.5)", 5.95),
        ClassPublished("nearest neighbour (T Table 3.5)", 3.09),
        ClassPublished("OVSE-F, M = 3000 (T Table 3.5)", 2.9),
        ClassPublished("GP, RBF, SVI: Dezfouli and Bonilla 2015 (T Table 3.5)", 2.51),
        ClassPublished("GP, RBF, SVI: Hensman et al. 2015 (T Table 3.5)", 1.96),
        ClassPublished("GP, ARD, EP: Hernández-Lobato et al. 2016 (T Table 3.5)", 1.80),
        ClassPublished("RM-F, M = 3000 (T Table 3.5)", 1.63),
        ClassPublished("SVM, RBF (T Table 3.5)", 1.4),
        ClassPublished("convolutional GP (T Table 3.5)", 1.17),
        ClassPublished("deep convolutional network (T Table 3.5)", 0.35),
    ],
    "rings": [
        ClassPublished("OVSE-P on its own rings (T 3.8.2)", 7.08),
        ClassPublished("OVSE-LIN there (T 3.8.2)", 67.76),
    ],
}


def published(name: str) -> list[ClassPublished]:
    """What the papers report on a data set, the presets' methods first."""
    return [
        ClassPublished(
            f"{method} ({figures.table})", figures.errors[name], NLPD.get(method) if name == "mnist" else None
        )
        for method, preset in CLASS_PRESETS.items()
        if (figures := preset.figures) and name in figures.errors
    ] + _OTHERS.get(name.partition(":")[0], [])


def load(folder: Path, name: str) -> ClassSplit:
    """A data set by its name.

    Args:
        folder: of the data sets.
        name: "mnist", whose digits are deskewed (T 3.8.1); "fashion-mnist"; a multi-label set, of which every row's
            first label is the class (X section 4); "rings", or "rings:N" with N training points a class; or
            "synthetic:N:D:K", see `synthetic`.
    """
    kind, *sizes = name.split(":")
    makers: dict[str, tuple[int, Callable[..., ClassSplit]]] = {"rings": (1, rings), "synthetic": (3, synthetic)}
    try:
        if kind in makers and len(sizes) <= makers[kind][0]:
            return makers[kind][1](*map(int, sizes))
    except (ValueError, TypeError) as error:
        raise SystemExit(f"{name!r}: the sizes are positive integers, as in rings:1000 or synthetic:N:D:K") from error
    if kind == "mnist":
        return _mnist(folder / name / "mnist.npz")
    if kind == "fashion-mnist":
        return _idx(folder / name)
    return _first_labels(folder, name)


def _mnist(path: Path) -> ClassSplit:
    (x, y), (test_x, test_y) = (read_npz(path, f"x_{part}", f"y_{part}") for part in ("train", "test"))
    return _images(deskew(x), y, deskew(test_x), test_y)


def _idx(folder: Path) -> ClassSplit:
    x, test_x = (read_inputs(folder / f"{part}-images-idx3-ubyte.gz") for part in ("train", "t10k"))
    y, test_y = (read_labels(folder / f"{part}-labels-idx1-ubyte.gz") for part in ("train", "t10k"))
    return _images(x, y, test_x, test_y)


def _images(x: FloatMatrix, y: NDArray[Any], test_x: FloatMatrix, test_y: NDArray[Any]) -> ClassSplit:
    side = round(x.shape[1] ** 0.5)
    return ClassSplit(x, y, test_x, test_y, image_shape=(side, side))


def _first_labels(folder: Path, name: str) -> ClassSplit:
    paths = (common.data_file(folder, name, part) for part in ("train", "test"))
    train, test = (classes_of_dataset(read_xc(path), path, first_label=True) for path in paths)
    return ClassSplit(train.X, train.y, test.X, test.y, features="standard", n_dropped=train.n_dropped)


def rings(n_points: int = 1000) -> ClassSplit:
    """Five classes on circles about the origin, with noise (T 3.8.2), which gives neither radii nor noise.

    Args:
        n_points: training points of a class; half as many are test points.
    """
    rng = np.random.default_rng(0)
    parts: list[Any] = []
    for size in (n_points, max(1, n_points // 2)):
        classes = np.repeat(np.arange(len(RING_RADII)), size)
        angles = rng.uniform(0, 2 * np.pi, len(classes))
        points = np.take(RING_RADII, classes)[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)
        parts += [(points + rng.normal(scale=RING_NOISE, size=points.shape)).astype(np.float32), classes]
    best = float(np.mean(most_probable_ring(parts[2]) != parts[3]))
    return ClassSplit(*parts, features="standard", best_error=best)


def most_probable_ring(points: NDArray[Any]) -> NDArray[np.int64]:
    """The class of greatest posterior probability under the distribution of `rings`.

    The distance from the origin of a point of a ring has Rice's distribution, with the density
    (d / s^2) exp(-(d^2 + r^2) / (2 s^2)) I0(d r / s^2).
    """
    distances, radii = np.linalg.norm(points, axis=1)[:, None], np.array(RING_RADII)
    scaled = distances * radii / RING_NOISE**2
    # ive is exp(-z) I0(z).
    return np.argmax(np.log(ive(0, scaled)) + scaled - radii**2 / (2 * RING_NOISE**2), axis=1)


def synthetic(
    n_rows: int, n_features: int, n_classes: int, *, n_test: int = 2000, n_dimensions: int = 16, noise: float = 0.3
) -> ClassSplit:
    """Classes whose prototypes lie in a space of few dimensions, seen through D mixtures of them.

    Args:
        n_rows: N, at least K: every class has a row, and rows beyond are of classes at random.
        n_features: D.
        n_classes: K.
        n_test: test rows, of classes at random.
        n_dimensions: of the prototypes, which are standard normal there.
        noise: standard deviation of rows about their prototype there.
    """
    if n_rows < n_classes:
        raise SystemExit(f"synthetic data of {n_classes} classes need at least as many rows, not {n_rows}")
    rng = np.random.default_rng(0)
    prototypes = rng.normal(size=(n_classes, n_dimensions)).astype(np.float32)
    mixtures = rng.normal(size=(n_dimensions, n_features)).astype(np.float32)
    every = rng.permutation(n_classes)
    y = rng.permutation(np.concatenate([every, rng.integers(n_classes, size=n_rows - n_classes)]))
    test_y = rng.integers(n_classes, size=n_test)

    def rows(classes: NDArray[np.int64]) -> NDArray[np.float32]:
        moved = rng.standard_normal((len(classes), n_dimensions), dtype=np.float32) * np.float32(noise)
        return (prototypes[classes] + moved) @ mixtures

    return ClassSplit(rows(y), y, rows(test_y), test_y, features="standard")


def transformed(split: ClassSplit) -> tuple[FloatMatrix, FloatMatrix]:
    """Inputs after the features step, as the estimator applies it."""
    features = make_features(suited_features(split.x) if split.features == "auto" else split.features).fit(split.x)
    return features.transform(split.x), features.transform(split.test_x)


def describe(split: dict[str, Any]) -> str:
    """One line on a data set, from a record of `class_worker`."""
    dropped = f", {split['n_dropped']} rows without a label left out" if split["n_dropped"] else ""
    best = "" if split["best_error"] is None else f", least possible error {100 * split['best_error']:.2f} %"
    return (
        f"{split['n_rows']} training and {split['n_test']} test rows, {split['n_features']} features, "
        f"K = {split['n_classes']} classes{dropped}{best}"
    )
