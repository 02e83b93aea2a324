from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from sklearn.base import clone
from tests.estimators.small_sequences import small_tagger, sticky

from extremegp import SequenceGPClassifier
from extremegp.data import Template
from extremegp.errors import DataError, ExtremeGPError, MemoryPlanError, SettingsError
from extremegp.settings import memory as plan

X, Y = sticky()
NUMBERS = [np.random.default_rng(0).normal(size=(len(labels), 3)) for labels in Y]
ROWS = [[(token["word"], token["letter"]) for token in tokens] for tokens in X]
SHORT = [labels[:-1] if s == 3 else labels for s, labels in enumerate(Y)]


@pytest.fixture(scope="module")
def trained() -> SequenceGPClassifier:
    return small_tagger().fit(X, Y)


# Settings: the message names the parameter, and data are not looked at

NAN, INFINITY = float("nan"), float("inf")
OUTSIDE: dict[str, list[Any]] = {
    "template": [5, ["U0:%x[0,0]"], b"U0:%x[0,0]"],
    "min_count": [0, -1, 1.5, "2", True, None],
    "hash_size": [0, -4, 2.0, "8", True, 2**31],
    "weighting": ["tfidf", None, 1],
    "max_memory": ["much", 0, 1.5, True],
    "labels": ["label 0", 3, {"label 0"}],
    "latents": ["trees", None, ["gp"]],
    "linear_term": ["yes", 1, None],
    "transitions": ["markov", None, True],
    "weight_covariance": ["full", None, True],
    "objective": ["likelihood", None, 0],
    "lengthscale": [0, -1.0, NAN, INFINITY, "1", None, True],
    "prior_variance": [0, -1.0, NAN, INFINITY, "1", None, True],
    "kernel": ["matern52", "cosine", None, 3],
    "ard": ["no", 2, None],
    "frequencies": ["fixed", None, 1],
    "n_layers": [0, -1, 1.5, "2", True, None, 101],
    "n_hidden": [0, -1, 1.5, "2", True, None, 2**41],
    "n_random_features": [0, -1, 1.5, "2", True, None, 2**41],
    "n_reduced": [0, -1, 1.5, "2", True, 2**41],
    "feed_forward": ["no", 1, None],
    "n_inducing": [0, -1, 1.5, "2", True, None],
    "posterior": ["diagonal", None, 1],
    "kl_weight": [-0.1, NAN, INFINITY, "1", None, True],
    "n_draws": [0, -1, 1.5, "2", True, None, 10**6],
    "n_train_draws": [0, -1, 1.5, "2", True, None, 10**6],
    "decoding": ["greedy", None, 1],
    "scheme": ["IO", 1, True],
    "epochs": [0, -1, 1.5, "many", True, None],
    "batch_size": [0, -1, 1.5, "all", True, None],
    "learning_rate": [0, -1, NAN, INFINITY, "fast", None, True],
    "optimizer": ["sgd", None, 1],
    "natural_step": [0, -0.1, 1.5, NAN, "big", None],
    "frequencies_from": [-0.1, 1.1, NAN, "0", None],
    "hyperparameters_from": [-0.1, 1.1, NAN, "0", None],
    "validation_fraction": [-0.1, 0.95, NAN, "0", None],
    "patience": [0, -1, 1.5, "2", True],
    "time_budget": [0, -1, NAN, "1", True],
    "checkpoint_seconds": [-1, NAN, "1", None],
    "dtype": ["float16", None, 32, np.float32],
    "device": ["toaster", 1.5, None],
}


def test_every_parameter_with_a_domain_is_among_them():
    assert set(small_tagger().get_params()) - set(OUTSIDE) == {"checkpoint", "random_state", "verbose"}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in OUTSIDE.items() for value in values])
def test_a_setting_outside_its_domain_is_refused_by_name(name: str, value: Any):
    with pytest.raises(SettingsError, match=rf"\b{name}\b") as caught:
        small_tagger(**{name: value}).fit(X, Y)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", [name for name in OUTSIDE if name != "device"])
