"""The report: everything about a model on labelled data, on one page that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.resources import files
from string import Template
from typing import Any, NamedTuple

import numpy as np

from extremegp.__about__ import __version__
from extremegp.errors import SettingsError
from extremegp.estimators import MultiClassGPClassifier, MultiLabelEstimator, SequenceGPClassifier
from extremegp.report import classes, examples, labels, quality, sections, sequences
from extremegp.report import metrics as figures
from extremegp.report.findings import Findings
from extremegp.report.inputs import some
from extremegp.report.intervals import N_RESAMPLES, Interval
from extremegp.report.issues import MOST, Issue
from extremegp.report.markup import Markup, element, joined, paragraph, text
from extremegp.settings.domains import number

Model = MultiLabelEstimator | MultiClassGPClassifier | SequenceGPClassifier


class Report(NamedTuple):
    """A page, and the figures on it.

    Attributes:
        html: the page.
        metrics: as `extremegp evaluate` has them.
        intervals: of some of these, 95 %.
        n_rows: rows, or sequences, that were measured.
    """

    html: str
    metrics: dict[str, float]
    intervals: dict[str, Interval]
    n_rows: int


class _Task(NamedTuple):
    """What a task calls things.

    Attributes:
        label: what it has, one and many.
        unit: what has labels and is resampled, one and many.
        counted: what has one label, many.
        figures: the figures to explain.
        cards: those to show first.
    """

    label: tuple[str, str]
    unit: tuple[str, str]
    counted: str
    figures: tuple[figures.Figure, ...]
    cards: tuple[str, ...]


_LABELS = _Task(
    ("label", "labels"),
    ("row", "rows"),
    "rows",
    figures.LABELS,
    ("P@1", "P@5", "nDCG@5", "PSP@5", "micro_f1", "macro_f1", "log_loss", "log_loss_top20", "ece_top", "ece_top20"),
)
_CLASSES = _Task(
    ("class", "classes"),
    ("row", "rows"),
    "rows",
    figures.CLASSES,
    ("accuracy", "top3_accuracy", "macro_f1", "nlpd", "brier", "ece"),
)
_SEQUENCES = _Task(
    ("label", "labels"),
    ("sequence", "sequences"),
    "tokens",
    figures.SEQUENCES,
    ("token_error", "sequence_error", "span_f1", "nll_unstruct_per_token", "nll_struct_per_token", "ece"),
)


def make_report(
    model: Model,
    X: Any,
    y: Any,
    *,
    title: str = "Report",
    ids: Sequence[str] | None = None,
    titles: Sequence[str] | None = None,
    ks: Sequence[int] = (1, 3, 5),
    propensity: tuple[float, float] = (0.55, 1.5),
    threshold: float = 0.5,
    decoding: str | None = None,
    seed: int = 0,
    n_resamples: int = N_RESAMPLES,
    show_rows: bool = True,
    model_facts: dict[str, str] | None = None,
    data_facts: dict[str, str] | None = None,
    notes: Sequence[str] = (),
) -> Report:
    """Measure a model on labelled data that it was not trained on, and write all about it on one page of HTML.

    The page asks for nothing from outside, and shows nothing of what data say as anything else than text.

    Args:
        model: fitted.
        X: inputs, as in its `fit`, which can be read more than once.
        y: labels, likewise.
        title: of the page.
        ids: what the rows are called; by default their numbers, from 0.
        titles: what the labels are called; by default as the model has it.
        ks: ranks to evaluate at.
        propensity: a and b of the propensities of labels, see `extremegp.metrics.propensities`.
        threshold: the probability from which on a label is predicted.
        decoding: of sequences; None for what the model was trained with.
        seed: decides resamples and which rows are drawn.
        n_resamples: for intervals.
        show_rows: whether the page shows what rows say; without, it has figures and names of labels alone.
        model_facts: what else to tell of the model.
        data_facts: what else to tell of the data.
        notes: what else to tell of the data, a line each.

    Raises:
        DataError: X or y cannot be used, or they do not fit each other.
        SettingsError: an argument is outside its domain.
    """
    number("n_resamples", n_resamples, low=100, integer=True)
    number("seed", seed, low=0, integer=True)
    number("threshold", threshold, low=0, high=1, open_low=True)
    clock = _Clock()
    with clock.part("predictions and figures"):
        task, findings = _found(model, X, y, ks, propensity, threshold, decoding, seed)
    with clock.part(f"intervals from {n_resamples} resamples"):
        intervals = findings.sums.intervals(seed, n_resamples)
    n_rows = findings.counts[task.unit[1]]
    names = model.shown_labels(titles)
    counts = np.asarray(model.label_counts_)
    spelt = figures.spelt(task.figures, ks)
    first = [each for name in task.cards for each in spelt if each.name == name]
    lead = joined(
        [
            paragraph(
                f"{n_rows:,} {task.unit[1]}, {len(names):,} {task.label[1]}, {type(model).__name__}; written "
                f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC by extremegp {__version__}.",
                class_="soft",
            ),
            figures.cards(first, findings.metrics, intervals),
            *(paragraph(note, class_="notice") for note in (*notes, *findings.notes)),
        ]
    )
    parts = {
        "quality": (
            "Figures",
            joined(
                [
                    figures.metric_table(spelt, findings.metrics, intervals),
                    paragraph(_of_intervals(task, threshold, n_resamples), class_="soft"),
                    figures.all_metrics(findings.metrics),
                ]
            ),
        ),
        "calibration": ("Calibration", quality.calibration(findings, task.label)),
        "selective": ("Only the surest", quality.selective(findings, task.counted)),
        "labels": (
            f"{task.label[1].capitalize()} that are told apart least",
            joined(
                [
                    quality.spans(findings) if findings.spans else "",
                    quality.worst(findings, names, counts, task.label, task.counted),
                    "" if findings.confusion is None else quality.confusions(findings, names, task.label, task.counted),
                ]
            ),
        ),
    }
    with clock.part("novelty"), _said_before():
        parts["novelty"] = (
            "Do the data look like the training data?",
            sections.novelty(model, X, n_rows, task.unit[1], seed),
        )
    with clock.part("probable errors"):
        issues = findings.surprises.likeliest()
        parts["issues"] = (
            f"{task.label[1].capitalize()} that are probably wrong",
            _issues(model, X, issues, ids, names, task, show_rows),
        )
    with clock.part("examples and explanations"), _said_before():
        shown = paragraph("What rows say is left out of this page.", class_="soft")
        if show_rows:
            shown = _examples(model, X, y, findings, ids, names)
        parts["examples"] = "Examples", shown
    parts["model"] = (
        "The model and the data",
        sections.origin(model, model_facts or {}, _data_facts(findings, data_facts)),
    )
    parts["training"] = "Training", sections.training(model)
    parts["times"] = "Times", sections.times(clock.seconds, n_rows, task.unit[0])
    html = _assembled(title, lead, parts)
    return Report(html, findings.metrics, intervals, n_rows)


@contextmanager
def _said_before() -> Iterator[None]:
    """Without warnings of rows that were read before, and warned of then."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


