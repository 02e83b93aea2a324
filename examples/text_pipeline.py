"""A scikit-learn pipeline from texts to labels, with a grid search over settings: `python examples/text_pipeline.py`.

The vectoriser is scikit-learn's own, so that its settings can be searched together with those of the model.
"""

from __future__ import annotations

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MultiLabelBinarizer

from extremegp import MultiLabelGPClassifier
from extremegp.datasets import load_debtags
from extremegp.metrics import precision_at_k

EVERY = slice(None, None, 4)  # A quarter of the 6616 rows, so that nine fits take well under a minute.


def main() -> None:
    train, test = load_debtags()
    # scikit-learn's cross-validation takes labels as an indicator matrix, not as lists of names.
    binarizer = MultiLabelBinarizer(classes=train.label_names, sparse_output=True)
    y_train, y_test = binarizer.fit_transform(train.labels), binarizer.transform(test.labels)

    pipeline = Pipeline(
        [
            ("words", TfidfVectorizer(sublinear_tf=True, min_df=2)),
            (
                "gp",
                MultiLabelGPClassifier(n_inducing=50, n_latent=50, epochs=8, random_state=0, verbose=False),
            ),
        ]
    )
    grid = {"words__max_features": [1000, 5000], "gp__kl_weight": [0.3, 1.0]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(train.texts[EVERY], y_train[EVERY])

    for settings, score in zip(search.cv_results_["params"], search.cv_results_["mean_test_score"], strict=True):
        print(f"P@1 {score:.3f}  {settings}")
    print(f"best: {search.best_params_}")
    best = search.best_estimator_
    scores = best.decision_function(test.texts)
    print("test P@1, P@3, P@5:", precision_at_k(y_test, scores).round(3))


if __name__ == "__main__":
    main()
