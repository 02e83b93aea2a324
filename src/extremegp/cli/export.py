"""Write a saved model as plain arithmetic: an ONNX graph, or arrays for NumPy alone.

The suffix of --out says which: .onnx for runtimes of ONNX (the extra onnx),
.npz for a class that needs NumPy and nothing else (`PortableModel`). Both
give the posterior means of the utilities and, of many labels, probabilities,
within 1e-5 of the model's. Inputs are vectors as in training; of texts they
are what the features step makes of them. Models with landmarks or a
regression alone can be written so, the defaults for moderate data.

\b
--json writes:
  {"model": "model", "out": "model.onnx", "n_features": 500, "n_labels": 983,
   "results": ["mean", "probability"], "bytes": 5301210, "seconds": 1.2}

\b
Examples:
  extremegp export model --out model.onnx
  extremegp export model --out model.npz
"""

from __future__ import annotations

from io import BytesIO

from extremegp.cli import options
from extremegp.cli.console import Report
from extremegp.errors import SettingsError


def export(
    model: options.Model,
    out: options.ExportedTo,
    json: options.Json = None,
    quiet: options.Quiet = False,
) -> None:
    """Load the model, and write it."""
    report = Report(json, quiet)
    if out.suffix not in (".onnx", ".npz"):
        raise SettingsError(f"{out}: the suffix must be .onnx or .npz")
    from extremegp.cli.tasks import load_model
    from extremegp.export import described_model, to_onnx
    from extremegp.storage.streams import atomic_writer

    classifier, _ = load_model(model, quiet=quiet)
    portable = described_model(classifier)
    if out.suffix == ".onnx":
        content = to_onnx(portable).SerializeToString()
    else:
        buffer = BytesIO()
        portable.save(buffer)
        content = buffer.getvalue()
    with atomic_writer(out) as file:
        file.write(content)
    results = ["mean", "probability"] if portable.has_probabilities else ["mean"]
    report.lines(f"{' and '.join(results)} of {len(portable.names)} labels, {len(content):,} bytes: {out}")
    report.result(
        {
            "model": str(model),
            "out": str(out),
            "n_features": portable.n_features,
            "n_labels": len(portable.names),
            "results": results,
            "bytes": len(content),
            "seconds": report.seconds,
        }
    )
