"""Spans that a tagger finds, and the rules of schemes that it keeps."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.estimators.small_sequences import small_tagger

from extremegp import SequenceGPClassifier, load
from extremegp.data import convert_tags, spans_of
from extremegp.errors import DataError, ModelFormatError, SettingsError


def tagged(scheme: str, n: int = 30, *, seed: int = 0, errors: float = 0.0) -> tuple[list[Any], list[list[str]]]:
    """Words that hardly say where a span of their type starts."""
    rng = np.random.default_rng(seed)
    X, y = [], []
    for length in rng.integers(2, 8, size=n):
        labels: list[str] = []
        while len(labels) < length:
            kind, size = str(rng.choice(["x", "y", "O"])), int(rng.integers(1, 4))
            labels += ["O"] if kind == "O" else [f"B-{kind}"] + [f"I-{kind}"] * (size - 1)
        (converted,) = convert_tags([labels], scheme)
        words = [label[-1] if rng.random() < 0.7 else "?" for label in converted]
        X.append([{"word": word} for word in words])
        y.append(["I-x" if label == "O" and rng.random() < errors else label for label in converted])
    return X, y


@pytest.fixture(scope="module", params=["IOB1", "IOB2", "IOBES", "BILOU"])
def of_scheme(request: pytest.FixtureRequest) -> tuple[str, SequenceGPClassifier]:
    return request.param, small_tagger(epochs=25, transitions="none", n_draws=8).fit(*tagged(request.param))


TEST_X, _ = tagged("IOB2", 20, seed=1)


@pytest.mark.parametrize("decoding", ["max-marginal", "viterbi"])
def test_labels_keep_the_rules_of_the_scheme_of_training(of_scheme: tuple[str, SequenceGPClassifier], decoding: str):
    scheme, trained = of_scheme
    tagger = copy.copy(trained).set_params(decoding=decoding)
    assert (tagger.detected_scheme_, tagger.scheme_) == (scheme, None)
    broken = [labels.tolist() for labels in tagger.predict(TEST_X)]
    # Of IOB1 little is illegal.
    assert scheme == "IOB1" or convert_tags(broken, scheme) != broken
    tagger.set_params(scheme="auto")
    assert tagger.scheme_ == scheme
    found = [labels.tolist() for labels in tagger.predict(TEST_X)]
    assert convert_tags(found, scheme) == found
    for p in tagger.predict_marginals(TEST_X):
        np.testing.assert_allclose(p.sum(1), 1, atol=1e-5)
    legal = [convert_tags([labels], scheme) == [labels] for labels in broken]
    assert (np.isfinite(tagger.log_prob(TEST_X, broken)) == legal).all()
    for labels, log_prob in (each for best in tagger.predict_k_best(TEST_X, 3) for each in best):
        assert convert_tags([labels.tolist()], scheme) == [labels.tolist()]
        assert log_prob > -100
    named = copy.copy(trained).set_params(decoding=decoding, scheme=scheme)
    assert [labels.tolist() for labels in named.predict(TEST_X)] == found


def test_spans_are_those_of_the_labels_with_their_probabilities(of_scheme: tuple[str, SequenceGPClassifier]):
    for scheme in (None, "auto"):
        tagger = copy.copy(of_scheme[1]).set_params(scheme=scheme)
        spans, labels = tagger.predict_spans(TEST_X), tagger.predict(TEST_X)
        assert [[span[:3] for span in own] for own in spans] == [
            [*map(tuple, spans_of(own.tolist()))] for own in labels
        ]
        assert all(0 < span.probability <= 1 for own in spans for span in own)
    _, known = tagged(of_scheme[0], 20, seed=1)
    found = tagger.predict_spans(TEST_X, known)
    assert [[span[:3] for span in own] for own in found] == [[*map(tuple, spans_of(own))] for own in known]
    assert {round(span.probability, 4) for own in found for span in own} == {1}


def test_probabilities_of_spans_are_sums_over_labellings():
    tagger = small_tagger(epochs=4, n_draws=8).fit(*tagged("IOB2"))
    X = [sequence for sequence in TEST_X if len(sequence) <= 4][:4]
    for found, best in zip(tagger.predict_spans(X), tagger.predict_k_best(X, 5**4), strict=True):
        every = [(spans_of(labels.tolist()), np.exp(log_prob)) for labels, log_prob in best]
        assert sum(p for _, p in every) == pytest.approx(1, abs=1e-4)
        for span in found:
            expected = sum(p for spans, p in every if any(each == span[:3] for each in spans))
            assert span.probability == pytest.approx(expected, abs=1e-4)


def test_labels_that_break_the_rules_are_learnt_from_all_the_same(tmp_path: Path):
    X, y = tagged("IOB2", 60, errors=0.05)
    tagger = small_tagger(scheme="auto").fit(X, y)
    assert tagger.scheme_ == "IOB2"
    assert convert_tags(y, "IOB2") != y
    assert np.isneginf(tagger.log_prob(X, y)).any()
    assert 0 < tagger.score(X, y) < 1
    plain = small_tagger().fit(X, y)
    for name, tensor in plain.model_.state_dict().items():
        assert (tensor == tagger.model_.state_dict()[name]).all()
    tagger.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert (again.scheme_, again.scheme) == ("IOB2", "auto")
    for one, other in zip(again.predict(X), tagger.predict(X), strict=True):
        assert one.tolist() == other.tolist()
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    for value, scheme in ((None, None), ("IO", "refused")):
        config["detected_scheme"] = value
        (tmp_path / "model" / "config.json").write_text(json.dumps(config))
        if scheme is None:
            assert load(tmp_path / "model").scheme_ is None
        else:
            with pytest.raises(ModelFormatError, match="there is no scheme 'IO'"):
                load(tmp_path / "model")


def test_what_has_no_scheme_is_told():
    X, y = tagged("IOB2")
    with pytest.raises(SettingsError, match=r"IOBES has tags|BILOU has tags"):
        small_tagger(scheme="BILOU").fit(X, convert_tags(y, "IOBES"))
    other = small_tagger(scheme="auto").fit(X, [["a" if label == "O" else "b" for label in labels] for labels in y])
    assert other.scheme_ is None
    other.predict(X)
    with pytest.raises(SettingsError, match=r"spans need labels such as O, B-NP and I-NP; the model has 'a'"):
        other.predict_spans(X)
    with pytest.raises(SettingsError, match="IOB2 has tags"):
        other.set_params(scheme="IOB2").predict(X)
    with pytest.raises(DataError, match="given has 1"):
        small_tagger().fit(X, y).predict_spans(X, [["O"]])
