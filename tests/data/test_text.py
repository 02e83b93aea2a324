from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extremegp.data.text import TextDataset, read_jsonl, write_jsonl
from extremegp.errors import DataError

GOOD = '{"text": "a tag", "labels": ["x", "y"], "id": 3}\n{"labels": [], "text": "é"}\n'


def save(folder: Path, content: str | bytes) -> Path:
    path = folder / "data.jsonl"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_texts_and_labels_are_read_and_other_keys_and_blank_lines_skipped(tmp_path: Path) -> None:
    expected = TextDataset(["a tag", "é"], [["x", "y"], []])
    assert read_jsonl(save(tmp_path, GOOD)) == expected
    assert read_jsonl(save(tmp_path, GOOD.replace("\n", "\r\n\r\n"))) == expected
    assert read_jsonl(save(tmp_path, "\n" + GOOD.rstrip("\n"))) == expected


def test_labels_may_be_absent_everywhere(tmp_path: Path) -> None:
    assert read_jsonl(save(tmp_path, '{"text": "a"}\n{"text": "b"}\n')) == TextDataset(["a", "b"], None)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"text": "a"', "not valid JSON.* character 13"),
        ("hello", "not valid JSON"),
        ("[1]", "not a list"),
        ("3", "not a number"),
        ("null", "not null"),
        ('{"labels": []}', '"text" is missing'),
        ('{"text": 3, "labels": []}', '"text" must be a string, not a number'),
        ('{"text": "a", "labels": "x"}', '"labels" must be a list of strings.*not a string'),
        ('{"text": "a", "labels": null}', '"labels" must be a list of strings.*not null'),
        ('{"text": "a", "labels": ["x", 3]}', "only strings, not a number"),
        ('{"text": "a", "labels": ["x", true]}', "only strings, not a truth value"),
        ('{"text": "a"}', "every line must have"),
        (r'{"text": "\ud800", "labels": []}', "surrogate"),
        (r'{"text": "a", "labels": ["\udc00"]}', "surrogate"),
        (b'{"text": "\xe9", "labels": []}', "not UTF-8"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_bad_line_is_refused_with_its_number(tmp_path: Path, line: str | bytes, problem: str) -> None:
    content = GOOD.encode() + (line.encode() if isinstance(line, str) else line) + b"\n" + GOOD.encode()
    with pytest.raises(DataError, match=rf"data\.jsonl:3: .*{problem}"):
        read_jsonl(save(tmp_path, content))


def test_labels_that_start_late_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r":2: either every line must have"):
        read_jsonl(save(tmp_path, '{"text": "a"}\n{"text": "b", "labels": ["x"]}\n'))


def test_files_without_records_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="empty"):
        read_jsonl(save(tmp_path, ""))
    with pytest.raises(DataError, match="only blank lines"):
        read_jsonl(save(tmp_path, "\n \n"))


strings = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@given(rows=st.lists(st.tuples(strings, st.lists(strings, max_size=3)), min_size=1, max_size=5), labelled=st.booleans())
def test_what_is_written_reads_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, list[str]]], labelled: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "round_trip.jsonl.gz"
    texts = [text for text, _ in rows]
    labels = [row for _, row in rows] if labelled else None
    write_jsonl(path, texts, labels)
    assert read_jsonl(path) == TextDataset(texts, labels)


@pytest.mark.parametrize(
    ("texts", "labels", "problem"),
    [
        ([], None, "at least one text"),
        ("ab", None, "must be a list"),
        (["a", "b"], [["x"]], "2 texts but 1 label lists"),
        (["a"], ["x"], "must be a list of strings"),
        (["a"], [[1]], "only strings"),
        (["a", 1], None, ":2: .*must be a string"),
        ([b"a"], None, "not strings"),
    ],
)
def test_the_writer_refuses_what_it_could_not_read_and_leaves_no_file(
    tmp_path: Path, texts: Any, labels: Any, problem: str
) -> None:
    with pytest.raises(DataError, match=problem):
        write_jsonl(tmp_path / "data.jsonl", texts, labels)
    assert list(tmp_path.iterdir()) == []


def test_lines_are_plain_json(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    write_jsonl(path, ["line\nbreak \u2028"], [("x",)])
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"text": "line\nbreak \u2028", "labels": ["x"]}
    ]
