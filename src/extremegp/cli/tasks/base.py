"""What a task is to the commands, and what they ask of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

import extremegp
from extremegp.cli.console import Report
from extremegp.cli.inputs import Source
from extremegp.cli.options import DecidedBy, Decoding, ModelKind, RankedBy, SchemeName, TaskName
from extremegp.cli.settings import parse_settings
from extremegp.errors import SettingsError
from extremegp.presets import Preset

if TYPE_CHECKING:
    from extremegp.data import Vocabulary
    from extremegp.estimators import (
        LabelTreeGPClassifier,
        MultiClassGPClassifier,
        MultiLabelGPClassifier,
        SequenceGPClassifier,
    )

Classifier = TypeVar(
    "Classifier", bound="LabelTreeGPClassifier | MultiClassGPClassifier | MultiLabelGPClassifier | SequenceGPClassifier"
)


@dataclass(frozen=True)
class TrainRequest:
    """What `train` is asked for, as the options say.

    Attributes:
        because: what decided the task, for messages.
        asked: whether it was asked for by name.
        params: constructor arguments that options other than --set give; `settings` are those of --set.
        check_destination: to be called once options are known to make sense, before data are read.
    """

    source: Source
    because: str
    asked: bool
    params: dict[str, Any]
    settings: Sequence[str]
    preset: str | None
    kind: Literal["auto"] | ModelKind
    valid: Path | None
    valid_labels: Path | None
    valid_vectors: Path | None
    labels_names: Path | None
    template: Path | None
    unknown_label: str | None
    quiet: bool
    check_destination: Callable[[], None]


@dataclass
class Training(Generic[Classifier]):
    """All that training takes: N inputs or sequences X, their labels y, and the `options` of `fit`.

    Attributes:
        classifier: not fitted yet.
        n_units: N.
        feature_names: of the columns of X, where the source has them.
        vocabulary: what labels are called.
        notes: what to tell of the data, a line each.
        shown: lines of the summary that only this task has; `extra` is the same of the JSON.
    """

    classifier: Classifier
    X: Any
    y: Any
    n_units: int
    options: dict[str, Any] = field(default_factory=dict)
    feature_names: list[str] | None = None
    vocabulary: Vocabulary | None = None
    notes: Sequence[str] = ()
    shown: list[tuple[str, str]] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EvaluateRequest:
    """What `evaluate` is asked for: `source` is labelled data, the rest as the options say."""

    model: Path
    source: Source
    ks: list[int]
    propensity: tuple[float, float]
    by: RankedBy
    threshold: float
    per_class: Path | None
    plot: Path | None
    decoding: Decoding | None
    scheme: SchemeName | None


@dataclass(frozen=True)
class Labelled:
    """Labelled data for a report: inputs X and labels y as estimators take them.

    Attributes:
        naming: a context in which errors of the data name their file.
        ids: what the rows are called, where the source says so.
        titles: what the labels are called, if a vocabulary says so.
        notes: what to tell of the data, a line each.
    """

    X: Any
    y: Any
    naming: Callable[[], AbstractContextManager[None]]
    ids: Sequence[str] | None = None
    titles: Sequence[str] | None = None
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Decision:
    """How `predict` is to make sets of labels, as the options say; see `MultiLabelEstimator.decide`."""

    by: DecidedBy
    threshold: float
    cost_wrong: float
    cost_missed: float
    least_f1: float | None


def decision_of(
    by: DecidedBy | None,
    threshold: float | None,
    cost_wrong: float | None,
    cost_missed: float | None,
    least_f1: float | None,
) -> Decision | None:
    """The options together.

    Raises:
        SettingsError: one is for another way to decide.
    """
    of: dict[str, tuple[float | None, str]] = {
        "--threshold": (threshold, "threshold"),
        "--cost-wrong": (cost_wrong, "cost"),
        "--cost-missed": (cost_missed, "cost"),
    }
    for option, (value, wanted) in of.items():
        if value is not None and by != wanted:
            raise SettingsError(f"{option} goes with --decide {wanted}")
    if by is None:
        if least_f1 is not None:
            raise SettingsError("--least-f1 goes with --decide")
        return None
    check_threshold(least_f1)
    wrong, missed = (1.0 if cost is None else cost for cost in (cost_wrong, cost_missed))
    return Decision(by, 0.5 if threshold is None else threshold, wrong, missed, least_f1)


@dataclass(frozen=True)
class PredictRequest:
    """What `predict` is asked for, as the options say."""

    model: Path
    source: Source
    out: Path | None
    to: str
    top_k: int
    by: RankedBy
    decide: Decision | None
    promise: Path | None
    given: Path | None
    uncertainty: bool
    novelty_threshold: float | None
    explain: bool
    approximate: float | None
    k_best: int | None
    probabilities: bool
    decoding: Decoding | None
    unknown_label: str | None
    scheme: SchemeName | None
    spans: bool
    quiet: bool


class Task(ABC, Generic[Classifier]):
    """A kind of labels to learn: what it reads, which estimator it trains, how it evaluates and how it predicts.

    Attributes:
        name: as --task has it.
        per_row: what data of the task have.
        estimators: names of the estimators by the kind of model, the usual one first.
        presets: the papers' methods for it.
        score: what validation data are scored by.
        label: what it has K of, one and many.
        rows: what has a label each, or labels.
        unit: what the evidence is a sum over.
        rows_of_reports: what a report counts.
    """

    name: ClassVar[TaskName]
    per_row: ClassVar[str]
    estimators: ClassVar[dict[ModelKind, str]]
    presets: ClassVar[Mapping[str, Preset[Any]]]
    score: ClassVar[str] = "accuracy"
    label: ClassVar[tuple[str, str]] = ("label", "labels")
    rows: ClassVar[str] = "rows"
    unit: ClassVar[str] = "row"
    rows_of_reports: ClassVar[str] = "rows"

    def estimator(self, kind: ModelKind = "factor") -> type[Classifier]:
        """The class of the models of a kind."""
        estimator: type[Classifier] = getattr(extremegp, self.estimators[kind])
        return estimator

    def parameters(self, request: TrainRequest, kind: ModelKind = "factor") -> dict[str, Any]:
        """Constructor arguments: what --set says beats other options, which beat the preset."""
        of_preset = {} if request.preset is None else self.presets[request.preset].settings
        return {**of_preset, **request.params, **parse_settings(request.settings, self.estimators[kind])}

    @abstractmethod
    def prepare(self, request: TrainRequest) -> Training[Classifier]:
        """Read all that training takes, refusing what cannot work as early as possible.

        Raises:
            DataError: a file cannot be used, or does not fit the others.
            SettingsError: a parameter is outside its domain, or options contradict each other.
        """

    def n_fitted(self, classifier: Classifier, n_units: int, *, validated: bool) -> int:
        """How many of its training units the evidence of a model is a sum over.

        With validation data beside these (`validated`), none were held out.
        """
        return n_units if validated else n_units - int(classifier.validation_fraction * n_units)

    @abstractmethod
    def evaluate(self, classifier: Classifier, request: EvaluateRequest, report: Report) -> None:
        """Measure a model, a block of data at a time, and show and write what came of it.

        Raises:
            DataError: the data cannot be read or do not fit the model.
            SettingsError: options contradict each other, or a file cannot be of its suffix.
        """

    @abstractmethod
    def predict(self, classifier: Classifier, request: PredictRequest, report: Report) -> None:
        """Label data, write the labels and say so.

        Raises:
            DataError: the data cannot be read, do not fit the model, or cannot be written.
            SettingsError: options contradict each other, or a file cannot be of its suffix.
        """

    @abstractmethod
    def labelled(self, classifier: Classifier, source: Source, model: Path) -> Labelled:
        """Read labelled data for a report.

        Raises:
            DataError: the data cannot be read or do not fit the model.
            SettingsError: options contradict each other.
        """

    def details(self, classifier: Classifier) -> dict[str, Any]:
        """What only models of this task have to be told of."""
        return {}


def check_threshold(threshold: float | None) -> None:
    """Refuse a threshold of novelty that is no p-value.

    Raises:
        SettingsError: it is none.
    """
    if threshold is not None and not 0 < threshold <= 1:
        raise SettingsError(f"--novelty-threshold must be a p-value above 0 and at most 1; it is {threshold:g}")
