from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import pytest

from extremegp.data import read_records, table_files
from extremegp.errors import DataError, SettingsError

VECTORS = np.arange(9, dtype=np.float32).reshape(3, 3) / 4
FRAME = pd.DataFrame(
    {
        "sku": ["s1", "s2", "s3"],
        "title": ["red car", "", "green apple"],
        "body": ["fast, loud", "unknown", ""],
        "tags": ["a; b", "", "b"],
        "kind": ["x", "y", "x"],
        "weight": [1, 0.5, 2],
        "tag_a": [1, 0, 0],
        "tag_b": [1, 0, 1],
        "emb_0": VECTORS[:, 0],
        "emb_1": VECTORS[:, 1],
        "emb_2": VECTORS[:, 2],
    }
)
TEXTS = ["red car fast, loud", "unknown", "green apple"]
LABELS = [["a", "b"], [], ["b"]]


def source(kind: str, folder: Path) -> Any:
    """The same rows in any of the forms that tables have."""
    lists = FRAME.assign(tags=LABELS, emb=list(VECTORS))
    if kind == "frame":
        return lists
    if kind == "arrow":
        return pyarrow.Table.from_pandas(lists)
    if kind == "hugging face":
        return DataSet(lists)
    path = folder / f"data.{kind}"
    if kind == "parquet":
        lists.to_parquet(path)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in json.loads(lists.to_json(orient="records"))))
    else:
        FRAME.to_csv(path, index=False, sep="," if kind == "csv" else "\t")
    return path


