"""Show what a saved model is: settings, sizes, labels or classes, how training went, and its files.

The model is checked on the way: a damaged or altered one is an error.

\b
Example:
  extremegp info model
"""

from __future__ import annotations

from dataclasses import asdict

from extremegp.__about__ import __version__
from extremegp.cli import options
from extremegp.cli.console import Report
from extremegp.cli.tasks import load_model


def info(model: options.Model, json: options.Json = None, quiet: options.Quiet = False) -> None:
    """Read the model, and show what is in it."""
    report = Report(json, quiet)
    classifier, task = load_model(model, quiet=quiet)
    from extremegp.storage.models import FORMAT_VERSION

    history, settings = classifier.history_, asdict(classifier.settings_)
    names, counts = [str(name) for name in classifier.classes_], classifier.label_counts_.tolist()
    order = sorted(range(len(counts)), key=lambda k: (-counts[k], k))
    (label, labels), rows, score = task.label, task.rows, f"validation_{task.score}"
    feature_names = getattr(classifier, "feature_names_in_", None)
    details = task.details(classifier)
    files = {path.name: path.stat().st_size for path in sorted(model.iterdir())}
    training = {
        rows: classifier.n_rows_,
        "epochs": len(history),
        "seconds": history[-1]["seconds"] if history else 0.0,
        "elbo_first": history[0]["elbo"] if history else None,
        "elbo_last": history[-1]["elbo"] if history else None,
    }
    validation = [record[score] for record in history if score in record]
    if validation:
        training[score] = max(validation)
    result = {
        "model": str(model),
        "estimator": type(classifier).__name__,
        "version": __version__,
        "format_version": FORMAT_VERSION,
        "features": classifier.features_.kind,
        "settings": settings,
        "n_parameters": sum(parameter.numel() for parameter in classifier.model_.parameters()),
        f"n_{labels}": len(counts),
        "feature_names": None if feature_names is None else feature_names.tolist(),
        f"frequent_{labels}": [{label: names[k], rows: counts[k]} for k in order[:5]],
        **details,
        "training": training,
        "bytes": files,
    }
    report.table(
        f"{model}: {result['estimator']}, read by extremegp {__version__} (format {FORMAT_VERSION})",
        ("", "value"),
        [
            ("features", classifier.features_.kind),
            *([] if feature_names is None else [("feature names", _shortened(feature_names.tolist()))]),
            *((name.replace("n_labels", f"n_{labels}"), str(value)) for name, value in settings.items()),
            *([("columns", str(details["n_columns"]))] if details.get("n_columns") else []),
            ("parameters", str(result["n_parameters"])),
            *((f"training {name}", f"{value:.6g}") for name, value in training.items() if value is not None),
            *((f"{name} (bytes)", str(size)) for name, size in files.items()),
        ],
    )
    for what, chosen in (("most", order[:5]), ("least", order[5:][-5:] if label == "class" else [])):
        if chosen:
            report.table(
                f"{what} frequent {labels}", (label, f"training {rows}"), [(names[k], str(counts[k])) for k in chosen]
            )
    if details.get("template"):
        report.lines("Template:", "", details["template"])
    report.result(result)


def _shortened(names: list[str]) -> str:
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
