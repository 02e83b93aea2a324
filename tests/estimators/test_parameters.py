from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import get_type_hints

import pytest

from extremegp.estimators import (
    GPEstimator,
    LabelTreeGPClassifier,
    MultiClassGPClassifier,
    MultiLabelGPClassifier,
    SequenceGPClassifier,
)
from extremegp.estimators.parameters import parameter_entries

ESTIMATORS = (LabelTreeGPClassifier, MultiClassGPClassifier, MultiLabelGPClassifier, SequenceGPClassifier)
OTHERS_ATTRIBUTES = ("model_", "settings_", "features_", "label_space_", "_kept")


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_parameter_is_documented_once_in_the_help_of_an_estimator(estimator: type[GPEstimator]):
    parameters = inspect.signature(estimator).parameters
    arguments = estimator.__doc__.partition("\nArgs:\n")[2].partition("\n\nAttributes:\n")[0]
    names = [line.strip().partition(":")[0] for line in arguments.splitlines() if not line.startswith(5 * " ")]
    assert names == list(parameters)
    assert "\n\nExamples:\n" in estimator.__doc__


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_parameters_are_keywords_with_types_and_defaults_and_learnt_attributes_are_none(estimator: type[GPEstimator]):
    parameters, hints = inspect.signature(estimator).parameters, get_type_hints(estimator)
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters.values())
    assert estimator().get_params() == {name: parameter.default for name, parameter in parameters.items()}
    assert parameters.keys() <= hints.keys()
    assert not parameters.keys() & set(OTHERS_ATTRIBUTES)
    assert not any(hasattr(estimator(), name) for name in OTHERS_ATTRIBUTES if name.endswith("_"))


@dataclass(kw_only=True, repr=False, eq=False)
class Changed(LabelTreeGPClassifier):
    """Other trees.

    Args:
        beam: wider than that
            of its parent.
        depth: of something.

    Raises:
        nothing: at all.
    """

    beam: int = 20
    depth: int = 3


def test_a_class_that_documents_a_parameter_has_the_last_word_and_keeps_the_other_sections():
    entries = parameter_entries(Changed.__doc__)
    assert entries["beam"] == "    beam: wider than that\n        of its parent."
    assert entries["leaf_size"] == parameter_entries(LabelTreeGPClassifier.__doc__)["leaf_size"]
    assert entries.keys() == inspect.signature(Changed).parameters.keys()
    assert Changed.__doc__.startswith("Other trees.\n\nArgs:\n    analyzer: ")
    assert Changed.__doc__.endswith("\n\nRaises:\n    nothing: at all.")
    assert (Changed().beam, LabelTreeGPClassifier().beam) == (20, 10)


def test_a_class_without_a_list_of_parameters_keeps_its_docstring():
    class Own(LabelTreeGPClassifier):
        """My own."""

    class Silent(LabelTreeGPClassifier):
        pass

    assert (Own.__doc__, Silent.__doc__) == ("My own.", None)
