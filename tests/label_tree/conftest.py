"""A short training of the Gaussian process of the evidence, and one trained model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.label_tree.small import small_classifier, small_data

from extremegp import LabelTreeGPClassifier
from extremegp.label_tree import combiner


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(combiner, "_STEPS", 6)


@pytest.fixture(scope="session")
def fitted() -> Iterator[LabelTreeGPClassifier]:
    """Tests must not change it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(combiner, "_STEPS", 25)
        yield small_classifier().fit(*small_data())
