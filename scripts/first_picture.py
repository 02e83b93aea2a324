"""Draw the picture of the first page: how often the tags that the demo's model predicts are true.

python scripts/first_picture.py docs/images/reliability.png
"""

from __future__ import annotations

import sys

from extremegp import MultiLabelGPClassifier
from extremegp.cli.demo import SETTINGS
from extremegp.datasets import load_debtags
from extremegp.metrics import ProbabilityMetrics
from extremegp.plots import reliability_diagram


def main(picture: str) -> None:
    train, test = load_debtags()
    classifier = MultiLabelGPClassifier(features="text", random_state=0, **SETTINGS)
    classifier.fit(train.texts, train.labels)
    probabilities, truth = classifier.predict_proba(test.texts), classifier.encode_labels(test.labels)
    metrics = ProbabilityMetrics(n_bins=10)
    metrics.update(probabilities, truth)
    curves = {
        "all 423 tags of 1910 packages": metrics.reliability(),
        "the 10 most probable of each": metrics.reliability(top=True),
    }
    figure = reliability_diagram(curves)
    figure.savefig(picture, dpi=120)


if __name__ == "__main__":
    main(sys.argv[1])
