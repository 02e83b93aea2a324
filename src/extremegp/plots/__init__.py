"""Pictures of training, of predictions and of what a model has learnt, as Matplotlib figures.

Needs Matplotlib, `pip install 'extremegp[plot]'`, which is imported when the first picture is drawn; without it every
function raises an ImportError. Each gives a `matplotlib.figure.Figure` of its own, outside of pyplot: a notebook shows
it as the last value of a cell, without `%matplotlib inline`, and `figure.savefig("picture.png")` writes it.
"""

from extremegp.plots.evaluation import (
    class_report,
    confusion_matrix,
    label_report,
    precision_recall_curves,
    reliability_diagram,
)
from extremegp.plots.explanations import explanation_bars
from extremegp.plots.figures import (
    COLOURS,
    DASHES,
    STYLE,
    error_curve,
    inducing_images,
    learning_curve,
    panels,
    risk_coverage_curves,
    zoom,
)

__all__ = [
    "COLOURS",
    "DASHES",
    "STYLE",
    "class_report",
    "confusion_matrix",
    "error_curve",
    "explanation_bars",
    "inducing_images",
    "label_report",
    "learning_curve",
    "panels",
    "precision_recall_curves",
    "reliability_diagram",
    "risk_coverage_curves",
    "zoom",
]
