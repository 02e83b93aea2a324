"""A model that answers requests: those that come together as one batch, changes between batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from extremegp.errors import ExtremeGPError, SettingsError
from extremegp.estimators import MultiLabelEstimator, load
from extremegp.estimators.learning import LearnsRows
from extremegp.server.limits import Limits, RequestError
from extremegp.storage.journal import MOST_CALLS, Journal
from extremegp.storage.models import read_config

T = TypeVar("T")


class Suggested(NamedTuple):
    """A label of a document.

    Attributes:
        label: its name.
        title: what it is called; its name where nothing else is known.
        probability: that it applies.
    """

    label: Any
    title: str
    probability: float


@dataclass
class Answer:
    """What a model says of a document; the uncertainties are those of `Uncertainty`, where they were asked for."""

    labels: list[Suggested]
    uncertainty: dict[str, float] | None = None


@dataclass
class _Waiting:
    documents: Sequence[Any]
    k: int
    uncertainty: bool
    answer: asyncio.Future[list[Answer]] = field(default_factory=asyncio.Future)


class ServedModel:
    """A model in a folder, as long as it is served.

    All that the model does happens on one thread, one thing after the other: a batch of all documents that wait, or a
    change of the model, which takes milliseconds.

    Args:
        folder: of the model.
        limits: of requests.
        changes: whether it may learn and forget; then no other process can change it meanwhile.

    Attributes:
        name: of the folder.
        n_batches: that were answered.
        n_documents: in these.
        n_learnt: rows learnt since it is served.

    Raises:
        SettingsError: the model is not one of rows.
        ModelFormatError: the folder is no model.
        DataError: another process holds it.
    """

    def __init__(self, folder: Path, limits: Limits, *, changes: bool) -> None:
        self.name, self.folder, self.limits, self._changes = folder.resolve().name, folder, limits, changes
        self.n_batches = self.n_documents = self.n_learnt = 0
        self._waiting: list[_Waiting] = []
        self._wake: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"model {self.name}")
        self.model, self._journal = self._opened()

    @property
    def learns(self) -> bool:
        """Whether it can learn and forget."""
        return self._journal is not None

    @property
    def explains(self) -> bool:
        """Whether it can say why."""
        return isinstance(self.model, LearnsRows) and self.model.can_learn() is None

    @property
    def takes_texts(self) -> bool:
        """Whether documents are texts, or vectors."""
        return bool(self.model.features_.kind == "text")

    @property
    def n_waiting(self) -> int:
        """Documents that wait."""
        return sum(len(each.documents) for each in self._waiting)

    async def suggest(self, documents: Sequence[Any], k: int, *, uncertainty: bool = False) -> list[Answer]:
        """The k best labels of documents.

        Raises:
            RequestError: too many wait already, or it takes too long.
        """
        if self.n_waiting + len(documents) > self.limits.queue:
            raise RequestError(503, "too many documents wait already: try again later")
        waiting = _Waiting(documents, k, uncertainty)
        self._waiting.append(waiting)
        if self._task is None:
            self._wake, self._task = asyncio.Event(), asyncio.create_task(self._answer_all())
        assert self._wake is not None
        self._wake.set()
        try:
            async with asyncio.timeout(self.limits.seconds):
                return await waiting.answer
        except TimeoutError:
            raise RequestError(503, f"no answer within {self.limits.seconds:g} seconds: try again later") from None

    async def explain(self, documents: Sequence[Any], labels: list[Any] | None, k: int) -> list[dict[str, Any]]:
        """Why labels of one document have their probabilities, of a model that can say."""

        def do() -> list[dict[str, Any]]:
            known, titles = self.model.classes_.tolist(), self.model.label_titles_
            assert isinstance(self.model, LearnsRows)
            told = self.model.explain(self._inputs(documents), labels, k=k)[0]
            return [
                {
                    "label": plain_name(each.label),
                    "title": str(each.label if titles is None else titles[known.index(each.label)]),
                    "probability": each.probability,
                    "frequency": each.frequency,
                    "regression": each.regression,
                    "documents": [share._asdict() for share in each.documents],
                    "features": [share._asdict() for share in each.features],
                    "parts": each.parts,
                }
                for each in told
            ]

        return await asyncio.get_running_loop().run_in_executor(self._thread, do)

    def _inputs(self, documents: Sequence[Any]) -> Any:
        return documents if self.takes_texts else np.array(documents, dtype=np.float32)

    async def change(self, call: Callable[[LearnsRows], T]) -> T:
        """Do something to the model between two batches; it is done whole or not at all, even if nobody waits for it.

        Raises:
            RequestError: the model cannot learn.
        """
        if not self.learns:
            raise RequestError(
                409, f"the model {self.name!r} can neither learn nor forget: its documentation tells why"
            )

        def do() -> T:
            assert isinstance(self.model, LearnsRows)
            return call(self.model)

        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._thread, do))

    async def save(self) -> None:
        """Write the model as it is now in the place of its folder's."""
        await self.change(lambda model: model.save(self.folder))

    def save_if_long(self) -> None:
        """Save the model where its journal has become long; to be called between batches."""
        if self._journal is not None and self._journal.n_calls > MOST_CALLS:
            self.model.save(self.folder)

    async def reload(self) -> None:
        """Serve what the folder holds now; requests meanwhile are answered by the model that was there.

        Raises:
            ExtremeGPError: the folder holds no model that can be served; the old one goes on.
        """
        if self._journal is None:
            self.model, _ = await asyncio.get_running_loop().run_in_executor(None, self._opened)
            return

        # Its own folder is held by itself: let go and take up again between two batches.
        def again(model: LearnsRows) -> None:
            assert self._journal is not None
            self._journal.close()
            self.model, self._journal = self._opened()

        await self.change(again)

    async def close(self) -> None:
        """Answer what waits, and let go of the model."""
        while self._waiting:
            await asyncio.sleep(0.01)
        if self._task is not None:
            self._task.cancel()
        self._thread.shutdown(wait=True)
        if self._journal is not None:
            self._journal.close()

    def _opened(self) -> tuple[Any, Journal | None]:
        config = read_config(self.folder)
        kind = config.get("estimator")
        if kind == "SequenceGPClassifier":
            raise SettingsError(f"{self.folder}: only models of rows can be served, not those of sequences")
        if self._changes and (kind == "LabelTreeGPClassifier" or config.get("learning") is not None):
            journal = Journal(self.folder)
            try:
                model: Any = load(self.folder)
                return model, model.keep_journal(journal)
            except BaseException:
                journal.close()
                raise
        return load(self.folder), None

    async def _answer_all(self) -> None:
        assert self._wake is not None
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                taken: list[_Waiting] = []
                n = 0
                while self._waiting and (not taken or n + len(self._waiting[0].documents) <= self.limits.batch):
                    taken.append(self._waiting.pop(0))
                    n += len(taken[-1].documents)
                taken = [each for each in taken if not each.answer.done()]
                try:
                    answers = await loop.run_in_executor(self._thread, self._answers, taken)
                except Exception as error:
                    answers = [error] * len(taken)
                for waiting, answer in zip(taken, answers, strict=True):
                    if waiting.answer.done():
                        continue
                    if isinstance(answer, BaseException):
                        waiting.answer.set_exception(answer)
                    else:
                        waiting.answer.set_result(answer)

    def _answers(self, taken: list[_Waiting]) -> list[list[Answer] | Exception]:
        """What is said of all documents; where some cannot be used, each request gets its own error."""
        documents = [document for waiting in taken for document in waiting.documents]
        try:
            found = self._of(
                documents, max((each.k for each in taken), default=1), any(each.uncertainty for each in taken)
            )
        except ExtremeGPError as error:
            if len(taken) == 1:
                return [error]
            return [self._answers([each])[0] for each in taken]
        self.n_batches += 1
        self.n_documents += len(documents)
        results: list[list[Answer] | Exception] = []
        start = 0
        for waiting in taken:
            own = found[start : start + len(waiting.documents)]
            start += len(waiting.documents)
            results.append(
                [Answer(each.labels[: waiting.k], each.uncertainty if waiting.uncertainty else None) for each in own]
            )
        return results

    def _of(self, documents: list[Any], k: int, uncertain: bool) -> list[Answer]:
        if not documents:
            return []
        X = self._inputs(documents)
        best, chances = self._best(X, k)
        measures: Any = self.model.predict_uncertainty(X) if uncertain else None
        names, titles = self.model.classes_, self.model.label_titles_
        answers = []
        for row, (labels, p) in enumerate(zip(best, chances, strict=True)):
            suggested = [
                Suggested(
                    plain_name(names[label]), str(names[label] if titles is None else titles[label]), float(chance)
                )
                for label, chance in zip(labels.tolist(), p.tolist(), strict=True)
                if label >= 0
            ]
            told = None
            if measures is not None:
                told = {name: float(part[row]) for name, part in measures._asdict().items()}
                told = {name: value for name, value in told.items() if np.isfinite(value)}
            answers.append(Answer(suggested, told))
        return answers

    def _best(self, X: Any, k: int) -> tuple[Any, Any]:
        """The best labels, and their probabilities, of every document."""
        k = min(k, len(self.model.classes_))
        many = isinstance(self.model, MultiLabelEstimator)
        best = self.model.predict_topk(X, k, by="probability") if many else self.model.predict_topk(X, k)
        return best.labels, best.scores


def targets(model: Any, labels: list[list[Any]]) -> list[Any]:
    """The labels of documents as a model's `learn` takes them: of one class per document, that.

    Raises:
        RequestError: the model has one class per document, and a document has not one label.
    """
    if isinstance(model, MultiLabelEstimator):
        return labels
    if any(len(of_document) != 1 for of_document in labels):
        raise RequestError(400, "the model has one class per document: give each document one label")
    return [of_document[0] for of_document in labels]


def plain_name(name: Any) -> Any:
    """A label's name as JSON has it."""
    return name.item() if isinstance(name, np.generic) else name
