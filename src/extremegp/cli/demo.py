"""Train on real data that come with the library, and show how good the result is.

The data are descriptions of Debian packages (6616 to train on, 1910 to test),
each with some of 423 tags such as "role::program". The model stands beside a
baseline that gives every package the most frequent tags. Takes less than a
minute on two cores; nothing is downloaded.

\b
Example:
  extremegp demo --save model
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from extremegp.cli import options
from extremegp.cli.console import Report
from extremegp.cli.tasks.labels import shown

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from extremegp.data.debtags import DebtagsDataset
    from extremegp.estimators import MultiLabelGPClassifier

SETTINGS: dict[str, Any] = {}
"""Those of the library do."""

_METRICS = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@3", "PSP@5", "log_loss", "ece")
_BLOCK_ROWS = 1000


def demo(
    seed: options.Seed = 0, save: options.Save = None, json: options.Json = None, quiet: options.Quiet = False
) -> None:
    """Train, evaluate, and compare."""
    report = Report(json, quiet)
    from extremegp.datasets import load_debtags
    from extremegp.estimators import MultiLabelGPClassifier
    from extremegp.metrics import propensities
    from extremegp.metrics.measured import measure
    from extremegp.storage.models import check_writable

    if save is not None:
        check_writable(save)
    train, test = load_debtags()
    report.lines(
        f"Training on {len(train.texts)} descriptions of Debian packages with {len(train.label_names)} tags ..."
    )
    started = time.monotonic()
    classifier = MultiLabelGPClassifier(features="text", random_state=seed, verbose=not quiet, **SETTINGS)
    classifier.fit(train.texts, train.labels)
    seconds = {"train": time.monotonic() - started}
    if save is not None:
        classifier.save(save)
    started = time.monotonic()
    truth, counts = classifier.encode_labels(test.labels), classifier.label_counts_
    compare = partial(
        measure, truth=truth, ks=(1, 3, 5), propensity=propensities(counts, classifier.n_rows_), train_counts=counts
    )
    inputs = classifier.features_.transform(test.texts)
    blocks = classifier.predictor().probabilities(inputs)
    metrics = compare((rows, probabilities, probabilities) for rows, probabilities in blocks).metrics
    seconds["evaluate"] = time.monotonic() - started
    baseline = compare(_frequencies(counts / classifier.n_rows_, truth.shape[0])).metrics
    metrics, baseline = ({name: values[name] for name in _METRICS} for values in (metrics, baseline))
    report.table(
        f"{len(test.texts)} test packages (metrics with @ in percent; log_loss in nats per package)",
        ("metric", "extremegp", "most frequent tags"),
        [(name, shown(name, metrics[name]), shown(name, baseline[name])) for name in _METRICS]
        + [(f"seconds to {what}", f"{value:.1f}", "") for what, value in seconds.items()],
    )
    examples = _examples(classifier, test)
    _show_examples(report, examples)
    if save is not None:
        report.lines(
            f"The model is in {save}: see extremegp info, and extremegp predict for texts of your own (jsonl)."
        )
    report.result(
        {
            "metrics": metrics,
            "baseline": baseline,
            "seconds": seconds,
            "n_rows": len(test.texts),
            "n_labels": len(counts),
            "examples": examples,
        }
    )


def _frequencies(
    frequency: NDArray[np.float64], n_rows: int
) -> Iterator[tuple[slice, NDArray[np.float64], NDArray[np.float64]]]:
    import numpy as np

    for start in range(0, n_rows, _BLOCK_ROWS):
        rows = slice(start, min(start + _BLOCK_ROWS, n_rows))
        block = np.broadcast_to(frequency, (rows.stop - start, len(frequency)))
        yield rows, block, block


def _examples(classifier: MultiLabelGPClassifier, test: DebtagsDataset) -> list[dict[str, Any]]:
    """Three packages from across the test data, with their five most probable tags."""
    from extremegp.metrics import TopK

    chosen = [len(test.texts) * part // 4 for part in (1, 2, 3)]
    best = TopK.from_scores(classifier.predict_proba([test.texts[row] for row in chosen]), 5)
    return [
        {
            "package": test.names[row],
            "summary": test.texts[row].partition("\n")[0],
            "predicted": [
                {"label": str(classifier.classes_[label]), "probability": float(f"{p:.4g}"), "true": name in truth}
                for label, p in zip(labels.tolist(), scores.tolist(), strict=True)
                for name, truth in [(classifier.classes_[label], test.labels[row])]
            ],
        }
        for row, labels, scores in zip(chosen, best.labels, best.scores, strict=True)
    ]


def _show_examples(report: Report, examples: list[dict[str, Any]]) -> None:
    tick = "✓" if report.console.encoding.lower().startswith("utf") else "yes"
    for example in examples:
        report.table(
            f"{example['package']}: {example['summary']}",
            ("predicted tag", "probability", "true"),
            [(tag["label"], f"{tag['probability']:.2f}", tick if tag["true"] else "") for tag in example["predicted"]],
        )
