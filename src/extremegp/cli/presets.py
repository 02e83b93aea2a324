"""`extremegp presets`: the papers' methods by name."""

from __future__ import annotations

from extremegp.cli.common import JsonOption, QuietOption, Report


def presets(json: JsonOption = None, quiet: QuietOption = False) -> None:
    """List the papers' methods that `train --preset` knows.

    A preset is a set of parameters, which `--set` can change one by one. The
    figures are those of the thesis (P@1/P@3/P@5 on Bibtex with n_inducing=100,
    n_latent=159, epochs=50), where it has any.

    \b
    Example:
      extremegp train train.txt --out model --preset SE --set n_inducing=100
    """
    from extremegp.presets import INDUCING, KERNELS, POSTERIORS, PRESETS

    report = Report(json, quiet)
    report.lines("A preset is a kernel, perhaps with parts after it, such as ARD, ARD-S-B or SE-FX-PP:", "")
    for parts in (KERNELS, INDUCING, POSTERIORS):
        report.lines(*(f"  {name:18}{what.removeprefix(', ')}" for name, (*_, what) in parts.items() if name), "")
    report.table(
        "what the thesis reports for them on Bibtex",
        ("name", "P@1/P@3/P@5", "where"),
        [
            (name, "/".join(f"{value:.2f}" for value in preset.figures.precision), preset.figures.table)
            for name, preset in PRESETS.items()
            if preset.figures and not name.endswith("-FP")
        ],
    )
    report.result(
        {
            name: {
                "settings": dict(preset.settings),
                "source": preset.source,
                "description": preset.description,
                "paper": None
                if preset.figures is None
                else {
                    "table": preset.figures.table,
                    "dataset": "bibtex",
                    **dict(zip(("P@1", "P@3", "P@5"), preset.figures.precision, strict=True)),
                },
            }
            for name, preset in PRESETS.items()
        }
    )
