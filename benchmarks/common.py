"""What the benchmarks share: the datasets, options, figures to compare with, and output as Markdown and JSON."""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import platform
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_matrix
from sklearn.preprocessing import MultiLabelBinarizer

from extremegp import __version__
from extremegp.data import FloatCSR, make_features, read_xc

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).with_name("results")
KS = (1, 3, 5)
WORD_COUNTS = ("debian_tags", "debian_depends", "yso_finna_en", "moby_thesaurus", "human_gene_pubmed")
"""Sets that hold raw counts of words, for tf-idf; rows of the others are scaled to unit norm."""


class Figures(NamedTuple):
    """Percentages P@1/3/5 and, where known, PSP@1/3/5, and what they cost."""

    who: str
    precision: tuple[float, float, float]
    cost: str
    psp: tuple[float, float, float] | None = None


PUBLISHED: dict[str, list[Figures]] = {
    "bibtex": [
        Figures("best GP of the papers", (66.51, 41.12, 30.34), "1.1 h", (52.95, 55.27, 61.36)),
        Figures("best other method there: SLEEC", (65.08, 39.64, 28.87), "-"),
        Figures("Omikuji, 3 trees", (64.0, 38.8, 28.2), "3 CPU-s"),
        Figures("napkinXC PLT", (62.6, 39.1, 28.9), "2 CPU-s"),
        Figures("napkinXC one-vs-rest", (62.9, 39.2, 28.9), "3 CPU-s"),
        Figures("PECOS XR-Linear", (63.9, 38.5, 28.0), "3 CPU-s"),
        Figures("PECOS one-vs-rest", (64.5, 38.5, 27.9), "3 CPU-s"),
        Figures("one-vs-rest logistic regression", (62.8, 39.0, 28.9), "9 CPU-s"),
    ],
    "delicious": [
        Figures("best GP of the papers", (69.09, 63.27, 58.61), "2.88 h", (34.92, 35.89, 35.95)),
        Figures("best other method there: FastXML", (69.61, 64.12, 59.27), "-"),
        Figures("the papers' published code, float32, 2 cores", (67.3, 62.0, 57.2), "1500 s"),
        Figures("Omikuji, 3 trees", (67.6, 62.0, 56.8), "12 CPU-s"),
        Figures("Omikuji, 3 trees, log loss", (68.1, 62.3, 57.5), "-"),
        Figures("napkinXC PLT", (67.6, 61.6, 56.4), "11 CPU-s"),
        Figures("napkinXC one-vs-rest", (67.5, 61.2, 56.5), "28 CPU-s"),
        Figures("PECOS XR-Linear", (67.1, 61.4, 56.7), "8 CPU-s"),
        Figures("PECOS one-vs-rest", (67.8, 62.1, 57.0), "13 CPU-s"),
        Figures("one-vs-rest logistic regression", (67.5, 62.1, 57.0), "32 CPU-s"),
    ],
    "debian_tags": [Figures("Omikuji, 3 trees", (81.7, 60.5, 46.4), "12 CPU-s")],
    "debian_depends": [Figures("Omikuji, 3 trees", (69.9, 47.2, 35.8), "35 CPU-s")],
    "yso_finna_en": [Figures("Omikuji, 3 trees, first 8000 test rows", (38.4, 23.7, 17.2), "276 CPU-s")],
    "moby_thesaurus": [Figures("Omikuji, 3 trees", (34.6, 63.8, 69.4), "519 CPU-s")],
    "human_gene_pubmed": [Figures("Omikuji, 3 trees", (47.6, 34.6, 28.2), "406 CPU-s")],
}
"""Published figures, and those of peers measured earlier: untuned, one run, on a busy machine with two cores."""


class Split(NamedTuple):
    """A dataset after the features step that was fitted on its training part."""

    x: FloatCSR
    y: FloatCSR
    test_x: FloatCSR
    test_y: FloatCSR


def feature_kind(name: str) -> str:
    """The features step that suits a dataset."""
    return "tfidf" if name in WORD_COUNTS else "unit"


def data_file(folder: Path, name: str, part: str) -> Path:
    """The file of a part ("train" or "test") of a dataset: NAME/PART.txt.xz or NAME_PART.txt.xz."""
    for path in (folder / name / f"{part}.txt.xz", folder / f"{name}_{part}.txt.xz"):
        if path.is_file():
            return path
    raise SystemExit(f"no {part} data of {name!r} in {folder}: name the folder of the datasets with --data")


def load_split(folder: Path, name: str) -> Split:
    """Read a dataset and put it through its features step."""
    if (folder / name / "train.tsv.gz").is_file():
        return load_texts(folder / name)
    train, test = (read_xc(data_file(folder, name, part)) for part in ("train", "test"))
    features = make_features(feature_kind(name)).fit(train.X)  # type: ignore[arg-type]
    return Split(csr_matrix(features.transform(train.X)), train.Y, csr_matrix(features.transform(test.X)), test.Y)


