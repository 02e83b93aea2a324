"""Train on real data, measure, predict, save and load, in about ten seconds: `python examples/quickstart.py`.

The settings are small so that this ends soon; `extremegp demo` takes longer and ranks better.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from extremegp import MultiLabelGPClassifier, load
from extremegp.datasets import load_debtags
from extremegp.metrics import evaluate_topk, propensities


def main() -> None:
    train, test = load_debtags()
    classifier = MultiLabelGPClassifier(features="text", n_inducing=50, n_latent=100, epochs=5, random_state=0)
    classifier.fit(train.texts, train.labels)

    best = classifier.predict_topk(test.texts, k=5)
    metrics = evaluate_topk(
        classifier.encode_labels(test.labels),
        best,
        propensities(classifier.label_counts_, classifier.n_rows_),
    )
    for name in ("P@1", "P@3", "P@5", "nDCG@5", "PSP@5"):
        print(f"{name:8} {metrics[name]:.3f}")

    print(f"\n{test.names[0]}: {test.texts[0].splitlines()[0]}")
    probabilities = classifier.predict_proba(test.texts[:1])[0]
    for label in best.labels[0]:
        print(f"  {probabilities[label]:.2f}  {classifier.classes_[label]}")

    with tempfile.TemporaryDirectory() as folder:
        classifier.save(Path(folder, "model"))
        again = load(Path(folder, "model"))
    same = np.array_equal(again.predict_proba(test.texts[:10]), classifier.predict_proba(test.texts[:10]))
    print(f"\nthe loaded model predicts the same: {same}")


if __name__ == "__main__":
    main()
