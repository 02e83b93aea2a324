from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction import DictVectorizer, FeatureHasher

from extremegp.data import (
    CHUNKING_TEMPLATE,
    ClassSpace,
    TokenFeatures,
    encode_label_sequences,
    read_columns,
    stack_arrays,
)
from extremegp.errors import DataError, ModelFormatError, SettingsError

SEQUENCES: list[Any] = [
    [{"word": "He", "upper": True, "length": 2}, {"word": "ran", "upper": False, "length": 3.5}],
    [{"word": "He", "affixes": ["h", "e"], "shape": {"X", "x"}, "next": {"word": "is", "length": 2, "tags": ["V"]}}],
    [["bias", "odd"], ["bias", "bias", "word:He"], []],
]
ROWS = [
    {"word:He": 1, "upper": 1, "length": 2},
    {"word:ran": 1, "length": 3.5},
    {
        "word:He": 1,
        "affixes:h": 1,
        "affixes:e": 1,
        "shape:X": 1,
        "shape:x": 1,
        "next:word:is": 1,
        "next:length": 2,
        "next:tags:V": 1,
    },
    {"bias": 1, "odd": 1},
    {"bias": 2, "word:He": 1},
    {},
]
"""The tokens of all sequences as mappings of names to numbers."""


def by_name(X: Any, names: list[str] | None) -> list[dict[str, float]]:
    assert names is not None
    assert X.shape == (len(X.indptr) - 1, len(names))
    return [
        {names[i]: float(v) for i, v in zip(row.indices, row.data, strict=True)}
        for row in (X[r] for r in range(X.shape[0]))
    ]


def assert_same(X: Any, expected: Any) -> None:
    assert isinstance(X, sparse.csr_matrix)
    assert X.dtype == np.float32
    assert X.has_canonical_format
    assert X.data.all()
    np.testing.assert_array_equal(X.toarray(), expected.toarray().astype(np.float32))


def test_every_form_of_features_gives_its_columns_and_values() -> None:
    features = TokenFeatures()
    X, lengths = features.fit_transform(SEQUENCES)
    assert by_name(X, features.names) == ROWS
    assert features.names == sorted({name for row in ROWS for name in row})
    assert features.n_features == len(features.names)
    assert (lengths.dtype, lengths.tolist()) == (np.int64, [2, 1, 3])
    again, again_lengths = features.transform(SEQUENCES)
    assert_same(again, X)
    np.testing.assert_array_equal(again_lengths, lengths)


def test_columns_and_values_are_those_of_dict_vectorizer() -> None:
    vectorizer = DictVectorizer(dtype=np.float32)
    expected = vectorizer.fit_transform(ROWS)
    features = TokenFeatures()
    X, _ = features.fit_transform(SEQUENCES)
    assert features.names == vectorizer.feature_names_
    assert_same(X, expected)
    new = [[{"word": "He", "never": "seen", "length": 7}, ["odd", "unknown", "unknown"]]]
    assert_same(features.transform(new)[0], vectorizer.transform([{"word:He": 1, "length": 7}, {"odd": 1}]))


@pytest.mark.parametrize("hash_size", [3, 64, 2**20])
def test_hashed_features_are_those_of_feature_hasher(hash_size: int) -> None:
    features = TokenFeatures(hash_size=hash_size)
    assert (features.n_features, features.names) == (hash_size, None)
    expected = FeatureHasher(hash_size, dtype=np.float32).transform(ROWS)
    for read in (features.fit_transform, features.transform, TokenFeatures(hash_size=hash_size).transform):
        X, lengths = read(SEQUENCES)
        assert X.shape == (6, hash_size)
        assert_same(X, expected)
        assert lengths.tolist() == [2, 1, 3]


NAMES = st.text("abé日", min_size=1, max_size=2)
VALUES: Any = st.recursive(
    st.floats(-9, 9, width=32) | st.integers(-9, 9) | st.booleans() | NAMES | st.lists(NAMES, max_size=3, unique=True),
    lambda values: st.dictionaries(NAMES, values, max_size=3),
    max_leaves=6,
)


