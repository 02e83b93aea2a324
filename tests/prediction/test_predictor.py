"""The best labels in blocks of rows and labels are those of the whole matrix of scores."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch
from tests.models import random_inputs, random_model
from tests.reference.metrics import top_labels

from extremegp.metrics.topk import PAD
from extremegp.prediction import predictor as prediction
from extremegp.prediction.predictor import Predictor, RankedBy
from extremegp.settings.model import ModelSettings

N, D, K, P = 13, 6, 41, 4


def predictor(**changes: object) -> Predictor:
    settings = {"n_features": D, "n_labels": K, "n_latent": P, "n_inducing": 5, "kernel": "ard"} | changes
    return Predictor(random_model(ModelSettings(**settings), scale=0.8))  # type: ignore[arg-type]


def dense(of: Predictor, x: np.ndarray, given: scipy.sparse.csr_matrix | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Mean utilities and probabilities of all labels, N x K each."""
    _, means, probabilities = zip(*of.mean_utilities_and_probabilities(x, given), strict=True)
    return np.concatenate(means), np.concatenate(probabilities)


@pytest.mark.parametrize("by", ["probability", "utility"])
@pytest.mark.parametrize("elements", [1, 50, 1 << 22])
@pytest.mark.parametrize("k", [1, 5, K + 2])
def test_blocks_of_labels_give_the_best_of_all(
    monkeypatch: pytest.MonkeyPatch, by: RankedBy, elements: int, k: int
) -> None:
    of, x = predictor(), random_inputs(N, D)
    means, probabilities = dense(of, x)
    scores = means if by == "utility" else probabilities
    # As few as 1 and at most 12 labels in a block.
    monkeypatch.setattr(prediction, "_BLOCK_ELEMENTS", elements)
    blocks = list(of.top(x, k, by))
    assert [i for rows, _, _ in blocks for i in range(N)[rows]] == list(range(N))
    for rows, best, of_best in blocks:
        assert best.labels.shape == of_best.shape == (rows.stop - rows.start, k)
        for i, labels, found, p in zip(range(N)[rows], best.labels, best.scores, of_best, strict=True):
            expected = top_labels(scores[i], k)
            assert labels[: len(expected)].tolist() == expected
            np.testing.assert_allclose(found[: len(expected)], scores[i, expected], rtol=1e-6)
            np.testing.assert_allclose(p[: len(expected)], probabilities[i, expected], rtol=1e-6)
            assert (labels[len(expected) :] == PAD).all()
            assert (p[len(expected) :] == 0).all()


def test_equal_scores_go_to_the_lower_label_across_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    of = predictor()
    with torch.no_grad():
        of.model.mixing.loadings[:] = 0
        of.model.mixing.bias[:] = -1
        of.model.mixing.bias[[7, 20, 30]] = 2
    monkeypatch.setattr(prediction, "_BLOCK_ELEMENTS", N)
    for _, best, _ in of.top(random_inputs(N, D), 5):
        np.testing.assert_array_equal(best.labels, np.tile([7, 20, 30, 0, 1], (len(best.labels), 1)))


def test_no_block_is_wider_than_its_share_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    of, widths = predictor(), []
    marginals = of.model.mixing.marginals

    def watched(latents: object, labels: slice) -> object:
        result = marginals(latents, labels)  # type: ignore[arg-type]
        widths.append(result.mean.numel())
        return result

    monkeypatch.setattr(of.model.mixing, "marginals", watched)
    monkeypatch.setattr(prediction, "_BLOCK_ELEMENTS", 30)
    monkeypatch.setattr(prediction, "_MIN_LABELS", 6)
    list(of.top(random_inputs(N, D), 2))
    assert max(widths) <= 30
    assert sum(widths) == N * K


@pytest.mark.parametrize("by", ["probability", "utility"])
def test_known_labels_and_classes_are_ranked_over_whole_rows(by: RankedBy) -> None:
    x, known = random_inputs(N, D), np.zeros((N, K))
    known[:, 3], known[2, 5] = 1, -1
    given = scipy.sparse.csr_matrix(known)
    classes = predictor(likelihood="independent")
    for of, told in ((predictor(), given), (classes, None)):
        means, probabilities = dense(of, x, told)
        scores = (
            np.where(known != 0, -np.inf, means if by == "utility" else probabilities)
            if told is not None
            else (means if by == "utility" else probabilities)
        )
        for rows, best, p in of.top(x, 4, by, told):
            for i, labels, found in zip(range(N)[rows], best.labels, p, strict=True):
                assert labels.tolist() == top_labels(scores[i].astype(np.float32), 4)
                np.testing.assert_allclose(found, probabilities[i, labels], rtol=1e-6)


def test_scores_of_labels_that_differ_from_row_to_row_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    of, x = predictor(), random_inputs(N, D)
    means, probabilities = dense(of, x)
    labels = np.random.default_rng(0).integers(K, size=(N, 3))
    (_, utilities), *more = of.utilities(x)
    assert not more
    monkeypatch.setattr(prediction, "_BLOCK_ELEMENTS", 3 * P * 2)
    found = of.at(utilities, torch.from_numpy(labels))
    for values, whole in zip(found, (means, probabilities), strict=True):
        np.testing.assert_allclose(values, np.take_along_axis(whole, labels, axis=1), rtol=1e-6)


def test_a_model_that_diverged_is_refused() -> None:
    of = predictor()
    with torch.no_grad():
        of.model.mixing.bias[11] = torch.nan
    with pytest.raises(ValueError, match="NaN"):
        list(of.top(random_inputs(N, D), 3))
