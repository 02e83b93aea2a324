from __future__ import annotations

import builtins
import importlib
from pathlib import Path
from typing import Any

import pytest

from extremegp.data import Vocabulary, read_vocabulary
from extremegp.errors import DataError

TURTLE = """
@prefix skos: <http://www.w3.org/2004/02/skos/core#> .
@prefix owl: <http://www.w3.org/2002/07/owl#> .
@prefix dct: <http://purl.org/dc/terms/> .
@prefix e: <http://example.org/> .
e:cat a skos:Concept ; skos:prefLabel "cat"@en, "Katze"@de .
e:dog a skos:Concept ; skos:prefLabel "Hund"@de .
e:bird a skos:Concept .
e:hound a skos:Concept ; skos:prefLabel "hound"@en ; owl:deprecated true ; dct:isReplacedBy e:mutt .
e:mutt a skos:Concept ; owl:deprecated true ; dct:isReplacedBy e:dog .
e:dodo a skos:Concept ; skos:prefLabel "dodo"@en ; owl:deprecated true .
e:ring a skos:Concept ; owl:deprecated true ; dct:isReplacedBy e:ring2 .
e:ring2 a skos:Concept ; owl:deprecated true ; dct:isReplacedBy e:ring .
"""
BASE = "http://example.org/"
NAMES = {f"{BASE}cat": "cat", f"{BASE}dog": "Hund", f"{BASE}bird": f"{BASE}bird"}


def written(folder: Path, suffix: str) -> Path:
    path = folder / f"subjects{suffix}"
    if suffix in (".ttl", ".rdf", ".nt"):
        import rdflib

        graph = rdflib.Graph().parse(data=TURTLE, format="turtle")
        graph.serialize(path, format={".ttl": "turtle", ".rdf": "xml", ".nt": "nt"}[suffix], encoding="utf-8")
    return path


@pytest.mark.parametrize("suffix", [".ttl", ".rdf", ".nt"])
def test_skos_has_names_and_what_is_deprecated(tmp_path: Path, suffix: str) -> None:
    vocabulary = read_vocabulary(written(tmp_path, suffix))
    assert vocabulary.names == NAMES
    ends = {"hound": f"{BASE}dog", "mutt": f"{BASE}dog", "dodo": None, "ring": None, "ring2": None}
    assert vocabulary.replaced == {f"{BASE}{old}": new for old, new in ends.items()}
    assert read_vocabulary(written(tmp_path, suffix), "de").names[f"{BASE}cat"] == "Katze"


def test_tables_have_an_identifier_and_a_name(tmp_path: Path) -> None:
    path = tmp_path / "v.tsv"
    path.write_text("<u:1>\tOne\nu:2\tTwo\tnotation\n\nu:3\t\n")
    assert read_vocabulary(path).names == {"u:1": "One", "u:2": "Two", "u:3": "u:3"}
    path = tmp_path / "v.csv"
    path.write_text('uri,label_fi,label_en\nu:1,Yksi,"One, 1"\n<u:2>,Kaksi,Two\n')
    assert read_vocabulary(path).names == {"u:1": "One, 1", "u:2": "Two"}
    assert read_vocabulary(path, "fi").names == {"u:1": "Yksi", "u:2": "Kaksi"}


@pytest.mark.parametrize(
    ("name", "content", "naming"),
    [
        ("v.tsv", "u:1\tOne\nu:1\tTwo\n", r"v\.tsv:2: 'u:1' is called 'One' before and 'Two' here"),
        ("v.tsv", "u:1 One\n", r"v\.tsv:1: expected an identifier, a tab and a name"),
        ("v.tsv", "\n\n", r"v\.tsv: the vocabulary has no subjects"),
        ("v.csv", "id,name\n1,a\n", "must have the columns 'uri' and 'label_en'"),
        ("v.ttl", "this is no turtle", r"v\.ttl: not readable as turtle"),
        ("v.rdf", "<a>", r"v\.rdf: not readable as xml"),
        ("v.ttl", "@prefix e: <http://e.org/> . e:a e:b e:c .", "has no concepts in use"),
        ("v.txt", "u:1\tOne\n", "must end in one of .tsv, .csv, .ttl"),
    ],
)
def test_what_is_no_vocabulary_is_told(tmp_path: Path, name: str, content: str, naming: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=naming):
        read_vocabulary(tmp_path / name)


def test_skos_without_rdflib_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "v.ttl"
    path.write_text(TURTLE)

    def refuse(name: str, *args: Any) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(DataError, match=r"pip install 'extremegp\[skos\]'"):
        read_vocabulary(path)
    assert builtins.__import__ is not refuse


def test_labels_are_brought_up_to_date() -> None:
    vocabulary = Vocabulary({"a": "A", "b": "B"}, {"old": "a", "gone": None})
    found = vocabulary.reconcile([["a", "old"], ["gone", "b"], ["new"], ["new", "old"]])
    assert found.labels == [["a"], ["b"], ["new"], ["new", "a"]]
    assert (found.unknown, found.deprecated) == ({"new": 2}, {"old": 2, "gone": 1})
    assert vocabulary.titles(["b", "new", 3]) == ["B", "new", "3"]