@given(st.lists(st.dictionaries(NAMES, VALUES, max_size=4) | st.lists(NAMES, unique=True), min_size=1, max_size=5))
def test_mappings_are_read_as_python_crfsuite_reads_them(sequence: list[Any]) -> None:
    pycrfsuite = pytest.importorskip("pycrfsuite")
    expected = [
        {name: np.float32(value) for name, value in item.items() if value}
        for item in pycrfsuite.ItemSequence(sequence).items()
    ]
    features = TokenFeatures()
    # One token with a feature of its own, for the others may have none.
    X, _ = features.fit_transform([sequence, [["own"]]])
    assert by_name(X, features.names) == [*expected, {"own": 1}]


def test_numbers_of_numpy_are_numbers() -> None:
    token = {
        "a": np.float16(0.5),
        "b": np.int8(-3),
        "c": np.bool_(True),
        "d": np.float64(2),
        "e": np.uint64(2**63),
        "f": np.bool_(False),
        np.str_("g"): np.str_("h"),
    }
    features = TokenFeatures()
    X, _ = features.fit_transform([[token]])
    assert by_name(X, features.names) == [{"a": 0.5, "b": -3, "c": 1, "d": 2, "e": 2.0**63, "g:h": 1}]
    assert {type(name) for name in features.names or ()} == {str}


def test_equal_features_of_a_token_add_up_and_zeros_are_absent() -> None:
    features = TokenFeatures()
    X, _ = features.fit_transform([[{"a:b": 2, "a": "b", "c": 0, "d": {"e": 1}, "d:e": -1}, ["a:b"] * 3]])
    assert by_name(X, features.names) == [{"a:b": 3}, {"a:b": 3}]


def test_the_order_of_keys_and_tokens_does_not_change_the_columns() -> None:
    def reverse(value: Any) -> Any:
        return {key: reverse(value[key]) for key in reversed(value)} if isinstance(value, dict) else value

    forward, backward = TokenFeatures(), TokenFeatures()
    X, _ = forward.fit_transform(SEQUENCES)
    Y, _ = backward.fit_transform([[reverse(token) for token in sequence] for sequence in SEQUENCES])
    assert forward.names == backward.names
    assert_same(Y, X)
    backward.fit_transform(reversed([list(reversed(sequence)) for sequence in SEQUENCES]))
    assert forward.names == backward.names


def test_features_of_too_few_tokens_are_left_out() -> None:
    rows = [["a", "a", "a"], ["b", "c"], ["b"], {"c": 0.0, "d": 1}, {"d": 1, "b": 3}]
    for min_count, names in ((1, ["a", "b", "c", "d"]), (2, ["b", "d"]), (3, ["b"])):
        features = TokenFeatures(min_count)
        X, _ = features.fit_transform([rows])
        assert features.names == names
        assert X.sum() == sum({"a": 3, "b": 5, "c": 1, "d": 2}[name] for name in names)
        assert_same(features.transform([rows])[0], X)
    with pytest.raises(DataError, match=r"no feature occurs in 4 tokens \(min_count\)"):
        TokenFeatures(4).fit_transform([rows])
    with pytest.raises(DataError, match="no feature occurs in 1 tokens"):
        TokenFeatures().fit_transform([[[], {}], [{"a": False}]])


def test_tokens_without_known_features_are_empty_rows() -> None:
    features = TokenFeatures()
    features.fit_transform([[["a"]]])
    X, lengths = features.transform([[["b"], [], {}], [{"c": 1e9}]])
    assert (X.shape, X.nnz, lengths.tolist()) == ((4, 1), 0, [3, 1])


