from __future__ import annotations

import itertools
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from tests.estimators.small_sequences import small_tagger, sticky

from extremegp import SequenceGPClassifier
from extremegp.data import Template
from extremegp.engine.likelihoods.linear_chain import CHAIN_OBJECTIVES, TRANSITIONS
from extremegp.errors import BudgetWarning
from extremegp.estimators import fitting
from extremegp.settings.parts import SEQUENCE_LATENTS as LATENTS
from extremegp.settings.resolve import model_settings, sequence_params, training_settings

X, Y = sticky()
TEST_X, TEST_Y = sticky(60, seed=1)
EVERY_LATENTS = pytest.mark.parametrize("latents", [*LATENTS])


@pytest.fixture(scope="module")
def trained() -> SequenceGPClassifier:
    return small_tagger(epochs=20, n_draws=8).fit(X, Y)


def assert_same_model(first: SequenceGPClassifier, second: SequenceGPClassifier) -> None:
    state = second.model_.state_dict()
    assert first.model_.state_dict().keys() == state.keys()
    for name, tensor in first.model_.state_dict().items():
        assert torch.equal(tensor, state[name]), name


def numbers(seed: int = 0) -> list[np.ndarray]:
    """The words of `X`, as columns that are one or zero."""
    words = ["same", "w0", "w1", "w2"]
    rng = np.random.default_rng(seed)
    return [
        np.array([[float(token["word"] == word) for word in words] for token in sequence])
        + 0.01 * rng.normal(size=(len(sequence), 4))
        for sequence in X
    ]


# Learning


@pytest.mark.parametrize(
    "options",
    [
        {"n_random_features": 50},
        {"n_random_features": 50, "linear_term": True},
        {"latents": "gp", "kernel": "se", "n_inducing": 14},
        *({"latents": name} for name in ("linear", "linear-mean-field", "linear-point")),
    ],
    ids=str,
)
def test_where_a_label_is_that_of_the_token_before_a_chain_knows_it_and_independent_tokens_do_not(
    options: dict[str, Any],
):
    x, y = sticky(60)
    scores = {
        transitions: small_tagger(transitions=transitions, epochs=40, **options).fit(x, y).score(TEST_X, TEST_Y)
        for transitions in TRANSITIONS
    }
    assert scores["none"] < 0.75
    for transitions in ("gaussian", "point", "indexed"):
        assert scores[transitions] > scores["none"] + 0.12, transitions


@pytest.mark.parametrize("objective", CHAIN_OBJECTIVES)
@pytest.mark.parametrize("transitions", TRANSITIONS)
@EVERY_LATENTS
def test_every_combination_trains_and_predicts(latents: str, transitions: str, objective: str):
    if (transitions, objective) == ("none", "pseudo-likelihood"):
        return
    options: Any = {"latents": latents, "transitions": transitions, "objective": objective, "optimizer": "adam"}
    tagger = small_tagger(**options, epochs=12).fit(X, Y)
    bounds = [record["elbo"] for record in tagger.history_]
    assert np.isfinite(bounds).all()
    assert np.mean(bounds[-3:]) > np.mean(bounds[:3])
    for marginals, labels in zip(tagger.predict_marginals(X), tagger.predict(X), strict=True):
        np.testing.assert_allclose(marginals.sum(1), 1, atol=1e-5)
        assert labels.shape == (len(marginals),)
    assert (tagger.log_prob(X, Y) < 0).all()


