"""Let a saved model forget training rows, and delete what comes from them alone.

The model is saved anew without the rows, in the place of the old one: their
inputs, their labels, and weights and words that no other row has are gone
from its files, and so is the journal. What trees or functions learnt from
the rows together with others stays until the model is trained again.

\b
--json writes:
  {"model": "model", "n_forgotten": 2, "n_rows": 15959, "seconds": 0.7}

\b
Examples:
  extremegp forget model --ids names.txt
  echo 17 | extremegp forget model --ids -
"""

from __future__ import annotations

from extremegp.cli import options
from extremegp.cli.console import Report
from extremegp.cli.learning import learner, read_ids


def forget(
    model: options.Model,
    ids: options.ForgottenIds,
    json: options.Json = None,
    quiet: options.Quiet = False,
) -> None:
    """Load the model, let it forget the rows, and save it."""
    report, names = Report(json, quiet), read_ids(ids)
    with learner(model, quiet=quiet) as (classifier, _):
        classifier.forget(names)
        classifier.save(model)
    report.lines(f"{len(names)} rows forgotten; the model has {classifier.n_rows_} rows")
    report.result(
        {"model": str(model), "n_forgotten": len(names), "n_rows": classifier.n_rows_, "seconds": report.seconds}
    )
