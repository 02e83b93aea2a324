"""Texts as features: tf-idf of their words."""

from __future__ import annotations

from collections import Counter
from math import log
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, issparse
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer

from extremegp.data.analysis import Analyser
from extremegp.data.features_base import Features, stored_idf, tfidf
from extremegp.data.frames import texts_of
from extremegp.engine.matrices import FloatCSR, FloatMatrix, column_counts
from extremegp.errors import DataError, ModelFormatError, SettingsError


class TextFeatures(Features):
    """Texts to tf-idf of their words by `sklearn.feature_extraction.text.TfidfVectorizer`, rows scaled to unit norm.

    Args:
        min_df: texts that a word must occur in to become a feature.
        max_features: how many words to keep, the most frequent; None for all.
        analyse: what the words of a text are.
    """

    kind: ClassVar[str] = "text"

    def __init__(
        self,
        min_df: int = 2,
        max_features: int | None = None,
        analyse: Analyser = Analyser(),  # noqa: B008 (frozen)
    ) -> None:
        for name, value in (("min_df", min_df), ("max_features", max_features)):
            positive = isinstance(value, int) and not isinstance(value, bool) and value >= 1
            if not positive and (name == "min_df" or value is not None):
                raise SettingsError(f"{name} must be a positive integer, not {value!r}")
        self.min_df = min_df
        self.max_features = max_features
        self.analyse = analyse

    def fit(self, X: Any) -> Self:
        vectorizer = TfidfVectorizer(
            analyzer=self.analyse,
            sublinear_tf=True,
            min_df=self.min_df,
            max_features=self.max_features,
            dtype=np.float32,
        )
        try:
            vectorizer.fit(texts_of(X))
        except ValueError as error:
            if isinstance(error, DataError):
                raise
            raise DataError(
                f"no words to make features of ({error}); give more text or lower min_df (now {self.min_df})"
            ) from error
        # Stored and fitted steps are built the same way, so that they give the same bits.
        self._set(vectorizer.get_feature_names_out().tolist(), vectorizer.idf_)
        return self

    def transform(self, X: Any) -> FloatCSR:
        return tfidf(self._counter.transform(texts_of(X)), self._idf)

    def n_unknown(self, x: FloatMatrix) -> int:
        assert issparse(x)
        return int(np.count_nonzero(np.diff(x.indptr) == 0))

    def unknown_shares(self, X: Any) -> NDArray[np.float32]:
        # An unknown word weighs as much as the rarest known one.
        known, rarest = self._counter.vocabulary.keys(), float(self._idf.max())
        idf = dict(zip(self._words, self._idf.tolist(), strict=True))
        shares = []
        for text in texts_of(X):
            counts = Counter(self.analyse(text))
            squares = {word: ((1 + log(n)) * idf.get(word, rarest)) ** 2 for word, n in counts.items()}
            unknown = sum(square for word, square in squares.items() if word not in known)
            shares.append(unknown / sum(squares.values()) if unknown else 0.0)
        return np.array(shares, dtype=np.float32)[:, None]

    def rare_columns(self, x: FloatMatrix) -> NDArray[np.int64]:
        return np.flatnonzero(column_counts(csr_matrix(x)) <= self.min_df)

    def names(self) -> list[str]:
        return list(self._words)

    def forget_columns(self, columns: NDArray[np.int64]) -> None:
        words = list(self._words)
        for column in columns.tolist():
            # No analyser takes a zero character for part of a word.
            words[column] = f"\0{column}"
        self._set(words, self._idf)

    def to_state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        config, _ = super().to_state()
        config |= {"min_df": self.min_df, "max_features": self.max_features} | self.analyse.to_config()
        words = "\n".join(self._words).encode("utf-8")
        return config, {"idf": self._idf, "words": np.frombuffer(words, dtype=np.uint8)}

    def _restore(self, config: dict[str, Any], arrays: dict[str, Any]) -> None:
        super()._restore(config, arrays)
        try:
            analyse = Analyser.from_config(config)
            TextFeatures.__init__(self, config.get("min_df"), config.get("max_features"), analyse)  # type: ignore[arg-type]
        except SettingsError as error:
            raise ModelFormatError(f"the stored features step is altered: {error}") from error
        stored = arrays.get("words")
        if not isinstance(stored, np.ndarray) or stored.dtype != np.uint8 or stored.ndim != 1:
            raise ModelFormatError("the stored features step has no 'words' array of bytes")
        try:
            words = stored.tobytes().decode("utf-8").split("\n")
        except UnicodeDecodeError as error:
            raise ModelFormatError("the words of the stored features step are not UTF-8") from error
        if len(words) != self.n_features_in or len(set(words)) != len(words):
            raise ModelFormatError(
                f"the stored features step has {len(words)} words ({len(set(words))} different) "
                f"for {self.n_features_in} features"
            )
        self._set(words, stored_idf(arrays, self.n_features_in))

    def _set(self, words: list[str], idf: NDArray[Any]) -> None:
        self._words, self._idf = words, idf
        vocabulary = {word: column for column, word in enumerate(words)}
        self._counter = CountVectorizer(analyzer=self.analyse, vocabulary=vocabulary, dtype=np.float32)
        self.n_features_in = len(words)
