from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from extremegp.data import Template
from extremegp.data.sequence_features import SequenceFeatures
from extremegp.errors import DataError, ModelFormatError, SettingsError

MAPPINGS: list[Any] = [
    [{"word": "the", "length": 3}, {"word": "cat", "length": 3, "noun": True}],
    [{"word": "the", "length": 3}],
    [{"word": "a", "affixes": ["a", "b"]}, {}, {"word": "cat"}],
]
NAMES = [["word:the"], ["word:cat", "noun"], ["word:the"], ["word:a", "b"], [], ["word:cat"]]
LISTS = [NAMES[:2], NAMES[2:3], NAMES[3:]]
ROWS = [[("the", "D"), ("cat", "N")], [("the", "D")], [("a", "D"), ("big", "A"), ("cat", "N")]]
LENGTHS = [2, 1, 3]
UNARY = Template.parse("U0:%x[0,0]\nU1:%x[-1,1]/%x[0,1]\nB\n")
INDEXED = Template.parse("U0:%x[0,0]\nB0:%x[0,1]\nB1:%x[-1,0]\n")


def matrices(seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(n, 4)) * (rng.random((n, 4)) < 0.6)).astype(np.float32) for n in LENGTHS]


def stored_zeros() -> list[Any]:
    """Matrices that store all their entries, also those that are zero."""
    found = []
    for part in matrices():
        full = scipy.sparse.csr_matrix(np.ones_like(part))
        full.data = part.ravel().copy()
        found.append(full)
    return found


FORMS: dict[str, tuple[dict[str, Any], Callable[[], Any]]] = {
    "mappings": ({}, lambda: MAPPINGS),
    "lists of names": ({}, lambda: LISTS),
    "hashed": ({"hash_size": 16}, lambda: MAPPINGS),
    "frequent": ({"min_count": 2}, lambda: MAPPINGS),
    "template": ({"template": UNARY}, lambda: ROWS),
    "indexed template": ({"template": INDEXED}, lambda: ROWS),
    "arrays": ({}, matrices),
    "one array": ({}, lambda: np.random.default_rng(0).normal(size=(3, 2, 4))),
    "sparse": ({}, lambda: list(map(scipy.sparse.coo_array, matrices()))),
    "stored zeros": ({}, stored_zeros),
}
EVERY_FORM = pytest.mark.parametrize("form", FORMS)
WEIGHTINGS = pytest.mark.parametrize("weighting", ["none", "idf"])


def fitted(form: str, **options: Any) -> tuple[SequenceFeatures, Any]:
    own, make = FORMS[form]
    features = SequenceFeatures(**own | options)
    x, _ = features.fit_transform(make())
    return features, x


def dense(x: Any) -> np.ndarray:
    return np.asarray(x.toarray() if scipy.sparse.issparse(x) else x)


def by_name(features: SequenceFeatures, x: Any) -> list[set[str]]:
    names = features.names
    assert names is not None
    return [{names[i] for i in np.flatnonzero(row)} for row in dense(x)]


# Forms of input


def test_mappings_and_lists_are_features_by_name():
    features, x = fitted("mappings")
    assert by_name(features, x)[1] == {"length", "noun", "word:cat"}
    features, x = fitted("lists of names")
    assert by_name(features, x) == list(map(set, NAMES))
    assert features.n_features_in == 5


def test_a_template_expands_rows_of_columns():
    features, x = fitted("template")
    assert by_name(features, x) == [
        {"U0:the", "U1:_B-1/D"},
        {"U0:cat", "U1:D/N"},
        {"U0:the", "U1:_B-1/D"},
        {"U0:a", "U1:_B-1/D"},
        {"U0:big", "U1:D/A"},
        {"U0:cat", "U1:A/N"},
    ]


def test_what_lines_of_pairs_expand_to_are_features_of_the_second_token():
    features, x = fitted("indexed template")
    assert by_name(features, x) == [
        {"U0:the", "B0:D", "B1:_B-1"},
        {"U0:cat", "B0:N", "B1:the"},
        {"U0:the", "B0:D", "B1:_B-1"},
        {"U0:a", "B0:D", "B1:_B-1"},
        {"U0:big", "B0:A", "B1:a"},
        {"U0:cat", "B0:N", "B1:big"},
    ]


@pytest.mark.parametrize("form", ["arrays", "sparse"])
def test_matrices_keep_their_columns_and_have_no_names(form: str):
    features, x = fitted(form)
    assert features.names is None
    assert scipy.sparse.issparse(x) == (form == "sparse")
    stacked = np.concatenate(matrices())
    np.testing.assert_allclose(dense(x), stacked / np.sqrt(np.square(stacked).sum(1).mean()), rtol=1e-6)


