"""What the posterior of sequences knows of the distance from training tokens, at default settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.estimators.small_sequences import small_tagger, sticky
from tests.reference import weight_covariance as reference

import extremegp
from extremegp import SequenceGPClassifier
from extremegp.engine import chain, weight_covariance
from extremegp.engine.likelihoods.chain_draws import ChainDraws
from extremegp.engine.sparse import suited_block
from extremegp.estimators.uncertainty import Uncertainty
from extremegp.prediction import shared_covariance

X, Y = sticky()
CENTRES = np.arange(12)
NOISE, GAP = [0.5, 1.0, 1.5, 2.0, 2.5], [5.0, 5.5, 6.0]


def _bumps(positions: Any) -> np.ndarray:
    """Features of positions: each of which is near some of the centres."""
    return np.exp(-(np.subtract.outer(np.asarray(positions), CENTRES) ** 2)).astype(np.float32)


def _gapped(seed: int = 0, n_sequences: int = 25, length: int = 10) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Tokens from 0 to 3, whose labels are noise, and from 8 to 11, whose labels the position tells."""
    rng = np.random.default_rng(seed)
    x, y = [], []
    for _ in range(n_sequences):
        noisy = rng.random(length) < 0.5
        positions = np.where(noisy, rng.uniform(0, 3, length), rng.uniform(8, 11, length))
        x.append(_bumps(positions))
        y.append(np.where(noisy, rng.choice(["a", "b"], length), np.where(positions > 9.5, "a", "b")))
    return x, y


def _joined(parts: list[Uncertainty]) -> Uncertainty:
    return Uncertainty(*(np.concatenate(part) for part in zip(*parts, strict=True)))


@pytest.mark.parametrize("latents", ["auto", "linear-mean-field"])
def test_the_default_is_surer_in_dense_noise_than_in_a_gap_and_far_away(latents: Any):
    tagger = SequenceGPClassifier(latents=latents, random_state=0, verbose=False).fit(*_gapped())
    alone = {"noise": _bumps(NOISE), "gap": _bumps(GAP), "far": 8 * _bumps(GAP)}
    found = {place: _joined(tagger.predict_uncertainty(list(x[:, None]))) for place, x in alone.items()}
    noise, gap, far = (float(found[place].epistemic.mean()) for place in alone)
    assert gap > 15 * noise
    # Chosen functions have so much variance that they know next to nothing in the gap.
    assert far > (1 if latents == "auto" else 2) * gap
    variances = [found[place].variance.mean() for place in ("far", "gap", "noise")]
    assert variances[0] > (1 if latents == "auto" else 10) * variances[1]
    assert variances[1] > 10 * variances[2]
    at_noise = np.concatenate(tagger.predict_marginals(list(alone["noise"][:, None])))
    assert ((at_noise > 0.15) & (at_noise < 0.85)).all()


@pytest.mark.parametrize("latents", ["auto", "linear-mean-field"])
def test_words_that_training_never_saw_are_the_least_certain(latents: Any):
    rng = np.random.default_rng(0)
    words = [[f"w{w}" for w in rng.integers(6, size=8)] for _ in range(30)]
    y = [["a" if word in ("w0", "w1", "w2") else "b" for word in part] for part in words]
    tagger = SequenceGPClassifier(latents=latents, random_state=0, verbose=False)
    tagger.fit([[{"word": word} for word in part] for part in words], y)
    known = _joined(tagger.predict_uncertainty([[{"word": f"w{w}"}] for w in range(6)]))
    new = _joined(tagger.predict_uncertainty([[{"word": "new"}], [{"word": "newer"}]]))
    assert new.epistemic.min() > 5 * known.epistemic.max()
    assert new.variance.min() > known.variance.max()
    # What is not known comes on top of what is.
    half = tagger.predict_uncertainty([[{"word": "w0", "other": "new"}]])[0]
    assert half.variance[0] == pytest.approx(known.variance[0] + new.variance.mean(), rel=0.3)
    assert half.epistemic[0] > known.epistemic[0]


