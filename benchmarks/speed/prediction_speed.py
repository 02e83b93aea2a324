"""Latency and throughput of the k best labels, exact and by the index of the labels, as labels grow to a million.

Nothing is trained: the model has parameters made here. Labels form a tree of two levels: loadings are the sum of a
direction of the upper group, of one of the lower group, whose sizes follow a power law, and of one of the label's own
(shares 0.35, 0.35 and 0.3 of the variance), with lognormal lengths. The frequency of the r-th label is 0.3 / r, at
least 2e-7, its bias the logit of that; popularity has nothing to do with the groups. A row's latent mean lies near
three labels of one group, the first drawn in proportion to the square root of its frequency, with a fifth of noise, at
the length at which the third best label has a utility drawn from N(0, 1.5^2). "unstructured" are Gaussian loadings
without groups, which no index compresses well.

The search is tuned on some rows, and its recall measured on others. The model's latent functions are sparse GPs with
P inducing inputs and a linear kernel, so that they can be given these means.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import common
from extremegp.engine.model import VariationalModel
from extremegp.metrics import TopK
from extremegp.prediction.label_index import LabelIndex
from extremegp.prediction.predictor import Predictor
from extremegp.settings.model import ModelSettings

KINDS = ("clustered", "unstructured")
VARIANCE = 0.003
"""Variance of a latent function at an input, for each unit of its squared length."""


def label_parameters(
    n_labels: int, n_latent: int, kind: str, rng: np.random.Generator
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]:
    """Loadings, biases and the groups of labels."""
    size = n_latent**-0.5
    n_upper, n_lower = max(2, round(n_labels ** (1 / 3) / 2)), max(4, round(n_labels ** (2 / 3) / 2))
    share = (1 + np.arange(n_lower)) ** -0.7
    group = rng.choice(n_lower, n_labels, p=rng.permutation(share / share.sum()))
    loadings = size * rng.standard_normal((n_labels, n_latent), dtype=np.float32)
    if kind == "clustered":
        upper, lower = (size * rng.standard_normal((n, n_latent), dtype=np.float32) for n in (n_upper, n_lower))
        centres = 0.35**0.5 * (upper[rng.integers(n_upper, size=n_lower)] + lower)
        loadings *= np.float32(0.3**0.5)
        loadings += centres[group]
    loadings *= np.exp(0.25 * rng.standard_normal((n_labels, 1), dtype=np.float32))
    frequency = np.maximum(0.3 / (rng.permutation(n_labels) + 1), 2e-7)
    return loadings, np.log(frequency / (1 - frequency)).astype(np.float32), group


def latent_means(
    n_rows: int,
    loadings: NDArray[np.float32],
    bias: NDArray[np.float32],
    group: NDArray[np.int64],
    rng: np.random.Generator,
) -> NDArray[np.float32]:
    """Rows near directions of labels."""
    n_labels, n_latent = loadings.shape
    popularity = np.exp(bias / 2)
    first = rng.choice(n_labels, n_rows, p=popularity / popularity.sum(dtype=np.float64))
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(group.max() + 2))
    popular = np.argsort(-bias)[:200]
    means = np.empty((n_rows, n_latent), np.float32)
    for i, label in enumerate(first):
        members = order[starts[group[label]] : starts[group[label] + 1]]
        near = loadings[[label, *rng.choice(members, 2)]]
        near = rng.dirichlet([2, 2, 2]) @ (near / np.linalg.norm(near, axis=1, keepdims=True))
        noise = rng.standard_normal(n_latent)
        direction = 0.8**0.5 * near / np.linalg.norm(near) + 0.2**0.5 * noise / np.linalg.norm(noise)
        along = loadings @ direction.astype(np.float32)
        likely = np.union1d(popular, np.argpartition(along, -min(2000, n_labels))[-2000:])
        low, high, wanted = 0.0, 1e3, 1.5 * rng.standard_normal()
        for _ in range(30):
            length = (low + high) / 2
            third = np.partition(length * along[likely] + bias[likely], -3)[-3]
            low, high = (low, length) if third > wanted else (length, high)
        means[i] = length * direction
    return means


def made(loadings: NDArray[np.float32], bias: NDArray[np.float32]) -> VariationalModel:
    """A model of these parameters whose latent means are its inputs."""
    n_labels, p = loadings.shape
    settings = ModelSettings(
        n_features=p,
        n_labels=n_labels,
        n_latent=p,
        n_inducing=p,
        kernel="linear",
        posterior="mean-field",
        normalise_inducing=False,
    )
    model = settings.build().requires_grad_(False)
    model.mixing.loadings.copy_(torch.from_numpy(loadings))
    model.mixing.bias.copy_(torch.from_numpy(bias))
    latents: Any = model.latents
    latents.inducing.transposed.copy_(torch.eye(p))
    latents.posterior.q_mean.copy_(torch.eye(p))
    latents.posterior.log_scales.fill_(np.log(VARIANCE))
    return model


def seconds(call: Callable[[], Any]) -> float:
    """Wall time of a call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def measured(search: Predictor | LabelIndex, x: NDArray[np.float32], args: argparse.Namespace) -> dict[str, float]:
    """Latency of single rows (s, median and 99th percentile) and throughput of batches (rows/s)."""

    def best(rows: NDArray[np.float32]) -> list[Any]:
        return list(search.top(rows, args.k, args.by))

    best(x[:1])
    single = [seconds(lambda i=i: best(x[i % len(x)][None])) for i in range(args.calls)]  # type: ignore[misc]
    batch = x[: args.batch_size]
    fastest = min(seconds(lambda: best(batch)) for _ in range(args.batches))
    return {
        "median": float(np.median(single)),
        "p99": float(np.percentile(single, 99)),
        "rows_per_second": len(batch) / fastest,
    }