def test_hashed_features_have_no_names_and_as_many_columns_as_asked_for():
    features, x = fitted("hashed")
    assert features.names is None
    assert x.shape == (6, 16)


@EVERY_FORM
def test_training_data_transform_to_what_they_were_fitted_to(form: str):
    features, x = fitted(form)
    again, lengths = features.transform(FORMS[form][1]())
    np.testing.assert_array_equal(dense(again), dense(x))
    assert x.dtype == again.dtype == np.float32
    assert lengths.tolist() == ([2, 2, 2] if form == "one array" else LENGTHS)


def _generated(sequences: Any) -> Iterator[Any]:
    for sequence in sequences:
        yield sequence if isinstance(sequence, np.ndarray) or scipy.sparse.issparse(sequence) else iter(sequence)


@EVERY_FORM
def test_sequences_and_their_tokens_may_be_generated(form: str):
    features, x = fitted(form)
    own, make = FORMS[form]
    other = SequenceFeatures(**own)
    np.testing.assert_array_equal(dense(other.fit_transform(_generated(make()))[0]), dense(x))
    np.testing.assert_array_equal(dense(features.transform(_generated(make()))[0]), dense(x))


@pytest.mark.parametrize("form", ["mappings", "template"])
def test_features_never_seen_count_for_nothing(form: str):
    features, _ = fitted(form)
    unknown = [[("zebra", "X")]] if form == "template" else [[{"word": "zebra", "new": 5}]]
    x, lengths = features.transform(unknown)
    assert (x.shape, x.nnz, lengths.tolist()) == ((1, features.n_features_in), 0, [1])


def test_the_data_are_left_as_they_were():
    for form in ("arrays", "mappings", "sparse"):
        own, make = FORMS[form]
        X = make()
        before = copy.deepcopy(X)
        SequenceFeatures(**own, weighting="idf").fit_transform(X)
        for part, was in zip(X, before, strict=True):
            if form == "mappings":
                assert part == was
            else:
                np.testing.assert_array_equal(dense(part), dense(was))


# Weights


@EVERY_FORM
@WEIGHTINGS
def test_rows_of_training_have_a_mean_squared_length_of_one(form: str, weighting: str):
    x = dense(fitted(form, weighting=weighting)[1]).astype(np.float64)
    assert np.square(x).sum(1).mean() == pytest.approx(1, rel=1e-5)


@EVERY_FORM
def test_rare_features_weigh_more_as_their_definition_says(form: str):
    plain, weighted = (dense(fitted(form, weighting=kind)[1]).astype(np.float64) for kind in ("none", "idf"))
    expected = plain.copy()
    n_tokens = len(plain)
    for column in range(plain.shape[1]):
        having = sum(1 for row in range(n_tokens) if plain[row, column] != 0)
        expected[:, column] *= np.log(1 + n_tokens / max(having, 1))
    expected /= np.sqrt(sum(row @ row for row in expected) / n_tokens)
    np.testing.assert_allclose(weighted, expected, rtol=1e-5, atol=1e-7)
    # Where every token has every feature, all weigh the same.
    assert np.allclose(weighted, plain, rtol=0.01) == (form == "one array")


@pytest.mark.parametrize("scale", [1e-41, 1e-30, 1e30, 1e38])
@pytest.mark.parametrize("make", [np.asarray, scipy.sparse.csr_matrix])
@WEIGHTINGS
def test_numbers_at_the_ends_of_float32_are_brought_to_the_same_size(
    scale: float, make: Callable[[Any], Any], weighting: Any
):
    signs = [np.sign(part) for part in matrices()]
    x, _ = SequenceFeatures(weighting=weighting).fit_transform([make(np.float32(scale) * part) for part in signs])
    expected, _ = SequenceFeatures(weighting=weighting).fit_transform([make(part) for part in signs])
    assert np.isfinite(dense(x)).all()
    if scale > 1e-40:
        np.testing.assert_allclose(dense(x), dense(expected), rtol=1e-5)


def test_inputs_without_any_feature_stay_zero():
    x, _ = SequenceFeatures(weighting="idf").fit_transform([np.zeros((2, 3)), np.zeros((1, 3))])
    np.testing.assert_array_equal(x, np.zeros((3, 3)))


# Refusals


