"""A program: a server's life with the estimator that is its argument.

It fits, predicts in threads, and in forked processes, one of which fits anew. It ends with exit code 0 if all answers
are those of one thread, alone.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from extremegp import MultiClassGPClassifier
from tests.estimators.small import small_classifier, small_data
from tests.estimators.small_sequences import small_tagger, sticky
from tests.label_tree.small import small_classifier as small_trees
from tests.label_tree.small import small_data as tree_data

N_THREADS, N_FORKS, N_CALLS = 8, 4, 3


def wide(x: np.ndarray, times: int) -> np.ndarray:
    """Enough rows that torch shares them out over threads."""
    return np.tile(x, (times, 1))


def many_labels() -> tuple[Any, Any, Any]:
    x, y = small_data()
    return small_classifier(), (x, y), wide(x, 500)


def one_class() -> tuple[Any, Any, Any]:
    x, y = small_data()
    return MultiClassGPClassifier(n_inducing=5, epochs=2, verbose=False, random_state=0), (x, y[:, 0]), wide(x, 50)


def sequences() -> tuple[Any, Any, Any]:
    X, y = sticky()
    return small_tagger(n_draws=50), (X, y), X * 20


def trees() -> tuple[Any, Any, Any]:
    x, y = tree_data()
    return small_trees(), (x, y), x


def answer(classifier: Any, X: Any) -> np.ndarray:
    if hasattr(classifier, "predict_marginals"):
        return np.concatenate(classifier.predict_marginals(X))
    return np.asarray(classifier.predict_proba(X))


def same(found: np.ndarray, expected: np.ndarray) -> bool:
    return np.allclose(found, expected, rtol=1e-5, atol=1e-7)


def in_threads(ask: Callable[[], np.ndarray], expected: np.ndarray) -> bool:
    right: list[bool] = []
    barrier = threading.Barrier(N_THREADS)

    def work() -> None:
        barrier.wait(60)
        right.append(all(same(ask(), expected) for _ in range(N_CALLS)))

    threads = [threading.Thread(target=work) for _ in range(N_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return right == [True] * N_THREADS


def in_forks(ask: Callable[[], np.ndarray], expected: np.ndarray) -> bool:
    """Each child answers in its own thread, and in threads of its own; the parent goes on meanwhile."""
    children = []
    for _ in range(N_FORKS):
        child = os.fork()
        if not child:
            right = same(ask(), expected) and in_threads(ask, expected)
            os._exit(0 if right else 1)
        children.append(child)
    here = same(ask(), expected)
    return here and all(os.waitpid(child, 0)[1] == 0 for child in children)


def fitted_in_a_fork(classifier: Any, data: Any, X: Any, expected: np.ndarray) -> bool:
    child = os.fork()
    if not child:
        os._exit(0 if np.allclose(answer(classifier.fit(*data), X), expected, rtol=1e-4, atol=1e-5) else 1)
    return os.waitpid(child, 0)[1] == 0


def main(name: str) -> int:
    make = {"labels": many_labels, "classes": one_class, "sequences": sequences, "trees": trees}[name]
    classifier, data, X = make()
    classifier.fit(*data)
    torch.set_num_threads(1)
    expected = answer(classifier, X)
    torch.set_num_threads(2)
    # Threads meet a model that nobody has predicted with; a parent that forks has, with helpers that a child lacks.
    fresh = pickle.loads(pickle.dumps(classifier))

    def ask() -> np.ndarray:
        return answer(fresh, X)

    assert in_threads(ask, expected)
    assert in_forks(ask, expected)
    assert fitted_in_a_fork(fresh, data, X, expected)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
