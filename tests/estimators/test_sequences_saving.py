"""Models of sequences that are saved and loaded, and trainings that are interrupted and go on."""

from __future__ import annotations

import pickle
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.estimators.small_sequences import small_tagger, sticky

import extremegp
from extremegp import SequenceGPClassifier
from extremegp.data import Template
from extremegp.errors import ExtremeGPError, ModelFormatError
from extremegp.estimators import fitting
from extremegp.settings.parts import SEQUENCE_LATENTS
from extremegp.storage import models as io
from extremegp.training import NoReporter, TrainingInterrupted

X, Y = sticky()
ROWS = [[(token["word"], token["letter"]) for token in tokens] for tokens in X]
NUMBERS = [np.random.default_rng(s).normal(size=(len(labels), 3)) for s, labels in enumerate(Y)]
INDEXED = "U0:%x[0,0]\nU1:%x[-1,1]\nB0:%x[0,1]\n"

KINDS: dict[str, tuple[dict[str, Any], Any]] = {
    **{name: ({"latents": name}, X) for name in SEQUENCE_LATENTS},
    "se": ({"kernel": "se", "frequencies": "var-fixed"}, X),
    "deep": ({"n_layers": 2, "n_hidden": 2, "n_reduced": 3, "frequencies": "var-resampled", "ard": False}, X),
    "random features and linear": ({"linear_term": True, "transitions": "point"}, X),
    "gp and linear": ({"latents": "gp", "linear_term": True, "posterior": "mean-field", "kernel": "ard"}, X),
    "gp in u": ({"latents": "gp", "posterior": "full-u"}, X),
    "gp of matrices": ({"latents": "gp", "posterior": "parsimonious", "kernel": "se", "n_inducing": 3}, NUMBERS),
    "independent": ({"transitions": "none", "decoding": "viterbi"}, X),
    "float64": ({"dtype": "float64", "weighting": "idf", "min_count": 2}, X),
    "hashed": ({"hash_size": 16, "objective": "pseudo-likelihood"}, X),
    "template": ({"template": "U0:%x[0,0]\nB", "latents": "linear-point"}, ROWS),
    "indexed template": ({"template": INDEXED, "transitions": "indexed"}, ROWS),
    "matrices": ({"latents": "linear"}, NUMBERS),
    "validated": ({"validation_fraction": 0.3, "patience": 1, "epochs": 4}, X),
}