def test_and_it_is_before_there_are_data(name: str):
    with pytest.raises(SettingsError, match=rf"\b{name}\b"):
        small_tagger(**{name: OUTSIDE[name][0]}).check_params()


TOGETHER: dict[str, tuple[dict[str, Any], str]] = {
    "linear and linear": ({"latents": "linear", "linear_term": True}, 'latents="linear" are already'),
    "layers of points": (
        {"latents": "linear-point", "n_layers": 2},
        'n_layers above 1 needs latents="random-features"',
    ),
    "layers of a gp": ({"latents": "gp", "n_layers": 2}, "n_layers above 1"),
    "pieces of nothing": (
        {"transitions": "none", "objective": "pseudo-likelihood"},
        'objective="pseudo-likelihood" is of transitions',
    ),
    "rare hashes": ({"hash_size": 8, "min_count": 2}, "leave out either min_count or hash_size"),
    "kernel of random features": ({"kernel": "ard"}, "kernel must be one of se, arccos1"),
    "kernel of a gp": ({"latents": "gp", "kernel": "arccos7"}, "kernel must be one of linear, "),
    **{
        f"indexed template and {transitions} transitions": (
            {"template": "U0:%x[0,0]\nB0:%x[0,1]", "transitions": transitions},
            r'B lines with %x\[..\].* use transitions="indexed"',
        )
        for transitions in ("gaussian", "point", "none")
    },
    "a parsed template": ({"template": Template.parse("B0:%x[0,1]")}, 'use transitions="indexed"'),
}


@pytest.mark.parametrize("case", TOGETHER)
def test_settings_that_do_not_go_together_are_refused(case: str):
    settings, message = TOGETHER[case]
    for act in (SequenceGPClassifier.check_params, lambda tagger: tagger.fit(ROWS, Y)):
        with pytest.raises(SettingsError, match=message) as caught:
            act(small_tagger(**settings))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("", "no lines"),
        ("# nothing\n", "no lines"),
        ("X0:%x[0,0]", "template:1: a line starts with U"),
        ("U0:%x[0,0]\nU1:%x[0]", "template:2: a % starts a macro"),
        ("U0:%x[0,0]\nU0:%x[0,0]", "template:2: the same as line 1"),
        ("U0:%x[2000,0]", "template:1: the row 2000"),
    ],
)
def test_a_template_that_cannot_be_read_is_refused_with_its_line(template: str, message: str):
    with pytest.raises(DataError, match=message):
        small_tagger(template=template).check_params()


def test_patience_without_validation_is_refused():
    with pytest.raises(SettingsError, match="patience needs validation data"):
        small_tagger(patience=2).fit(X, Y)
    with pytest.raises(SettingsError, match="patience needs validation data"):
        small_tagger(patience=2, validation_fraction=0.01).fit(X, Y)


# Data


def _with(value: float) -> list[np.ndarray]:
    changed = [part.copy() for part in NUMBERS]
    changed[2][0, 1] = value
    return changed