def load_texts(folder: Path) -> Split:
    """Texts and labels in lines, as Annif has them; labels of the test part that training lacks have no row there."""
    texts, labels = [], []
    for part in ("train", "test"):
        with gzip.open(folder / f"{part}.tsv.gz", "rt", encoding="utf-8") as lines:
            pairs = [line.rstrip("\n").split("\t") for line in lines]
        texts.append([text for text, _ in pairs])
        labels.append([of_row.split() for _, of_row in pairs])
    numbers = MultiLabelBinarizer(sparse_output=True).fit([*labels[0], *labels[1]])
    y = [csr_matrix(numbers.transform(part), dtype=np.float32) for part in labels]
    features = make_features("text").fit(texts[0])
    x = [csr_matrix(features.transform(part)) for part in texts]
    return Split(x[0], y[0], x[1], y[1])


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the options that every benchmark has."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    default = Path(os.path.relpath(ROOT.parent / "shared" / "data"))
    made.add_argument("--data", type=Path, default=default, metavar="DIR", help="folder of the datasets")
    made.add_argument("--json", type=Path, metavar="FILE", help="also write the results to this file")
    made.add_argument("--threads", type=int, metavar="N", help="threads of PyTorch; by default as it decides itself")
    return made


def add_parameters(options: argparse.ArgumentParser, estimator: str = "MultiLabelGPClassifier") -> None:
    """Let the command line change parameters of the library's estimator."""
    what = f"a parameter of {estimator}, such as epochs=20; may be repeated"
    options.add_argument("--param", dest="parameters", action="append", default=[], metavar="KEY=VALUE", help=what)


def parse(options: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line, and set the threads of this process and its children."""
    args = options.parse_args()
    if args.threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(args.threads)
        torch.set_num_threads(args.threads)
    return args


def names(text: str) -> list[str]:
    """Comma-separated names."""
    return [part.strip() for part in text.split(",") if part.strip()]


def integers(text: str) -> list[int]:
    """Comma-separated integers."""
    return [int(part) for part in names(text)]


def machine() -> dict[str, Any]:
    """What a measurement depends on besides the code."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    except OSError:
        cpu = ""
    return {
        "cpu": cpu or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "extremegp": __version__,
    }


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a Markdown table: the first column as text, the others as numbers."""
    print(f"\n{title}\n\n| {' | '.join(columns)} |\n|---|{'---:|' * (len(columns) - 1)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    sys.stdout.flush()


def finish(path: Path | None, result: dict[str, Any], args: argparse.Namespace) -> None:
    """Say where it was measured, and write the JSON that was asked for."""
    where = machine()
    print("\nMeasured with " + ", ".join(f"{key} {value}" for key, value in where.items()) + ".")
    if path is not None:
        options = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
        text = json.dumps(_as_json({"options": options, "machine": where, **result}), indent=2, allow_nan=False)
        path.write_text(text + "\n", encoding="utf-8")


def _as_json(value: Any) -> Any:
    """The same with nothing where a number is not finite: there was nothing to measure."""
    if isinstance(value, dict):
        return {key: _as_json(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def paired(ours: Any, theirs: Any, seed: int = 0, n_draws: int = 1000) -> tuple[float, float]:
    """Mean difference of two values of each test row, and its standard error by a bootstrap over the rows."""
    difference = np.asarray(ours, dtype=float) - np.asarray(theirs, dtype=float)
    rng = np.random.default_rng(seed)
    drawn = [difference[rng.integers(len(difference), size=len(difference))].mean() for _ in range(n_draws)]
    return float(difference.mean()), float(np.std(drawn))


def ece_if_exact(confidence: Any, n_bins: int = 15, n_draws: int = 200, seed: int = 0) -> float:
    """The expected calibration error that so many predictions of these confidences have where they are exactly true.

    The error is a mean of absolute values, so that few rows have one whatever the probabilities are worth.
    """
    values = np.asarray(confidence, dtype=float)
    bins = np.minimum((values * n_bins).astype(int), n_bins - 1)
    rng = np.random.default_rng(seed)
    drawn = ((rng.random(len(values)) < values) - values for _ in range(n_draws))
    return float(np.mean([np.abs(np.bincount(bins, one, n_bins)).sum() / len(values) for one in drawn]))


def mean_sd(values: Sequence[float], digits: int = 2) -> str:
    """Mean and, of several values, their sample standard deviation."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def percentages(values: Iterable[float]) -> str:
    """Fractions as percentages in the papers' form, 66.51/41.12/30.34."""
    return "/".join(f"{100 * value:.2f}" for value in values)
