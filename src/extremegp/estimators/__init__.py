"""scikit-learn estimators: the user's door."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from extremegp.engine.part import Part
from extremegp.engine.selection import Selection
from extremegp.errors import ModelFormatError
from extremegp.estimators.base import GPEstimator
from extremegp.estimators.class_sets import ClassDecisions
from extremegp.estimators.decisions import Decisions
from extremegp.estimators.explanations import Explanation, Share
from extremegp.estimators.guarantees import Guarantee
from extremegp.estimators.label_issues import LabelIssue
from extremegp.estimators.label_tree import LabelTreeGPClassifier
from extremegp.estimators.learning import Staleness
from extremegp.estimators.left_out import LeftOutRows
from extremegp.estimators.multiclass import MultiClassGPClassifier
from extremegp.estimators.multilabel import MultiLabelGPClassifier
from extremegp.estimators.multilabel_estimator import MultiLabelEstimator
from extremegp.estimators.replay import do_again
from extremegp.estimators.sequence_sets import SequenceDecisions
from extremegp.estimators.sequences import SequenceGPClassifier
from extremegp.estimators.uncertainty import LabelUncertainty, Uncertainty, UtilityMoments
from extremegp.prediction.selection import Selected
from extremegp.storage import journal, models

__all__ = [
    "ClassDecisions",
    "Decisions",
    "Explanation",
    "GPEstimator",
    "Guarantee",
    "LabelIssue",
    "LabelTreeGPClassifier",
    "LabelUncertainty",
    "LeftOutRows",
    "MultiClassGPClassifier",
    "MultiLabelEstimator",
    "MultiLabelGPClassifier",
    "Selected",
    "Selection",
    "SequenceDecisions",
    "SequenceGPClassifier",
    "Share",
    "Staleness",
    "Uncertainty",
    "UtilityMoments",
    "load",
]

_ESTIMATORS: dict[str, type[GPEstimator]] = {
    cls.__name__: cls
    for cls in (LabelTreeGPClassifier, MultiClassGPClassifier, MultiLabelGPClassifier, SequenceGPClassifier)
}


def load(
    folder: str | Path, *, device: str = "cpu", parts: Sequence[type[Part]] = (), mapped: bool = True
) -> GPEstimator:
    """The fitted estimator that `save` wrote to a folder; it predicts to the same bits.

    Args:
        folder: the model folder. Nothing in it is executed, and no size in it is believed before it is checked.
        device: where to compute, as PyTorch names it.
        parts: the classes of kernels and likelihoods of your own that the model has.
        mapped: whether what is large in a model of label trees stays in the file, mapped into memory, which several
            processes then share. `save` and the removal of the folder do no harm to a model that is open so, but its
            file must not be written to or cut short, as copying another one over it in place would.

    Raises:
        ModelFormatError: the folder is not an intact model of this version.

    What the model was told since it was saved (`keep_journal`) is done again.
    """
    config = models.read_config(folder)
    cls = _ESTIMATORS.get(str(config.get("estimator")))
    if cls is None:
        raise ModelFormatError(f"{folder}: unknown estimator {config.get('estimator')!r}")
    tensors = models.read_model_tensors(folder, config, mapped=cls._mapped_tensors if mapped else ())
    estimator = cls._from_saved(folder, config, tensors, torch.device(device), parts)
    tensors.release()
    for call in journal.calls(folder, str(config.get("sha256"))):
        do_again(estimator, call, folder)
    return estimator
