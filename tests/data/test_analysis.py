from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer

from extremegp.data import convert, make_features, open_dataset, write_jsonl
from extremegp.data.analysis import Analyser
from extremegp.data.features import Features
from extremegp.data.mapped import CONFIG
from extremegp.errors import DataError, SettingsError

SPACED = [
    "A Gaussian process, a prior over functions: GP-LVM x_1 3D",
    "Ähnliche Wörter stehen für Ähnliches; straße İstanbul",
    "гауссовский процесс и процесс",
    "가우스 과정은 함수의 분포",
    "عملية غاوس διαδικασία e\u0301té café",
    "",
]


@pytest.mark.parametrize(
    ("options", "of_sklearn"),
    [
        ({}, {}),
        ({"ngram_range": (1, 2), "lowercase": False}, {"ngram_range": (1, 2), "lowercase": False}),
        ({"analyzer": "char_wb", "ngram_range": (3, 5)}, {"analyzer": "char_wb", "ngram_range": (3, 5)}),
        ({"analyzer": "char"}, {"analyzer": "char", "ngram_range": (2, 4)}),
        ({"analyzer": "word"}, {}),
    ],
)
def test_texts_with_spaces_have_the_features_of_scikit_learn_to_the_bit(options: Any, of_sklearn: Any) -> None:
    step = make_features("text", min_df=1, **options).fit(SPACED)
    expected = TfidfVectorizer(sublinear_tf=True, dtype=np.float32, **of_sklearn).fit(SPACED)
    ours, theirs = step.transform(SPACED), expected.transform(SPACED)
    for name in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))


@given(st.text(st.characters(max_codepoint=0x8FF), max_size=40), st.sampled_from([(1, 1), (1, 3)]))
def test_words_of_any_text_of_scripts_with_spaces_are_those_of_scikit_learn(text: str, pair: tuple[int, int]) -> None:
    assert Analyser(ngram_range=pair)(text) == CountVectorizer(ngram_range=pair).build_analyzer()(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "足球冠军\uff0c足",
            "足 球 冠 军 足球 球冠 冠军 足",
        ),
        ("iPhone手机 and 5G网", "iphone 手 机 手机 and 5g 网"),
        (
            "カメラは\u3001ｶﾒ",
            "カ メ ラ は カメ メラ ラは ｶ ﾒ ｶﾒ",
        ),
        ("น้ำ x ก", "น้ ้ำ น้ำ ก"),
        (
            "ຂ້ອຍ",
            "ຂ້ ້ອ ອຍ ຂ້ອ ້ອຍ ຂ້ອຍ",
        ),
        ("កា\u17d4\u1041\u1042", "កា \u1041\u1042"),
        (
            "हिन्दी में\u0964 GP",
            "हिन्दी में gp",
        ),
    ],
)
def test_words_of_scripts_without_spaces_are_sequences_of_characters(text: str, words: str) -> None:
    assert Analyser()(text) == words.split(" ")


def test_sequences_of_words_do_not_reach_over_other_scripts() -> None:
    words = Analyser(ngram_range=(2, 2))("red apple 手 green car")
    assert words == ["red apple", "手", "green car"]


def test_characters_can_always_be_stored() -> None:
    text = "one\ntwo\u2028\ud800\r\nthree"
    for analyzer in ("char", "char_wb"):
        step = make_features("text", min_df=1, analyzer=analyzer).fit([text])
        config, arrays = step.to_state()
        restored = Features.from_state(json.loads(json.dumps(config)), arrays)
        np.testing.assert_array_equal(restored.transform([text]).data, step.transform([text]).data)


def test_an_analyser_is_its_options_however_it_comes() -> None:
    analyse = Analyser("char_wb", (2, 3), lowercase=False)
    analyse("Warm")
    for same in (
        pickle.loads(pickle.dumps(analyse)),
        Analyser.from_config(json.loads(json.dumps(analyse.to_config()))),
    ):
        assert same == analyse
        assert same("A word") == analyse("A word")


def test_a_stored_step_that_knows_no_analyser_keeps_its_words() -> None:
    clause = "足球比赛"
    config = {"kind": "text", "n_features": 1, "min_df": 2, "max_features": None}
    arrays = {"words": np.frombuffer(clause.encode(), np.uint8), "idf": np.ones(1, np.float32)}
    assert Features.from_state(config, arrays).transform([clause, clause[:2]]).toarray().tolist() == [[1], [0]]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"analyzer": "stem"}, "analyzer must be one of auto, word, char, char_wb, not 'stem'"),
        ({"ngram_range": (2, 1)}, "ngram_range must be"),
        ({"ngram_range": (0, 1)}, "ngram_range must be"),
        ({"ngram_range": (1, 2, 3)}, "ngram_range must be"),
        ({"ngram_range": (True, 2)}, "ngram_range must be"),
    ],
)
def test_other_options_are_refused(options: Any, problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        Analyser(**options)


CHINESE = [
    "足球比赛今天",
    "足球冠军",
    "股票市场",
    "股票价格",
]


@pytest.mark.parametrize("options", [{}, {"analyzer": "char", "ngram_range": (1, 1)}, {"analyzer": "word"}])
def test_a_conversion_counts_the_words_of_the_step_and_test_data_the_same(tmp_path: Path, options: Any) -> None:
    texts = [f"{text} sport" for text in CHINESE]
    write_jsonl(tmp_path / "a.jsonl", texts, [["a"], ["a"], ["b"], ["b"]])
    write_jsonl(tmp_path / "new.jsonl", ["足球 new"], [["a"]])
    convert(tmp_path / "a.jsonl", tmp_path / "a", **options)
    convert(tmp_path / "new.jsonl", tmp_path / "new", like=tmp_path / "a")
    step = make_features("text", **options).fit(texts)
    weighted = make_features("tfidf").fit(open_dataset(tmp_path / "a").X)
    for name, of in (("a", texts), ("new", ["足球 new"])):
        np.testing.assert_array_equal(
            weighted.transform(open_dataset(tmp_path / name).X).toarray(), step.transform(of).toarray()
        )


def test_a_converted_data_set_that_does_not_say_what_words_are_has_those_of_earlier_versions(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", [CHINESE[0], CHINESE[0]], [["a"], ["a"]])
    convert(tmp_path / "a.jsonl", tmp_path / "a", analyzer="word")
    path = tmp_path / "a" / CONFIG
    config = json.loads(path.read_bytes())
    del config["words"]
    path.write_text(json.dumps(config))
    convert(tmp_path / "a.jsonl", tmp_path / "like", like=tmp_path / "a")
    assert open_dataset(tmp_path / "like").X.toarray().tolist() == [[1], [1]]
    path.write_text(json.dumps(config | {"words": {"analyzer": "stem"}}))
    with pytest.raises(DataError, match="sizes that no data set has"):
        open_dataset(tmp_path / "a")
