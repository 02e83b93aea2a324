"""One class out of ten on real images, with probabilities and uncertainty: `python examples/classes.py`.

Scikit-learn's 1797 handwritten digits of 8 x 8 pixels; a model without any image of a 9 shows what epistemic
uncertainty is for.
"""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from extremegp import MultiClassGPClassifier
from extremegp.metrics import evaluate_classes


def main() -> None:
    x, y = load_digits(return_X_y=True)
    x, test_x, y, test_y = train_test_split(x, y, test_size=0.3, random_state=0)

    classifier = MultiClassGPClassifier(n_inducing=100, epochs=20, random_state=0).fit(x, y)
    metrics = evaluate_classes(classifier.encode_labels(test_y), classifier.predict_proba(test_x))
    for name in ("accuracy", "nlpd", "ece", "top3_accuracy"):
        print(f"{name:14} {metrics[name]:.3f}")

    known = y != 9
    without_nine = MultiClassGPClassifier(n_inducing=100, epochs=20, mean_function="zero", random_state=0)
    without_nine.fit(x[known], y[known])
    uncertainty = without_nine.predict_uncertainty(test_x)
    for name, rows in (("digits it knows", test_y != 9), ("nines, which it never saw", test_y == 9)):
        print(f"{name:26} epistemic uncertainty {np.mean(uncertainty.epistemic[rows]):.3f} nats")


if __name__ == "__main__":
    main()
