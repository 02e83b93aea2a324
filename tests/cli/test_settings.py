"""--set key=value and --time-budget."""

from __future__ import annotations

import inspect
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

import extremegp
from extremegp.cli import parameters, settings
from extremegp.cli.parameters import parameter_types
from extremegp.cli.settings import duration, one_of, parse_settings
from extremegp.errors import SettingsError


def test_values_are_read_by_the_type_of_the_parameter() -> None:
    pairs = [
        "n_inducing=7",
        "n_latent=auto",
        "batch_size=32",
        "learn_inducing=False",
        "linear_term=auto",
        "normalise_inducing=true",
        "kl_weight=5e-1",
        "patience=none",
        "time_budget=30",
        "kernel=se",
        "dtype=float64",
        "propensity=0.6,2.6",
        "n_sampled_labels=500",
        "label_sampling=uniform",
        "ngram_range=1,2",
        "lowercase=false",
        "analyzer=char_wb",
        "max_features=none",
    ]
    assert parse_settings(pairs) == {
        "n_inducing": 7,
        "n_latent": "auto",
        "batch_size": 32,
        "learn_inducing": False,
        "linear_term": "auto",
        "normalise_inducing": True,
        "kl_weight": 0.5,
        "patience": None,
        "time_budget": 30.0,
        "kernel": "se",
        "dtype": "float64",
        "propensity": (0.6, 2.6),
        "n_sampled_labels": 500,
        "label_sampling": "uniform",
        "ngram_range": (1, 2),
        "lowercase": False,
        "analyzer": "char_wb",
        "max_features": None,
    }
    assert parse_settings(["propensity=auto", "n_sampled_labels=none"]) == {
        "propensity": "auto",
        "n_sampled_labels": None,
    }


def test_parameters_are_those_of_the_estimator() -> None:
    for text, value in (("0.3", 0.3), ("30", 30), ("auto", "auto"), ("none", None)):
        parsed = parse_settings([f"n_sampled_classes={text}"], "MultiClassGPClassifier")["n_sampled_classes"]
        assert parsed == value
        assert type(parsed) is type(value)
    assert parse_settings(["likelihood=one-vs-each", "class_sampling=pair"], "MultiClassGPClassifier") == {
        "likelihood": "one-vs-each",
        "class_sampling": "pair",
    }
    with pytest.raises(SettingsError, match="n_sampled_classes must be an integer or a number or auto or none"):
        parse_settings(["n_sampled_classes=few"], "MultiClassGPClassifier")
    with pytest.raises(SettingsError, match="'propensity' is unknown"):
        parse_settings(["propensity=auto"], "MultiClassGPClassifier")
    with pytest.raises(SettingsError, match="'mixing' is unknown"):
        parse_settings(["mixing=identity"])


def test_whole_numbers_stay_integers() -> None:
    assert type(parse_settings(["epochs=3"])["epochs"]) is int


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("n_inducing", "key=value"),
        ("kernal=se", "did you mean 'kernel'"),
        ("xyz=1", "known are analyzer, ngram_range, lowercase, min_df, max_features, features, latents, kernel"),
        ("n_inducing=1.5", "n_inducing must be an integer or auto; it is '1.5'"),
        ("epochs=many", "epochs must be an integer or auto; it is 'many'"),
        ("learn_inducing=1", "learn_inducing must be true or false"),
        ("kl_weight=high", "kl_weight must be a number"),
        ("dtype=float16", "dtype must be float32 or float64"),
        ("propensity=0.6", "propensity must be auto or two numbers such as 0.55,1.5 or none; it is '0.6'"),
        ("propensity=0.6,2.6,1", "propensity must be auto or two numbers"),
        ("n_sampled_labels=few", "n_sampled_labels must be an integer or auto or none"),
        ("checkpoint=here", "MODEL.checkpoint"),
        ("verbose=true", "--quiet"),
    ],
)
def test_bad_pairs_say_what_would_be_good(pair: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message.replace(".", r"\.")):
        parse_settings([pair])


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10m", 600), ("1h30m", 5400), ("2h", 7200), ("1h1m1.5s", 3661.5), ("45", 45), ("0.5", 0.5)],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0s", "-5", "soon", "10x", "5m1h", "nan", "inf"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="--time-budget"):
        duration(text)


@pytest.mark.parametrize(
    "estimator", ["MultiLabelGPClassifier", "LabelTreeGPClassifier", "MultiClassGPClassifier", "SequenceGPClassifier"]
)
def test_parameters_that_sources_state_are_those_of_the_constructor(estimator: str) -> None:
    cls = getattr(extremegp, estimator)
    stated, hints = parameter_types(estimator), get_type_hints(cls)
    assert list(stated) == list(inspect.signature(cls).parameters)

    def alternatives(hint: Any) -> set[Any]:
        parts = {hint} if get_origin(hint) in (Literal, tuple) or isinstance(hint, type) else set(get_args(hint))
        return {part for part in parts if get_origin(part) in (Literal, tuple) or part in settings._READERS}

    for name, hint in stated.items():
        assert alternatives(hint) == alternatives(hints[name]), name


def test_parameters_are_known_without_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    known = parameter_types("SequenceGPClassifier")
    monkeypatch.setattr(parameters, "_sources", lambda: ({}, {}))
    parameter_types.cache_clear()
    assert known.keys() <= parameter_types("SequenceGPClassifier").keys()
    parameter_types.cache_clear()


@pytest.mark.parametrize(("wrong", "first"), [("ARDFX", "ARD-FX"), ("ard", "ARD"), ("sdgp-1", "SDGP1")])
def test_of_very_many_choices_the_nearest_are_shown(wrong: str, first: str) -> None:
    names = [f"X{i}" for i in range(200)] + ["ARD", "ARD-FX", "ARD-UN", "SDGP1", "SDGP2"]
    with pytest.raises(SettingsError) as refused:
        one_of("--preset", wrong, names, listed_by="`extremegp presets`")
    assert f"did you mean {first!r}" in str(refused.value)
    assert str(refused.value).endswith("`extremegp presets` lists all 205")
    assert len(str(refused.value)) < 160