@pytest.mark.parametrize(
    "options",
    [
        {"n_layers": 2, "n_hidden": 3},
        {"n_layers": 2, "feed_forward": False, "frequencies": "var-resampled", "ard": False},
        {"n_reduced": 3, "frequencies": "var-fixed", "frequencies_from": 0.5},
        {"kernel": "se", "hyperparameters_from": 0.9, "n_train_draws": 3},
        {"latents": "gp", "linear_term": True, "optimizer": "adam", "posterior": "mean-field", "kernel": "ard"},
        {"weighting": "idf", "min_count": 2, "kl_weight": 0.1},
        {"hash_size": 16, "batch_size": "auto", "epochs": "auto", "time_budget": 0.3, "learning_rate": 0.02},
        {"template": "U0:%x[0,0]\nU1:%x[-1,0]\nB"},
        {"template": Template.parse("U0:%x[0,0]\nB0:%x[0,1]"), "transitions": "indexed"},
        {"n_random_features": np.int64(7), "n_layers": np.int64(2), "n_hidden": np.int64(2), "min_count": np.int64(1)},
        {"hash_size": np.int64(8), "prior_variance": np.float32(3), "n_inducing": np.int64(3), "latents": "gp"},
        {"random_state": None},
        {"random_state": np.random.RandomState(3)},
        {"dtype": "float64"},
    ],
    ids=lambda setting: str(setting).partition(" at 0x")[0],
)
@pytest.mark.filterwarnings("ignore::extremegp.errors.BudgetWarning")
def test_other_settings_train_and_predict(options: dict[str, Any]):
    x = [[(token["word"], token["letter"]) for token in tokens] for tokens in X] if "template" in options else X
    tagger = small_tagger(**options).fit(x, Y)
    assert tagger.model_.mixing.bias.dtype == getattr(torch, options.get("dtype", "float32"))
    assert all(np.isfinite(marginals).all() for marginals in tagger.predict_marginals(x))
    assert clone(tagger).get_params().keys() == tagger.get_params().keys()


@pytest.mark.parametrize("make", [np.asarray, scipy.sparse.csr_matrix, scipy.sparse.coo_array])
@EVERY_LATENTS
def test_tokens_may_be_rows_of_matrices(latents: str, make: Callable[[np.ndarray], Any]):
    x = list(map(make, numbers()))
    tagger = small_tagger(latents=latents, n_inducing=3, dtype="float64").fit(x, Y)
    assert [len(labels) for labels in tagger.predict(x)] == list(map(len, Y))
    # Draws differ where functions are drawn by the weights of the features that a sequence has.
    dense = small_tagger(latents=latents, n_inducing=3, dtype="float64").fit(numbers(), Y)
    if latents == "linear-point" or make is np.asarray:
        for one, other in zip(tagger.predict_marginals(x), dense.predict_marginals(numbers()), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("n_features", "options", "n_reduced"),
    [
        (50_000, {}, 0),
        (50_001, {}, 100),
        (50_001, {"n_reduced": None}, 0),
        (50_001, {"latents": "gp"}, 0),
        (101, {"n_layers": 2}, 100),
        (100, {"n_layers": 2}, 0),
        (100, {"n_reduced": 7}, 7),
    ],
)
def test_wide_inputs_of_random_features_are_reduced_first(n_features: int, options: dict[str, Any], n_reduced: int):
    params = small_tagger(**options).get_params()
    assert (
        sequence_params(params, n_sequences=10, n_rows=30, n_features=n_features, n_stored=1)["n_reduced"] == n_reduced
    )


@pytest.mark.parametrize(
    ("n_sequences", "n_rows", "options", "batch_size", "epochs"),
    [
        (1000, 10_000, {}, 200, 200),
        (10, 100, {}, 10, 1000),
        (10, 10**6, {}, 1, 100),
        (10**6, 10**7, {}, 200, 15),
        (1000, 10_000, {"batch_size": 5000}, 1000, 1000),
        (1000, 10_000, {"epochs": 3}, 200, 3),
    ],
)
def test_batches_are_of_about_2000_tokens_and_epochs_make_1000_steps(
    n_sequences: int, n_rows: int, options: dict[str, Any], batch_size: int, epochs: int
):
    params = small_tagger(**{"batch_size": "auto", "epochs": "auto", **options}).get_params()
    params = sequence_params(params, n_sequences=n_sequences, n_rows=n_rows, n_features=10, n_stored=1)
    model = model_settings(params, n_rows=n_rows, n_features=10, n_labels=3)
    training = training_settings(params, model=model, n_rows=n_sequences, seed=0)
    assert (training.batch_size, training.epochs) == (batch_size, epochs)


