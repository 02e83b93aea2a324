"""How far probabilities can be trusted, and where their uncertainty comes from: `python examples/uncertainty.py`.

Draws a reliability diagram of the predictive probabilities beside that of the mean utility alone, and splits the
uncertainty of every row into what the data leave open (aleatoric) and what the model does not know (epistemic).
Needs matplotlib: `pip install 'extremegp[plot]'`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from extremegp import MultiLabelGPClassifier
from extremegp.datasets import load_debtags
from extremegp.metrics import ProbabilityMetrics

EVERY = slice(None, None, 3)  # A third of the 6616 rows, so that training takes well under a minute.


def main(picture: Path) -> None:
    train, test = load_debtags()
    classifier = MultiLabelGPClassifier(features="text", n_inducing=500, random_state=0)
    classifier.fit(train.texts[EVERY], train.labels[EVERY])
    truth = classifier.encode_labels(test.labels)

    probability = classifier.predict_proba(test.texts)
    plug_in = 1 / (1 + np.exp(-classifier.decision_function(test.texts)))

    figure, axes = plt.subplots(figsize=(5, 5), layout="constrained")
    axes.plot([0, 1], [0, 1], color="grey", linewidth=1)
    for name, values in (("posterior integrated", probability), ("mean utility only", plug_in)):
        metrics = ProbabilityMetrics(n_bins=10)
        metrics.update(values, truth)
        result = metrics.compute()
        curve = metrics.reliability(top=True)
        axes.plot(curve.confidence, curve.frequency, marker="o", label=f"{name} (ECE {result['ece_top']:.3f})")
        print(f"{name:20}  log-loss {result['log_loss']:.2f}  Brier {result['brier']:.3f}  ECE {result['ece_top']:.3f}")
    axes.set(xlabel="predicted probability", ylabel="share of true labels", title="10 best labels of each row")
    axes.legend()
    figure.savefig(picture)

    found = classifier.predict_uncertainty(test.texts)
    print("\nleast known packages:")
    for row in found.epistemic.argsort()[::-1][:3]:
        share, p = found.epistemic[row] / found.total[row], found.novelty[row]
        print(f"  {test.names[row]}: {100 * share:.0f} % of the uncertainty is epistemic, p-value {p:.3f}")
    print(f"\nthe reliability diagram is in {picture}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "reliability.png"))
