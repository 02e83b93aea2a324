"""One method on prepared data, in a process of its own; started by peers.py, perhaps under another interpreter.

    python peer_worker.py METHOD FOLDER

FOLDER holds x.npz, y.npz, test_x.npz (SciPy CSR matrices), perhaps held_out_x.npz, train.txt (the first two in the
repository's text format, without rows that have no features) and options.json. Written to it are scores.npz (N x K, the
best labels of the test rows with their scores), held_out_scores.npz and costs.json. Imports no more than the method
needs, so that peers with requirements of their own can run it. The costs are of all test rows at once, and of the first
ones one by one.
"""

from __future__ import annotations

import json
import pickle
import resource
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, load_npz, save_npz, vstack

TOP, SINGLE_ROWS = 20, 300
BLOCK_ELEMENTS = 1 << 26
Rank = Callable[[csr_matrix], csr_matrix]


def omikuji(folder: Path, y: csr_matrix, loss: str, settings: dict[str, Any]) -> Rank:
    """Parabel-like trees of linear classifiers, all else as Omikuji sets it by default."""
    import omikuji

    hyper_parameters = omikuji.Model.default_hyper_param()
    hyper_parameters.linear_loss_type = omikuji.LossType[loss].value
    for name, value in settings.items():
        setattr(hyper_parameters, name, value)
    model = omikuji.Model.train_on_data(str(folder / "train.txt"), hyper_parameters)
    model.save(str(folder / "saved"))
    n_labels = y.shape[1]

    def rank(x: csr_matrix) -> csr_matrix:
        rows = (list(zip(row.indices.tolist(), row.data.tolist(), strict=True)) for row in x)
        return from_pairs([model.predict(row, top_k=TOP) for row in rows], n_labels)

    return rank


def napkinxc(folder: Path, x: csr_matrix, y: csr_matrix, kind: str, **settings: str) -> Rank:
    """A probabilistic label tree, or one-vs-rest, as napkinXC sets them by default.

    The k-means of its default trees ends in a fault of memory on sets of very many labels; Huffman trees do not.
    """
    from napkinxc import models

    model = getattr(models, kind)(str(folder / "saved"), **settings)
    model.fit(x, [row.indices.tolist() for row in y])
    n_labels = y.shape[1]
    return lambda test: from_pairs(model.predict_proba(test, top_k=TOP), n_labels)


def logistic(folder: Path, x: csr_matrix, y: csr_matrix, strength: float) -> Rank:
    """One-vs-rest logistic regression by scikit-learn."""
    return probabilities_of(folder, fit_one_vs_rest(x, y, strength), y)


def lightgbm(folder: Path, x: csr_matrix, y: csr_matrix, settings: dict[str, Any]) -> Rank:
    """One-vs-rest gradient boosting by LightGBM, for few labels."""
    from lightgbm import LGBMClassifier
    from sklearn.multiclass import OneVsRestClassifier

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Label .* is present in", category=UserWarning)
        model = OneVsRestClassifier(LGBMClassifier(n_jobs=1, verbose=-1, **settings)).fit(x, y)
    return probabilities_of(folder, model, y)