def test_equal_seeds_give_equal_models_and_others_do_not():
    first, again, other = (small_tagger(random_state=seed).fit(X, Y) for seed in (4, 4, 5))
    assert_same_model(first, again)
    np.testing.assert_array_equal(
        np.concatenate(first.predict_marginals(TEST_X)), np.concatenate(again.predict_marginals(TEST_X))
    )
    assert not torch.equal(first.model_.latents.output.q_mean, other.model_.latents.output.q_mean)


def test_an_estimator_can_be_fitted_again_and_says_the_same_each_time():
    tagger = small_tagger().fit(X[:5], Y[:5])
    assert_same_model(tagger.fit(X, Y), small_tagger().fit(X, Y))
    for once, twice in zip(tagger.predict_marginals(X), tagger.predict_marginals(X), strict=True):
        np.testing.assert_array_equal(once, twice)


def test_fitting_leaves_the_global_generators_alone():
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    small_tagger().fit(X, Y).predict(X)
    assert torch.equal(torch.get_rng_state(), state[0])
    np.testing.assert_array_equal(np.random.get_state()[1], state[1])  # noqa: NPY002


# Targets


@pytest.mark.parametrize(
    "names", [["b", "a", "röd"], [3, -1, 70], [True, False], [2.0, 1.0, 0.0]], ids=["str", "int", "bool", "float"]
)
@pytest.mark.parametrize("make", [list, tuple, np.asarray])
def test_predictions_come_in_the_type_of_the_targets(names: list[Any], make: Callable[[Any], Any]):
    y = [make([names[int(label[-1]) % len(names)] for label in labels]) for labels in Y]
    tagger = small_tagger(epochs=12, latents="linear-point").fit(X, y)
    assert tagger.classes_.tolist() == sorted(names)
    predicted = tagger.predict(X)
    assert tagger.score(X, y) == np.mean(np.concatenate(predicted) == np.concatenate(y)) > 0.6
    for labels in (*predicted, tagger.predict_k_best(X)[0][0][0]):
        assert labels.dtype.kind == np.asarray(names).dtype.kind
    assert tagger.label_counts_.tolist() == [np.sum(np.concatenate(y) == name) for name in sorted(names)]
    assert tagger.n_rows_ == sum(map(len, Y))


def test_a_label_never_seen_is_an_error_in_the_score_and_impossible(trained: SequenceGPClassifier):
    changed = [list(labels) for labels in Y]
    changed[2][0] = "new"
    n_tokens = sum(map(len, Y))
    was_right = trained.predict(X)[2][0] == Y[2][0]
    assert trained.score(X, changed) == pytest.approx(trained.score(X, Y) - was_right / n_tokens)
    expected = trained.log_prob(X, Y)
    expected[2] = -np.inf
    np.testing.assert_array_equal(trained.log_prob(X, changed), expected)


# Predictions


def test_labels_are_the_most_probable_of_each_token_or_sequence(trained: SequenceGPClassifier):
    for labels, marginals in zip(trained.predict(X), trained.predict_marginals(X), strict=True):
        assert labels.tolist() == trained.classes_[marginals.argmax(1)].tolist()
    viterbi = pickle.loads(pickle.dumps(trained)).set_params(decoding="viterbi")
    for labels, best in zip(viterbi.predict(X), trained.predict_k_best(X, 1), strict=True):
        assert len(best) == 1
        assert labels.tolist() == best[0][0].tolist()
    assert viterbi.score(X, Y) == np.mean(np.concatenate(viterbi.predict(X)) == np.concatenate(Y))


def test_the_best_labellings_have_their_probabilities_best_first(trained: SequenceGPClassifier):
    for i, best in enumerate(trained.predict_k_best(X, 5)):
        assert len(best) == min(5, 3 ** len(X[i]))
        scores = [score for _, score in best]
        assert scores == sorted(scores, reverse=True)
        for labels, score in best:
            assert trained.log_prob([X[i]], [labels])[0] == pytest.approx(score, abs=1e-4)


