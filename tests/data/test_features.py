from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from extremegp.data.features import Features, make_features, suited_features
from extremegp.errors import DataError, ModelFormatError, SettingsError

rng = np.random.default_rng(0)
COUNTS = rng.poisson(0.7, size=(12, 7)).astype(np.float32)
COUNTS[3] = 0
TEXTS = [
    "a Gaussian process prior over functions",
    "the Gaussian process classifier of many labels",
    "labels of documents",
    "functions, functions and functions!",
    "nothing in common here",
]
FITTED_ON: dict[Any, Any] = {
    "raw": COUNTS,
    "unit": COUNTS,
    "tfidf": COUNTS,
    "text": TEXTS,
    "scale": COUNTS,
    "root": COUNTS,
    "standard": COUNTS,
}


def tfidf_reference(train: np.ndarray, X: np.ndarray) -> np.ndarray:
    idf = np.log((1 + len(train)) / (1 + (train > 0).sum(0))) + 1
    weighted = np.where(X > 0, 1 + np.log(np.where(X > 0, X, 1.0)), 0) * idf
    norms = np.linalg.norm(weighted, axis=1, keepdims=True)
    return weighted / np.where(norms > 0, norms, 1)


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_matrix, sparse.csc_array])
def test_tfidf_is_its_formula_and_keeps_the_form(make: Any) -> None:
    step = make_features("tfidf").fit(make(COUNTS))
    X = step.transform(make(COUNTS[:5] * 2))
    assert X.dtype == np.float32
    assert isinstance(X, np.ndarray if make is np.asarray else sparse.csr_matrix)
    dense = X if make is np.asarray else X.toarray()
    np.testing.assert_allclose(dense, tfidf_reference(COUNTS, COUNTS[:5] * 2), rtol=1e-5, atol=1e-7)
    assert not dense[3].any()


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_matrix])
def test_unit_rows_have_norm_one_at_every_magnitude_and_zero_rows_stay(make: Any) -> None:
    X = np.asarray([[3, -4, 0], [0, 0, 0], [1e-30, 1e-30, 0], [3e38, 0, 3e38], [1e-45, 0, 0]])
    unit = make_features("unit").fit(make(X)).transform(make(X))
    assert unit.dtype == np.float32
    assert isinstance(unit, np.ndarray if make is np.asarray else sparse.csr_matrix)
    half = np.sqrt(0.5)
    expected = [[0.6, -0.8, 0], [0, 0, 0], [half, half, 0], [half, 0, half], [1, 0, 0]]
    np.testing.assert_allclose(unit if make is np.asarray else unit.toarray(), expected, rtol=1e-6)


def test_raw_changes_nothing() -> None:
    step = make_features("raw").fit(COUNTS)
    np.testing.assert_array_equal(step.transform(COUNTS), COUNTS)
    assert (step.transform(sparse.csr_matrix(COUNTS)) != sparse.csr_matrix(COUNTS)).nnz == 0


def test_text_counts_words_of_at_least_two_texts() -> None:
    step = make_features("text").fit(TEXTS)
    words = ["functions", "gaussian", "labels", "of", "process"]
    counts = np.asarray([[1, 1, 0, 0, 1], [0, 1, 1, 1, 1], [0, 0, 1, 1, 0], [3, 0, 0, 0, 0], [0, 0, 0, 0, 0]])
    X = step.transform(TEXTS)
    assert isinstance(X, sparse.csr_matrix)
    assert X.dtype == np.float32
    assert step.n_features_in == len(words)
    np.testing.assert_allclose(X.toarray(), tfidf_reference(counts, counts), rtol=1e-5)
    assert step.to_state()[1]["words"].tobytes().decode().split("\n") == words


def test_text_options() -> None:
    assert make_features("text", min_df=1).fit(TEXTS).n_features_in == 16
    assert make_features("text", max_features=2).fit(TEXTS).n_features_in == 2
    for options in ({"min_df": 0}, {"min_df": 0.5}, {"min_df": None}, {"min_df": True}, {"max_features": 0}):
        with pytest.raises(SettingsError, match="positive integer"):
            make_features("text", **options)


@pytest.mark.parametrize("kind", FITTED_ON)
@pytest.mark.parametrize("dense", [True, False])
def test_a_restored_step_gives_the_same_bits(kind: Any, dense: bool) -> None:
    data = FITTED_ON[kind] if dense or kind == "text" else sparse.csr_matrix(FITTED_ON[kind])
    step = make_features(kind).fit(data)
    config, arrays = step.to_state()
    stored = {name: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape) for name, a in arrays.items()}
    restored = Features.from_state(json.loads(json.dumps(config)), stored)
    assert type(restored) is type(step)
    assert restored.n_features_in == step.n_features_in
    before, after = step.transform(data), restored.transform(data)
    if sparse.issparse(before):
        np.testing.assert_array_equal(after.indices, before.indices)
        np.testing.assert_array_equal(after.data, before.data)
    else:
        np.testing.assert_array_equal(after, before)
    assert restored.to_state()[0] == config