def probabilities_of(folder: Path, model: Any, y: csr_matrix) -> Rank:
    """The best of the probabilities that a model of scikit-learn's kind has, which is pickled to tell its size."""
    (folder / "saved").mkdir()
    (folder / "saved" / "model.pickle").write_bytes(pickle.dumps(model))
    step = max(1, BLOCK_ELEMENTS // y.shape[1])

    def rank(test: csr_matrix) -> csr_matrix:
        starts = range(0, test.shape[0], step)
        return vstack([best(model.predict_proba(test[start : start + step])) for start in starts], format="csr")

    return rank


def fit_one_vs_rest(x: csr_matrix, y: csr_matrix, strength: float) -> Any:
    """scikit-learn's one-vs-rest logistic regression; `strength` is C, the inverse of the regularisation."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier

    with warnings.catch_warnings():
        # Labels that no training row has get a constant classifier, which is right.
        warnings.filterwarnings("ignore", message="Label .* is present in", category=UserWarning)
        return OneVsRestClassifier(LogisticRegression(C=strength, solver="liblinear")).fit(x, y)


def pecos(folder: Path, x: csr_matrix, y: csr_matrix, tree: bool) -> Rank:
    """XR-Linear on a tree from k-means of PIFA label embeddings, or one-vs-rest, as PECOS sets them by default."""
    from pecos.xmc import Indexer, LabelEmbeddingFactory
    from pecos.xmc.xlinear.model import XLinearModel

    x, labels = x.astype(np.float32), y.tocsc().astype(np.float32)
    clusters = Indexer.gen(LabelEmbeddingFactory.create(y.astype(np.float32), x, method="pifa")) if tree else None
    model = XLinearModel.train(x, labels, C=clusters)
    model.save(str(folder / "saved"))
    return lambda test: model.predict(test.astype(np.float32), only_topk=TOP)


def extremegp(folder: Path, x: csr_matrix, y: csr_matrix, options: dict[str, Any]) -> Rank:
    """This library at its default settings, but for what --param and --model change."""
    from extremegp import LabelTreeGPClassifier, MultiLabelGPClassifier
    from extremegp.cli.settings import parse_settings

    estimators = {"factor": MultiLabelGPClassifier, "tree": LabelTreeGPClassifier}
    estimator = estimators[options["model"]]
    parameters = parse_settings(options["parameters"], estimator.__name__)
    model = estimator(**parameters, random_state=options["seed"], verbose=False).fit(x, y)
    model.save(folder / "saved")
    return lambda test: csr_matrix(model.predict_topk(test, k=TOP, output="csr"))


def from_pairs(rows: list[list[tuple[int, float]]], n_labels: int) -> csr_matrix:
    """Pairs (label, score) of every row as a sparse matrix."""
    offsets = np.cumsum([0, *map(len, rows)])
    pairs = [pair for row in rows for pair in row]
    scores = np.array([score for _, score in pairs], dtype=np.float32)
    return csr_matrix((scores, [label for label, _ in pairs], offsets), shape=(len(rows), n_labels))


def best(scores: np.ndarray[Any, Any]) -> csr_matrix:
    """The best labels of dense scores as a sparse matrix."""
    top = min(TOP, scores.shape[1])
    columns = np.argpartition(scores, -top, axis=1)[:, -top:]
    values = np.take_along_axis(scores, columns, axis=1)
    offsets = np.arange(len(scores) + 1) * top
    return csr_matrix((values.ravel().astype(np.float32), columns.ravel(), offsets), shape=scores.shape)


def single_rows(rank: Rank, x: csr_matrix) -> list[float]:
    """Seconds that each of some rows takes alone."""
    seconds = []
    for i in range(min(SINGLE_ROWS, x.shape[0])):
        row, started = x[i], time.perf_counter()
        rank(row)
        seconds.append(time.perf_counter() - started)
    return seconds


def peak_memory() -> int:
    """Bytes of memory that this process held at most."""
    try:
        # What getrusage gives on Linux includes the process that started this one.
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        unit = 1 if sys.platform == "darwin" else 1024
        return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    method, folder = sys.argv[1], Path(sys.argv[2])
    x, y, test_x = (csr_matrix(load_npz(folder / f"{part}.npz")) for part in ("x", "y", "test_x"))
    options = json.loads((folder / "options.json").read_text(encoding="utf-8"))
    settings = options["settings"]
    shutil.rmtree(folder / "saved", ignore_errors=True)
    methods: dict[str, Callable[[], Rank]] = {
        "extremegp": lambda: extremegp(folder, x, y, options),
        "omikuji": lambda: omikuji(folder, y, "HINGE", settings),
        "omikuji-log": lambda: omikuji(folder, y, "LOG", settings),
        "napkinxc-plt": lambda: napkinxc(folder, x, y, "PLT", **settings),
        "napkinxc-huffman": lambda: napkinxc(folder, x, y, "PLT", tree_type="huffman", **settings),
        "napkinxc-ovr": lambda: napkinxc(folder, x, y, "BR", **settings),
        "logistic": lambda: logistic(folder, x, y, settings.get("strength", options["logistic_c"])),
        "lightgbm": lambda: lightgbm(folder, x, y, settings),
        "pecos-xr": lambda: pecos(folder, x, y, tree=True),
        "pecos-ovr": lambda: pecos(folder, x, y, tree=False),
    }
    with redirect_stdout(sys.stderr):
        clocks = [(time.process_time(), time.perf_counter())]
        rank = methods[method]()
        clocks.append((time.process_time(), time.perf_counter()))
        scores = rank(test_x)
        clocks.append((time.process_time(), time.perf_counter()))
        single = single_rows(rank, test_x)
        if (folder / "held_out_x.npz").is_file():
            save_npz(folder / "held_out_scores.npz", rank(csr_matrix(load_npz(folder / "held_out_x.npz"))))
    (train_cpu, train_wall), (test_cpu, test_wall) = np.diff(clocks, axis=0).tolist()
    costs = {
        "train_cpu_seconds": train_cpu,
        "train_seconds": train_wall,
        "test_cpu_seconds": test_cpu,
        "test_seconds": test_wall,
        "row_seconds": float(np.median(single)),
        "row_seconds_p99": float(np.percentile(single, 99)),
        "peak_gigabytes": peak_memory() / 1e9,
        "model_megabytes": sum(file.stat().st_size for file in (folder / "saved").rglob("*") if file.is_file()) / 1e6,
    }
    save_npz(folder / "scores.npz", scores)
    (folder / "costs.json").write_text(json.dumps(costs), encoding="utf-8")


if __name__ == "__main__":
    main()