def test_marginals_are_those_of_the_probabilities_of_all_labellings(trained: SequenceGPClassifier):
    i = next(i for i, tokens in enumerate(X) if len(tokens) == 3)
    labellings = [list(names) for names in itertools.product(trained.classes_.tolist(), repeat=3)]
    probabilities = np.exp(trained.log_prob([X[i]] * 27, labellings))
    assert probabilities.sum() == pytest.approx(1, abs=1e-4)
    for t, v in itertools.product(range(3), range(3)):
        having = [names[t] == trained.classes_[v] for names in labellings]
        assert trained.predict_marginals([X[i]])[0][t, v] == pytest.approx(probabilities[having].sum(), abs=1e-4)


@pytest.mark.parametrize("options", [{}, {"latents": "linear"}, {"latents": "linear-point", "transitions": "gaussian"}])
def test_uncertainty_is_what_data_could_take_away_and_what_not(options: dict[str, Any]):
    tagger = small_tagger(**options).fit(X, Y)
    found = tagger.predict_uncertainty(X)
    for parts, marginals in zip(found, tagger.predict_marginals(X), strict=True):
        np.testing.assert_allclose(parts.total, -(marginals * np.log(marginals)).sum(1), atol=1e-5)
        np.testing.assert_allclose(parts.total, parts.aleatoric + parts.epistemic, atol=1e-6)
        assert (parts.epistemic >= -1e-6).all()
        assert (parts.aleatoric > 0).all()
    assert max(parts.epistemic.max() for parts in found) > 1e-3


@pytest.mark.parametrize("transitions", ["point", "none"])
def test_a_point_is_certain_of_its_probabilities(transitions: str):
    tagger = small_tagger(latents="linear-point", transitions=transitions).fit(X, Y)
    for parts in tagger.predict_uncertainty(X):
        np.testing.assert_allclose(parts.epistemic, 0, atol=1e-6)


def test_more_draws_change_little_and_are_those_asked_for(trained: SequenceGPClassifier):
    more = pickle.loads(pickle.dumps(trained)).set_params(n_draws=2000)
    other = np.concatenate(more.predict_marginals(X))
    assert 0 < np.abs(other - np.concatenate(trained.predict_marginals(X))).max() < 0.5
    np.testing.assert_allclose(other, np.concatenate(more.set_params(n_draws=2001).predict_marginals(X)), atol=0.05)


@EVERY_LATENTS
def test_sequences_of_one_token_and_of_very_different_lengths(latents: str):
    one = small_tagger(latents=latents).fit([tokens[:1] for tokens in X], [labels[:1] for labels in Y])
    assert [len(marginals) for marginals in one.predict_marginals(TEST_X)] == list(map(len, TEST_X))
    long_x, long_y = X[0] * 100, Y[0] * 100
    mixed = small_tagger(latents=latents, batch_size=2).fit([*X, long_x, X[0][:1]], [*Y, long_y, Y[0][:1]])
    assert [len(labels) for labels in mixed.predict([X[0][:1], long_x])] == [1, len(long_x)]
    assert np.isfinite(mixed.log_prob([X[0][:1], long_x], [Y[0][:1], long_y])).all()


def test_tokens_without_features_that_training_had_are_predicted(trained: SequenceGPClassifier):
    marginals = trained.predict_marginals([[{}, {"word": "unheard of"}], [{"word": "w0"}, {}]])
    np.testing.assert_allclose(np.concatenate(marginals).sum(1), 1, atol=1e-5)


# Validation and time


def test_validation_keeps_the_best_epoch_and_names_its_score():
    # The covariance that weights share is found afterwards.
    own = {"latents": "linear", "weight_covariance": "factorised", "epochs": 8, "n_draws": 8}
    tagger = small_tagger(**own).fit(X, Y, validation=(TEST_X, TEST_Y))
    scores = [record["validation_accuracy"] for record in tagger.history_]
    assert len(set(scores)) > 1
    assert tagger.score(TEST_X, TEST_Y) == pytest.approx(max(scores))


