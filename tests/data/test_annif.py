from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from extremegp.data.annif import documents, is_documents, is_short_texts, short_texts
from extremegp.errors import DataError

LINES = "Cats and dogs\t<http://example.org/c> <http://example.org/d>\n\nA text\twith a tab? no: u:1 u:2\nNone\t\n"


def test_short_texts_have_uris_after_a_tab(tmp_path: Path) -> None:
    path = tmp_path / "corpus.tsv.gz"
    path.write_bytes(gzip.compress(LINES.encode()))
    assert is_short_texts(path)
    (block,) = short_texts(path)
    assert block.texts == ["Cats and dogs", "A text", "None"]
    assert block.labels == [
        ["http://example.org/c", "http://example.org/d"],
        ["with", "a", "tab?", "no:", "u:1", "u:2"],
        [],
    ]
    assert block.end.row == 3


@pytest.mark.parametrize("line", ["a\tb\n1\t2\n", "text\tsubject_uris\n", "no tab\n", "a\t<u:1> b\n"])
def test_other_tables_are_no_short_texts(tmp_path: Path, line: str) -> None:
    (tmp_path / "t.tsv").write_text(line)
    assert not is_short_texts(tmp_path / "t.tsv")


def test_a_line_without_a_tab_is_named(tmp_path: Path) -> None:
    path = tmp_path / "corpus.tsv"
    path.write_text("a\t<u:1>\nb\n")
    with pytest.raises(DataError, match=r"corpus\.tsv:2: there is no tab between a text and its subjects"):
        list(short_texts(path))
    (block,) = short_texts(path, labelled=False)
    assert (block.texts, block.labels) == (["a", "b"], None)


def test_folders_have_subjects_beside_texts(tmp_path: Path) -> None:
    for name, content in {
        "b.txt": "zwei",
        "a.txt": "\ufeffeins",
        "c.txt": "",
        "a.tsv": "<u:1>\tOne\n<u:2>\tTwo\n",
        "a.key": "ignored\n",
        "b.key": "One\n\nTwo words\n",
        "other.md": "x",
    }.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    assert is_documents(tmp_path)
    ((names, block),) = documents(tmp_path)
    assert (names, block.texts) == (["a", "b", "c"], ["eins", "zwei", ""])
    assert block.labels == [["u:1", "u:2"], ["One", "Two words"], []]
    rest = [block.texts for _, block in documents(tmp_path, block.end._replace(row=1))]
    assert rest == [["zwei", ""]]


def test_folders_without_subjects_are_for_prediction(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("Gr\xfc\xdfe".encode("latin-1"))
    with pytest.raises(DataError, match="has no subjects"):
        list(documents(tmp_path))
    with pytest.raises(DataError, match=r"a\.txt: not UTF-8"):
        list(documents(tmp_path, labelled=False))
    assert not is_documents(tmp_path / "a.txt")