BAD_FITS: dict[str, tuple[dict[str, Any], Any, Any, str]] = {
    "no y": ({}, X, None, "requires y to be passed"),
    "fewer y": ({}, X, Y[:-1], "X has 14 sequences but y has 13"),
    "more y": ({}, X[:-1], Y, "X has 13 sequences but y has 14"),
    "short y": ({}, X, SHORT, rf"y\[3\] has {len(Y[3]) - 1} labels, but X\[3\] has {len(Y[3])} tokens"),
    "short y for matrices": ({}, NUMBERS, SHORT, r"y\[3\] has"),
    "short y for rows": ({"template": "U0:%x[0,0]"}, ROWS, SHORT, r"y\[3\] has"),
    "flat y": ({}, X, [label for labels in Y for label in labels], r"y\[0\] must be a list of labels"),
    "flat y of numbers": ({}, X[:3], [1, 2, 3], r"y\[0\] must be a list of labels, one a token, not int"),
    "y a string": ({}, X, "label", "y must be a list of label sequences, not str"),
    "y a mapping": ({}, X, {"a": 1}, "y must be a list of label sequences, not dict"),
    "one label": ({}, X, [["only"] * len(labels) for labels in Y], "only one class is present"),
    "mixed labels": ({}, X[:2], [Y[0], [0] * len(Y[1])], "mixes types.* token 0 of sequence 1"),
    "no labels at all": ({}, X, [[None] * len(labels) for labels in Y], "no label at all"),
    "fractions": ({}, X, [np.full(len(labels), 0.5 + s) for s, labels in enumerate(Y)], "continuous"),
    "other kind of known labels": ({"labels": [1, 2]}, X, Y, "labels and y together mixes types"),
    "flat y with known labels": ({"labels": ["z"]}, X[:3], [1, 2, 3], r"y\[0\] must be a list of labels"),
    "no X": ({}, None, Y, "X must be a list of sequences of tokens, not NoneType"),
    "X a string": ({}, "words", Y, "X must be a list of sequences of tokens, not str"),
    "no sequences": ({}, [], [], "there are no sequences"),
    "empty sequence": ({}, [*X[:2], []], [*Y[:2], []], "sequence 2 .* has no tokens"),
    "empty matrix": ({}, [*NUMBERS[:2], np.zeros((0, 3))], [*Y[:2], []], r"X\[2\] has no tokens"),
    "strings for sequences": ({}, ["the cat"], [["a", "b"]], "sequence 0 .* must be a list of tokens, not str"),
    "strings for tokens": (
        {},
        [["the", "cat"]],
        [["a", "b"]],
        r"token 0 of sequence 0 .* a token with one feature is \[name\]",
    ),
    "one sequence": ({}, X[0], Y[0], r"sequence 0 .* for one sequence of tokens pass \[tokens\]"),
    "one matrix": ({}, NUMBERS[0], Y[0], r"X\[0\] must be 2-D"),
    "one sparse matrix": ({}, scipy.sparse.csr_matrix(NUMBERS[0]), [Y[0]], "list of matrices"),
    "no features": ({}, [[{}, {}]], [["a", "b"]], "no feature occurs"),
    "too rare": ({"min_count": 1000}, X, Y, r"no feature occurs in 1000 tokens \(min_count\)"),
    "NaN": ({}, _with(NAN), Y, r"X\[2\] contains NaN at row 0, column 1"),
    "NaN in sparse": ({}, list(map(scipy.sparse.csr_matrix, _with(NAN))), Y, r"X\[2\] contains NaN"),
    "infinity": ({}, _with(INFINITY), Y, r"X\[2\] contains infinity"),
    "NaN by name": (
        {},
        [[{"a": 1.0}, {"a": NAN}]],
        [["a", "b"]],
        "token 1 of sequence 0 .* has NaN as value of the feature 'a'",
    ),
    "widths": ({}, [NUMBERS[0], NUMBERS[1][:, :2]], Y[:2], r"X\[1\] has 2 features, but X\[0\] has 3"),
    "columns": ({"template": "U0:%x[0,2]"}, ROWS, Y, "sequence 0, token 0 .* has 2 columns"),
    "mappings for rows": ({"template": "U0:%x[0,0]"}, X, Y, "sequence 0, token 0 .* is of type dict"),
    "matrices for rows": ({"template": "U0:%x[0,0]"}, NUMBERS, Y, "sequence 0, token 0 .* is of type ndarray"),
    "strings for rows": ({"template": "U0:%x[0,0]"}, ["the cat"], [["a"]], "sequence 0 .* must be a list of tokens"),
}


@pytest.mark.parametrize("case", BAD_FITS)
def test_what_cannot_be_fitted_is_said_in_one_line(case: str):
    settings, x, y, message = BAD_FITS[case]
    with pytest.raises(DataError, match=message) as caught:
        small_tagger(**settings).fit(x, y)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


