"""Models of very many labels: trees of linear Gaussian processes, nearest rows, and a Gaussian process of both."""

from __future__ import annotations

from extremegp.label_tree.checkpoint import parts_folder
from extremegp.label_tree.model import LabelTreeModel
from extremegp.label_tree.prediction import LabelTreePredictor
from extremegp.label_tree.settings import LabelTreeSettings
from extremegp.label_tree.training import TreeTraining, grow
from extremegp.label_tree.tree import LevelSizes

__all__ = [
    "LabelTreeModel",
    "LabelTreePredictor",
    "LabelTreeSettings",
    "LevelSizes",
    "TreeTraining",
    "grow",
    "parts_folder",
]