class _Clock:
    """How long parts of the work take."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time what is done inside."""
        started = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - started


def _found(
    model: Model,
    X: Any,
    y: Any,
    ks: Sequence[int],
    propensity: tuple[float, float],
    threshold: float,
    decoding: str | None,
    seed: int,
) -> tuple[_Task, Findings]:
    if isinstance(model, SequenceGPClassifier):
        return _SEQUENCES, sequences.find(model, X, y, decoding=decoding, seed=seed)
    if isinstance(model, MultiClassGPClassifier):
        return _CLASSES, classes.find(model, X, y, ks=ks, seed=seed)
    if isinstance(model, MultiLabelEstimator):
        options: dict[str, Any] = {"ks": ks, "propensity": propensity, "threshold": threshold, "seed": seed}
        return _LABELS, labels.find(model, X, y, **options)
    raise SettingsError(f"reports are of classifiers of this library, not of {type(model).__name__}")


def _of_intervals(task: _Task, threshold: float, n_resamples: int) -> str:
    told = (
        f"Intervals hold in 95 of 100 cases if the {task.unit[1]} were drawn at random: they are from {n_resamples:,} "
        f"resamples of the {task.unit[1]} (the bootstrap), and know nothing of another training run. Those of "
        "calibration errors are reflected about the figure, for resampling adds to these errors; that of macro_f1 is "
        "made of bootstrap standard errors, for resamples leave out rare labels."
    )
    return told + (f" Labels are predicted from a probability of {threshold:g} on." if task is _LABELS else "")


