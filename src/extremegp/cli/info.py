"""`extremegp info`: what a saved model is."""

from __future__ import annotations

from dataclasses import asdict

from extremegp.__about__ import __version__
from extremegp.cli.common import JsonOption, ModelArgument, QuietOption, Report, label_names, load_model


def info(model: ModelArgument, json: JsonOption = None, quiet: QuietOption = False) -> None:
    """Show what a saved model is: settings, sizes, labels, how training went, and its files.

    The model is checked on the way: a damaged or altered one is an error.

    \b
    Example:
      extremegp info model
    """
    report = Report(json, quiet)
    from extremegp.io import FORMAT_VERSION

    classifier = load_model(model)
    history, settings = classifier.history_, asdict(classifier.settings_)
    names, counts = label_names(classifier), classifier.label_counts_.tolist()
    frequent = sorted(range(len(counts)), key=lambda label: (-counts[label], label))[:5]
    files = {path.name: path.stat().st_size for path in sorted(model.iterdir())}
    training = {
        "rows": classifier.n_rows_,
        "epochs": len(history),
        "seconds": history[-1]["seconds"] if history else 0.0,
        "elbo_first": history[0]["elbo"] if history else None,
        "elbo_last": history[-1]["elbo"] if history else None,
    }
    validation = [record["validation_P@1"] for record in history if "validation_P@1" in record]
    if validation:
        training["validation_P@1"] = max(validation)
    result = {
        "model": str(model),
        "estimator": type(classifier).__name__,
        "version": __version__,
        "format_version": FORMAT_VERSION,
        "features": classifier.features_.kind,
        "settings": settings,
        "n_parameters": sum(parameter.numel() for parameter in classifier.model_.parameters()),
        "frequent_labels": [{"label": names[label], "rows": counts[label]} for label in frequent],
        "training": training,
        "bytes": files,
    }
    report.table(
        f"{model}: {result['estimator']}, read by extremegp {__version__} (format {FORMAT_VERSION})",
        ("", "value"),
        [
            ("features", classifier.features_.kind),
            *((name, str(value)) for name, value in settings.items()),
            ("parameters", str(result["n_parameters"])),
            *((f"training {name}", f"{value:.6g}") for name, value in training.items() if value is not None),
            *((f"{name} (bytes)", str(size)) for name, size in files.items()),
        ],
    )
    report.table(
        "most frequent labels", ("label", "training rows"), [(names[label], str(counts[label])) for label in frequent]
    )
    report.result(result)