BAD: dict[str, tuple[str, Any, str]] = {
    "names for matrices": ("arrays", LISTS, "must hold a matrix of numbers for every sequence, as in training"),
    "matrices for names": ("lists of names", matrices(), "must hold tokens with features by name"),
    "sparse for names": ("mappings", list(map(scipy.sparse.csr_matrix, matrices())), "features by name"),
    "matrices for rows": ("template", matrices(), "sequence 0, token 0 .* ndarray, not a tuple of columns"),
    "another width": ("arrays", [part[:, :3] for part in matrices()], "3 features a token, but training had 4"),
    "another width, sparse": ("sparse", [scipy.sparse.csr_matrix((2, 5))], "5 features a token, but training had 4"),
    "ragged": ("arrays", [np.zeros((2, 4)), np.zeros((2, 3))], r"X\[1\] has 3 features"),
    "both kinds": ("arrays", [np.zeros((2, 4)), scipy.sparse.csr_matrix((2, 4))], r"X\[1\] is sparse"),
    "some matrices": ("arrays", [np.zeros((2, 4)), [["a"]]], "matrix of numbers"),
    "one matrix": ("arrays", matrices()[0], r"X\[0\] must be 2-D .* pass \[X\]"),
    "one sparse matrix": ("sparse", scipy.sparse.csr_matrix(matrices()[0]), "list of matrices, one a sequence"),
    "NaN": ("arrays", [np.zeros((2, 4)), np.full((1, 4), np.nan)], r"X\[1\] contains NaN at row 0, column 0"),
    "empty matrix": ("arrays", [np.zeros((2, 4)), np.zeros((0, 4))], r"X\[1\] has no tokens"),
    "empty sequence": ("mappings", [[{"word": "a"}], []], "sequence 1 .* has no tokens"),
    "empty sequence of rows": ("template", [ROWS[0], []], "sequence 1 .* has no tokens"),
    "no sequences": ("mappings", [], "there are no sequences"),
    "a string": ("mappings", "the cat", "list of sequences of tokens, not str"),
    "nothing": ("mappings", None, "not NoneType"),
    "a sequence of strings": ("mappings", ["the cat"], "sequence 0 .* must be a list of tokens, not str"),
    "one sequence": ("mappings", MAPPINGS[0], "sequence 0 .* must be a list of tokens, not dict"),
    "one sequence of rows": ("template", ROWS[0], "sequence 0, token 0 .* is of type str"),
    "a number for rows": ("template", [ROWS[0], 7], "sequence 1 .* rows of columns, not int"),
    "a string for rows": ("template", [ROWS[0], "the cat"], "sequence 1 .* rows of columns, not str"),
    "a mapping for rows": ("template", [ROWS[0], {"word": "a"}], "sequence 1 .* rows of columns, not dict"),
    "too few columns": ("template", [ROWS[0], [("a", "D"), ("b",)]], "sequence 1, token 1 .* has 1 columns"),
    "columns of numbers": ("template", [[("a", 3)]], "sequence 0, token 0 .* not strings"),
    "tokens that are strings": ("lists of names", [["a"]], "token 0 of sequence 0 .* of type str"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_used_is_refused_with_its_place(case: str):
    form, X, message = BAD[case]
    with pytest.raises(DataError, match=message) as caught:
        fitted(form)[0].transform(X)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("case", [case for case in BAD if not any(w in case for w in ("width", "names", "matrices"))])
def test_and_so_it_is_where_a_step_is_fitted(case: str):
    form, X, _ = BAD[case]
    with pytest.raises(DataError) as caught:
        SequenceFeatures(**FORMS[form][0]).fit_transform(X)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weighting": "tfidf"}, "weighting must be one of none, idf"),
        ({"weighting": None}, "weighting must be one of"),
        ({"min_count": 0}, "min_count"),
        ({"hash_size": 0}, "hash_size"),
        ({"hash_size": 8, "min_count": 2}, "hashed features are not counted"),
    ],
)
def test_options_outside_their_domain_are_refused(options: dict[str, Any], message: str):
    with pytest.raises(SettingsError, match=message):
        SequenceFeatures(**options)


# State


def _stored(features: SequenceFeatures) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """As a file gives it back."""
    config, arrays = features.to_state()
    return json.loads(json.dumps(config)), {name: np.array(array) for name, array in arrays.items()}


@EVERY_FORM
@WEIGHTINGS
def test_a_restored_step_transforms_to_the_same_bits(form: str, weighting: str):
    features, x = fitted(form, weighting=weighting)
    restored = SequenceFeatures.from_state(*_stored(features))
    np.testing.assert_array_equal(dense(restored.transform(FORMS[form][1]())[0]), dense(x))
    assert restored.names == features.names
    assert restored.n_features_in == features.n_features_in
    assert restored.n_columns == features.n_columns == (2 if "template" in form else None)
    assert str(restored.template) == str(features.template)
    assert restored.to_state()[0] == features.to_state()[0]


