from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch
from tests.reference.label_tree import Level, path_moments, path_probabilities

from extremegp.label_tree.nodes import PRECISION_STEPS
from extremegp.label_tree.tree import LabelTree, LevelSizes

D = 10


def random_levels(seed: int) -> list[Level]:
    """Three levels with one to three children of every node, and weights that are mostly zero."""
    rng = np.random.default_rng(seed)
    levels, above = [], 1
    for _ in range(3):
        parents = np.repeat(np.arange(above), rng.integers(1, 4, size=above))
        above = len(parents)
        weights = np.where(rng.random((above, D)) < 0.4, rng.normal(size=(above, D)), 0)
        levels.append(Level(parents, weights, rng.normal(size=above)))
    return levels


def tree_of(levels: list[Level], order: np.ndarray, precisions: list[np.ndarray] | None = None) -> LabelTree:
    """A tree of these levels; with `precisions` of their weights, coded, the biases have the variance 0.3."""
    sizes, states, above = [], {"order": torch.from_numpy(order.astype(np.int32))}, 1
    for depth, level in enumerate(levels):
        first_children, blocks, features, entries, targets, weights, codes = [0], [0], [], [0], [], [], []
        for parent in range(above):
            children = np.flatnonzero(level.parents == parent)
            first_children.append(first_children[-1] + len(children))
            for feature in range(D):
                with_it = [child for child in children if level.weights[child, feature]]
                if with_it:
                    features.append(feature)
                    targets += with_it
                    weights += [level.weights[child, feature] for child in with_it]
                    codes += [0 if precisions is None else precisions[depth][child, feature] for child in with_it]
                    entries.append(len(targets))
            blocks.append(len(features))
        sizes.append(LevelSizes(above, len(level.parents), len(features), len(targets)))
        integers = {"first_children": first_children, "blocks": blocks, "entries": entries}
        states |= {f"levels.{depth}.{name}": torch.tensor(value) for name, value in integers.items()}
        short = {"features": features, "targets": targets}
        states |= {f"levels.{depth}.{name}": torch.tensor(value, dtype=torch.int32) for name, value in short.items()}
        numbers = {"weights": weights, "biases": level.biases.tolist()}
        states |= {f"levels.{depth}.{name}": torch.tensor(value) for name, value in numbers.items()}
        if precisions is not None:
            states[f"levels.{depth}.precisions"] = torch.tensor(codes, dtype=torch.uint8)
            states[f"levels.{depth}.bias_variances"] = torch.full((len(level.parents),), 0.3)
            states["prior_variance"] = torch.tensor(2.0)
        above = len(level.parents)
    tree = LabelTree(tuple(sizes), D, len(order), weight_variances=precisions is not None)
    tree.load_state_dict(states)
    assert tree.is_sound()
    return tree


def inputs() -> scipy.sparse.csr_matrix:
    x = scipy.sparse.random(9, D, 0.5, format="lil", dtype=np.float32, random_state=1)
    x[3] = 0
    return scipy.sparse.csr_matrix(x)


@pytest.mark.parametrize("seed", range(5))
def test_a_wide_beam_finds_every_path(seed: int):
    levels = random_levels(seed)
    n = len(levels[-1].parents)
    order = np.random.default_rng(seed).permutation(n)
    labels, scores, sizes = tree_of(levels, order).search(inputs(), 1000, n + 3)
    expected = path_probabilities(inputs().toarray().astype(float), levels)
    assert sizes.tolist() == [n] * 9
    for found, score, probabilities in zip(labels[:, :n], scores[:, :n], expected, strict=True):
        assert np.all(np.diff(score) <= 0)
        of_label = np.empty(n)
        of_label[order] = probabilities
        np.testing.assert_allclose(np.exp(score), of_label[found], rtol=2e-5)
        assert sorted(found) == list(range(n))


@pytest.mark.parametrize("seed", range(3))
def test_variances_are_those_of_the_paths_under_the_posterior_of_the_weights(seed: int):
    levels, rng = random_levels(seed), np.random.default_rng(seed)
    n = len(levels[-1].parents)
    order, x = rng.permutation(n), inputs()
    codes = [rng.integers(0, 200, size=level.weights.shape) for level in levels]
    tree = tree_of(levels, order, codes)
    rows = np.repeat(np.arange(9), n - 1)
    labels = np.concatenate([rng.permutation(n)[: n - 1] for _ in range(9)]).astype(np.int32)
    scores, variances = tree.log_probabilities(x, rows, labels)
    for i in range(9):
        dense = x[i].toarray()[0].astype(float)
        kept = [
            np.where(level.weights, np.exp(-c / PRECISION_STEPS), 1) for level, c in zip(levels, codes, strict=True)
        ]
        score, variance = path_moments(dense, levels, [0.3 + 2.0 * share @ dense**2 for share in kept])
        place = np.argsort(order)[labels[rows == i]]
        np.testing.assert_allclose(scores[rows == i], score[place], rtol=1e-4)
        np.testing.assert_allclose(variances[rows == i], variance[place], rtol=5e-3)


@pytest.mark.parametrize("beam", [1, 2])
def test_a_narrow_beam_finds_some_of_the_paths_with_the_same_scores(beam: int):
    levels = random_levels(1)
    n = len(levels[-1].parents)
    tree = tree_of(levels, np.arange(n))
    every, scores, _ = tree.search(inputs(), 1000, n)
    labels, some, sizes = tree.search(inputs(), beam, n)
    assert np.all(sizes < n)
    assert np.all(sizes >= 1)
    for i, size in enumerate(sizes):
        known = dict(zip(every[i], scores[i], strict=True))
        assert [known[label] for label in labels[i, :size]] == some[i, :size].tolist()


def test_the_best_are_kept():
    levels = random_levels(2)
    n = len(levels[-1].parents)
    tree = tree_of(levels, np.arange(n))
    every, scores, _ = tree.search(inputs(), 1000, n)
    labels, best, sizes = tree.search(inputs(), 1000, 4)
    assert sizes.tolist() == [4] * 9
    np.testing.assert_array_equal(labels, every[:, :4])
    np.testing.assert_array_equal(best, scores[:, :4])
