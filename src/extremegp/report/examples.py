"""Rows to look at: what they say, what they have, what is predicted, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from extremegp.errors import ExtremeGPError
from extremegp.estimators import Explanation, SequenceGPClassifier, Share
from extremegp.estimators.learning import LearnsRows
from extremegp.metrics import TopK
from extremegp.report.findings import Chosen
from extremegp.report.inputs import shown, some
from extremegp.report.issues import Issue
from extremegp.report.markup import (
    Cell,
    Column,
    Markup,
    details,
    element,
    joined,
    number,
    paragraph,
    table,
    text,
)
from extremegp.report.pictures import share_bar

_BEST, _EXPLAINED, _SHARES, _TRUE = 5, 2, 5, 12
_MOST_TOKENS = 80
_HEAD = element("th", "is it?", scope="col")


def cannot_explain(model: Any) -> str | None:
    """Why a model cannot explain; None where it can."""
    if isinstance(model, SequenceGPClassifier):
        return "models of sequences keep no training rows that could explain"
    return model.can_learn() if isinstance(model, LearnsRows) else "it keeps no training rows"


def of_rows(
    model: Any, X: Any, truth: Sequence[set[int]], chosen: Sequence[Chosen], called: Sequence[str], names: Sequence[str]
) -> Markup:
    """Rows with their labels and predictions, and explanations where the model can say.

    Args:
        model: of rows.
        X: inputs of all rows.
        truth: of the chosen rows the columns of their labels.
        chosen: which rows, and why these.
        called: what the chosen rows are called.
        names: of the labels.
    """
    inputs = some(X, [each.row for each in chosen])
    best = _best(model, inputs)
    reasons, why_not = _explained(model, inputs, len(chosen))
    feature_names = getattr(model, "feature_names_in_", None)
    known = None if feature_names is None else [str(name) for name in feature_names]
    parts: list[Markup] = (
        [] if why_not is None else [paragraph(f"There are no explanations: {why_not}.", class_="soft")]
    )
    if why_not is None:
        parts.append(
            paragraph(
                "Under “why” are shares of training documents, and of features that the row has in common with these: "
                "what each adds to the regression of the label, and takes away."
            )
        )
    for place, each in enumerate(chosen):
        labels, p = best[place]
        own = truth[place]
        missed = sorted(own - set(labels))
        lines = [
            element(
                "tr",
                element("th", names[label], scope="row"),
                element("td", number(value, 3).shown, class_="n"),
                element("td", *_verdict(label in own)),
            )
            for label, value in zip(labels, p, strict=True)
        ]
        predicted = element(
            "table",
            element("caption", "most probable"),
            element(
                "thead",
                element("tr", element("th", "label", scope="col"), element("th", "p", scope="col", class_="n"), _HEAD),
            ),
            element("tbody", *lines),
        )
        told = ", ".join(names[label] for label in missed[:_TRUE]) + (", …" if len(missed) > _TRUE else "")
        parts.append(
            element(
                "article",
                element("h3", f"{called[place]}: {each.because}"),
                shown(inputs, place, known),
                element("div", predicted, class_="scroll", role="region", tabindex="0", aria_label="predicted labels"),
                paragraph("has too: ", text(told, 400)) if missed else "",
                *(_why(why, names, model) for why in (reasons[place] if reasons else ())),
                class_="example",
            )
        )
    return joined(parts)


def _verdict(right: bool) -> tuple[Markup]:
    return (element("span", "✓ true" if right else "✗ not true", class_="right" if right else "wrong"),)


def _best(model: Any, inputs: Any) -> list[tuple[list[int], list[float]]]:
    """The most probable labels of some rows."""
    found: list[tuple[list[int], list[float]]] = []
    predictor, x = model.predictor(), model.features_.transform_new(inputs)
    for _, p in predictor.probabilities(x):
        best = TopK.from_scores(p, min(_BEST, p.shape[1]))
        found += [(labels, scores) for labels, scores in zip(best.labels.tolist(), best.scores.tolist(), strict=True)]
    return found


def _explained(model: Any, inputs: Any, n_rows: int) -> tuple[list[list[Explanation]], str | None]:
    """Explanations of rows, or why there are none."""
    if (reason := cannot_explain(model)) is not None:
        return [], reason
    try:
        return model.explain(inputs, k=_EXPLAINED, n=_SHARES), None
    except ExtremeGPError as error:
        return [], str(error)


def _why(why: Explanation, names: Sequence[str], model: Any) -> Markup:
    label = names[model.classes_.tolist().index(why.label)]
    told = paragraph(
        f"{100 * why.frequency:.2f} % of all documents have it, {100 * why.regression:.2f} % of those like this one."
    )
    tables = element("div", _shares("documents", why.documents), _shares("features", why.features), class_="why")
    parts = ""
    if why.parts:
        sum_of = " ".join(f"{value:+.3f} {name}" for name, value in why.parts.items())
        parts = f"Utility {sum(why.parts.values()):+.3f} = {sum_of}."
    return details(f"why {text(label, 80)} (p {why.probability:.3f})", told, tables, paragraph(parts) if parts else "")


def _shares(what: str, shares: Sequence[Share]) -> Markup:
    most = max((abs(each.share) for each in shares), default=0.0)
    lines = [
        element(
            "tr",
            element("th", text(each.name, 60), scope="row"),
            element("td", share_bar(each.share, most), class_="bar"),
            element("td", f"{round(each.share, 4) + 0.0:+.4f}".replace("-", "\N{MINUS SIGN}"), class_="n"),
        )
        for each in shares
    ]
    heads = (element("th", what[:-1], scope="col"), element("td", ""), element("th", "share", scope="col", class_="n"))
    return element("table", element("caption", what), element("thead", element("tr", *heads)), element("tbody", *lines))


def of_sequences(
    model: SequenceGPClassifier, X: Sequence[Any], y: Sequence[Any], chosen: Sequence[Chosen], codes: Any
) -> Markup:
    """Sequences token by token, with wrong labels marked."""
    inputs = [X[each.row] for each in chosen]
    marginals, labels = model.predict_marginals(inputs), model.predict(inputs)
    parts = [
        paragraph(f"There are no explanations: {cannot_explain(model)}.", class_="soft"),
        paragraph(
            "Each token has the label that is predicted with its probability; wrong ones are marked, and say what is "
            "true."
        ),
    ]
    for each, tokens, p, found in zip(chosen, inputs, marginals, labels, strict=True):
        items = []
        for place, (token, label) in enumerate(zip(tokens[:_MOST_TOKENS], found[:_MOST_TOKENS], strict=True)):
            true = y[each.row][place]
            wrong = bool(str(true) != str(label))
            of_label = float(p[place, codes(label)])
            told = f"{label} {of_label:.2f}" + (f" ✗ true: {true}" if wrong else "")
            items.append(
                element("li", text(word(token), 60), element("small", text(told, 90)), class_="miss" if wrong else None)
            )
        left = len(tokens) - len(items)
        parts.append(
            element(
                "article",
                element("h3", f"sequence {each.row}: {each.because}"),
                element("ul", *items, class_="tokens"),
                paragraph(f"{left} more tokens") if left > 0 else "",
                class_="example",
            )
        )
    return joined(parts)


def word(token: Any) -> str:
    """What a token says: its first column, or the names of its features."""
    if isinstance(token, (tuple, list)):
        return str(token[0]) if token else ""
    if isinstance(token, dict):
        return " ".join(value if isinstance(value, str) else str(name) for name, value in token.items())
    return str(token)


def issue_table(
    issues: Sequence[Issue],
    called: Sequence[str],
    texts: Sequence[Any] | None,
    names: Sequence[str],
    what: tuple[str, str],
) -> Markup:
    """Labels that are probably wrong.

    Args:
        issues: the likeliest first.
        called: what the row of each is called.
        texts: what the row of each says; None to leave it out.
        names: of the labels.
        what: a label is called, one and many.
    """
    if not issues:
        return paragraph(f"There are no {what[1]} to ask about.")
    instead = any(each.instead >= 0 for each in issues)
    lines = []
    for place, each in enumerate(issues):
        row: Markup = text(called[place], 60)
        if texts is not None:
            row = joined([row, " ", element("small", text(texts[place], 110))])
        line: list[Any] = [Cell(row, each.row), text(names[each.label])]
        if instead:
            line += [_small(each.probability), text(names[each.instead]), _small(each.of_instead)]
        else:
            line += ["has it" if each.present else "lacks it", _small(each.probability)]
        lines.append(line)
    columns = [Column("row", False), Column(what[0], False)]
    if instead:
        columns += [Column("p"), Column("rather", False), Column("its p")]
    else:
        columns += [Column("the row", False), Column("p")]
    return table(f"{what[1].capitalize()} to look at, {len(issues)} at most", columns, lines, name="issue-table")


def _small(value: float) -> Cell:
    return Cell(f"{value:.2g}" if 0 < value < 0.001 else f"{value:.3f}", value)
