"""Estimators of texts of any script, with any options."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import extremegp
from extremegp import LabelTreeGPClassifier, MultiClassGPClassifier, MultiLabelGPClassifier
from extremegp.errors import SettingsError

SPORT = ["足球比赛今天开始", "球队赢得足球冠军", "足球运动员转会", "今天的足球比赛很精彩"]
MONEY = ["股票市场大幅下跌", "银行提高贷款利率", "股票价格上涨", "市场投资者关注银行"]
TEXTS = (SPORT + MONEY) * 4
CLASSES = (["sport"] * 4 + ["money"] * 4) * 4
ESTIMATORS: list[Any] = [
    MultiLabelGPClassifier(features="text", n_inducing=8, epochs=20, random_state=0),
    MultiClassGPClassifier(features="text", n_inducing=8, epochs=20, random_state=0),
    LabelTreeGPClassifier(features="text", leaf_size=2, random_state=0),
]


def targets(estimator: Any) -> Any:
    return CLASSES if isinstance(estimator, MultiClassGPClassifier) else [[name] for name in CLASSES]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
def test_texts_without_spaces_are_told_apart_and_a_saved_model_does_so_too(estimator: Any, tmp_path: Path) -> None:
    fitted = clone(estimator).fit(TEXTS, targets(estimator))
    new = ["足球冠军", "足球比赛", "股票下跌", "银行利率"]
    p = fitted.predict_proba(new)
    assert fitted.classes_[p.argmax(1)].tolist() == ["sport", "sport", "money", "money"]
    fitted.save(tmp_path / "model")
    np.testing.assert_array_equal(extremegp.load(tmp_path / "model").predict_proba(new), p)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
def test_options_of_texts_are_parameters_and_are_saved(estimator: Any, tmp_path: Path) -> None:
    options = {"analyzer": "char_wb", "ngram_range": (2, 3), "lowercase": False, "min_df": 1, "max_features": 20}
    fitted = clone(estimator).set_params(**options).fit(TEXTS, targets(estimator))
    assert fitted.features_.n_features_in == 20
    fitted.save(tmp_path / "model")
    loaded = extremegp.load(tmp_path / "model")
    assert {name: loaded.get_params()[name] for name in options} == options
    assert loaded.features_.analyse == fitted.features_.analyse


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
def test_texts_without_a_known_word_are_counted_in_a_warning(estimator: Any) -> None:
    fitted = clone(estimator).fit(TEXTS, targets(estimator))
    with pytest.warns(UserWarning, match="^2 of 3 texts have no word that is known from training") as told:
        fitted.predict_proba(["", "足球", "nothing known"])
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted.predict(["足球"])


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
def test_options_that_cannot_be_are_refused_before_any_data(estimator: Any) -> None:
    for option, problem in (
        ({"analyzer": "stem"}, "analyzer"),
        ({"ngram_range": (2, 1)}, "ngram_range"),
        ({"min_df": 0}, "min_df"),
    ):
        with pytest.raises(SettingsError, match=problem):
            clone(estimator).set_params(**option).check_params()