def _issues(
    model: Model,
    X: Any,
    issues: Sequence[Issue],
    ids: Sequence[str] | None,
    names: Sequence[str],
    task: _Task,
    show_rows: bool,
) -> Markup:
    lacking = ", and those that they lack though it finds them likely" if task is _LABELS else ""
    told = paragraph(
        f"{task.label[1].capitalize()} that {task.counted} have though the model finds them unlikely{lacking}. Some "
        "are mistakes of the data, the others of the model: people have to look."
    )
    if isinstance(model, SequenceGPClassifier):
        lengths = np.array([len(tokens) for tokens in X])
        ends = np.cumsum(lengths)
        of = np.searchsorted(ends, [each.row for each in issues], side="right")
        places = [each.row - int(ends[s] - lengths[s]) for each, s in zip(issues, of, strict=True)]
        called = [f"sequence {s}, token {place}" for s, place in zip(of.tolist(), places, strict=True)]
        texts = [examples.word(X[s][place]) for s, place in zip(of.tolist(), places, strict=True)]
    else:
        rows = [each.row for each in issues]
        called = _called(rows, ids if show_rows else None)
        texts = _texts(X, rows)
    shown = texts if show_rows and any(texts) else None
    return joined([told, examples.issue_table(issues[:MOST], called, shown, names, task.label)])


def _texts(X: Any, rows: Sequence[int]) -> list[str]:
    """What rows say, of those that are texts."""
    part = X.get("text") if isinstance(X, dict) else X
    if not isinstance(part, list):
        return [""] * len(rows)
    return [each if isinstance(each, str) else "" for each in some(part, rows)]


def _called(rows: Sequence[int], ids: Sequence[str] | None) -> list[str]:
    return [f"row {row}" if ids is None else str(ids[row]) for row in rows]


def _examples(
    model: Model, X: Any, y: Any, findings: Findings, ids: Sequence[str] | None, names: Sequence[str]
) -> Markup:
    chosen = findings.chosen
    if isinstance(model, SequenceGPClassifier):
        order = {name: code for code, name in enumerate(model.classes_.tolist())}
        return examples.of_sequences(model, X, y, chosen, lambda label: order[_plain(label)])
    rows = [each.row for each in chosen]
    encoded: Any = model.encode_labels(some(y, rows))
    if isinstance(model, MultiClassGPClassifier):
        truth = [{code} - {-1} for code in encoded.tolist()]
    else:
        truth = [set(encoded[place].indices.tolist()) for place in range(len(rows))]
    return examples.of_rows(model, X, truth, chosen, _called(rows, ids), names)


def _plain(label: Any) -> Any:
    return label.item() if isinstance(label, np.generic) else label


def _data_facts(findings: Findings, given: dict[str, str] | None) -> dict[str, str]:
    return {**(given or {}), **{name: f"{value:,}" for name, value in findings.counts.items()}}


def _assembled(title: str, lead: Markup, parts: dict[str, tuple[str, Markup]]) -> str:
    page, style, script = (
        files("extremegp.report").joinpath(name).read_text(encoding="utf-8")
        for name in ("page.html", "page.css", "page.js")
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return Template(page).substitute(
        title=text(title),
        style=style,
        script=script,
        digest=digest,
        lead=lead,
        contents=joined(element("li", element("a", heading, href=f"#{name}")) for name, (heading, _) in parts.items()),
        sections=joined(
            (
                element("section", element("h2", heading), content, id=name)
                for name, (heading, content) in parts.items()
            ),
            "\n",
        ),
        foot=paragraph(
            f"Written by extremegp {__version__}. This page is whole: it asks for nothing from anywhere, and tables "
            "are sorted by their headings."
        ),
    )