def compared(n_labels: int, n_latent: int, kind: str, args: argparse.Namespace) -> dict[str, Any]:
    """Exact and approximate search over some labels."""
    rng = np.random.default_rng(args.seed)
    loadings, bias, group = label_parameters(n_labels, n_latent, kind, rng)
    x, typical = (latent_means(n, loadings, bias, group, rng) for n in (args.rows, args.tuning_rows))
    predictor = Predictor(made(loadings, bias))
    del loadings
    result: dict[str, Any] = {"kind": kind, "n_labels": n_labels, "n_latent": n_latent}
    result["exact"] = measured(predictor, x, args)
    exact = TopK.concatenate([best for _, best, _ in predictor.top(x, args.k, args.by)]).labels
    started = time.perf_counter()
    index = LabelIndex(predictor, seed=args.seed)
    result["build_seconds"] = time.perf_counter() - started
    result["approximate"] = []
    for recall in args.recalls:
        started = time.perf_counter()
        setting = index.tune(typical, args.k, recall, args.by)
        tuning = time.perf_counter() - started
        found = TopK.concatenate([best for _, best, _ in index.top(x, args.k, args.by)]).labels
        reached = np.mean([np.isin(row, of).mean() for row, of in zip(exact, found, strict=True)])
        record = {"wanted": recall, "recall": float(reached), "tune_seconds": tuning, "n_lists": index.n_lists}
        result["approximate"].append(record | measured(index, x, args) | {"setting": setting._asdict()})
    return result


def shown(results: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """Print the table."""
    rows = []
    for result in results:
        exact = result["exact"]
        for found in (exact, *result["approximate"]):
            gains = found["rows_per_second"] / exact["rows_per_second"], exact["median"] / found["median"]
            rows.append(
                [
                    f"{result['kind']}, {result['n_labels']:,}, P {result['n_latent']}",
                    "exact" if found is exact else f"{found['wanted']:g}",
                    "1" if found is exact else f"{found['recall']:.4f}",
                    f"{1e3 * found['median']:.2f}",
                    f"{1e3 * found['p99']:.2f}",
                    f"{found['rows_per_second']:.0f}",
                    "" if found is exact else f"{gains[1]:.1f} / {gains[0]:.1f}",
                    "" if found is exact else f"{result['build_seconds']:.1f} + {found['tune_seconds']:.1f}",
                ]
            )
    common.table(
        f"The {args.k} best labels by {args.by}: recall on {args.rows} rows that the search was not tuned on",
        [
            "labels",
            "recall wanted",
            "recall",
            "one row, median (ms)",
            "p99 (ms)",
            f"rows/s in batches of {args.batch_size}",
            "times faster: one row / batch",
            "build + tune (s)",
        ],
        rows,
    )


def fractions(text: str) -> list[float]:
    """Comma-separated numbers."""
    return [float(part) for part in common.names(text)]


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--labels", type=common.integers, default="4000,30000,1000000", metavar="K,K,...")
    options.add_argument("--n-latent", type=common.integers, default="300", metavar="P,P,...")
    options.add_argument("--kinds", type=common.names, default=",".join(KINDS), help="of loadings")
    options.add_argument("--recalls", type=fractions, default="0.98", help="shares of the exact best to find")
    options.add_argument("-k", type=int, default=5, help="labels per row")
    options.add_argument("--by", choices=("probability", "utility"), default="probability")
    options.add_argument("--rows", type=int, default=256, help="rows that are timed and that recall is measured on")
    options.add_argument("--tuning-rows", type=int, default=256)
    options.add_argument("--calls", type=int, default=50, help="timed calls with one row")
    options.add_argument("--batches", type=int, default=2, help="timed calls with a batch, of which the faster counts")
    options.add_argument("--batch-size", type=int, default=256)
    options.add_argument("--seed", type=int, default=0)
    args = common.parse(options)
    results = [compared(k, p, kind, args) for kind in args.kinds for k in args.labels for p in args.n_latent]
    shown(results, args)
    common.finish(args.json, {"results": results}, args)
