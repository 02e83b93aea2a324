"""Why rows are predicted their labels, as `predict --explain` writes it: for programs, and for people to read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from extremegp.cli.rows import some_rows
from extremegp.errors import SettingsError

if TYPE_CHECKING:
    from extremegp.estimators import Explanation, Share
    from extremegp.estimators.learning import LearnsRows

SUFFIXES = (".jsonl", ".txt")
"""Of the formats that have room for explanations."""

ROWS = 64
"""That are explained at once."""

_LONGEST = 32


def check_explains(classifier: Any, folder: Any) -> None:
    """Refuse models that cannot explain.

    Raises:
        SettingsError: the model in the folder is such a one.
    """
    from extremegp.estimators.learning import LearnsRows

    if not isinstance(classifier, LearnsRows) or (reason := classifier.can_learn()) is not None:
        raise SettingsError(f"--explain: {folder} keeps no training rows that could explain: {reason}")


def explained(classifier: LearnsRows, X: Any, predicted: Sequence[Sequence[int]]) -> Iterator[list[Explanation]]:
    """Explanations of the labels of every row, in their order.

    Args:
        classifier: that can explain.
        X: inputs of B rows.
        predicted: of each row the columns of its labels.
    """
    names, most = classifier.classes_.tolist(), max(map(len, predicted), default=0)
    found = classifier.explain(X, k=most) if most else [[] for _ in predicted]
    for row, (columns, of_row) in enumerate(zip(predicted, found, strict=True)):
        by_label = {each.label: each for each in of_row}
        wanted = [names[column] for column in columns]
        # Those of sets, or of other rankings, need not be the most probable.
        if missing := [label for label in wanted if label not in by_label]:
            (others,) = classifier.explain(some_rows(X, slice(row, row + 1)), missing)
            by_label |= {each.label: each for each in others}
        yield [by_label[label] for label in wanted]


def as_record(why: Explanation, title: str | None) -> dict[str, Any]:
    """An explanation as JSON has it; the label's title is what it is called, if it is called anything else."""
    return {
        "label": str(why.label),
        **({} if title is None else {"name": title}),
        **{name: _rounded(getattr(why, name)) for name in ("probability", "frequency", "regression")},
        "documents": [{"name": each.name, "share": _rounded(each.share)} for each in why.documents],
        "features": [{"name": each.name, "share": _rounded(each.share)} for each in why.features],
        "parts": {name: _rounded(value) for name, value in why.parts.items()},
    }


def as_text(row: int, id: str | None, reasons: Sequence[Explanation], titles: Sequence[str]) -> str:
    """The explanations of a row to read, ended by a blank line; titles are what its labels are called."""
    lines = [f"row {row}" + ("" if id is None else f": {_shown(id)}")]
    if not reasons:
        lines.append("  no labels")
    for why, title in zip(reasons, titles, strict=True):
        lines.append(
            f"  {_shown(title)}: probability {why.probability:.4f}; {100 * why.frequency:.2f} % of all documents "
            f"have it, {100 * why.regression:.2f} % of those like this one"
        )
        lines += _table(why.documents, why.features)
        if why.parts:
            sum_of = " ".join(f"{value:+.3f} {name}" for name, value in why.parts.items())
            lines.append(f"    utility {sum(why.parts.values()):+.3f} = {sum_of}")
    return "\n".join(lines) + "\n\n"


def _table(documents: Sequence[Share], features: Sequence[Share]) -> Iterator[str]:
    """Shares of documents beside those of features, a line each."""
    left, right = (["document", *(_shown(each.name) for each in documents)], [f"{'share':>8}", *map(_share, documents)])
    names, shares = (["feature", *(_shown(each.name) for each in features)], [f"{'share':>8}", *map(_share, features)])
    widths = max(map(len, left)), max(map(len, names))
    for line in zip_longest(left, right, names, shares, fillvalue=""):
        document, share, feature, of_feature = line
        yield f"    {document:<{widths[0]}}  {share:>8}    {feature:<{widths[1]}}  {of_feature:>8}".rstrip()


def _share(each: Share) -> str:
    # What rounds to nothing has no sign.
    return f"{round(each.share, 4) + 0.0:+.4f}"


def _shown(name: str) -> str:
    """A name on one line, and not too long."""
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in name).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
