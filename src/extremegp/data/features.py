"""What a model does to its input before the kernel sees it: fitted in training, stored with it, repeated at predict."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, issparse
from sklearn.feature_extraction.text import TfidfTransformer, TfidfVectorizer
from sklearn.preprocessing import normalize

from extremegp.data.frames import texts_of
from extremegp.data.rows import with_values
from extremegp.data.validation import check_inputs
from extremegp.engine.matrices import FloatCSR, FloatMatrix, column_counts, is_mapped, row_blocks
from extremegp.errors import DataError, ModelFormatError, SettingsError

FeatureKind = Literal["raw", "unit", "tfidf", "text", "scale", "root", "standard"]


class Features(ABC):
    """A features step. Made by `make_features`, or from stored state by `Features.from_state`.

    Attributes:
        kind: the name of the step.
        n_features_in: D, the number of columns of the result (and of the input, unless that is text); set by `fit`.
    """

    kind: ClassVar[FeatureKind]
    n_features_in: int

    @abstractmethod
    def fit(self, X: Any) -> Self:
        """Learn the step from training data: an N x D matrix, or N texts for the kind "text".

        Raises:
            DataError: X cannot be used.
        """

    @abstractmethod
    def transform(self, X: Any) -> FloatMatrix:
        """The float32 features of X, N x D: CSR for sparse X and for texts, an array for dense X. X is not changed.

        Raises:
            DataError: X cannot be used, or has not the columns that the step was fitted on.
        """

    def to_state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """What `from_state` needs: a configuration that JSON can hold, and arrays by name."""
        return {"kind": self.kind, "n_features": self.n_features_in}, {}

    @staticmethod
    def from_state(config: Any, arrays: dict[str, NDArray[Any]]) -> Features:
        """Restore a fitted step; it transforms to the same bits as the one that was stored.

        Raises:
            ModelFormatError: the state is not what `to_state` gives.
        """
        kind = config.get("kind") if isinstance(config, dict) else None
        if not isinstance(kind, str) or kind not in _KINDS:
            raise ModelFormatError(f"the stored features step has the kind {kind!r}, not one of {', '.join(_KINDS)}")
        n_features = config.get("n_features")
        if not isinstance(n_features, int) or isinstance(n_features, bool) or n_features < 1:
            raise ModelFormatError(f"the stored features step has n_features {n_features!r}, not a positive integer")
        features = _KINDS[kind]()
        features._restore(config, arrays)
        return features

    def _restore(self, config: dict[str, Any], arrays: dict[str, Any]) -> None:
        """Set what `fit` sets; `config` has a valid kind and n_features, all else is unchecked."""
        self.n_features_in = config["n_features"]


class RawFeatures(Features):
    """The input unchanged, as float32."""

    kind: ClassVar[FeatureKind] = "raw"

    def fit(self, X: Any) -> Self:
        self.n_features_in = check_inputs(X).shape[1]
        return self

    def transform(self, X: Any) -> FloatMatrix:
        return check_inputs(X, self.n_features_in)


class UnitFeatures(RawFeatures):
    """Rows scaled to unit Euclidean norm; rows of zeros stay zero."""

    kind: ClassVar[FeatureKind] = "unit"

    def transform(self, X: Any) -> FloatMatrix:
        checked = super().transform(X)
        if is_mapped(checked):
            return with_values(csr_matrix(checked), _unit_rows)
        if issparse(checked):
            return _unit_rows(checked)
        # Not by scikit-learn here: for arrays it takes rows below 1e-6 for zero.
        peaks = np.maximum(checked.max(axis=1), -checked.min(axis=1))[:, None]
        scaled: NDArray[np.float32] = checked / np.where(peaks > 0, peaks, np.float32(1))
        # Squares in float32 and their sums in float64, as `normalize` has them for CSR.
        norms = np.sqrt(np.square(scaled).sum(axis=1, dtype=np.float64, keepdims=True))
        np.divide(scaled, np.where(norms > 0, norms, 1.0), out=scaled, casting="unsafe")
        return scaled


class ScaleFeatures(RawFeatures):
    """All features divided by one number, so that rows of the training data are at a mean squared distance of 2.

    For features in the same units, such as the pixels of images: kernels that start with weight 1 then see the data at
    their own scale. Means are taken away, but not from sparse X, which keeps its zeros.
    """

    kind: ClassVar[FeatureKind] = "scale"

    def fit(self, X: Any) -> Self:
        checked = check_inputs(X)
        self.n_features_in = checked.shape[1]
        mean, variance = _column_moments(checked)
        self._set(mean * (not issparse(checked)), np.full(self.n_features_in, np.sqrt(variance.sum()) or 1.0))
        return self

    def transform(self, X: Any) -> FloatMatrix:
        checked = super().transform(X)
        if issparse(checked):
            if self._centre.any():
                raise DataError(f"features={self.kind!r} was fitted on an array, and X is sparse: pass X.toarray()")
            return csr_matrix(checked.multiply(self._factor), dtype=np.float32)
        scaled: NDArray[np.float32] = (checked - self._centre) * self._factor
        return scaled

    def to_state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        config, _ = super().to_state()
        return config, {"centre": self._centre, "factor": self._factor}

    def _restore(self, config: dict[str, Any], arrays: dict[str, Any]) -> None:
        super()._restore(config, arrays)
        self._centre, self._factor = (_stored_column(arrays, name, self.n_features_in) for name in ("centre", "factor"))

    def _set(self, centre: NDArray[np.float64], spread: NDArray[np.float64]) -> None:
        # Of features as small as float32's smallest numbers the factor would overflow.
        factor = np.minimum(1 / spread, np.finfo(np.float32).max)
        self._centre, self._factor = centre.astype(np.float32), factor.astype(np.float32)


class RootFeatures(ScaleFeatures):
    """Square roots of features that are not negative, then scaled as `ScaleFeatures` does.

    Roots even out the spread of counts and intensities: Euclidean distance becomes that of Hellinger. Of new rows that
    go below zero the values there become minus the roots of their size, so that what is a little out of the range of
    training can be predicted.
    """

    kind: ClassVar[FeatureKind] = "root"

    def fit(self, X: Any) -> Self:
        checked = check_inputs(X)
        if (smallest := checked.min()) < 0:
            raise DataError(
                f"features='root' takes square roots, but X holds {smallest:g}; choose 'scale' or 'standard'"
            )
        return super().fit(_roots(checked))

    def transform(self, X: Any) -> FloatMatrix:
        return super().transform(_roots(check_inputs(X, self.n_features_in)))


class StandardFeatures(ScaleFeatures):
    """Features less their means, divided by their standard deviations and then scaled as `ScaleFeatures` does.

    Constant features become zero.
    """

    kind: ClassVar[FeatureKind] = "standard"

    def fit(self, X: Any) -> Self:
        checked = check_inputs(X)
        self.n_features_in = checked.shape[1]
        mean, variance = _column_moments(checked)
        # Below this, variance is the rounding of float32.
        varies = variance > 1e-12 * (mean**2 + variance)
        spread = np.sqrt(np.where(varies, variance, np.inf) * max(1, varies.sum()))
        self._set(mean * (not issparse(checked)), spread)
        return self


class TfidfFeatures(Features):
    """Counts weighted as (1 + ln count) (1 + ln((1 + N) / (1 + df))), then rows scaled to unit norm.

    N counts training rows and df those in which the feature occurs: `sklearn.feature_extraction.text.TfidfTransformer`
    with sublinear tf and smooth idf. Counts are at least 1, or 0.
    """

    kind: ClassVar[FeatureKind] = "tfidf"

    def fit(self, X: Any) -> Self:
        checked = check_inputs(X)
        counts: FloatCSR = csr_matrix(checked)
        for rows in row_blocks(counts.indptr):
            _check_counts(counts.data[int(counts.indptr[rows.start]) : int(counts.indptr[rows.stop])])
        # As scikit-learn weighs them, to the bit; it would copy the columns.
        idf = np.full(counts.shape[1], counts.shape[0] + 1, dtype=np.float32)
        idf /= column_counts(counts).astype(np.float32) + 1
        self._set(np.log(idf) + 1)
        return self

    def transform(self, X: Any) -> FloatMatrix:
        checked = check_inputs(X, self.n_features_in)
        if is_mapped(checked):
            return with_values(csr_matrix(checked), self._weighted)
        weighted = self._weighted(_counts(checked))
        return weighted if issparse(checked) else weighted.toarray()

    def to_state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        config, _ = super().to_state()
        return config, {"idf": self._transformer.idf_}

    def _restore(self, config: dict[str, Any], arrays: dict[str, Any]) -> None:
        super()._restore(config, arrays)
        self._set(_stored_idf(arrays, self.n_features_in))

    def _set(self, idf: NDArray[np.float32]) -> None:
        self._transformer = TfidfTransformer(sublinear_tf=True)
        self._transformer.idf_ = idf
        self.n_features_in = self._transformer.n_features_in_ = len(idf)

    def _weighted(self, counts: FloatCSR) -> FloatCSR:
        _check_counts(counts.data)
        return csr_matrix(self._transformer.transform(counts))


class TextFeatures(Features):
    """Texts to tf-idf of their words by `sklearn.feature_extraction.text.TfidfVectorizer`, rows scaled to unit norm.

    Args:
        min_df: texts that a word must occur in to become a feature.
        max_features: how many words to keep, the most frequent; None for all.
    """

    kind: ClassVar[FeatureKind] = "text"

    def __init__(self, min_df: int = 2, max_features: int | None = None) -> None:
        for name, value in (("min_df", min_df), ("max_features", max_features)):
            positive = isinstance(value, int) and not isinstance(value, bool) and value >= 1
            if not positive and (name == "min_df" or value is not None):
                raise SettingsError(f"{name} must be a positive integer, not {value!r}")
        self.min_df = min_df
        self.max_features = max_features

    def fit(self, X: Any) -> Self:
        vectorizer = TfidfVectorizer(
            sublinear_tf=True, min_df=self.min_df, max_features=self.max_features, dtype=np.float32
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
        return csr_matrix(self._vectorizer.transform(texts_of(X)))

    def to_state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        config, _ = super().to_state()
        config |= {"min_df": self.min_df, "max_features": self.max_features}
        words = "\n".join(self._words).encode("utf-8")
        return config, {"idf": self._vectorizer.idf_, "words": np.frombuffer(words, dtype=np.uint8)}

    def _restore(self, config: dict[str, Any], arrays: dict[str, Any]) -> None:
        super()._restore(config, arrays)
        try:
            TextFeatures.__init__(self, config.get("min_df"), config.get("max_features"))  # type: ignore[arg-type]
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
        self._set(words, _stored_idf(arrays, self.n_features_in))

    def _set(self, words: list[str], idf: NDArray[Any]) -> None:
        self._words = words
        self._vectorizer = TfidfVectorizer(
            sublinear_tf=True, vocabulary={word: column for column, word in enumerate(words)}, dtype=np.float32
        )
        self._vectorizer.idf_ = idf
        self.n_features_in = len(words)


_KINDS: dict[str, type[Features]] = {
    step.kind: step
    for step in (RawFeatures, UnitFeatures, TfidfFeatures, TextFeatures, ScaleFeatures, RootFeatures, StandardFeatures)
}


def make_features(kind: FeatureKind, *, min_df: int = 2, max_features: int | None = None) -> Features:
    """An unfitted features step.

    Args:
        kind: "raw" (unchanged), "unit" (rows to unit norm), "tfidf" (counts to tf-idf, unit norm), "text" (texts to
            tf-idf, unit norm), "scale" (all features divided by one number), "root" (the same for their square roots)
            or "standard" (each to mean 0 and the same variance).
        min_df: for "text": in how many texts a word must occur.
        max_features: for "text": how many words to keep; None for all.

    Raises:
        SettingsError: another kind, or an option outside its domain.
    """
    if kind == "text":
        return TextFeatures(min_df, max_features)
    if kind not in tuple(_KINDS):
        raise SettingsError(f"features must be one of {', '.join(_KINDS)}, not {kind!r}")
    return _KINDS[kind]()


def suited_features(X: Any) -> FeatureKind:
    """The step that suits a matrix: "unit" for sparse X, "root" for features in the same units, else "standard".

    Features count as being in the same units where none is negative and at least half of them range from less than a
    tenth to more than half of the largest value, as pixels do.
    """
    checked = check_inputs(X)
    if issparse(checked):
        return "unit"
    lowest, highest = checked.min(axis=0), checked.max(axis=0)
    alike = (lowest <= 0.1 * highest.max()) & (highest >= 0.5 * highest.max())
    return "root" if lowest.min() >= 0 < highest.max() and alike.mean() >= 0.5 else "standard"


def _unit_rows(X: FloatCSR) -> FloatCSR:
    # Scaling by the largest entry first keeps the squares of very large and very small float32 in range.
    return csr_matrix(normalize(normalize(X, norm="max"), norm="l2", copy=False))


def _column_moments(X: FloatMatrix) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and variance of every column, in float64 without a float64 copy of X."""
    if issparse(X):
        mean = np.asarray(X.mean(axis=0, dtype=np.float64)).ravel()
        square = np.asarray(X.multiply(X).sum(axis=0, dtype=np.float64)).ravel() / X.shape[0]
        return mean, np.maximum(square - mean**2, 0.0)
    return X.mean(axis=0, dtype=np.float64), X.var(axis=0, dtype=np.float64)


