"""Labels of tokens that are known at prediction, and that are missing in training."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from tests.estimators.small_sequences import small_tagger, sticky

from extremegp import SequenceGPClassifier
from extremegp.errors import DataError, SettingsError

X, Y = sticky()
GIVEN: list[list[str | None]] = [[label if t % 2 else None for t, label in enumerate(labels)] for labels in Y]


@pytest.fixture(scope="module")
def trained() -> SequenceGPClassifier:
    return small_tagger(epochs=20, n_draws=8).fit(X, Y)


@pytest.mark.parametrize("decoding", ["max-marginal", "viterbi"])
def test_known_labels_stay_and_tell_of_their_neighbours(trained: SequenceGPClassifier, decoding: str):
    tagger = copy.copy(trained).set_params(decoding=decoding)
    wrong = [["label 2" if t % 2 else None for t in range(len(labels))] for labels in Y]
    for labels in tagger.predict(X, given=wrong):
        assert set(labels[1::2]) <= {"label 2"}
    alone, beside = trained.predict_marginals(X), trained.predict_marginals(X, given=GIVEN)
    moved = [abs(a - b)[::2].max() for a, b in zip(alone, beside, strict=True) if len(a) > 1]
    assert max(moved) > 0.01
    for p, known in zip(beside, GIVEN, strict=True):
        np.testing.assert_allclose(p.sum(1), 1, atol=1e-5)
        assert all(p[t].max() > 1 - 1e-5 for t, label in enumerate(known) if label)


def test_probabilities_given_labels_are_joint_over_marginal_ones(trained: SequenceGPClassifier):
    conditional = trained.log_prob(X, Y, given=GIVEN)
    np.testing.assert_allclose(conditional, trained.log_prob(X, Y) - trained.log_prob(X, GIVEN), atol=1e-4)
    (best,) = trained.predict_k_best(X[:1], 2, given=GIVEN[:1])
    for labels, log_prob in best:
        assert trained.log_prob(X[:1], [labels], given=GIVEN[:1])[0] == pytest.approx(log_prob, abs=1e-4)
    other = [["label 0" if label != "label 0" else "label 1" for label in labels] for labels in Y]
    impossible = np.array([any(labels) for labels in GIVEN])
    assert (np.isneginf(trained.log_prob(X, other, given=GIVEN)) == impossible).all()
    for each, known in zip(trained.predict_uncertainty(X, given=GIVEN), GIVEN, strict=True):
        assert all(0 <= each.total[t] < 1e-4 for t, label in enumerate(known) if label)


@pytest.mark.parametrize("unknown", [None, "", float("nan")])
def test_unknown_labels_have_several_forms(trained: SequenceGPClassifier, unknown: Any):
    given = [np.array([unknown if one is None else one for one in labels], dtype=object) for labels in GIVEN]
    for one, other in zip(trained.predict_marginals(X, given), trained.predict_marginals(X, GIVEN), strict=True):
        np.testing.assert_array_equal(one, other)
    nothing = [[unknown] * len(labels) for labels in Y]
    for one, other in zip(trained.predict_marginals(X, nothing), trained.predict_marginals(X), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["label 0"], r"given\[0\] must be a list of labels"),
        ("label 0", "given must be a list of label sequences"),
        (GIVEN[:3], "X has 14 sequences but given has 3"),
        ([labels[:-1] for labels in GIVEN], r"given\[0\] has \d labels, but X\[0\] has \d tokens"),
        ([[*labels[:-1], "label 7"] for labels in GIVEN], r"given has the class 'label 7' at token \d of sequence 0"),
    ],
)
def test_known_labels_that_do_not_fit_are_refused(trained: SequenceGPClassifier, given: Any, problem: str):
    with pytest.raises(DataError, match=problem):
        trained.predict(X, given=given)


# Training


@pytest.mark.parametrize("transitions", ["gaussian", "point", "indexed", "none"])
@pytest.mark.parametrize("latents", ["random-features", "gp", "linear-mean-field"])
def test_tokens_without_labels_train(latents: str, transitions: str):
    tagger = small_tagger(latents=latents, transitions=transitions, epochs=12, validation_fraction=0.2).fit(X, GIVEN)
    bounds = [record["elbo"] for record in tagger.history_]
    assert np.mean(bounds[-3:]) > np.mean(bounds[:3])
    assert tagger.label_counts_.sum() == sum(label is not None for labels in GIVEN for label in labels)
    assert 0 <= tagger.history_[-1]["validation_accuracy"] <= 1
    labels = [label for labels in GIVEN for label in labels]
    right = [one == label for one, label in zip(np.concatenate(tagger.predict(X)), labels, strict=True) if label]
    assert tagger.score(X, GIVEN) == pytest.approx(np.mean(right))


def test_labels_that_are_all_known_train_the_same_model_in_any_form():
    one = small_tagger().fit(X, Y)
    other = small_tagger().fit(X, [np.array(labels, dtype=object) for labels in Y])
    for name, tensor in one.model_.state_dict().items():
        assert (tensor == other.model_.state_dict()[name]).all()


def test_half_of_the_labels_teach_nearly_all_that_there_is():
    x, y = sticky(60)
    rng = np.random.default_rng(0)
    half = [[label if rng.random() < 0.5 else None for label in labels] for labels in y]
    test_x, test_y = sticky(60, seed=1)
    options = {"latents": "linear-mean-field", "epochs": 40}
    assert small_tagger(**options).fit(x, half).score(test_x, test_y) > 0.8


def test_unlabelled_tokens_leave_weights_as_uncertain_as_they_were():
    """Features that only unlabelled sequences have are as unknown as those of no sequence."""
    new = [[{"word": "new"}, {"word": "new"}]] * 20
    with_new = small_tagger(latents="linear", weight_covariance="shared", n_draws=200).fit(
        [*X, *new], [*Y, *[[None, None]] * 20]
    )
    labelled = small_tagger(latents="linear", weight_covariance="shared", n_draws=200).fit(
        [*X, *new], [*Y, *[["label 0", "label 1"]] * 20]
    )
    unknown, known = (tagger.predict_uncertainty(new[:1])[0].variance.mean() for tagger in (with_new, labelled))
    assert unknown > 2 * known


def test_what_cannot_be_trained_on_is_refused():
    with pytest.raises(DataError, match="y has no label at all"):
        small_tagger().fit(X, [[None] * len(labels) for labels in Y])
    with pytest.raises(SettingsError, match='use objective="exact"'):
        small_tagger(objective="pseudo-likelihood").fit(X, GIVEN)


def test_labels_beside_those_of_training_keep_missing_ones_missing():
    tagger = small_tagger(labels=["a label"]).fit(X, GIVEN)
    assert tagger.label_counts_[tagger.classes_.tolist().index("a label")] == 0
    assert tagger.label_counts_.sum() < sum(map(len, Y))
