"""`extremegp presets`: the papers' methods by name."""

from __future__ import annotations

from extremegp.cli.common import JsonOption, QuietOption, Report


def presets(json: JsonOption = None, quiet: QuietOption = False) -> None:
    """List the papers' methods that `train --preset` knows.

    A preset is a set of parameters, which `--set` can change one by one.

    \b
    Example:
      extremegp train train.txt --out model --preset SE --set n_inducing=100
    """
    from extremegp.presets import PRESETS

    report = Report(json, quiet)
    report.table(
        "presets: the papers' names (thesis section 4.5.2)",
        ("name", "what it is"),
        [(name, preset.description) for name, preset in PRESETS.items()],
    )
    report.result(
        {
            name: {"settings": dict(preset.settings), "source": preset.source, "description": preset.description}
            for name, preset in PRESETS.items()
        }
    )