@pytest.mark.parametrize("kind", ["raw", "unit", "tfidf"])
@pytest.mark.parametrize("make", [np.array, sparse.csr_matrix])
def test_the_input_is_not_changed(kind: Any, make: Any) -> None:
    X = make(COUNTS)
    make_features(kind).fit(X).transform(X)
    np.testing.assert_array_equal(X if make is np.array else X.toarray(), COUNTS)


@pytest.mark.parametrize("kind", ["raw", "unit", "tfidf"])
def test_bad_matrices_are_refused(kind: Any) -> None:
    step = make_features(kind).fit(COUNTS)
    with pytest.raises(DataError, match=r"has 6 features.* 7 features"):
        step.transform(COUNTS[:, :6])
    with pytest.raises(DataError, match="NaN"):
        step.transform(np.full((1, 7), np.nan))


@pytest.mark.parametrize("value", [-1.0, 0.5])
def test_tfidf_refuses_what_is_not_a_count(value: float) -> None:
    X = COUNTS.copy()
    X[2, 2] = value
    with pytest.raises(DataError, match=f"0 or at least 1, but X holds {value:g};.*features='unit'"):
        make_features("tfidf").fit(X)
    with pytest.raises(DataError, match="at least 1"):
        make_features("tfidf").fit(COUNTS).transform(sparse.csr_matrix(X))


def test_stored_zeros_do_not_count_as_occurrences() -> None:
    X = sparse.csr_matrix(COUNTS)
    column = np.flatnonzero(COUNTS[-1] == 0)[0]
    indptr = np.append(X.indptr[:-1], X.nnz + 1)
    padded = sparse.csr_matrix((np.append(X.data, np.float32(0)), np.append(X.indices, column), indptr), shape=X.shape)
    step = make_features("tfidf").fit(padded)
    np.testing.assert_allclose(step.transform(padded).toarray(), tfidf_reference(COUNTS, COUNTS), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("X", "problem"),
    [
        ("one text", "expected a list of texts, not str"),
        (sparse.csr_matrix(COUNTS), "expected a list of texts"),
        (3, "expected a list of texts, not int"),
        ([], "no texts"),
        (["a", None], "text 1 .*is missing.*empty text"),
        (["a", 3], "text 1 .*int, not a string.*other features"),
        (np.array("one text"), "expected a list of texts"),
        (["all words", "differ here"], "no words to make features of.*min_df"),
        (["one two"], "no words to make features of.*min_df"),
    ],
)
def test_bad_texts_are_refused(X: Any, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        make_features("text").fit(X)


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(SettingsError, match="raw, unit, tfidf, text, scale, root, standard, not 'bm25'"):
        make_features("bm25")  # type: ignore[arg-type]


IDF = np.ones(5, dtype=np.float32)
WORDS = np.frombuffer(b"a1\nb1\nc1\nd1\ne1", dtype=np.uint8)
TEXT = {"kind": "text", "n_features": 5, "min_df": 2, "max_features": None}


@pytest.mark.parametrize(
    ("config", "arrays"),
    [
        (None, {}),
        ([], {}),
        ({}, {}),
        ({"kind": ["raw"], "n_features": 5}, {}),
        ({"kind": "pickle", "n_features": 5}, {}),
        ({"kind": "raw"}, {}),
        ({"kind": "raw", "n_features": "5"}, {}),
        ({"kind": "raw", "n_features": 0}, {}),
        ({"kind": "raw", "n_features": True}, {}),
        ({"kind": "tfidf", "n_features": 5}, {}),
        ({"kind": "tfidf", "n_features": 4}, {"idf": IDF}),
        ({"kind": "tfidf", "n_features": 5}, {"idf": IDF.astype(np.float64)}),
        ({"kind": "tfidf", "n_features": 5}, {"idf": IDF[:, None]}),
        ({"kind": "tfidf", "n_features": 5}, {"idf": IDF * np.float32(np.nan)}),
        ({"kind": "tfidf", "n_features": 5}, {"idf": -IDF}),
        ({"kind": "tfidf", "n_features": 5}, {"idf": [1.0] * 5}),
        (TEXT, {"idf": IDF}),
        (TEXT, {"words": WORDS}),
        (TEXT, {"words": WORDS[:-3], "idf": IDF}),
        (TEXT, {"words": WORDS.astype(np.int64), "idf": IDF}),
        (TEXT, {"words": np.frombuffer(b"a\na\nb\nc\nd", dtype=np.uint8), "idf": IDF}),
        (TEXT, {"words": np.frombuffer(b"\xff\na\nb\nc\nd", dtype=np.uint8), "idf": IDF}),
        (TEXT | {"min_df": "2"}, {"words": WORDS, "idf": IDF}),
        (TEXT | {"max_features": -1}, {"words": WORDS, "idf": IDF}),
        (TEXT | {"n_features": 6}, {"words": WORDS, "idf": IDF}),
        (TEXT | {"analyzer": "stem"}, {"words": WORDS, "idf": IDF}),
        (TEXT | {"ngram_range": [2, 1]}, {"words": WORDS, "idf": IDF}),
        (TEXT | {"lowercase": 1}, {"words": WORDS, "idf": IDF}),
    ],
)
def test_altered_state_is_refused(config: Any, arrays: Any) -> None:
    with pytest.raises(ModelFormatError, match="stored features step"):
        Features.from_state(config, arrays)


def test_the_state_that_the_altered_ones_vary_is_sound() -> None:
    assert Features.from_state(TEXT, {"words": WORDS, "idf": IDF}).transform(["b1 c1"]).nnz == 2
    assert Features.from_state({"kind": "tfidf", "n_features": 5}, {"idf": IDF}).n_features_in == 5


def _mean_square_distance(X: np.ndarray) -> float:
    return float(np.mean((X[:, None] - X[None]) ** 2) * X.shape[1])


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_matrix])
@pytest.mark.parametrize("factor", [1e-3, 1.0, 255.0])
def test_scaling_divides_all_features_by_one_number_that_puts_rows_at_a_squared_distance_of_two(
    make: Any, factor: float
) -> None:
    step = make_features("scale").fit(make(factor * COUNTS))
    scaled = step.transform(make(factor * COUNTS))
    dense = scaled if make is np.asarray else scaled.toarray()
    assert _mean_square_distance(dense) == pytest.approx(2, rel=1e-4)
    gaps = dense - dense[:1]
    np.testing.assert_allclose(gaps / gaps.max(), (COUNTS - COUNTS[:1]) / (COUNTS - COUNTS[:1]).max(), atol=1e-5)
    np.testing.assert_allclose(dense.mean(axis=0) * (make is np.asarray), 0, atol=1e-6)


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_matrix])
def test_roots_are_scaled_and_negative_values_refused(make: Any) -> None:
    step = make_features("root").fit(make(COUNTS))
    rooted = step.transform(make(COUNTS))
    expected = make_features("scale").fit(np.sqrt(COUNTS)).transform(np.sqrt(COUNTS))
    if make is not np.asarray:
        rooted, expected = (
            rooted.toarray(),
            make_features("scale").fit(make(np.sqrt(COUNTS))).transform(make(np.sqrt(COUNTS))).toarray(),
        )
    np.testing.assert_allclose(rooted, expected, rtol=1e-6)
    with pytest.raises(DataError, match="square roots, but X holds -1"):
        make_features("root").fit(make(np.array([[1.0, -1.0], [2.0, 3.0]])))
    # New rows may be a little out of the range of training.
    zero, above, below = (step.transform(make(np.full((1, COUNTS.shape[1]), value))) for value in (0, 0.25, -0.25))
    gaps = [gap if make is np.asarray else gap.toarray() for gap in (above - zero, zero - below)]
    np.testing.assert_allclose(*gaps, rtol=1e-5)


