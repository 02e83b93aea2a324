from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy.sparse
import torch
from scipy.special import logsumexp
from tests.models import as_array, random_inputs, randomise
from tests.moments import assert_mean
from tests.reference.chain import enumerate_labellings
from tests.reference.sequences_of_labels import log_prob

from extremegp.engine import chain
from extremegp.engine.likelihoods.chain_draws import ChainDraws
from extremegp.engine.likelihoods.linear_chain import TRANSITIONS
from extremegp.engine.model import VariationalModel
from extremegp.engine.part import TrainingData
from extremegp.engine.sparse import row_block
from extremegp.prediction import predictor
from extremegp.prediction.predictor import Predictor
from extremegp.settings.model import ModelSettings
from extremegp.settings.parts import SEQUENCE_LATENTS as LATENT_PARTS

D = 5
LENGTHS = np.array([3, 1, 2, 4])
X = scipy.sparse.csr_matrix(random_inputs(int(LENGTHS.sum()), D))
LATENTS: dict[str, dict[str, Any]] = {
    # Functions of landmarks see their features: they have tests beside what chooses them.
    **{name: {"latents": name} for name in LATENT_PARTS if name != "landmarks-point"},
    "se": {"kernel": "se"},
    "var-fixed": {"frequencies": "var-fixed"},
    "var-resampled": {"frequencies": "var-resampled"},
    "deep": {"n_layers": 2, "n_hidden": 2, "frequencies": "var-fixed"},
    "reduced": {"n_reduced": 3},
    "random features and linear": {"linear_term": True},
    "gp of a full posterior in u": {"latents": "gp", "posterior": "full-u"},
    "gp and linear": {"latents": "gp", "posterior": "mean-field", "linear_term": True},
}
EVERY_LATENTS = pytest.mark.parametrize("latents", LATENTS)
EVERY_TRANSITIONS = pytest.mark.parametrize("transitions", TRANSITIONS)
EVERY_FORM = pytest.mark.parametrize("form", ["sparse", "dense"])


def model_of(latents: str, transitions: str, *, n_labels: int = 3, seed: int = 0) -> VariationalModel:
    """A float64 model with every parameter random."""
    sizes = {"n_features": D, "n_labels": n_labels, "n_latent": n_labels, "n_random_features": 7, "n_inducing": 4}
    settings = {"latents": "random-features", "kernel": "arccos1", "posterior": "full", "linear_posterior": "point"}
    settings |= LATENTS[latents]
    if settings["latents"] == "gp":
        settings |= {"inducing": "sparse", "support_size": D, "learn_inducing": False, "normalise_inducing": False}
    chain_of = {"likelihood": "linear-chain", "mixing": "identity", "transitions": transitions, "bias_variance": 4.0}
    model = ModelSettings(**sizes, **settings, **chain_of).checked().build()  # type: ignore[arg-type]
    y = scipy.sparse.csr_matrix(np.eye(n_labels)[np.arange(X.shape[0]) % n_labels])
    model.start(TrainingData(X, y, np.random.default_rng(seed), inducing_start="rows"))
    randomise(model, scale=0.5, seed=seed)
    return model.double()


class Answers(NamedTuple):
    """What blocks say of all sequences, in the form of single sequences."""

    unary: list[np.ndarray]
    marginals: list[np.ndarray]
    log_prob: list[float]
    paths: list[list[list[int]]]
    scores: list[np.ndarray]


def labels_of(lengths: np.ndarray, n_labels: int = 3) -> list[np.ndarray]:
    return [np.arange(n) * n % n_labels for n in lengths]


def answers(
    model: VariationalModel, x: Any, lengths: np.ndarray, *, n_draws: int = 5, seed: int = 0
) -> tuple[Answers, list[slice]]:
    found, blocks = Answers([], [], [], [], []), []
    labels = labels_of(lengths)
    for block in Predictor(model, n_draws=n_draws, seed=seed).blocks(x, lengths):
        own = block.lengths.tolist()
        assert own == lengths[block.sequences].tolist()
        # What lies in the padding may be anything.
        padded = torch.full((len(own), max(own)), 77)
        for row, label in zip(padded, labels[block.sequences], strict=True):
            row[: len(label)] = torch.from_numpy(label)
        paths, scores = block.k_best(2)
        marginals = block.marginals()
        found.unary.extend(as_array(block.unary[:, i, :n]) for i, n in enumerate(own))
        found.marginals.extend(map(as_array, marginals.split(own, dim=1)))
        found.log_prob.extend(block.log_prob(padded).tolist())
        found.paths.extend([path[:n].tolist() for path in of_one] for of_one, n in zip(paths, own, strict=True))
        found.scores.extend(map(as_array, scores))
        blocks.append(block.sequences)
    assert [i for block in blocks for i in range(len(lengths))[block]] == list(range(len(lengths)))
    return found, blocks