def _roots(X: FloatMatrix) -> FloatMatrix:
    values = X.data if issparse(X) else X
    roots: NDArray[np.float32] = np.copysign(np.sqrt(np.abs(values)), values)
    return csr_matrix((roots, X.indices, X.indptr), shape=X.shape) if issparse(X) else roots


def _counts(X: FloatMatrix) -> FloatCSR:
    counts: FloatCSR = csr_matrix(X, copy=True)
    # A stored zero would become ln 0.
    counts.eliminate_zeros()
    return counts


def _check_counts(values: NDArray[np.float32]) -> None:
    smallest = values.min(initial=1, where=values != 0)
    if smallest < 1:
        raise DataError(
            f"tf-idf weighs counts, which are 0 or at least 1, but X holds {smallest:g}; "
            "for values that are negative, fractional or weighted already choose features='unit' or 'raw'"
        )


def _stored_column(arrays: dict[str, Any], name: str, n_features: int) -> NDArray[np.float32]:
    stored = arrays.get(name)
    if not isinstance(stored, np.ndarray) or stored.dtype != np.float32 or stored.shape != (n_features,):
        raise ModelFormatError(f"the stored features step has no float32 {name!r} array of {n_features} numbers")
    if not np.isfinite(stored).all():
        raise ModelFormatError(f"the stored features step has a {name!r} array that is not finite")
    return stored


def _stored_idf(arrays: dict[str, Any], n_features: int) -> NDArray[Any]:
    idf = arrays.get("idf")
    if not isinstance(idf, np.ndarray) or idf.dtype != np.float32 or idf.shape != (n_features,):
        raise ModelFormatError(f"the stored features step has no float32 'idf' array of {n_features} weights")
    if not (np.isfinite(idf).all() and (idf > 0).all()):
        raise ModelFormatError("the stored features step has idf weights that are not finite and positive")
    return idf