NAN = np.full(5, np.nan, dtype=np.float32)
ALTERED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "another kind": ("lists of names", {"kind": "text"}, {}),
    "no kind": ("lists of names", {"kind": None}, {}),
    "n_features no number": ("lists of names", {"n_features": "5"}, {}),
    "n_features a boolean": ("lists of names", {"n_features": True}, {}),
    "n_features zero": ("arrays", {"n_features": 0}, {}),
    "n_features another": ("lists of names", {"n_features": 4}, {"weights": NAN[:4]}),
    "weighting": ("lists of names", {"weighting": "tfidf"}, {}),
    "weighting a list": ("lists of names", {"weighting": ["idf"]}, {}),
    "weighting missing": ("lists of names", {"weighting": None}, {}),
    "template empty": ("template", {"template": ""}, {}),
    "template unreadable": ("template", {"template": "X0:%x[0,0]"}, {}),
    "template a number": ("template", {"template": 5}, {}),
    "template a boolean": ("template", {"template": False}, {}),
    "template lines": ("template", {"template": ["U0:%x[0,0]"]}, {}),
    "template missing": ("template", {"template": None}, {}),
    "template of matrices": ("arrays", {"template": "U0:%x[0,0]", "n_columns": 2}, {}),
    "n_columns missing": ("template", {"n_columns": None}, {}),
    "n_columns too few": ("template", {"n_columns": 1}, {}),
    "n_columns no integer": ("template", {"n_columns": 2.0}, {}),
    "n_columns a boolean": ("template", {"template": "U0:%x[0,0]", "n_columns": True}, {}),
    "n_columns without template": ("lists of names", {"n_columns": 2}, {}),
    "tokens no object": ("lists of names", {"tokens": [1]}, {}),
    "tokens missing": ("template", {"tokens": None}, {}),
    "tokens hashed": ("lists of names", {"tokens": {"min_count": 1, "hash_size": 8, "n_features": 8}}, {}),
    "no names": ("lists of names", {}, {"names": None}),
    "no weights": ("lists of names", {}, {"weights": None}),
    "weights too few": ("lists of names", {}, {"weights": np.ones(4, dtype=np.float32)}),
    "weights of float64": ("lists of names", {}, {"weights": np.ones(5)}),
    "weights in two dimensions": ("lists of names", {}, {"weights": np.ones((5, 1), dtype=np.float32)}),
    "weights not finite": ("lists of names", {}, {"weights": NAN}),
}


@pytest.mark.parametrize("case", ALTERED)
def test_an_altered_state_is_refused(case: str):
    form, changes, other = ALTERED[case]
    config, arrays = _stored(fitted(form)[0])
    SequenceFeatures.from_state(config, arrays)
    with pytest.raises(ModelFormatError, match="stored") as caught:
        SequenceFeatures.from_state(
            config | changes, {name: array for name, array in (arrays | other).items() if array is not None}
        )
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("config", [None, [], "sequences", {}])
def test_a_state_that_is_none_is_refused(config: Any):
    with pytest.raises(ModelFormatError, match="not one of sequences"):
        SequenceFeatures.from_state(config, {})


@pytest.mark.parametrize("form", [np.asarray, scipy.sparse.csr_matrix])
def test_features_too_large_for_the_scale_of_training_are_refused(form):
    features = SequenceFeatures()
    features.fit_transform([form(np.full((2, 2), 1e-30, dtype=np.float32))])
    with pytest.raises(DataError, match="so much larger than those of training"):
        features.transform([form(np.full((1, 2), 1e20, dtype=np.float32))])


def test_what_is_unknown_weighs_as_the_features_do_after_another_fit() -> None:
    features = SequenceFeatures(weighting="idf")
    features.fit_transform([[["a", "b"], ["a"]]])
    first = features.unknown_squares([[["a", "c"]]])
    assert first is not None
    assert (first == features.unknown_squares([[["a", "c"]]])).all()
    features.fit_transform([[["a", "c", "d"], ["a", "d"], ["d"]]])
    again, fresh = features.unknown_squares([[["a", "c"], ["b"]]]), SequenceFeatures(weighting="idf")
    fresh.fit_transform([[["a", "c", "d"], ["a", "d"], ["d"]]])
    assert again is not None
    assert again.tolist() == fresh.unknown_squares([[["a", "c"], ["b"]]]).tolist()  # type: ignore[union-attr]
    copied = pickle.loads(pickle.dumps(features))
    assert again.tolist() == copied.unknown_squares([[["a", "c"], ["b"]]]).tolist()