def assert_same(found: Answers, expected: Answers) -> None:
    for name in ("unary", "marginals", "log_prob", "scores"):
        for one, other in zip(getattr(found, name), getattr(expected, name), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
    assert found.paths == expected.paths


def inputs(form: str) -> Any:
    return X if form == "sparse" else X.toarray()


# Blocks and neighbours


@EVERY_FORM
@EVERY_LATENTS
@EVERY_TRANSITIONS
def test_blocks_of_any_size_give_the_same_answers(
    latents: str, transitions: str, form: str, monkeypatch: pytest.MonkeyPatch
):
    model = model_of(latents, transitions)
    whole, blocks = answers(model, inputs(form), LENGTHS)
    assert len(blocks) == 1
    per_token = 4 * 5 * model.mixing.n_utilities + model.latents.condition().width
    for most, expected in ((1, [1, 1, 1, 1]), (5 * per_token, [1, 2, 1]), (6 * per_token, [2, 1, 1])):
        monkeypatch.setattr(predictor, "_DRAWN_ELEMENTS", most)
        parts, blocks = answers(model, inputs(form), LENGTHS)
        assert [block.stop - block.start for block in blocks] == expected
        assert_same(parts, whole)


@EVERY_FORM
@EVERY_LATENTS
@EVERY_TRANSITIONS
def test_a_prediction_does_not_depend_on_the_sequences_beside_it(latents: str, transitions: str, form: str):
    model, x = model_of(latents, transitions), inputs(form)
    together, _ = answers(model, x, LENGTHS)
    ends = np.cumsum(LENGTHS)
    rows = [np.arange(end - n, end) for end, n in zip(ends, LENGTHS, strict=True)]
    for order in ([0], [1], [3], [3, 2, 1, 0], [2, 0, 0]):
        found, _ = answers(model, x[np.concatenate([rows[i] for i in order])], LENGTHS[order])
        assert_same(found, Answers(*([part[i] for i in order] for part in together)))


# Draws


@EVERY_LATENTS
@EVERY_TRANSITIONS
def test_equal_seeds_give_equal_draws_and_others_differ_where_anything_is_drawn(latents: str, transitions: str):
    model = model_of(latents, transitions)
    first, again, other = (answers(model, X, LENGTHS, seed=seed)[0] for seed in (1, 1, 2))
    for name in ("unary", "marginals", "log_prob"):
        for one, same in zip(getattr(first, name), getattr(again, name), strict=True):
            np.testing.assert_array_equal(one, same)
    certain = latents == "linear-point"
    assert np.array_equal(first.unary[3], other.unary[3]) == certain
    assert (first.log_prob == other.log_prob) == (certain and transitions != "gaussian")


@pytest.mark.parametrize("latents", [name for name in LATENTS if name not in ("deep", "var-resampled")])
@EVERY_TRANSITIONS
def test_scores_are_draws_of_the_posterior_scaled_and_shifted(latents: str, transitions: str):
    model = model_of(latents, transitions, n_labels=2)
    (block,) = Predictor(model, n_draws=4000).blocks(X, LENGTHS)
    mean = model.latents.condition().marginals(row_block(X, slice(None), dtype=torch.float64)).mean
    expected = as_array(mean * model.mixing.log_scales.exp() + model.mixing.bias)
    unary = as_array(chain.unpad(block.unary, block.lengths))
    pairs = as_array(block.transitions)
    assert_mean(unary, expected[:, :2])
    if transitions == "indexed":
        assert_mean(
            as_array(chain.unpad(block.transitions, block.lengths, dim=-3)).reshape(4000, -1, 4), expected[:, 2:]
        )
    elif transitions == "gaussian":
        assert_mean(pairs, as_array(model.likelihood.q_mean))
        deviations = np.exp(0.5 * as_array(model.likelihood.log_ratio + model.likelihood.log_prior_variance))
        np.testing.assert_allclose(pairs.std(0), deviations, rtol=0.06)
    else:
        expected_pairs = model.likelihood.q_mean if transitions == "point" else torch.zeros(2, 2)
        np.testing.assert_array_equal(pairs, as_array(expected_pairs))


def pairs_of(block: ChainDraws, sequence: int, n_draws: int) -> np.ndarray:
    """f_bin of a sequence, R x V x V or R x T x V x V."""
    transitions = as_array(block.transitions)
    if transitions.ndim == 5:
        return transitions[:, sequence]
    return np.broadcast_to(transitions, (n_draws, *transitions.shape[-2:]))


@pytest.mark.parametrize("n_labels", [2, 3, 4])
@pytest.mark.parametrize("n_draws", [1, 6])
@EVERY_TRANSITIONS
def test_probabilities_are_averages_over_the_draws_of_those_of_enumeration(
    transitions: str, n_draws: int, n_labels: int
):
    model = model_of("random-features", transitions, n_labels=n_labels)
    (block,) = Predictor(model, n_draws=n_draws).blocks(X, LENGTHS)
    labels = labels_of(LENGTHS, n_labels)
    padded = chain.pad(torch.from_numpy(np.concatenate(labels)), block.lengths, dim=-1)
    found, marginals = block.log_prob(padded), block.marginals()
    assert (found.dtype, marginals.shape) == (torch.float64, (n_draws, LENGTHS.sum(), n_labels))
    for s, (own, n) in enumerate(zip(marginals.split(LENGTHS.tolist(), dim=1), LENGTHS, strict=True)):
        unary, pairs = as_array(block.unary[:, s, :n]), pairs_of(block, s, n_draws)
        expected = logsumexp(log_prob(unary, pairs, labels[s].tolist())) - np.log(n_draws)
        assert float(found[s]) == pytest.approx(expected, abs=1e-9)
        for r in range(n_draws):
            enumerated = enumerate_labellings(unary[r], pairs[r])
            np.testing.assert_allclose(as_array(own[r]), enumerated.marginals, atol=1e-9)


# The best labellings


@pytest.mark.parametrize("n_labels", [2, 3, 4])
@EVERY_TRANSITIONS
def test_all_labellings_come_once_best_first_and_their_probabilities_add_up_to_one(transitions: str, n_labels: int):
    lengths = np.array([3, 1, 2])
    (block,) = Predictor(model_of("linear", transitions, n_labels=n_labels), n_draws=4).blocks(X[:6], lengths)
    most = n_labels**3 + 2
    paths, scores = (part.numpy() for part in block.k_best(most))
    assert (paths.shape, scores.shape) == ((3, most, 3), (3, most))
    for own, log_p, length in zip(paths, scores, lengths, strict=True):
        n_labellings = n_labels**length
        found = [tuple(path[:length]) for path in own[:n_labellings].tolist()]
        assert sorted(found) == sorted(itertools.product(range(n_labels), repeat=int(length)))
        assert (np.diff(log_p[:n_labellings]) <= 0).all()
        assert np.exp(log_p[:n_labellings]).sum() == pytest.approx(1, abs=1e-9)
        assert (log_p[n_labellings:] == -np.inf).all()
        assert (own[n_labellings:] == -1).all()


@pytest.mark.parametrize("latents", ["random-features", "linear-point"])
@EVERY_TRANSITIONS
def test_the_best_are_those_at_the_mean_scores_in_the_order_of_their_average_probability(
    latents: str, transitions: str
):
    (block,) = Predictor(model_of(latents, transitions), n_draws=6).blocks(X, LENGTHS)
    paths, scores = (part.numpy() for part in block.k_best(3))
    for s, n in enumerate(LENGTHS.tolist()):
        unary, pairs = as_array(block.unary[:, s, :n]), pairs_of(block, s, 6)
        at_mean = enumerate_labellings(unary.mean(0), pairs.mean(0))
        best = {at_mean.labellings[i] for i in np.argsort(-at_mean.scores)[:3]}
        found = [tuple(path[:n]) for path in paths[s].tolist()]
        assert set(found) == best
        expected = [logsumexp(log_prob(unary, pairs, path)) - np.log(6) for path in found]
        np.testing.assert_allclose(scores[s], expected, atol=1e-9)
        assert (np.diff(scores[s]) <= 0).all()


@pytest.mark.parametrize("transitions", ["gaussian", "point"])
def test_certainty_is_never_more_than_certain_in_float32(transitions: str):
    model = model_of("linear-point", transitions).float()
    with torch.no_grad():
        model.mixing.bias.copy_(torch.tensor([40.0, -40.0, -40.0]))
    (block,) = Predictor(model, n_draws=7).blocks(X, LENGTHS)
    log_p = block.log_prob(torch.zeros(4, 4, dtype=torch.int64))
    assert (log_p <= 0).all()
    assert (log_p > -1e-5).all()
