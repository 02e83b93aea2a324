"""Intervals of utilities where the truth is known, and a label of pure noise in a gap of the data, with few rows."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks import common
from extremegp import MultiLabelGPClassifier
from extremegp.cli.settings import parse_settings

N_LABELS, N_FUNCTIONS, INSIDE, BETWEEN = 12, 6, 300, 100
HOLES, HOLE, WITHIN = np.array([[-1.5, -1.5], [-1.5, 1.5], [1.5, -1.5], [1.5, 1.5]]), 0.9, 0.5
"""Centres of the holes in the inputs, their radius, and how far from their centres is looked."""


class Drawn(NamedTuple):
    """A data set drawn from the factor model, with the utilities that drew it.

    Attributes:
        x: inputs of the rows.
        y: their labels.
        inside: other inputs among them, with their utilities.
        gap: inputs in holes, with their utilities.
    """

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    inside: tuple[NDArray[np.float32], NDArray[np.float64]]
    gap: tuple[NDArray[np.float32], NDArray[np.float64]]


class Coverage(NamedTuple):
    """Shares of the utilities within 95 % intervals, among the data and in holes, and seconds of training."""

    inside: float
    gap: float
    seconds: float


def draw(n_rows: int, seed: int) -> Drawn:
    """f = Phi h + b in two dimensions: h Gaussian processes with unit variances and lengthscales, f of variance 3."""
    rng = np.random.default_rng([n_rows, seed])
    x, inside = _outside(n_rows, rng), _outside(INSIDE, rng)
    angle, distance = rng.uniform(0, 2 * np.pi, BETWEEN), WITHIN * np.sqrt(rng.random(BETWEEN))
    offset = distance[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    gap = HOLES[rng.integers(0, len(HOLES), BETWEEN)] + offset
    inputs = np.concatenate([x, inside, gap])
    squares = ((inputs[:, None] - inputs) ** 2).sum(-1)
    root = np.linalg.cholesky(np.exp(-0.5 * squares) + 1e-8 * np.eye(len(inputs)))
    loadings = rng.normal(scale=np.sqrt(3 / N_FUNCTIONS), size=(N_FUNCTIONS, N_LABELS))
    bias = rng.normal(-0.7, 0.7, size=N_LABELS)
    f = root @ rng.normal(size=(len(inputs), N_FUNCTIONS)) @ loadings + bias
    y = rng.random((n_rows, N_LABELS)) < 1 / (1 + np.exp(-f[:n_rows]))
    of_inside, of_gap = f[n_rows : n_rows + INSIDE], f[n_rows + INSIDE :]
    return Drawn(
        x.astype(np.float32), y.astype(int), (inside.astype(np.float32), of_inside), (gap.astype(np.float32), of_gap)
    )


def _outside(n: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Inputs in a square, none of them in a hole."""
    points = rng.uniform(-3, 3, size=(3 * n + 20, 2))
    free = np.sqrt(((points[:, None] - HOLES) ** 2).sum(-1)).min(axis=1) >= HOLE
    return np.asarray(points[free][:n])


def two_clusters(seed: int, n_rows: int = 200) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32]]:
    """Inputs in two squares, four labels that depend on them and a fifth of pure noise, and a grid in the gap."""
    rng = np.random.default_rng(seed)
    x = np.where(rng.random((n_rows, 1)) < 0.5, [-2.0, 0.0], [2.0, 0.0]) + rng.uniform(-1, 1, size=(n_rows, 2))
    soft = rng.random(n_rows) < 1 / (1 + np.exp(-3 * x[:, 1]))
    y = np.stack([x[:, 0] > 0, x[:, 1] > 0, x[:, 0] * x[:, 1] > 0, soft, rng.random(n_rows) < 0.5], axis=1)
    gap = np.stack(np.meshgrid(np.linspace(-0.5, 0.5, 11), np.linspace(-0.8, 0.8, 5)), axis=-1).reshape(-1, 2)
    return x.astype(np.float32), y.astype(int), gap.astype(np.float32)


def coverage(n_rows: int, seed: int, **parameters: Any) -> Coverage:
    """Train on one draw, and count which utilities lie within mean +- 1.96 standard deviations."""
    drawn = draw(n_rows, seed)
    started = time.perf_counter()
    model = trained(drawn.x, drawn.y, seed, parameters)
    seconds = time.perf_counter() - started
    shares = []
    for x, f in (drawn.inside, drawn.gap):
        mean, variance = model.predict_utilities(x)
        shares.append(float(np.mean(np.abs(f - mean) <= 1.96 * np.sqrt(variance))))
    return Coverage(*shares, seconds)


def noise_in_gap(seed: int, **parameters: Any) -> tuple[float, float]:
    """The least and the largest probability of the label of pure noise in the gap."""
    x, y, gap = two_clusters(seed)
    p = trained(x, y, seed, parameters).predict_proba(gap)[:, -1]
    return float(p.min()), float(p.max())


def trained(x: NDArray[Any], y: NDArray[Any], seed: int, parameters: dict[str, Any]) -> MultiLabelGPClassifier:
    """The default on numbers as they are."""
    fixed = {"features": "raw", "random_state": seed, "verbose": False}
    return MultiLabelGPClassifier(**(fixed | parameters)).fit(x, y)


def main() -> None:
    options = common.parser(__doc__)
    common.add_parameters(options)
    options.add_argument("--rows", type=common.integers, default="100,500,2000", help="numbers of rows, by commas")
    options.add_argument("--seeds", type=int, default=10, help="draws of each number of rows")
    options.add_argument("--gap-seeds", type=int, default=20, help="data sets with a gap")
    args = common.parse(options)
    parameters = parse_settings(args.parameters)
    drawn = {n: [coverage(n, seed, **parameters) for seed in range(args.seeds)] for n in args.rows}
    common.table(
        f"Utilities within their 95 % intervals, in percent: mean, and least, of {args.seeds} draws",
        ("rows", "among the data", "in holes", "seconds"),
        [
            (
                str(n),
                *(
                    f"{100 * np.mean(shares):.1f}, {100 * min(shares):.1f}"
                    for shares in list(zip(*found, strict=True))[:2]
                ),
                f"{np.mean([of.seconds for of in found]):.1f}",
            )
            for n, found in drawn.items()
        ],
    )
    gaps = [noise_in_gap(seed, **parameters) for seed in range(args.gap_seeds)]
    within = sum(low >= 0.4 and high <= 0.6 for low, high in gaps)
    common.table(
        "A label of pure noise in a gap of the data",
        ("least probability", "largest", "within 0.4 to 0.6"),
        [(f"{min(low for low, _ in gaps):.3f}", f"{max(high for _, high in gaps):.3f}", f"{within} of {len(gaps)}")],
    )
    common.finish(
        args.json, {"draws": {str(n): [of._asdict() for of in found] for n, found in drawn.items()}, "gaps": gaps}, args
    )
