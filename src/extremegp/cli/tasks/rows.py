"""What tasks of rows share, whether these have many labels each or one class."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args, get_origin

from extremegp.cli import explaining, writing
from extremegp.cli.console import Report
from extremegp.cli.input_blocks import InputBlock, input_blocks, joined
from extremegp.cli.inputs import Source
from extremegp.cli.options import ModelKind
from extremegp.cli.parameters import parameter_types
from extremegp.cli.rows import Known, Rows, class_codes, naming, read, some_rows
from extremegp.cli.tasks.base import Classifier, Labelled, PredictRequest, Task, Training, TrainRequest, check_threshold
from extremegp.errors import SettingsError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from extremegp.data import ClassSpace, Vocabulary
    from extremegp.estimators import Explanation
    from extremegp.estimators.guarantees import Guarantee
    from extremegp.prediction.decisions import Candidates
    from extremegp.progress import ProgressBar


class RowTask(Task[Classifier]):
    """A task whose labels are of rows.

    Attributes:
        one_class: whether a row has one class, or many labels.
    """

    one_class: ClassVar[bool]

    def check_source(self, source: Source, because: str, *, labelled: bool = True) -> None:
        """Refuse options of data that contradict the task, the format or each other."""
        source.check(labelled=labelled)

    @abstractmethod
    def kinds(self, request: TrainRequest) -> list[ModelKind]:
        """The kinds of model that the options leave, of which the data choose; the usual one first."""

    def kind_for(self, rows: Rows, kinds: list[ModelKind], params: dict[str, Any]) -> tuple[ModelKind, tuple[str, ...]]:
        """The kind of model for rows as they were read, and what to tell of the choice."""
        return kinds[0], ()

    def fit_options(self, request: TrainRequest, rows: Rows) -> dict[str, Any]:
        """What `fit` takes beside the data."""
        return {}

    def space(self, y: Any, source: Source, *, asked: bool) -> ClassSpace | None:
        """The classes of training data, if every row has one; `asked` says that this is what was asked for.

        Raises:
            SettingsError: rows seem to have many labels, and nobody asked for classes.
        """
        return None

    def prepare(self, request: TrainRequest) -> Training[Classifier]:
        source = request.source
        self.check_source(source, request.because)
        kinds = self.kinds(request)
        params = self._with_features(self.parameters(request, kinds[0]), source)
        validation = self._validation_source(request)
        request.check_destination()
        # Settings that cannot work are refused before the time that reading, features and k-means take.
        self.estimator(kinds[0])(**params).check_params()
        rows = read(source, one_class=self.one_class)
        kind, choice = self.kind_for(rows, kinds, params)
        classifier = self.estimator(kind)(**params)
        options = self.fit_options(request, rows)
        space = self.space(rows.y, source, asked=request.asked)
        if validation is not None:
            held = read(validation, one_class=self.one_class, known=Known.of_training(rows, source, space))
            if space is not None:
                # `fit` would refuse them without naming the file.
                class_codes(held.y, validation, space)
            options["validation"] = held.X, held.y
        return Training(
            classifier,
            rows.X,
            rows.y,
            n_units=rows.n_rows,
            options=options if rows.weights is None else options | {"sample_weight": rows.weights},
            feature_names=rows.feature_names,
            vocabulary=rows.vocabulary,
            notes=(*rows.notes, *choice),
            shown=[("rows left out, without label", str(rows.n_dropped))] if rows.n_dropped else [],
            extra={"n_dropped_rows": rows.n_dropped} if self.one_class else {},
        )

    def _with_features(self, params: dict[str, Any], source: Source) -> dict[str, Any]:
        """The parameters with a features step that suits the data."""
        texts = source.inputs == "texts"
        if source.inputs == "texts and feature vectors":
            return params | {"features": self._block_features(params, source)}
        params.setdefault("features", "auto")
        if texts and params["features"] == "auto":
            params["features"] = "text"
        hints = get_args(parameter_types(self.estimators["factor"])["features"])
        known = [name for hint in hints for name in _names_in(hint)]
        fitting = ("text",) if texts else tuple(name for name in known if name != "text")
        if params["features"] not in fitting:
            raise SettingsError(
                f"{source.called}: features must be {' or '.join(fitting)} for {self.per_row}, "
                f"not {params['features']!r}"
            )
        return params

    def _block_features(self, params: dict[str, Any], source: Source) -> dict[str, str]:
        """The features steps of texts and of vectors, the latter perhaps chosen by --features."""
        of_vectors = params.get("features", "auto")
        if of_vectors == "text":
            raise SettingsError(f"{source.called} and vectors: --features says what to do to the vectors, not 'text'")
        return {"text": "text", "vectors": of_vectors}

    def _validation_source(self, request: TrainRequest) -> Source | None:
        """Where the validation data are: as the training data, in other files."""
        source, valid, labels, vectors = request.source, request.valid, request.valid_labels, request.valid_vectors
        if (valid is None or source.labels is None) and labels is not None:
            missing = "--valid" if valid is None else "--labels"
            raise SettingsError(f"--valid-labels goes with --valid and --labels; {missing} is not given")
        if valid is None:
            return None
        if source.labels is not None and labels is None:
            raise SettingsError("--labels gives the labels of DATA: give those of --valid by --valid-labels")
        if (source.vectors is None) != (vectors is None):
            raise SettingsError("--valid-vectors gives the vectors of --valid, as --vectors those of DATA: give both")
        validation = source.at(valid, labels, vectors)
        if validation.format == "auto" and source.kind in ("xc", "svmlight", "jsonl"):
            validation = replace(validation, format=source.kind)
        self.check_source(validation, request.because)
        return validation

    def labelled(self, classifier: Classifier, source: Source, model: Path) -> Labelled:
        self.check_source(source, f"{model} is for {self.per_row}")
        rows = read(source, one_class=self.one_class, known=Known.of_model(classifier))
        titles = self.titles(classifier, rows.vocabulary)
        dropped = [f"{rows.n_dropped} rows without a label are left out."] if rows.n_dropped else []
        return Labelled(rows.X, rows.y, partial(naming, source), rows.ids, titles, (*rows.notes, *dropped))

    @abstractmethod
    def best(
        self, classifier: Classifier, predictor: Any, inputs: Any, k: int, request: PredictRequest
    ) -> Iterator[writing.Best]:
        """The k best labels of rows, a block at a time."""

    def predict(self, classifier: Classifier, request: PredictRequest, report: Report) -> None:
        from extremegp.progress import ProgressBar

        if request.out is None:
            raise SettingsError("--out must name the file to write, or '-' for standard output")
        target = writing.Target.of(request.out, request.to)
        _check_measures(request, target.suffix)
        _check_explanations(classifier, request, target.suffix)
        self.check_source(request.source, f"{request.model} is for {self.per_row}", labelled=False)
        data = input_blocks(request.source, Known.of_model(classifier), one_class=self.one_class)
        bar = ProgressBar(quiet=request.quiet)
        names = [str(name) for name in classifier.classes_]
        try:
            blocks = self._blocks(classifier, data, request, bar)
            n_rows = writing.write(target, blocks, names, self._layout(classifier, request))
        finally:
            bar.close()
        seconds, what = report.seconds, self.label[1]
        best = f"the {request.top_k} best of {len(names)} {what} each"
        if request.decide is not None or request.promise is not None:
            by = request.promise if request.decide is None else request.decide.by
            best = f"sets of {len(names)} {what}, by {by}"
        report.lines(f"{n_rows} rows, {best}, to {request.out} in {seconds:.1f} s")
        result = {
            "out": str(request.out),
            "n_rows": n_rows,
            f"n_{what}": len(names),
            "top_k": request.top_k,
            "seconds": seconds,
        }
        report.result(result | (self.told_of_search(classifier, request, report) if n_rows else {}))

    def _layout(self, classifier: Classifier, request: PredictRequest) -> writing.Layout:
        """What is told of rows and labels beside these."""
        source = request.source
        titles = self.titles(classifier, source.read_vocabulary())
        return writing.Layout(_measures(request), titles, source.has_ids)

    def titles(self, classifier: Classifier, vocabulary: Vocabulary | None) -> list[str] | None:
        """What labels are called: as a vocabulary says, or that of training."""
        return classifier.label_titles_ if vocabulary is None else vocabulary.titles(classifier.classes_)

    def told_of_search(self, classifier: Classifier, request: PredictRequest, report: Report) -> dict[str, Any]:
        """Say how labels were searched for, where this was not exact."""
        return {}

    def _blocks(
        self, classifier: Classifier, data: Iterator[InputBlock], request: PredictRequest, bar: ProgressBar
    ) -> Iterator[writing.Best]:
        """The best labels of all rows, a block at a time."""
        features: Any = classifier.features_
        predictor, k, n_rows = classifier.predictor(), min(request.top_k, len(classifier.classes_)), 0
        for block in data if request.given is None else [joined(data)]:
            done = 0
            inputs = features.transform_new(block.X)
            measured = _measured(classifier, block.X, request)
            found = self.best(classifier, predictor, inputs, k, request)
            for best in (part for each in found for part in _parts(each, request)):
                start = done
                done += len(best.labels)
                best = best._replace(measured=None if measured is None else measured[start:done])
                if request.explain:
                    best = best._replace(reasons=_reasons(classifier, block, slice(start, done), best))
                yield best if block.ids is None else best._replace(ids=block.ids[start:done])
                share = block.before + (block.after - block.before) * done / block.n_rows
                name = f"{n_rows + done} rows"
                bar.show(name, share, 1.0, f"{name}, {100 * share:.0f} %, ")
            n_rows += block.n_rows


def promised_by(path: Path | None, classifier: Any, promises: tuple[str, ...]) -> Guarantee | None:
    """The guarantee in a file, if one was named.

    Raises:
        DataError: it cannot be read.
        SettingsError: it is for another model.
    """
    if path is None:
        return None
    from extremegp.estimators.guarantees import Guarantee

    found = Guarantee.load(path)
    found.check(len(classifier.classes_), promises)
    return found


def sets_of(candidates: Candidates, chosen: NDArray[np.bool_]) -> writing.Best:
    """Sets of candidates: those that are chosen first, and nothing after them."""
    import numpy as np

    order = np.argsort(~chosen, axis=1, kind="stable")[:, : max(1, int(chosen.sum(axis=1).max(initial=1)))]
    taken, labels, p = (
        np.take_along_axis(each, order, axis=1) for each in (chosen, candidates.labels, candidates.probabilities)
    )
    return writing.Best(np.where(taken, labels, -1), np.where(taken, p, 0).astype(np.float32))


def _measures(request: PredictRequest) -> tuple[str, ...]:
    """Names of what is told of every row."""
    of_uncertainty = ("total", "aleatoric", "epistemic", "variance", "novelty") if request.uncertainty else ()
    return (*of_uncertainty, *(() if request.novelty_threshold is None else ("novel",)))


def _check_measures(request: PredictRequest, suffix: str) -> None:
    """Refuse options that ask for more than a format holds, or the model could tell.

    Raises:
        SettingsError: they do.
    """
    asked = {"--uncertainty": request.uncertainty, "--novelty-threshold": request.novelty_threshold is not None}
    for option in (option for option, is_asked in asked.items() if is_asked):
        if suffix not in writing.MEASURING:
            raise SettingsError(f"{option} needs --out to end in .jsonl, .tsv or .csv; it is {request.out}")
    if request.uncertainty and request.given is not None:
        raise SettingsError("--uncertainty tells of rows no label of which is known: leave out it or --given")
    check_threshold(request.novelty_threshold)


def _check_explanations(classifier: Any, request: PredictRequest, suffix: str) -> None:
    """Refuse --explain where there is no room for explanations, or the model cannot explain.

    Raises:
        SettingsError: it is so.
    """
    if not request.explain:
        return
    if suffix not in explaining.SUFFIXES:
        raise SettingsError(f"--explain needs --out to end in .jsonl, or in .txt for tables; it is {request.out}")
    if request.given is not None:
        raise SettingsError("--explain tells of rows no label of which is known: leave out it or --given")
    explaining.check_explains(classifier, request.model)


def _parts(best: writing.Best, request: PredictRequest) -> Iterator[writing.Best]:
    """As many rows at a time as are explained at once, or all."""
    n_rows = len(best.labels)
    step = explaining.ROWS if request.explain else max(1, n_rows)
    for start in range(0, n_rows, step):
        yield writing.Best(best.labels[start : start + step], best.probabilities[start : start + step])


def _reasons(classifier: Any, block: InputBlock, rows: slice, best: writing.Best) -> list[list[Explanation]]:
    """Why rows of a block have their labels."""
    labels = [[label for label in of_row if label >= 0] for of_row in best.labels.tolist()]
    return [*explaining.explained(classifier, some_rows(block.X, rows), labels)]


def _measured(classifier: Any, X: Any, request: PredictRequest) -> NDArray[np.float32] | None:
    """What is told of every row, a column for each of `_measures`."""
    import numpy as np

    columns: list[Any] = []
    if request.uncertainty:
        found = classifier.predict_uncertainty(X)
        columns += found
        novelty = found.novelty
    elif request.novelty_threshold is not None:
        novelty = classifier.predict_novelty(X)
    if request.novelty_threshold is not None:
        columns.append(novelty < request.novelty_threshold)
    return np.stack(columns, axis=1).astype(np.float32) if columns else None


def _names_in(hint: Any) -> tuple[Any, ...]:
    """The names that a type allows."""
    return (hint,) if isinstance(hint, str) else get_args(hint) if get_origin(hint) is Literal else ()