def test_held_out_sequences_are_whole_and_no_part_of_training(monkeypatch: pytest.MonkeyPatch):
    parts: list[tuple[Any, Any, Any]] = []

    def remember(model: Any, x: Any, y: Any, *_: Any, lengths: Any, **__: Any) -> list[dict[str, float]]:
        parts.append((x, y.indices, lengths))
        return []

    monkeypatch.setattr(fitting, "train", remember)
    monkeypatch.setattr(fitting, "validator", lambda model, held_out: parts.append(tuple(held_out)[:3]))
    y = [[int(label[-1]) for label in labels] for labels in Y]
    rows, _ = small_tagger(validation_fraction=0.3).fit(numbers(), y).features_.transform(numbers())

    def whole(x: np.ndarray, codes: Any, lengths: Any) -> list[tuple[Any, Any]]:
        ends = np.cumsum(lengths)[:-1]
        return [(a.tolist(), b.tolist()) for a, b in zip(np.split(x, ends), np.split(codes, ends), strict=True)]

    (held, held_targets, held_lengths), training = parts
    assert len(held_lengths) == int(0.3 * len(X))
    found = whole(held, held_targets.indices, held_lengths) + whole(*training)
    assert sorted(found) == sorted(whole(rows, np.concatenate(y), list(map(len, y))))


def test_without_better_epochs_training_stops_when_patience_ends():
    tagger = small_tagger(epochs=60, validation_fraction=0.4, patience=2, latents="linear-point").fit(X, Y)
    scores = [record["validation_accuracy"] for record in tagger.history_]
    assert len(scores) == int(np.argmax(scores)) + 3 < 60


def test_validation_labels_that_training_lacks_are_errors():
    tagger = small_tagger().fit(X, Y, validation=(X[:2], [["new"] * len(labels) for labels in Y[:2]]))
    assert [record["validation_accuracy"] for record in tagger.history_] == [0.0, 0.0]


def test_a_budget_is_kept_and_a_generous_one_changes_nothing():
    assert_same_model(small_tagger().fit(X, Y), small_tagger(time_budget=1e6).fit(X, Y))
    with pytest.warns(BudgetWarning):
        assert len(small_tagger(time_budget=1e-6, epochs=50).fit(X, Y).history_) == 1


def test_a_short_training_is_silent(capsys: pytest.CaptureFixture[str]):
    small_tagger(verbose=True).fit(X, Y)
    assert capsys.readouterr() == ("", "")


# scikit-learn's machinery


def test_parameters_are_got_set_and_cloned(trained: SequenceGPClassifier):
    tagger = small_tagger(template=Template.parse("U0:%x[0,0]"))
    copy = clone(tagger.set_params(n_hidden=2, kl_weight=0.5))
    assert copy.get_params() == tagger.get_params()
    assert not hasattr(clone(trained), "model_")
    assert clone(trained).get_params() == trained.get_params()


def test_sequences_are_the_samples_of_searches_and_of_cross_validation():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scores = cross_val_score(small_tagger(latents="linear-point", epochs=10), X, Y, cv=3)
        search = GridSearchCV(
            small_tagger(), {"n_random_features": np.array([5, 10]), "transitions": ["none", "point"]}, cv=2
        ).fit(X, Y)
    assert (scores > 0.35).all()
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_params_["n_random_features"] in (5, 10)
    assert [len(labels) for labels in search.predict(TEST_X)] == list(map(len, TEST_X))


def test_fitted_or_not_it_can_be_pickled(trained: SequenceGPClassifier):
    assert pickle.loads(pickle.dumps(small_tagger(kernel="se"))).get_params()["kernel"] == "se"
    copy = pickle.loads(pickle.dumps(trained))
    for one, other in zip(copy.predict_marginals(X), trained.predict_marginals(X), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "act",
    [
        lambda tagger, path: tagger.predict(X),
        lambda tagger, path: tagger.set_params(decoding="viterbi").predict(X),
        lambda tagger, path: tagger.predict_marginals(X),
        lambda tagger, path: tagger.predict_k_best(X),
        lambda tagger, path: tagger.predict_uncertainty(X),
        lambda tagger, path: tagger.log_prob(X, Y),
        lambda tagger, path: tagger.score(X, Y),
        lambda tagger, path: tagger.save(path / "m"),
    ],
)
def test_before_fit_nothing_else_works(act: Callable[..., Any], tmp_path: Any):
    with pytest.raises(NotFittedError):
        act(small_tagger(), tmp_path)