def test_sequences_may_be_generated_as_they_are_read() -> None:
    features = TokenFeatures()
    X, lengths = features.fit_transform((iter(token) for token in sequence) for sequence in [["ab", "b"], ["c"]])
    assert by_name(X, features.names) == [{"a": 1, "b": 1}, {"b": 1}, {"c": 1}]
    assert lengths.tolist() == [2, 1]


DEEP: Any = {"x": 1}
for _ in range(10):
    DEEP = {"x": DEEP}

BAD: list[tuple[Any, str]] = [
    ("He ran", "X must be a list of sequences of tokens, not str"),
    ({"a": 1}, "X must be a list of sequences of tokens, not dict"),
    (None, "X must be a list of sequences of tokens, not NoneType"),
    ([], "there are no sequences"),
    ([{"word": "He"}], r"sequence 0 .*must be a list of tokens, not dict; for one sequence of tokens pass \[tokens\]"),
    (["He", "ran"], "sequence 0 .*must be a list of tokens, not str"),
    ([[["a"]], 3], "sequence 1 .*must be a list of tokens, not int"),
    ([{"a", "b"}], "sequence 0 .*must be a list of tokens, not set"),
    ([[["a"]], []], "sequence 1 .*has no tokens"),
    ([[["a"], "He"]], r"token 1 of sequence 0 .*of type str, not a mapping.*\[name\]"),
    ([[["a"]], [["a"], 3]], "token 1 of sequence 1 .*of type int"),
    ([[["a"], ["b", 3]]], "token 1 of sequence 0 .*has a int where the name of a feature"),
    ([np.eye(2)], "token 0 of sequence 0 .*has a float64 where the name"),
    ([[[b"a"]]], "has a bytes where the name"),
    ([[["\ud800"]]], "token 0 of sequence 0 .*half of a surrogate pair"),
    ([[{"a": "\ud800"}]], "half of a surrogate pair"),
    ([[{1: "a"}]], "token 0 of sequence 0 .*whose name is a int"),
    ([[["a"]], [{"b": math.nan}]], "token 0 of sequence 1 .*has NaN as value of the feature 'b'"),
    ([[{"a": {"b": -math.inf}}]], "token 0 of sequence 0 .*has an infinity as value of the feature 'a:b'"),
    ([[{"a": np.float32(np.nan)}]], "has NaN as value of the feature 'a'"),
    ([[{"a": 1e39}]], "a value too large for float32 as value of the feature 'a'"),
    ([[{"a": -(10**5000)}]], "a value too large for float32 as value of the feature 'a'"),
    ([[["a"], {"a:b": 3e38, "a": {"b": 3e38}}]], "token 1 of sequence 0 .*add up to more than float32 holds"),
    ([[{"a": None}]], "has a NoneType as value of the feature 'a'"),
    ([[{"a": 1j}]], "has a complex as value of the feature 'a'"),
    ([[{"a": b"b"}]], "has a bytes as value of the feature 'a'"),
    ([[{"a": ["b", 1]}]], "has a int in the list of the feature 'a'"),
    ([[{"a": [["b"]]}]], "has a list in the list of the feature 'a'"),
    ([[DEEP]], "nested deeper than 10"),
]


@pytest.mark.parametrize(("sequences", "problem"), BAD)
@pytest.mark.parametrize("hash_size", [None, 8])
def test_bad_sequences_are_refused_with_their_place(sequences: Any, problem: str, hash_size: int | None) -> None:
    features = TokenFeatures(hash_size=hash_size)
    with pytest.raises(DataError, match=problem):
        features.fit_transform(sequences)
    assert not features.names
    features.fit_transform([[["a:b", "a"]]])
    with pytest.raises(DataError, match=problem):
        features.transform(sequences)


def test_mappings_at_the_limit_of_depth_pass() -> None:
    features = TokenFeatures()
    features.fit_transform([[DEEP["x"]]])
    assert features.names == [":".join("x" * 10)]


