"""Sentences of CoNLL-U, and documents of other libraries."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from extremegp.data import TokenFeatures, document_features, read_conllu
from extremegp.errors import DataError, SettingsError

TEXT = """\
# sent_id = 1
# text = Vamonos al mar
1-2\tVamonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tVamos\tir\tVERB\t_\tMood=Imp\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\t_\t_\t1\tobj\t_\t_
3-4\tal\t_\t_\t_\t_\t_\t_\t_\t_
3\ta\ta\tADP\t_\t_\t5\tcase\t_\t_
4\tel\tel\t_\t_\t_\t5\tdet\t_\t_
5\tmar\tmar\tNOUN\t_\t_\t1\tobl\t_\t_
5.1\tsi\tsi\tADV\t_\t_\t_\t_\t1:x\t_

# sent_id = 2
1\tSí mismo\tsí\tINTJ\t_\t_\t0\troot\t_\t_

"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "es.conllu").write_text(TEXT, encoding="utf-8")
    return tmp_path / "es.conllu"


def test_words_have_the_columns_and_labels_that_are_asked_for(path: Path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = read_conllu(path)
    assert found.sequences == [[("Vamos",), ("nos",), ("a",), ("el",), ("mar",)], [("Sí mismo",)]]
    assert found.labels == [["VERB", "PRON", "ADP", None, "NOUN"], ["INTJ"]]
    found = read_conllu(path, label="deprel", columns=["lemma", "upos"], max_sequences=1)
    assert found.sequences[0][:2] == [("ir", "VERB"), ("nosotros", "PRON")]
    assert found.labels == [["root", "obj", "case", "det", "obl"]]
    assert read_conllu(path, label=None).labels is None


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"label": "pos"}, "got 'pos'"),
        ({"columns": "form"}, "in a list, such as .*; it is 'form'"),
        ({"columns": []}, "in a list"),
        ({"columns": ["form", "upos"]}, "'upos' is among the columns"),
    ],
)
def test_fields_that_cannot_be_are_refused(path: Path, options: dict[str, Any], problem: str):
    with pytest.raises(SettingsError, match=problem):
        read_conllu(path, **options)


def test_files_of_other_columns_are_refused(tmp_path: Path):
    (tmp_path / "x.txt").write_text("a\tB\nb\tO\n")
    with pytest.raises(DataError, match="words have 2 fields separated by tabs, and in CoNLL-U 10"):
        read_conllu(tmp_path / "x.txt")


# Documents


def doc(text: str) -> list[Any]:
    return [
        SimpleNamespace(
            lower_=w.lower(), shape_="Xx", prefix_=w[0], suffix_=w[-3:], is_digit=w.isdigit(), is_title=w.istitle(),
            pos_="X", vector=np.array([len(w), 0.5]), dep=object(),
        )
        for w in text.split()
    ]  # fmt: skip


def test_tokens_of_documents_have_their_attributes_and_those_beside():
    ((first, second),) = document_features([doc("The dog")])
    assert first["lower_"] == "the"
    assert first["-1"] == {"outside": True}
    assert first["+1"] == {k: v for k, v in second.items() if k not in ("-1", "+1")}
    ((alone,),) = document_features(iter([doc("dog")]), attributes=["pos_"], window=0, vectors=True)
    assert alone.keys() == {"pos_", "vector"}
    features = TokenFeatures()
    x, lengths = features.fit_transform([[alone]])
    assert features.names == ["pos_:X", "vector:0", "vector:1"]
    assert x.toarray().tolist() == [[1, 3, 0.5]]
    assert lengths.tolist() == [1]


@pytest.mark.parametrize(
    ("options", "error", "problem"),
    [
        ({"attributes": ["tag_"]}, DataError, "token 0 of document 0 .* has no 'tag_'"),
        ({"attributes": ["dep"]}, DataError, "'dep' of token 0 of document 0 .* is a object, neither"),
        ({"attributes": "pos_"}, SettingsError, "attributes must be a list"),
        ({"window": -1}, SettingsError, "window must be an integer"),
        ({"window": True}, SettingsError, "window must be an integer"),
    ],
)
def test_documents_that_do_not_fit_are_refused(options: dict[str, Any], error: type[Exception], problem: str):
    with pytest.raises(error, match=problem):
        document_features([doc("The dog")], **options)


def test_arrays_of_numbers_are_features_beside_others():
    features = TokenFeatures()
    x, _ = features.fit_transform([[{"w": "a", "v": np.array([1, 0, -2])}, {"v": np.array([0.0, 3.0, 0.0])}]])
    assert features.names == ["v:0", "v:1", "v:2", "w:a"]
    assert x.toarray().tolist() == [[1, 0, -2, 1], [0, 3, 0, 0]]
    with pytest.raises(DataError, match="NaN as value of the feature 'v'"):
        features.transform([[{"v": np.array([np.nan])}]])
    with pytest.raises(DataError, match="ndarray as value of the feature 'v'"):
        features.transform([[{"v": np.eye(2)}]])
