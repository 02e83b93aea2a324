"""Show what a saved model is, when and from what it was made, and how good it was; with --all, everything.

Hyper-parameters that were chosen beside training are shown with the values
that were tried and what decided; --all has what each was worth.

The model is checked on the way: a damaged or altered one is an error. The
JSON has everything always.

\b
Example:
  extremegp info model
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from extremegp.__about__ import __version__
from extremegp.cli import options
from extremegp.cli.console import Report, percent
from extremegp.cli.tasks import load_model
from extremegp.progress import spoken

if TYPE_CHECKING:
    from extremegp.engine.selection import Selection
    from extremegp.estimators.origin import DataOrigin

_LONGEST = 60
Rows = list[tuple[str, str]]


def info(
    model: options.Model,
    everything: options.Everything = False,
    json: options.Json = None,
    quiet: options.Quiet = False,
) -> None:
    """Read the model, and show what is in it."""
    report = Report(json, quiet)
    classifier, task = load_model(model, quiet=quiet)
    history, settings, origin = classifier.history_, asdict(classifier.settings_), classifier.origin_
    names, counts = classifier.shown_labels(), classifier.label_counts_.tolist()
    order = sorted(range(len(counts)), key=lambda k: (-counts[k], k))
    (label, labels), rows, score = task.label, task.rows, f"validation_{task.score}"
    feature_names = getattr(classifier, "feature_names_in_", None)
    details, selections = task.details(classifier), classifier.hyperparameters_
    files = {path.name: path.stat().st_size for path in sorted(model.iterdir())}
    # Where the posterior is closed there is no bound.
    steps = bool(history) and "elbo" in history[-1]
    # Models of format version 1 do not say what their bound is a sum over.
    n_units = classifier.n_rows_ if origin is None else origin.training.n_units
    training: dict[str, Any] = {
        rows: classifier.n_rows_,
        "epochs": len(history),
        "seconds": history[-1]["seconds"] if history else 0.0,
        "elbo_first": history[0]["elbo"] / n_units if steps else None,
        "elbo_last": history[-1]["elbo"] / n_units if steps else None,
        "elbo_per": rows.removesuffix("s") if origin is None else task.unit,
    }
    validation = [record[score] for record in history if score in record]
    if validation:
        training[score] = max(validation)
    result = {
        "model": str(model),
        "estimator": type(classifier).__name__,
        "origin": None if origin is None else asdict(origin),
        "version": __version__,
        "format_version": classifier.format_version_,
        "features": classifier.features_.kind,
        "settings": settings,
        "n_parameters": sum(parameter.numel() for parameter in classifier.model_.parameters()),
        f"n_{labels}": len(counts),
        "feature_names": None if feature_names is None else feature_names.tolist(),
        f"frequent_{labels}": [{label: names[k], rows: counts[k]} for k in order[:5]],
        **details,
        "hyperparameters": None if selections is None else [asdict(each) for each in selections],
        "training": training,
        "bytes": files,
    }
    of_data = f"{classifier.n_rows_} {rows}, {settings['n_features']} features ({classifier.features_.kind})"
    report.table(
        f"{model}: {result['estimator']}",
        ("", "value"),
        [
            *_of_origin(classifier, f"{of_data}, {len(counts)} {labels}"),
            *([] if feature_names is None else [("feature names", _shortened(feature_names.tolist()))]),
            *([("columns", str(details["n_columns"]))] if details.get("n_columns") else []),
            ("epochs", f"{training['epochs']} in {spoken(training['seconds'])}"),
            *([] if not steps else [(f"final ELBO per {training['elbo_per']}", f"{training['elbo_last']:.4f}")]),
            *([] if not validation else [(f"validation {task.score} %", percent(training[score]))]),
        ],
    )
    for what, chosen in (("most", order[:5]), ("least", order[5:][-5:] if label == "class" else [])):
        if chosen:
            report.table(
                f"{what} frequent {labels}", (label, f"training {rows}"), [(names[k], str(counts[k])) for k in chosen]
            )
    for selection in selections or ():
        _show_selection(report, selection, everything=everything)
    if details.get("template"):
        report.lines("Template:", "", details["template"])
    if everything:
        report.table(
            f"all settings, and sizes; read by extremegp {__version__} (format {classifier.format_version_})",
            ("", "value"),
            [
                *((name.replace("n_labels", f"n_{labels}"), str(value)) for name, value in settings.items()),
                ("parameters", str(result["n_parameters"])),
                *((f"{name} (bytes)", str(size)) for name, size in files.items()),
            ],
        )
    report.result(result)


def _of_origin(classifier: Any, of_data: str) -> Rows:
    """When, by what, from what and how the model was made."""
    origin = classifier.origin_
    if origin is None:
        return [("trained", "by a version that did not say when and from what"), ("on", of_data)]
    seed = f"{origin.seed}" if origin.seed is not None else f"none given; {origin.drawn_seed} was drawn"
    source = "" if origin.training.source is None else f"{origin.training.source}: "
    given = origin.command if origin.command is not None else origin.settings
    return [
        ("trained", "unknown" if origin.trained is None else origin.trained.replace("T", " ").replace("Z", " UTC")),
        ("by", f"extremegp {origin.version}"),
        ("on", f"{source}{of_data}"),
        ("content", origin.training.content),
        *([] if origin.validation is None else [("validated on", _told(origin.validation))]),
        ("seed", seed),
        *_settings("options" if origin.command is not None else "settings", given),
    ]


def _show_selection(report: Report, selection: Selection, *, everything: bool) -> None:
    """Show which hyper-parameters won, of which values and by what; or everything that was tried."""
    names, tried = [*selection.chosen], selection.tried
    lines = [
        (name.replace("_", " "), _value(value), ", ".join(map(_value, sorted({t[name] for t in tried}))))
        for name, value in selection.chosen.items()
    ]
    of_many = ("tried",) if tried else ()
    report.table(f"chosen by {selection.by}", ("", "value", *of_many), [line[: 2 + len(of_many)] for line in lines])
    if tried and everything:
        names.append("score")
        scores = [tuple(_value(each[name]) for name in names) for each in tried]
        report.table("what each was worth", [name.replace("_", " ") for name in names], scores)


def _value(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def _told(data: DataOrigin) -> str:
    return ("" if data.source is None else f"{data.source}: ") + f"{data.n_rows} rows"


def _settings(what: str, values: Mapping[str, Any]) -> Rows:
    """The settings that a user gave, a line each."""
    if not values:
        return [(what, "all as by default")]
    lines = []
    for name, value in values.items():
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        shown = " ".join(part for part in text.split() if part.isprintable())
        lines.append((name, shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 3]}..."))
    return lines


def _shortened(names: list[str]) -> str:
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