def test_what_is_not_fitted_says_so() -> None:
    with pytest.raises(NotFittedError, match="fit_transform"):
        TokenFeatures().transform(SEQUENCES)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"min_count": 0}, "min_count must be a positive integer"),
        ({"min_count": True}, "min_count must be a positive integer"),
        ({"min_count": 1.5}, "min_count must be a positive integer"),
        ({"hash_size": 0}, "hash_size must be an integer from 1"),
        ({"hash_size": 2**31}, "hash_size must be an integer from 1"),
        ({"hash_size": "8"}, "hash_size must be an integer from 1"),
        ({"hash_size": 8, "min_count": 2}, "hashed features are not counted"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        TokenFeatures(**options)


@pytest.mark.parametrize("options", [{}, {"min_count": 2}, {"hash_size": 16}])
def test_restored_features_give_the_same_bits(options: dict[str, Any]) -> None:
    features = TokenFeatures(**options)
    sequences = [*SEQUENCES, [["été", "日本", "\n", "", "word:He"], ["été", "", "\0"]]]
    X, _ = features.fit_transform(sequences)
    config, arrays = features.to_state()
    stored = {name: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape) for name, a in arrays.items()}
    restored = TokenFeatures.from_state(json.loads(json.dumps(config)), stored)
    assert restored.names == features.names
    assert (restored.min_count, restored.hash_size) == (features.min_count, features.hash_size)
    Y, _ = restored.transform(sequences)
    for name in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(Y, name), getattr(X, name))
    assert restored.to_state()[0] == config


CONFIG = {"min_count": 1, "hash_size": None, "n_features": 3}
STORED = {"names": np.frombuffer("abcé".encode(), np.uint8), "offsets": np.asarray([0, 1, 3, 5])}


def test_the_state_that_the_altered_ones_vary_is_sound() -> None:
    assert TokenFeatures.from_state(CONFIG, STORED).names == ["a", "bc", "é"]
    assert TokenFeatures.from_state(CONFIG | {"hash_size": 3}, {}).n_features == 3


@pytest.mark.parametrize(
    ("config", "arrays"),
    [
        (None, {}),
        ([], STORED),
        ({}, STORED),
        (CONFIG, {}),
        (CONFIG | {"min_count": 0}, STORED),
        (CONFIG | {"min_count": "1"}, STORED),
        (CONFIG | {"hash_size": -1}, STORED),
        (CONFIG | {"hash_size": 3, "min_count": 2}, STORED),
        (CONFIG | {"hash_size": 4}, STORED),
        (CONFIG | {"n_features": 4}, STORED),
        (CONFIG | {"n_features": None}, STORED),
        (CONFIG | {"n_features": 1, "hash_size": True}, STORED),
        (CONFIG | {"hash_size": 1, "n_features": True}, STORED),
        (CONFIG, STORED | {"names": STORED["names"].astype(np.int64)}),
        (CONFIG, STORED | {"names": STORED["names"][None]}),
        (CONFIG, STORED | {"names": "abcé"}),
        (CONFIG, STORED | {"names": np.frombuffer(b"abc\xff\xfe", np.uint8)}),
        (CONFIG, STORED | {"names": np.frombuffer(b"bacdd", np.uint8)}),
        (CONFIG, STORED | {"names": np.frombuffer(b"abb", np.uint8), "offsets": np.asarray([0, 1, 2, 3])}),
        (
            CONFIG | {"n_features": 2},
            {"names": np.frombuffer(b"abb", np.uint8), "offsets": np.asarray([0, 1, 2, 3])},
        ),
        (CONFIG, STORED | {"offsets": STORED["offsets"].astype(np.int32)}),
        (CONFIG, STORED | {"offsets": STORED["offsets"][None]}),
        (CONFIG, STORED | {"offsets": np.asarray([0])}),
        (CONFIG, STORED | {"offsets": [0, 1, 3, 5]}),
        (CONFIG, STORED | {"offsets": np.asarray([1, 2, 3, 5])}),
        (CONFIG, STORED | {"offsets": np.asarray([0, 1, 3, 4])}),
        (CONFIG, STORED | {"offsets": np.asarray([0, 1, 4, 5])}),
        (CONFIG, STORED | {"offsets": np.asarray([0, 3, 1, 5])}),
        (CONFIG, STORED | {"offsets": np.asarray([0, 1, -2, 5])}),
        (CONFIG, STORED | {"offsets": np.asarray([0, 2**63 - 1, -(2**63), 5])}),
    ],
)
def test_altered_state_is_refused(config: Any, arrays: Any) -> None:
    with pytest.raises(ModelFormatError, match="stored token features"):
        TokenFeatures.from_state(config, arrays)