class DataSet:
    """As Hugging Face's `datasets.Dataset`: named columns, rows by slices as lists, and what numbers stand for."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self._frame = frame
        self.column_names = list(frame.columns)
        self.features = {"coded": SimpleNamespace(feature=SimpleNamespace(names=["a", "b"]))}

    def __len__(self) -> int:
        return len(self._frame)

    def __getitem__(self, rows: slice) -> dict[str, list[Any]]:
        return {name: list(self._frame[name].iloc[rows]) for name in self.column_names}


KINDS = ("csv", "tsv", "parquet", "jsonl", "frame", "arrow", "hugging face")


@pytest.mark.parametrize("values_at_a_time", [1, 1 << 22])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_the_same_from_every_kind_of_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, values_at_a_time: int
) -> None:
    monkeypatch.setattr(table_files, "_VALUES_AT_A_TIME", values_at_a_time)
    data = source(kind, tmp_path)
    separator = ";" if kind in ("csv", "tsv") else None
    texts = read_records(
        data, text=["title", "body"], labels="tags", label_separator=separator, ids="sku", weights="weight"
    )
    assert (texts.n_rows, texts.texts, texts.labels, texts.ids) == (3, TEXTS, LABELS, ["s1", "s2", "s3"])
    assert (texts.vectors, texts.classes) == (None, None)
    assert texts.weights is not None
    assert texts.weights.tolist() == [1, 0.5, 2]
    vectors = read_records(data, vectors="emb_*", label_columns="tag_*")
    assert vectors.vectors is not None
    np.testing.assert_array_equal(vectors.vectors, VECTORS)
    assert (vectors.feature_names, vectors.label_names) == (["emb_0", "emb_1", "emb_2"], ["tag_a", "tag_b"])
    assert vectors.labels.tolist() == [[1, 1], [0, 0], [0, 1]]
    both = read_records(data, text="title", vectors=["emb_2", "emb_0"], one_class="kind")
    assert both.texts == ["red car", "", "green apple"]
    assert both.vectors is not None
    np.testing.assert_array_equal(both.vectors, VECTORS[:, [2, 0]])
    assert both.classes is not None
    assert both.classes.tolist() == ["x", "y", "x"]
    if separator is None:
        listed = read_records(data, vectors="emb", one_class="kind").vectors
        assert listed is not None
        np.testing.assert_array_equal(listed, VECTORS)


def test_columns_that_are_nothing_else_are_features() -> None:
    records = read_records(FRAME[["emb_1", "tag_a", "emb_0", "kind"]], one_class="kind", label_columns=())
    assert records.feature_names == ["emb_1", "tag_a", "emb_0"]


def test_lists_in_text_tables_are_read_as_json_or_python_write_them(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    frame = pd.DataFrame(
        {"t": ["x", "y", "z"], "tags": ["['a', \"it's\"]", '["b", "c;d"]', "[]"], "v": ["[1, 2.5]", "3 4", "5,6"]}
    )
    frame.to_csv(path, index=False)
    records = read_records(path, text="t", labels="tags", vectors="v")
    assert records.labels == [["a", "it's"], ["b", "c;d"], []]
    assert records.vectors is not None
    assert records.vectors.tolist() == [[1, 2.5], [3, 4], [5, 6]]


def test_numbers_of_labels_become_the_names_that_a_data_set_has_for_them() -> None:
    data = DataSet(FRAME.assign(coded=[[0, 1], [], [1]]))
    assert read_records(data, text="title", labels="coded").labels == LABELS


def test_objects_with_a_uri_are_labels() -> None:
    frame = pd.DataFrame({"t": ["x"], "subjects": [[{"uri": "u:1", "label": "One"}, {"uri": "u:2"}]]})
    assert read_records(frame, text="t", labels="subjects").labels == [["u:1", "u:2"]]


@pytest.mark.parametrize(
    ("columns", "naming"),
    [
        ({"text": "nothing"}, "has no column 'nothing'; its columns are 'sku', 'title'"),
        ({"vectors": "nothing_*"}, "has no columns like 'nothing_*'"),
        ({"text": "title", "labels": "title"}, "the column 'title' is named for two things"),
        ({"text": "title", "label_columns": "emb_*"}, "the label column 'emb_2' has 1.25"),
        ({"vectors": "emb_*", "weights": "kind"}, "the column 'kind' has 'x'"),
        ({"text": "title", "vectors": "kind"}, "the column 'kind' has no list of finite numbers"),
        ({"text": "title", "labels": "tags"}, "'a; b' is a text, and nothing says what separates its labels"),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "frame"])
def test_what_a_column_cannot_be_is_told_with_its_place(
    tmp_path: Path, kind: str, columns: dict[str, Any], naming: str
) -> None:
    data = source("csv", tmp_path) if kind == "csv" else FRAME
    with pytest.raises(DataError) as caught:
        read_records(data, **columns)
    assert naming in str(caught.value)
    if kind == "csv":
        assert str(caught.value).startswith(f"{data}:")


@pytest.mark.parametrize(
    ("frame", "naming"),
    [
        (pd.DataFrame({"t": [1.5], "l": [["a"]]}), "the text column 't' has a float"),
        (pd.DataFrame({"t": ["x", "y"], "l": [["a"], [1.5]]}), "the column 'l' at row 1 (counted from 0): 1.5 is no"),
        (pd.DataFrame({"t": ["x"], "l": [{"a": 1}]}), "is no list of labels"),
        (pd.DataFrame({"t": [], "l": []}), "has no rows"),
    ],
)
def test_values_that_are_not_what_their_column_holds_are_told(frame: pd.DataFrame, naming: str) -> None:
    with pytest.raises(DataError) as caught:
        read_records(frame, text="t", labels="l")
    assert naming in str(caught.value)


def test_missing_texts_and_labels_are_none() -> None:
    frame = pd.DataFrame({"t": ["x", None, np.nan], "l": [None, np.nan, ["a"]]})
    records = read_records(frame, text="t", labels="l")
    assert (records.texts, records.labels) == (["x", "", ""], [[], [], ["a"]])


def test_rows_of_different_lengths_are_no_vectors() -> None:
    with pytest.raises(
        DataError, match=r"the column 'v' has 1 numbers at row 1 \(counted from 0\), but 2 in rows before"
    ):
        read_records(pd.DataFrame({"v": [[1, 2], [1]], "y": ["a", "b"]}), vectors="v", one_class="y")


def test_keys_of_json_lines_need_not_all_be_in_the_first(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"t": "x"}\n{"t": "y", "l": ["a"]}\n')
    assert read_records(path, text="t", labels="l").labels == [[], ["a"]]


def test_labels_are_named_in_one_way() -> None:
    with pytest.raises(SettingsError, match="name one of these"):
        read_records(FRAME, text="title", labels="tags", label_columns="tag_*")


@pytest.mark.parametrize("data", [{"train": 1}, SimpleNamespace(column_names={"train": ["a"], "test": ["a"]}), 3])
def test_what_is_no_table_is_told(data: Any) -> None:
    with pytest.raises(DataError, match=r"is no table|take one of them, such as data\['train'\]"):
        read_records(data, text="a")


def test_the_line_of_a_fault_in_json_lines_is_named(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"t": "x", "l": ["a"]}\n\n{"t": 3, "l": []}\n')
    with pytest.raises(DataError, match=r"data\.jsonl:3: the text column 't' has a int"):
        read_records(path, text="t", labels="l")
    path.write_text('{"t": "x"}\n[]\n')
    with pytest.raises(DataError, match=r"data\.jsonl:2: expected an object"):
        read_records(path, text="t")
