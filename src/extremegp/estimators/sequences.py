"""A label for every token of a sequence: (deep) Gaussian processes under a linear chain."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.utils import check_random_state

from extremegp.data import ClassSpace, Template, encode_classes, encode_label_sequences, one_hot
from extremegp.data.label_sequences import MISSING
from extremegp.data.schemes import checked_scheme, detect_scheme, legal_tags
from extremegp.data.sequence_features import WEIGHTINGS, SequenceFeatures
from extremegp.data.soft_labels import refuse_soft_sequences
from extremegp.engine.kernels import Kernel
from extremegp.engine.likelihoods import Likelihood
from extremegp.engine.selection import Selection
from extremegp.errors import DataError, SettingsError
from extremegp.estimators.distances import fit_novelty, read_once
from extremegp.estimators.examples import Examples, split
from extremegp.estimators.fitting import DTYPES, checked_device
from extremegp.estimators.parameters import TrainingParameters
from extremegp.estimators.sequence_choice import choose_functions
from extremegp.estimators.sequence_sets import DecidesSequences
from extremegp.estimators.token_labels import DECODINGS, MOST_DRAWS, Decoding, LabelsTokens
from extremegp.estimators.weights import without_absent
from extremegp.settings.domains import choice, number
from extremegp.settings.resolve import sequence_params
from extremegp.training.distributed import world
from extremegp.training.shards import check_alike

_LEAST_OF_BUDGET = 0.3
_OF_FUNCTIONS = (
    "latents", "linear_term", "transitions", "objective", "prior_variance", "kernel", "lengthscale", "ard",
    "frequencies", "n_layers", "n_hidden", "n_random_features", "n_reduced", "feed_forward", "n_inducing", "posterior",
    "weight_covariance", "kl_weight", "n_train_draws", "epochs", "batch_size", "learning_rate", "optimizer",
    "natural_step", "frequencies_from", "hyperparameters_from", "patience",
)  # fmt: skip


@dataclass(kw_only=True, repr=False, eq=False)
class SequenceGPClassifier(TrainingParameters, LabelsTokens, DecidesSequences):
    """Sequence labelling by structured (deep) Gaussian processes (D chapter 4).

    Every token has a utility for each label, a function of its features, and every pair of neighbouring labels has one
    too; together they make a linear chain. Training maximises a lower bound of the evidence by minibatches of
    sequences; prediction averages what draws of the posterior say.

    Args:
        template: text of a CRF++ template. X is then sequences of rows of columns, strings, which it expands; without,
            sequences of tokens that are mappings {name: value} or lists of names, or a matrix for every sequence. One
            without B lines does not do without transitions: that is transitions="none".
        min_count: features that fewer training tokens have are left out.
        hash_size: hash feature names to so many columns, in place of a vocabulary.
        weighting: "idf" gives features that few tokens have more weight, log(1 + N / n).
        labels: labels that there are beside those of the training data, which no training token may have; their
            probability is then small in place of zero. None if there are no others.
        latents: "random-features" for the (deep) Gaussian process of D 4.3; "gp" for a sparse one on M training tokens;
            or functions linear in the features, "linear" with a Gaussian posterior whose relative variances labels
            share, "linear-mean-field" with one for each, "linear-point" without; "landmarks-point" for the most
            probable functions of a Gaussian process by way of up to 2000 training tokens. With "auto", where nothing
            else is said of functions, transitions or training, "linear-point" or "landmarks-point" is chosen by
            training sequences held out; else it is "random-features" up to 50,000 features, and
            "linear-mean-field" beyond.
        linear_term: add linear functions, without uncertainty, to random features or a sparse GP.
        transitions: "auto" is "point" for functions that are chosen and for landmarks, else "gaussian";
            "gaussian" for a V x V Gaussian (SDGP1), "indexed" for V^2 more functions of the token (SDGP2),
            "point" for the most probable V x V matrix (a CRF), "none" for independent tokens (the DGP).
        objective: "exact" likelihood of sequences, or "pseudo-likelihood", by pieces, for many labels (D 4.5.3).
        prior_variance: of a linear function at a token of average length; points keep it, others learn it.
        kernel: "arccos1" or "se" for random features, or any kernel of `MultiClassGPClassifier` for a sparse GP; "auto"
            is "arccos1", and "arccos0". Of landmarks "se", or "ard", the default, with the lengthscales of the
            regression of the labels.
        lengthscale: of landmarks: what those of the regression are multiplied by, or with "se" the lengthscale in units
            of the length of an average token.
        ard: random features with a lengthscale for every input.
        frequencies: "prior-fixed", "var-fixed" or "var-resampled": how the spectral frequencies are learnt (D 4.4).
        n_layers: layers of random features.
        n_hidden: functions of a hidden layer.
        n_random_features: spectral frequencies of a layer; "auto" is 1000.
        n_reduced: dimensions that a learnt matrix takes inputs of random features to (D 4.5.1); None for none; "auto"
            is 100 where there are more than one layer or 50,000 features.
        feed_forward: give the inputs to every layer.
        n_inducing: M, at most the number of training tokens; "auto" is 500.
        posterior: family of q(u) of a sparse GP.
        weight_covariance: "shared" gives the weights of linear functions, and of a layer of random features, one
            posterior covariance matrix for all labels once they are trained, so that variances know how far tokens are
            from those of training; "factorised" leaves every weight its own variance, as in D. Other latents have none.
            "auto" is "shared" with up to 4000 weights, such as those of random features, or 2000 tokens; of more, which
            are summed up by groups, the labels of linear functions were told a little less well.
        kl_weight: weight of the KL term; 1 is the evidence lower bound, less fits more closely (a cold posterior),
            which predicts better where the posterior is factorised; "auto" is 0.3 for random features (1 for the
            covariance that they share), 1 for "linear-point", and else 0.1.
        n_draws: draws of the posterior that predictions average.
        n_train_draws: draws of a training step in the second half of training; one in the first.
        decoding: what `predict` gives: the most probable label of every token ("max-marginal", fewest wrong labels), or
            the most probable sequence ("viterbi").
        scheme: of labels that are tags of spans: "IOB1", "IOB2", "IOBES" or "BILOU", whose rules predictions keep, such
            as that an I-X follows a B-X or an I-X: labellings that break them have no probability. "auto" is the scheme
            that the training labels keep but for a twentieth of the tags, if there is one, and None allows anything.
            Training is the same with any, so that it may be set afterwards.
        epochs: passes over the data; "auto" makes as many steps as the latents need.
        batch_size: sequences per step; "auto" are those of about 2000 tokens.
        learning_rate: peak of the one-cycle schedule; "auto" depends on the latents.
        optimizer: "adam" for everything, which "auto" is; "natural" gradients where the posterior has them; or "lbfgs"
            on all sequences at once, for latents="linear-point" with transitions="point" or "none": the same maximum,
            found several times faster, without checkpoints.
        natural_step: peak of the schedule of `learning_rate` for natural steps, in (0, 1]; "auto" is 0.05.
        frequencies_from: share of the steps after which spectral frequencies move, if they are learnt.
        hyperparameters_from: the same of lengthscales and amplitudes of random features.

    Attributes:
        classes_: the labels in column order (V), sorted.
        model_: the trained `VariationalModel`.
        history_: one record per epoch: epoch, elbo, kl, learning_rate, seconds and perhaps validation_accuracy.
        settings_: the `ModelSettings` that were resolved.
        scheme_: the scheme whose rules predictions keep.
        detected_scheme_: the scheme that the labels of training keep; None if there is none.
        label_counts_: training tokens of each label (V).
        n_rows_: training tokens.

    Examples:
        >>> from extremegp import SequenceGPClassifier
        >>> X = [[{"word": w} for w in s.split()] for s in ["the cat sleeps", "a dog barks", "the dog sleeps"] * 10]
        >>> y = [["DET", "NOUN", "VERB"]] * 30
        >>> tagger = SequenceGPClassifier(random_state=0, verbose=False).fit(X, y)
        >>> tagger.predict([[{"word": "a"}, {"word": "cat"}, {"word": "barks"}]])[0].tolist()
        ['DET', 'NOUN', 'VERB']
    """

    template: str | Template | None = None
    min_count: int = 1
    hash_size: int | None = None
    weighting: Literal["none", "idf"] = "none"
    labels: Sequence[Any] | None = None
    latents: Literal[
        "auto", "random-features", "gp", "landmarks-point", "linear", "linear-mean-field", "linear-point"
    ] = "auto"
    linear_term: bool = False
    transitions: Literal["auto", "gaussian", "indexed", "point", "none"] = "auto"
    objective: Literal["exact", "pseudo-likelihood"] = "exact"
    prior_variance: float = 20.0
    kernel: str | Kernel = "auto"
    lengthscale: float = 1.0
    ard: bool = True
    frequencies: Literal["prior-fixed", "var-fixed", "var-resampled"] = "prior-fixed"
    n_layers: int = 1
    n_hidden: int = 10
    n_random_features: int | Literal["auto"] = "auto"
    n_reduced: int | Literal["auto"] | None = "auto"
    feed_forward: bool = True
    n_inducing: int | Literal["auto"] = "auto"
    posterior: str = "mean-field"
    weight_covariance: Literal["auto", "shared", "factorised"] = "auto"
    kl_weight: float | Literal["auto"] = "auto"
    n_draws: int = 100
    n_train_draws: int = 1
    decoding: Decoding = "max-marginal"
    scheme: Literal["auto", "IOB1", "IOB2", "IOBES", "BILOU"] | None = None
    learning_rate: float | Literal["auto"] = "auto"
    optimizer: Literal["auto", "natural", "adam", "lbfgs"] = "auto"  # type: ignore[assignment]
    frequencies_from: float = 0.1
    hyperparameters_from: float = 0.0

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, validation: tuple[Any, Any] | None = None) -> Self:
        """Train the model.

        Args:
            X: S sequences of tokens: lists of mappings or of lists of names, lists of rows of columns for a template,
                or a matrix, T x D, for every sequence.
            y: the labels of the tokens, S sequences of strings or integers; at least two labels. A token whose label is
                None has one that is not known: the likelihood is that of the others, all of its labels summed over.
                There are no soft labels, for probabilities of single tokens do not say how likely whole labellings
                are: give a sequence once for each that it may have, with its probability as the weight.
            sample_weight: what each of the S sequences counts, or one number for all: the weight of its log-likelihood,
                so that an integer is the same as to repeat the sequence as often, and 0 as to leave it out.
            validation: (X, y) to choose the best epoch on, instead of `validation_fraction`.

        Returns:
            The estimator itself.

        Raises:
            DataError: X, y or weights cannot be used, or do not fit each other; names the sequence.
            SettingsError: a parameter is outside its domain.
            MemoryPlanError: the settings need more memory than there is.
            TrainingInterrupted: on Ctrl-C, after the checkpoint was saved.
        """
        if y is None:
            raise DataError("SequenceGPClassifier requires y to be passed, but the target y is None")
        self.check_params()
        features = self._features_step(self.get_params(deep=False))
        refuse_soft_sequences(y)
        X = read_once(X)
        X, y, weights = without_absent(X, y, sample_weight, of="sequence")
        x, lengths = features.fit_transform(X)
        codes, space = self._with_known_labels(*encode_label_sequences(y, lengths, missing="keep"))
        detected = detect_scheme(_split(codes, lengths, space))
        if self.scheme not in (None, "auto"):
            legal_tags(space.names, checked_scheme(self.scheme))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        rng = np.random.default_rng(seed)
        self._check_labelled(codes)
        data, held_out = Examples(x, one_hot(codes, len(space)), lengths, weights, labelled=_known(codes >= 0)), None
        if validation is None:
            data, held_out = split(data, fraction=self.validation_fraction, patience=self.patience, rng=rng)
        else:
            held_x, held_lengths = features.transform(validation[0])
            held_codes, _ = encode_label_sequences(validation[1], held_lengths, space, "ignore", missing="keep")
            held_y, labelled = one_hot(np.maximum(held_codes, -1), len(space)), _known(held_codes != MISSING)
            held_out = Examples(held_x, held_y, held_lengths, labelled=labelled)
        chosen, selection = self._choice(data, rng)
        self._train(
            data,
            held_out,
            chosen=chosen,
            rng=rng,
            seed=seed,
            score_name="accuracy",
            features=features,
            space=space,
            target_kind=space.kind,
            label_counts=np.bincount(codes[codes >= 0], minlength=len(space)),
            n_rows=len(codes),
            novelty=fit_novelty(features, X, x),
        )
        if selection is not None:
            self.hyperparameters_ = [selection, *(self.hyperparameters_ or [])]
        self.detected_scheme_ = detected.name
        return self

    def _choice(self, data: Examples, rng: np.random.Generator) -> tuple[dict[str, Any] | None, Selection | None]:
        """The parameters of the functions, where nobody has said anything of them, and what was tried for them."""
        if not self._has_defaults(*_OF_FUNCTIONS):
            return None, None
        started, machine = time.monotonic(), world(checked_device(self.device))
        check_alike(machine, rng.bit_generator.state, data.x.shape, data.y.shape, data.n_units)
        chosen, selection = choose_functions(self.get_params(deep=False), data, self._translated, rng, machine)
        if self.time_budget is not None:
            # What is chosen gets its share in any case.
            left = self.time_budget - machine.most(time.monotonic() - started)[0]
            chosen["time_budget"] = max(left, _LEAST_OF_BUDGET * self.time_budget)
        return chosen, selection

    def _has_defaults(self, *names: str) -> bool:
        defaults = {name: entry.default for name, entry in inspect.signature(type(self)).parameters.items()}
        return all(getattr(self, name) == defaults[name] for name in names)

    def _translated(self, params: dict[str, Any], data: Examples | None) -> dict[str, Any]:
        if data is None or data.lengths is None:
            return sequence_params(params, n_sequences=1, n_rows=1, n_features=1, n_stored=1)
        x = data.x
        # Stored entries of the fullest row, at least one.
        n_stored = max(1, int(np.diff(x.indptr).max()) if issparse(x) else x.shape[1])
        sizes = {"n_rows": x.shape[0], "n_features": x.shape[1], "n_stored": n_stored}
        return sequence_params(params, n_sequences=len(data.lengths), **sizes)

    def _instead(self) -> list[dict[str, Any]]:
        # Whoever chose anything about the latent functions is left with it.
        of_latents = ("latents", "kernel", "n_layers", "n_random_features", "n_reduced", "linear_term", "frequencies")
        if self.time_budget is None or not self._has_defaults(*of_latents):
            return []
        return [{"latents": "linear-mean-field"}, {"latents": "linear-point", "transitions": "point"}]

    @classmethod
    def _takes(cls, likelihood: type[Likelihood]) -> bool:
        return likelihood.has_sequences

    def check_params(self) -> None:
        """Refuse parameters that no data would make possible.

        Raises:
            SettingsError: one is outside its domain.
        """
        self._features_step(self.get_params(deep=False))
        super().check_params()
        number("n_draws", self.n_draws, low=1, high=MOST_DRAWS, integer=True)
        number("validation_fraction", self.validation_fraction, low=0, high=0.9)
        choice("decoding", self.decoding, DECODINGS)
        choice("dtype", self.dtype, DTYPES)
        if self.scheme not in (None, "auto"):
            checked_scheme(self.scheme)
        labels: Any = self.labels
        listed = labels.ndim == 1 if isinstance(labels, np.ndarray) else isinstance(labels, Sequence | None)
        if not listed or isinstance(labels, (str, bytes)):
            raise SettingsError(f"labels must be a list of labels, or None; it is {labels!r}")

    @staticmethod
    def _features_step(params: dict[str, Any]) -> SequenceFeatures:
        """The features step that the parameters ask for.

        Raises:
            SettingsError: a parameter is outside its domain.
            DataError: the template has a line that cannot be read.
        """
        template = params["template"]
        if isinstance(template, str):
            template = Template.parse(template)
        elif template is not None and not isinstance(template, Template):
            raise SettingsError(f"template must be the text of a CRF++ template, or None; it is {template!r}")
        if template is not None and template.indexed and params["transitions"] != "indexed":
            raise SettingsError(
                "the template has B lines with %x[..], whose transitions depend on the input: use "
                'transitions="indexed" (SDGP2), or a bare B'
            )
        hash_size = params["hash_size"]
        return SequenceFeatures(
            template=template,
            min_count=number("min_count", params["min_count"], low=1, integer=True),
            hash_size=None if hash_size is None else number("hash_size", hash_size, low=1, integer=True),
            weighting=choice("weighting", params["weighting"], WEIGHTINGS),
        )

    def _with_known_labels(self, codes: NDArray[np.int64], space: ClassSpace) -> tuple[NDArray[np.int64], ClassSpace]:
        """Codes of the labels of y in the space of these and of `labels`, -1 for none, and that space."""
        codes = np.maximum(codes, -1)
        if self.labels is None:
            return codes, space
        every = ClassSpace(encode_classes([*self.labels, *space.names], "labels and y together")[1])
        return np.where(codes < 0, -1, every.encode(space.decode(np.maximum(codes, 0)))), every

    def _codes_of(self, X: Any, y: Any) -> list[NDArray[np.int64]]:
        lengths = self._features(X)[1]
        codes, _ = encode_label_sequences(y, lengths, self.label_space_, "ignore")
        return np.split(codes, np.cumsum(lengths)[:-1])

    def _check_labelled(self, codes: NDArray[np.int64]) -> None:
        """Refuse tokens without labels where they cannot be summed over."""
        if self.objective != "exact" and (codes < 0).any():
            raise SettingsError(
                f"y has tokens without labels, whose labels objective={self.objective!r} cannot sum over: use "
                'objective="exact"'
            )

    @classmethod
    def _features_from(cls, config: Any, arrays: dict[str, NDArray[Any]]) -> SequenceFeatures:
        return SequenceFeatures.from_state(config, arrays)


def _known(labelled: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
    """Which tokens have labels; None where all have."""
    return None if labelled.all() else labelled


def _split(codes: NDArray[np.int64], lengths: NDArray[np.int64], space: ClassSpace) -> Iterator[list[Any]]:
    """The labels of every sequence, None where they are not known."""
    names = [*space.names, None]
    for own in np.split(codes, np.cumsum(lengths)[:-1]):
        yield [names[code] for code in own.tolist()]