MATRICES = [np.arange(6.0).reshape(3, 2), np.asarray([[0, -1]]), np.asarray([[True, False]] * 2)]


@pytest.mark.parametrize("make", [sparse.csr_matrix, sparse.csc_array, sparse.coo_matrix])
def test_matrices_are_stacked(make: Any) -> None:
    dense, lengths = stack_arrays(MATRICES)
    assert isinstance(dense, np.ndarray)
    assert dense.dtype == np.float32
    np.testing.assert_array_equal(dense, [[0, 1], [2, 3], [4, 5], [0, -1], [1, 0], [1, 0]])
    assert (lengths.dtype, lengths.tolist()) == (np.int64, [3, 1, 2])
    stacked, lengths = stack_arrays(make(matrix) for matrix in MATRICES)
    assert isinstance(stacked, sparse.csr_matrix)
    assert stacked.dtype == np.float32
    assert stacked.has_canonical_format
    np.testing.assert_array_equal(stacked.toarray(), dense)
    assert lengths.tolist() == [3, 1, 2]


def test_lists_of_numbers_are_arrays() -> None:
    X, lengths = stack_arrays([[[1, 2]], [[3, 4], [5, 6]]])
    assert (np.asarray(X).tolist(), lengths.tolist()) == ([[1, 2], [3, 4], [5, 6]], [1, 2])