def _trained(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> tuple[SequenceGPClassifier, list[np.ndarray]]:
    """A tagger whose covariances have curvatures that are known, and these."""
    curvatures = [np.random.default_rng(i).random(sum(map(len, X))) for i in range(2)]

    def known(*arguments: Any) -> list[np.ndarray]:
        return curvatures[: len(arguments[3])]

    monkeypatch.setattr(shared_covariance, "_curvatures", known)
    return small_tagger(**settings).fit(X, Y), curvatures


KINDS = pytest.mark.parametrize(
    "settings",
    [
        {},
        {"kernel": "se", "frequencies": "var-fixed", "dtype": "float64"},
        {"latents": "linear"},
        {"latents": "linear-mean-field", "kl_weight": 1.0},
        {"transitions": "indexed"},
        {"linear_term": True},
        {"latents": "linear", "transitions": "indexed", "hash_size": 7},
    ],
    ids=str,
)


@KINDS
@pytest.mark.parametrize("most_weights", [4000, 0], ids=["a matrix", "tokens"])
def test_variances_are_those_of_the_whole_matrix(
    settings: dict[str, Any], most_weights: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shared_covariance, "MOST_WEIGHTS", most_weights)
    tagger, curvatures = _trained(monkeypatch, **settings)
    members = [*tagger.model_.latents.with_weights()]
    kl_weight = settings.get("kl_weight", 0.1 if "latents" in settings else 1.0)
    assert len(members) == 1 + (settings.get("transitions") == "indexed")
    x = suited_block(tagger.features_.transform(X)[0], slice(None), dtype=tagger.model_.mixing.bias.dtype)
    for (_, latents), curvature in zip(members, curvatures, strict=False):
        with torch.no_grad():
            phi: Any = latents.weight_features(x)
            conditioned = latents.condition()
            variance = conditioned.marginals(x).variance
            prior = float(latents.prior_scale)
        phi = phi.double().numpy() if isinstance(phi, torch.Tensor) else tagger.features_.transform(X)[0].toarray()
        expected = reference.covariance(phi.astype(np.float64), curvature / kl_weight, prior)
        tokens = np.einsum("bf,fg,bg->b", phi, expected, phi)
        np.testing.assert_allclose(variance, np.broadcast_to(tokens[:, None], variance.shape), rtol=2e-3, atol=1e-5)
        kl = latents.n_functions * reference.divergence(expected, prior)
        own: Any = latents
        weights = own.output.q_mean if hasattr(own, "output") else own.q_mean
        kl += 0.5 * float(weights.double().square().sum()) / prior
        inner = float(own.inner_kl()) if hasattr(own, "inner_kl") else 0.0
        assert float(conditioned.kl()) == pytest.approx(kl + inner, rel=1e-3)


@KINDS
def test_groups_of_tokens_have_no_variance_below_that_of_all(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    exact, _ = _trained(monkeypatch, **settings)
    for module in (shared_covariance, weight_covariance):
        monkeypatch.setattr(module, "MOST_WEIGHTS", 0)
        monkeypatch.setattr(module, "MOST_POINTS", 5)
    # Where they would be groups, that has to be asked for.
    assert _trained(monkeypatch, **settings)[0].settings_.weight_covariance == "factorised"
    grouped, _ = _trained(monkeypatch, **settings, weight_covariance="shared")
    assert grouped.settings_.n_weight_points == 5
    x = suited_block(exact.features_.transform(X)[0], slice(None), dtype=exact.model_.mixing.bias.dtype)
    with torch.no_grad():
        least, most = (tagger.model_.latents.condition().marginals(x) for tagger in (exact, grouped))
    torch.testing.assert_close(most.mean, least.mean)
    assert (most.variance >= least.variance * (1 - 1e-3) - 1e-6).all()
    assert (most.variance > 1.01 * least.variance).any()


@pytest.mark.parametrize(
    ("settings", "shared"),
    [
        ({}, True),
        ({"latents": "linear"}, True),
        ({"weight_covariance": "factorised"}, False),
        ({"latents": "linear-point"}, False),
        ({"latents": "gp"}, False),
        ({"n_layers": 2, "n_hidden": 2}, False),
        ({"frequencies": "var-resampled"}, False),
    ],
    ids=str,
)
def test_functions_of_features_that_stay_share_a_covariance(settings: dict[str, Any], shared: bool):
    tagger = small_tagger(**settings).fit(X, Y)
    assert tagger.settings_.weight_covariance == ("shared" if shared else "factorised")
    names = tagger.model_.state_dict().keys()
    assert any("shared_covariance" in name for name in names) == shared
    assert not (shared and any("log_variance" in name or "latents.log_ratio" in name for name in names))


@pytest.mark.parametrize("settings", [{}, {"latents": "linear-mean-field"}], ids=str)
def test_means_are_those_of_training(settings: dict[str, Any]):
    shared, own = (small_tagger(weight_covariance=c, **settings).fit(X, Y) for c in ("shared", "factorised"))
    x = suited_block(shared.features_.transform(X)[0], slice(None))
    with torch.no_grad():
        first, second = (tagger.model_.latents.condition().marginals(x).mean for tagger in (shared, own))
    torch.testing.assert_close(first, second)


@pytest.mark.parametrize("most_points", [2000, 5])
@pytest.mark.parametrize(
    "settings", [{}, {"hash_size": 50, "latents": "linear"}, {"latents": "linear", "transitions": "indexed"}], ids=str
)
def test_models_that_keep_tokens_are_loaded_to_the_same_bits(
    settings: dict[str, Any], most_points: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shared_covariance, "MOST_WEIGHTS", 3)
    monkeypatch.setattr(shared_covariance, "MOST_POINTS", most_points)
    tagger = small_tagger(**settings).fit(X, Y)
    tagger.save(tmp_path / "model")
    loaded = extremegp.load(tmp_path / "model")
    assert loaded.settings_ == tagger.settings_
    new = [*X, [{"word": "new"}, {"word": "w0"}]]
    for one, other in zip(loaded.predict_uncertainty(new), tagger.predict_uncertainty(new), strict=True):
        for first, second in zip(one, other, strict=True):
            np.testing.assert_array_equal(first, second)


def test_weights_of_sequences_are_as_good_as_repetitions(monkeypatch: pytest.MonkeyPatch):
    def flat(*arguments: Any) -> list[np.ndarray]:
        return [np.full(arguments[1].shape[0], 0.2)]

    monkeypatch.setattr(shared_covariance, "_curvatures", flat)
    weights = np.arange(len(X)) % 3
    weighted = small_tagger().fit(X, Y, weights)
    often = [s for s, weight in enumerate(weights) for _ in range(weight)]
    repeated = small_tagger(epochs=1).fit([X[s] for s in often], [Y[s] for s in often])
    # The same features, whatever the training.
    repeated.model_.latents.load_state_dict(
        {n: p for n, p in weighted.model_.latents.state_dict().items() if "covariance" not in n}, strict=False
    )
    x, lengths = repeated.features_.transform([X[s] for s in often])
    shared_covariance.share_covariances(
        repeated.model_, repeated.settings_, x, lengths, kl_weight=1.0, rng=np.random.default_rng(0)
    )
    token = suited_block(weighted.features_.transform(X)[0], slice(None))
    with torch.no_grad():
        one, other = (t.model_.latents.condition().marginals(token).variance for t in (weighted, repeated))
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("indexed", [False, True])
def test_curvatures_are_second_derivatives(indexed: bool):
    generator = torch.Generator().manual_seed(0)
    lengths, v = torch.tensor([3, 2]), 3
    unary = torch.randn(1, 2, 3, v, generator=generator, dtype=torch.float64)
    shape = (1, 2, 3, v, v) if indexed else (1, v, v)
    transitions = torch.randn(shape, generator=generator, dtype=torch.float64)
    block = ChainDraws(slice(0, 2), lengths, unary, transitions)

    def log_z(values: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
        return chain.log_partition(values, pairs, lengths).sum()

    def second(at: Callable[[float], torch.Tensor], h: float = 1e-3) -> float:
        return float((at(h) - 2 * at(0) + at(-h)) / h**2)

    places = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    for b, (s, t) in enumerate(places):
        curved = []
        for label in range(v):
            unit = torch.zeros_like(unary)
            unit[0, s, t, label] = 1
            curved.append(second(lambda h, unit=unit: log_z(unary + h * unit, transitions)))
        assert float(block.curvature()[b]) == pytest.approx(np.mean(curved), abs=1e-5)
        if indexed:
            curved = []
            for pair in range(v * v):
                unit = torch.zeros_like(transitions)
                unit[0, s, t, pair // v, pair % v] = 1
                curved.append(second(lambda h, unit=unit: log_z(unary, transitions + h * unit)))
            assert float(block.curvature(pairs=True)[b]) == pytest.approx(np.mean(curved), abs=1e-5)