def test_standard_features_have_mean_zero_and_one_variance_and_constants_vanish() -> None:
    X = np.random.default_rng(0).normal(size=(50, 4)) * [1, 10, 100, 0] + [0, 5, -70, 3e4]
    step = make_features("standard").fit(X)
    standard = step.transform(X)
    np.testing.assert_allclose(standard.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(standard.std(axis=0), [1 / np.sqrt(3)] * 3 + [0], rtol=1e-4, atol=1e-7)
    assert _mean_square_distance(standard) == pytest.approx(2, rel=1e-4)


def test_standard_features_of_sparse_data_keep_its_zeros() -> None:
    step = make_features("standard").fit(sparse.csr_matrix(COUNTS))
    standard = step.transform(sparse.csr_matrix(COUNTS))
    assert standard.nnz == sparse.csr_matrix(COUNTS).nnz
    np.testing.assert_allclose(standard.toarray().std(axis=0), 1 / np.sqrt(COUNTS.shape[1]), rtol=1e-4)


@pytest.mark.parametrize("kind", ["scale", "root", "standard"])
def test_the_smallest_of_numbers_stay_finite(kind: Any) -> None:
    X = 1e-42 * np.arange(6.0).reshape(3, 2)
    assert np.isfinite(make_features(kind).fit(X).transform(X)).all()


@pytest.mark.parametrize("kind", ["scale", "standard"])
def test_data_without_variance_stay_finite(kind: Any) -> None:
    X = np.full((3, 2), 7.0)
    assert np.isfinite(make_features(kind).fit(X).transform(X)).all()


def test_the_step_that_suits_data_follows_from_their_form_and_scales() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, size=(30, 9))
    assert suited_features(sparse.csr_matrix(COUNTS)) == "unit"
    assert suited_features(pixels) == "root"
    assert suited_features(pixels - 10) == "standard"
    assert suited_features(pixels + 100) == "standard"
    assert suited_features(np.stack([np.arange(9), 1e4 * np.arange(9), np.arange(9) / 50], axis=1)) == "standard"