@pytest.mark.parametrize(
    ("sequences", "problem"),
    [
        (None, "X must be a list of matrices, one a sequence, not NoneType"),
        ("ab", "X must be a list of matrices"),
        (sparse.eye(3, format="csr"), "X must be a list of matrices, one a sequence, not csr_matrix"),
        ([], "there are no sequences"),
        (np.eye(3), r"X\[0\] must be 2-D .*its shape is \(3,\). For one sequence pass \[X\]"),
        ([np.eye(2), np.ones((1, 2, 2))], r"X\[1\] must be 2-D"),
        ([np.eye(2), 3.0], r"X\[1\] must be 2-D .*\(\)"),
        ([3.0], r"X\[0\] must be 2-D .*\(\)"),
        ([np.eye(2), [[1], [2, 3]]], r"X\[1\] is not a matrix"),
        ([np.eye(2), np.ones((0, 2))], r"X\[1\] has no tokens"),
        ([np.eye(2), np.eye(3)], r"X\[1\] has 3 features, but X\[0\] has 2"),
        ([np.eye(2), sparse.eye(2)], r"X\[1\] is sparse, but X\[0\] is not"),
        ([sparse.eye(2), np.eye(2)], r"X\[1\] is an array, but X\[0\] is not"),
        ([np.eye(2), np.asarray([[0, 1], [np.nan, 0]])], r"X\[1\] contains NaN at row 1, column 0"),
        ([np.eye(2), np.asarray([[0, 1e39]])], r"X\[1\] contains 1e\+39, which is too large for float32"),
        ([sparse.eye(2), sparse.csr_matrix([[0, np.inf]])], r"X\[1\] contains infinity .*row 0, column 1"),
        ([np.eye(2), np.eye(2) * 1j], "(?i)complex"),
        ([np.zeros((2, 0))], r"0 feature"),
    ],
)
def test_matrices_that_do_not_stack_are_refused(sequences: Any, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        stack_arrays(sequences)


@pytest.mark.parametrize("make", [list, tuple, np.asarray])
@pytest.mark.parametrize("labels", [[["B", "O"], ["O"], ["I"]], [[2, 7], [7], [-1]], [[True, False], [True], [True]]])
def test_labels_are_coded_in_the_order_of_the_classes(make: Any, labels: list[list[Any]]) -> None:
    flat = [label for sequence in labels for label in sequence]
    codes, space = encode_label_sequences([make(sequence) for sequence in labels], np.asarray([2, 1, 1]))
    assert space.names == tuple(sorted(set(flat)))
    assert codes.dtype == np.int64
    assert space.decode(codes).tolist() == flat


def test_labels_of_known_classes_are_coded_by_them() -> None:
    space = ClassSpace(["B", "I", "O"])
    codes, same = encode_label_sequences([["O"], ["B", "B"]], np.asarray([1, 2]), space)
    assert (codes.tolist(), same) == ([2, 0, 0], space)
    lengths = np.asarray([2, 1, 3])
    unseen = [["O", "I"], ["B"], ["B", "X", "O"]]
    with pytest.raises(DataError, match=r"has the class 'X' at token 1 of sequence 2 \(counted from 0\)"):
        encode_label_sequences(unseen, lengths, space)
    codes, _ = encode_label_sequences(unseen, lengths, space, unknown="ignore")
    assert codes.tolist() == [2, 1, 0, 0, -1, 2]
    with pytest.raises(SettingsError, match="unknown must be"):
        encode_label_sequences(unseen, lengths, space, unknown="skip")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("y", "problem"),
    [
        ("BIO", "tags must be a list of label sequences, not str"),
        (None, "tags must be a list of label sequences, not NoneType"),
        ([["B", "O"]], "X has 2 sequences but tags has 1"),
        ([["B", "O"], ["O", "B"]], r"tags\[1\] has 2 labels, but X\[1\] has 1 tokens"),
        ([["B"], ["O"]], r"tags\[0\] has 1 labels, but X\[0\] has 2 tokens"),
        (["BO", "O"], r"tags\[0\] must be a list of labels, one a token, not str \('BO'\); .*\[tags\]"),
        ([1, 2], r"tags\[0\] must be a list of labels, one a token, not int"),
        ([["B", "O"], {"O"}], r"tags\[1\] must be a list of labels, one a token, not set"),
        ([np.eye(2), ["O"]], r"tags\[0\] must be a list of labels, one a token, not ndarray"),
        ([["B", "O"], [None]], "tags contains NaN or None at token 0 of sequence 1"),
        ([["B", 1], ["O"]], "mixes types: 1 at token 1 of sequence 0"),
        ([[0.5, 1], [2]], "continuous: tags has 0.5 at token 0 of sequence 0"),
        ([["O", "O"], ["O"]], "only one class is present: every row is 'O'"),
    ],
)
def test_labels_that_do_not_go_with_the_tokens_are_refused(y: Any, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        encode_label_sequences(y, np.asarray([2, 1]), name="tags")


def test_the_chunks_of_conll_2000_become_a_matrix(shared_data: Any) -> None:
    read = read_columns(shared_data / "conll2000" / "train.txt.xz", max_sequences=500)
    features = TokenFeatures()
    X, lengths = features.fit_transform(map(CHUNKING_TEMPLATE.expand, read.sequences))
    codes, space = encode_label_sequences(read.labels or (), lengths)
    assert X.shape == (len(codes), features.n_features)
    # Every token has each of the 19 features of the template once.
    np.testing.assert_array_equal(np.diff(X.indptr), 19)
    assert set(X.data) == {1}
    assert len(space) > 10
    first = by_name(X[:1], features.names)[0]
    assert first.keys() == set(CHUNKING_TEMPLATE.expand(read.sequences[0])[0])