BAD_CALLS: dict[str, tuple[Callable[[SequenceGPClassifier], Any], type[Exception], str]] = {
    "matrices": (lambda t: t.predict(NUMBERS), DataError, "must hold tokens with features by name"),
    "one sequence": (lambda t: t.predict_marginals(X[0]), DataError, r"pass \[tokens\]"),
    "no sequences": (lambda t: t.predict([]), DataError, "there are no sequences"),
    "empty sequence": (lambda t: t.predict_uncertainty([X[0], []]), DataError, "sequence 1 .* has no tokens"),
    "k zero": (lambda t: t.predict_k_best(X, 0), SettingsError, "k must be an integer at least 1"),
    "k a fraction": (lambda t: t.predict_k_best(X, 1.5), SettingsError, "k must be"),  # type: ignore[arg-type]
    "log_prob lengths": (lambda t: t.log_prob(X, SHORT), DataError, r"y\[3\] has"),
    "log_prob kind": (lambda t: t.log_prob(X[:1], [[1] * len(Y[0])]), DataError, "kind 'int'"),
    "score lengths": (lambda t: t.score(X, SHORT), DataError, r"y\[3\] has"),
    "score sequences": (lambda t: t.score(X, Y[:-1]), DataError, "but y has 13"),
    "draws": (lambda t: clone_fitted(t).set_params(n_draws=0).predict(X), SettingsError, "n_draws must be"),
    "decoding": (lambda t: clone_fitted(t).set_params(decoding="x").predict(X), SettingsError, "decoding must be"),
    "save over a file": (lambda t: t.save(__file__), DataError, "not a saved model"),
    "validation form": (lambda t: clone(t).fit(X, Y, validation=(NUMBERS, Y)), DataError, "features by name"),
    "validation lengths": (lambda t: clone(t).fit(X, Y, validation=(X, SHORT)), DataError, r"y\[3\] has"),
}


def clone_fitted(tagger: SequenceGPClassifier) -> SequenceGPClassifier:
    copy = clone(tagger)
    copy.__dict__.update({name: value for name, value in vars(tagger).items() if name.endswith("_")})
    return copy


@pytest.mark.parametrize("case", BAD_CALLS)
def test_bad_calls_are_refused_in_one_line(case: str, trained: SequenceGPClassifier):
    act, kind, message = BAD_CALLS[case]
    with pytest.raises(kind, match=message) as caught:
        act(trained)
    assert "\n" not in str(caught.value)


# Resources and numbers


@pytest.mark.parametrize(
    "settings",
    [
        {"n_random_features": 10**10},
        {"n_reduced": 10**11},
        {"n_layers": 50, "n_hidden": 10**10, "n_random_features": 99},
    ],
    ids=str,
)
def test_a_plan_larger_than_memory_is_refused_before_it_is_tried(settings: dict[str, Any]):
    with pytest.raises(MemoryPlanError, match="lower n_random_features, n_reduced, n_inducing or batch_size"):
        small_tagger(**settings).fit(X, Y)


def test_what_is_free_decides(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(plan, "available_memory", lambda: 1000)
    with pytest.raises(MemoryPlanError):
        small_tagger().fit(X, Y)


@pytest.mark.parametrize("latents", ["random-features", "linear", "gp"])
@pytest.mark.parametrize("learning_rate", [1e3, 1e10])
@pytest.mark.filterwarnings("ignore:jitter raised")
def test_divergence_is_said_and_never_predicted(latents: str, learning_rate: float):
    outcome: Any
    try:
        tagger = small_tagger(latents=latents, learning_rate=learning_rate, epochs=5).fit(X, Y)
        outcome = np.concatenate(tagger.predict_marginals(X))
    except ExtremeGPError as error:
        outcome = str(error)
    assert "\n" not in outcome if isinstance(outcome, str) else np.isfinite(outcome).all()