def assert_same_answers(first: Any, second: Any, x: Any) -> None:
    for one, other in zip(first.predict_marginals(x), second.predict_marginals(x), strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(first.predict(x), second.predict(x), strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype
    np.testing.assert_array_equal(first.log_prob(x, Y), second.log_prob(x, Y))
    assert str(first.predict_k_best(x, 3)) == str(second.predict_k_best(x, 3))


# Saving and loading


@pytest.mark.parametrize("frequencies", ["prior-fixed", "var-fixed", "var-resampled"])
def test_what_a_seed_gives_back_is_not_saved(frequencies: Any, tmp_path: Path):
    tagger = small_tagger(frequencies=frequencies, n_random_features=1000).fit(X, Y)
    tagger.save(tmp_path / "model")
    names = io.read_model(tmp_path / "model")[1].keys()
    assert NOISE not in names
    assert (f"{NOISE}_seed" in names) == (frequencies != "var-resampled")
    learnt = frequencies != "prior-fixed"
    assert ("model.latents.layers.0.q_mean" in names) == learnt
    n_bytes = (tmp_path / "model" / "tensors.safetensors").stat().st_size
    stored = tagger.settings_.n_features * 1000 * 4
    # The weights of the functions, and frequencies that were learnt: their means and variances.
    # The covariance that the weights share is that of features that stay.
    covariance = 4 * 1000**2 * (frequencies != "var-resampled")
    assert n_bytes < 2.5 * 1000 * 4 * len(tagger.classes_) + 2 * stored * learnt + covariance + 10_000
    assert_same_answers(pickle.loads(pickle.dumps(tagger)), tagger, X)
    assert len(pickle.dumps(tagger.model_)) < n_bytes + 30_000


@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_model_gives_the_same_bits_and_can_be_fitted_again(kind: str, tmp_path: Path):
    settings, x = KINDS[kind]
    tagger = small_tagger(**settings).fit(x, Y)
    tagger.save(tmp_path / "model")
    loaded = extremegp.load(tmp_path / "model")
    assert isinstance(loaded, SequenceGPClassifier)
    assert_same_answers(loaded, tagger, x)
    assert (loaded.history_, loaded.n_rows_, loaded.settings_) == (tagger.history_, tagger.n_rows_, tagger.settings_)
    np.testing.assert_array_equal(loaded.label_counts_, tagger.label_counts_)
    np.testing.assert_array_equal(loaded.classes_, tagger.classes_)
    assert loaded.get_params() | {"verbose": False} == tagger.get_params()
    loaded.save(tmp_path / "again")
    for name in ("config.json", "tensors.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "model" / name).read_bytes()
    assert_same_answers(loaded.fit(x, Y), tagger, x)


@pytest.mark.parametrize("names", [[3, -1, 70], [True, False], [2.0, 1.0, 0.0]], ids=str)
def test_labels_of_every_type_survive(names: list[Any], tmp_path: Path):
    y = [[names[int(label[-1]) % len(names)] for label in labels] for labels in Y]
    tagger = small_tagger().fit(X, y)
    tagger.save(tmp_path / "model")
    loaded = extremegp.load(tmp_path / "model")
    assert loaded.classes_.dtype == tagger.classes_.dtype
    assert loaded.classes_.tolist() == sorted(names)
    for one, other in zip(loaded.predict(X), tagger.predict(X), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_parsed_template_is_saved_as_its_text(tmp_path: Path):
    tagger = small_tagger(template=Template.parse(INDEXED), transitions="indexed").fit(ROWS, Y)
    tagger.save(tmp_path / "model")
    loaded = extremegp.load(tmp_path / "model")
    assert loaded.template == INDEXED
    assert_same_answers(loaded.fit(ROWS, Y), tagger, ROWS)


@pytest.mark.parametrize("labels", [["new"], ("newer", "new", "label 0"), ("new", "newer"), np.array(["new"])], ids=str)
def test_labels_that_training_data_lack_are_possible_and_survive(labels: Any, tmp_path: Path):
    tagger = small_tagger(labels=labels).fit(X, Y)
    assert tagger.classes_.tolist() == sorted({*labels, "label 0", "label 1", "label 2"})
    assert tagger.label_counts_[tagger.classes_.tolist().index("new")] == 0
    changed = [["new"] * len(part) for part in Y]
    assert (tagger.log_prob(X, changed) > -np.inf).all()
    tagger.save(tmp_path / "model")
    loaded = extremegp.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.log_prob(X, changed), tagger.log_prob(X, changed))
    np.testing.assert_array_equal(loaded.classes_, tagger.classes_)


def test_labels_may_be_generated_where_others_are_known_too():
    tagger = small_tagger(labels=["new"]).fit(X, (iter(labels) for labels in Y))
    np.testing.assert_array_equal(tagger.log_prob(X, Y), small_tagger(labels=["new"]).fit(X, Y).log_prob(X, Y))


# Altered models, whose digests fit


def _rewrite(folder: Path, *, config: dict[str, Any] | None = None, tensors: dict[str, Any] | None = None) -> None:
    """Change a model's configuration and tensors; None removes an entry."""
    old_config, old_tensors = io.read_model(folder)
    new = {name: value for name, value in {**old_config, **(config or {})}.items() if value is not None}
    kept = {name: tensor for name, tensor in {**old_tensors, **(tensors or {})}.items() if tensor is not None}
    io.write_model(folder, {name: new[name] for name in new if name not in ("sha256", "format_version")}, kept)


def _settings(**changes: Any) -> Callable[[Path], None]:
    def alter(folder: Path) -> None:
        settings = {**io.read_model(folder)[0]["settings"], **changes}
        _rewrite(folder, config={"settings": {name: value for name, value in settings.items() if value != "missing"}})

    return alter


def _features(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: _rewrite(folder, config={"features": {**io.read_model(folder)[0]["features"], **changes}})


def _tensor(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path], None]:
    return lambda folder: _rewrite(folder, tensors={name: change(io.read_model(folder)[1][name])})


def _config(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: _rewrite(folder, config=changes)


def _nan(tensor: torch.Tensor) -> torch.Tensor:
    return torch.full_like(tensor, float("nan"))


HUGE = 10**12
NOISE = "model.latents.layers.0.noise"
ALTERED: dict[str, tuple[str, Callable[[Path], None]]] = {
    **{
        f"{name} = {value!r}": ("random-features", _settings(**{name: value}))
        for name, values in {
            "n_features": [0, -1, 7, 9, 2.0, "8", True, HUGE, 10**30],
            "n_labels": [1, 2, 4, 3.0, "3", True, HUGE],
            "latents": ["trees", ["gp"], "missing", "linear", "gp"],
            "linear_term": [1, "no", True],
            "transitions": ["markov", 1, "point", "indexed", "none"],
            "objective": ["likelihood", 1],
            "prior_variance": [0, -1, "1", True],
            "kernel": ["ard", 3, "se"],
            "ard": [0, "yes", False],
            "frequencies": ["fixed", 1, "var-fixed", "var-resampled"],
            "n_layers": [0, 1.0, "1", 2, 101, HUGE],
            "n_hidden": [0, 1.0, "1"],
            "n_random_features": [0, 20.0, "20", 19, HUGE, 10**30],
            "n_reduced": [-1, 0.0, "3", 3, HUGE],
            "feed_forward": [0, "yes"],
            "weight_covariance": ["full", True, "factorised"],
            "n_weight_points": [-1, 1, 0.0, HUGE],
            "n_weight_stored": [-1, 0.5, "0"],
            "n_inducing": [0, 4.0, "4"],
            "support_size": [-1, 1, 0.0, "1", HUGE],
            "posterior": ["diagonal", 1],
            "evil": [1],
        }.items()
        for value in values
    },
    **{
        f"gp: {name} = {value!r}": ("gp", _settings(**{name: value}))
        for name, value in {
            "n_inducing": HUGE,
            "support_size": 1,
            "kernel": "ard",
            "posterior": "full-u",
            "n_layers": 2,
            "linear_term": True,
            "latents": "random-features",
        }.items()
    },
    "everything huge": (
        "deep",
        _settings(n_features=HUGE, n_hidden=HUGE, n_random_features=HUGE, n_layers=100, n_reduced=HUGE),
    ),
    "a huge hidden layer": ("deep", _settings(n_hidden=HUGE)),
    "a huge gp": ("gp", _settings(n_inducing=HUGE, n_labels=2**20, transitions="indexed")),
    "inducing inputs beyond the features": (
        "gp",
        _tensor("model.latents.inducing.columns", lambda columns: torch.full_like(columns, 8)),
    ),
    "inducing inputs before the features": (
        "gp",
        _tensor("model.latents.inducing.columns", lambda columns: torch.full_like(columns, -1)),
    ),
    "shape": ("linear", _tensor("model.latents.q_mean", lambda mean: mean[:-1])),
    "shape of transitions": ("linear", _tensor("model.likelihood.q_mean", lambda mean: mean[:2, :2])),
    "NaN": ("linear", _tensor("model.likelihood.log_ratio", _nan)),
    "a seed below zero": ("random-features", _tensor(f"{NOISE}_seed", lambda seed: seed - 2**62)),
    "a seed that is a number": ("random-features", _tensor(f"{NOISE}_seed", torch.Tensor.float)),
    "several seeds": ("random-features", _tensor(f"{NOISE}_seed", lambda seed: seed.expand(2))),
    "noise beside its seed": (
        "random-features",
        lambda folder: _rewrite(folder, tensors={NOISE: torch.zeros(8, 1000)}),
    ),
    "types": ("linear", _tensor("model.mixing.bias", torch.Tensor.double)),
    "integers": ("linear", _tensor("model.mixing.bias", lambda bias: bias.to(torch.int64))),
    "tensor missing": ("linear", lambda folder: _rewrite(folder, tensors={"model.mixing.bias": None})),
    "tensor too many": ("linear", lambda folder: _rewrite(folder, tensors={"model.evil": torch.zeros(1)})),
    "counts": ("linear", _tensor("label_counts", lambda counts: counts[:-1])),
    "another estimator": ("linear", _config(estimator="MultiClassGPClassifier")),
    "a parameter of others": ("linear", _config(params={"n_latent": 3})),
    "a parameter that is a list": ("linear", _config(params={"labels": ["a", "b"]})),
    "labels too few": ("linear", _config(labels={"kind": "str", "names": ["a", "b"]})),
    "labels of another kind": ("linear", _config(labels={"kind": "int", "names": ["a", "b", "c"]})),
    "labels out of order": ("linear", _config(labels={"kind": "str", "names": ["c", "b", "a"]})),
    "no labels": ("linear", _config(labels=None)),
    "kind of targets": ("linear", _config(target_kind="dense")),
    "rows": ("linear", _config(n_rows=0)),
    "history": ("linear", _config(history=[{"epoch": 1}])),
    "names of columns": ("linear", _config(feature_names=[f"c{i}" for i in range(8)])),
    "scatter of instances": (
        "linear",
        lambda folder: _rewrite(folder, tensors={"instance_noise.weight": torch.tensor(1.0)}),
    ),
    "no features": ("linear", _config(features=None)),
    "features of rows": ("linear", _config(features={"kind": "unit", "n_features": 8})),
    "width of features": ("linear", _features(n_features=7)),
    "weighting": ("linear", _features(weighting="tfidf")),
    "template without tokens": ("matrices", _features(template="U0:%x[0,0]", n_columns=1)),
    "template empty": ("template", _features(template="")),
    "columns of a template": ("template", _features(n_columns=0)),
    "names of features": ("linear", lambda folder: _rewrite(folder, tensors={"features.names": None})),
    "order of names": ("linear", _tensor("features.names", lambda names: names.flip(0))),
    "weights": ("linear", _tensor("features.weights", lambda weights: weights[:-1])),
    "weights not finite": ("linear", _tensor("features.weights", _nan)),
    "a type that NumPy lacks": ("linear", _tensor("features.weights", torch.Tensor.bfloat16)),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("taggers")
    for kind in {kind for kind, _ in ALTERED.values()}:
        settings, x = KINDS[kind]
        small_tagger(**settings).fit(x, Y).save(folder / kind)
        extremegp.load(folder / kind)
    return folder


@pytest.mark.parametrize("case", ALTERED)
def test_an_altered_model_is_refused_in_one_line(case: str, models: Path, tmp_path: Path):
    kind, alter = ALTERED[case]
    shutil.copytree(models / kind, tmp_path / "model")
    alter(tmp_path / "model")
    with pytest.raises(ModelFormatError) as caught:
        extremegp.load(tmp_path / "model")
    assert "\n" not in str(caught.value)


# Interruptions


class _Interrupting(NoReporter):
    def step(self, step: int, total_steps: int, elbo: float) -> None:
        if step == 5:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    "options",
    [
        {"validation_fraction": 0.25},
        {"n_layers": 2, "n_reduced": 3, "frequencies": "var-resampled", "n_train_draws": 2},
        {"latents": "gp", "optimizer": "natural"},
        {"latents": "linear", "objective": "pseudo-likelihood", "checkpoint_seconds": 0.0},
        {"latents": "linear-point", "transitions": "indexed", "dtype": "float64"},
    ],
    ids=str,
)
def test_an_interrupted_training_goes_on_to_the_same_bits(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "run.ckpt"
    options = {**options, "epochs": 4}
    straight = small_tagger(**options).fit(X, Y)
    with monkeypatch.context() as patch:
        patch.setattr(fitting, "NoReporter", _Interrupting)
        with pytest.raises(TrainingInterrupted) as caught:
            small_tagger(**options, checkpoint=path).fit(X, Y)
    assert caught.value.saved == str(path)
    resumed = small_tagger(**options, checkpoint=path).fit(X, Y)
    for name, tensor in straight.model_.state_dict().items():
        assert torch.equal(tensor, resumed.model_.state_dict()[name]), name
    assert_same_answers(resumed, straight, X)
    for one, other in zip(resumed.history_, straight.history_, strict=True):
        assert one | {"seconds": 0} == other | {"seconds": 0}


def test_a_checkpoint_of_other_data_or_settings_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "run.ckpt"
    with monkeypatch.context() as patch:
        patch.setattr(fitting, "NoReporter", _Interrupting)
        with pytest.raises(TrainingInterrupted):
            small_tagger(epochs=4, checkpoint=path).fit(X, Y)
    swapped = [labels[::-1] for labels in Y]
    # The same tokens and labels in as many sequences, cut elsewhere.
    s = next(s for s, tokens in enumerate(X[:-1]) if len(tokens) > 1)
    cut_x, cut_y = ([*parts[:s], parts[s][:-1], [parts[s][-1], *parts[s + 1]], *parts[s + 2 :]] for parts in (X, Y))
    for x, y, changes in (
        (X, swapped, {}),
        (X[:-1], Y[:-1], {}),
        (cut_x, cut_y, {}),
        (X, Y, {"n_hidden": 2}),
        (X, Y, {"learning_rate": 0.1}),
        (X, Y, {"transitions": "point"}),
        (X, Y, {"weighting": "idf"}),
        (X, Y, {"random_state": 1}),
        (X, Y, {"dtype": "float64"}),
        (X, Y, {"validation_fraction": 0.3}),
    ):
        with pytest.raises(ExtremeGPError, match="other data or settings"):
            small_tagger(**{"epochs": 4, "checkpoint": path, **changes}).fit(x, y)
    small_tagger(epochs=4, checkpoint=path, n_draws=7, checkpoint_seconds=3.0).fit(X, Y)


def test_without_a_checkpoint_an_interruption_says_that_nothing_was_saved(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fitting, "NoReporter", _Interrupting)
    with pytest.raises(TrainingInterrupted, match="nothing was saved") as caught:
        small_tagger(epochs=4).fit(X, Y)
    assert caught.value.saved is None


def test_a_damaged_checkpoint_is_refused(tmp_path: Path):
    (tmp_path / "run.ckpt").write_bytes(b"\x00" * 100)
    with pytest.raises(ExtremeGPError, match="not a readable"):
        small_tagger(checkpoint=tmp_path / "run.ckpt").fit(X, Y)
