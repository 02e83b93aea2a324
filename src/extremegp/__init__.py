"""Variational Gaussian processes for classification at extreme scale."""

from extremegp import datasets
from extremegp.__about__ import __version__
from extremegp.estimators import MultiLabelGPClassifier, load

__all__ = ["MultiLabelGPClassifier", "__version__", "datasets", "load"]
