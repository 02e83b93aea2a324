"""Vocabularies: what the identifiers of subjects are called, from tables of names or SKOS files."""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from extremegp.data.label_lists import plain_uri
from extremegp.data.labels import Label
from extremegp.errors import DataError, located
from extremegp.storage.streams import as_stream, base_suffix, byte_blocks, line_blocks, utf8

_RDF = {".ttl": "turtle", ".rdf": "xml", ".xml": "xml", ".nt": "nt"}
SUFFIXES = (".tsv", ".csv", *_RDF)


class Reconciled(NamedTuple):
    """Labels of rows as a vocabulary has them.

    Attributes:
        labels: N lists of identifiers; deprecated ones are replaced, or left out where nothing replaces them.
        unknown: identifiers that the vocabulary lacks, which are kept, and how often they occur.
        deprecated: deprecated identifiers, and how often they occurred.
    """

    labels: list[list[Label]]
    unknown: dict[Label, int]
    deprecated: dict[Label, int]


@dataclass(frozen=True)
class Vocabulary:
    """The subjects that there are.

    Attributes:
        names: what every identifier in use is called.
        replaced: of deprecated identifiers, what is used instead, or None.
    """

    names: Mapping[str, str]
    replaced: Mapping[str, str | None] = field(default_factory=dict)

    def titles(self, labels: Iterable[Any]) -> list[str]:
        """What labels are called: their names, or where there is none, what they are."""
        return [self.names.get(str(label), str(label)) for label in labels]

    def reconcile(self, rows: Iterable[Sequence[Label]]) -> Reconciled:
        """Bring the labels of rows up to date, and count those that the vocabulary does not know."""
        unknown: dict[Label, int] = {}
        deprecated: dict[Label, int] = {}
        kept: list[list[Label]] = []
        for row in rows:
            kept.append([])
            for label in row:
                current: Label | None = label
                if label in self.replaced:
                    deprecated[label] = deprecated.get(label, 0) + 1
                    current = self.replaced[str(label)]
                elif label not in self.names:
                    unknown[label] = unknown.get(label, 0) + 1
                if current is not None and current not in kept[-1]:
                    kept[-1].append(current)
        return Reconciled(kept, unknown, deprecated)


def read_vocabulary(path: str | Path, language: str = "en") -> Vocabulary:
    """Read a vocabulary.

    Args:
        path: a .tsv of identifier and name a line (``<URI><TAB>name``, perhaps with more columns after them); a .csv
            with the columns ``uri`` and ``label_en`` or ``label``; or SKOS as .ttl, .rdf, .xml or .nt, whose concepts
            are deprecated by ``owl:deprecated`` and replaced by ``dcterms:isReplacedBy`` (needs `rdflib`:
            ``pip install 'extremegp[skos]'``). .gz, .bz2, .xz and .zst are decompressed.
        language: of names, where there are several; where it lacks one, any other serves.

    Raises:
        DataError: the file cannot be read, has another suffix, or names an identifier twice in different ways; names
            the file and the line.
    """
    path = Path(path)
    suffix = base_suffix(path)
    if suffix in _RDF:
        return _skos(path, _RDF[suffix], language)
    if suffix not in SUFFIXES:
        raise DataError(f"a vocabulary's name must end in one of {', '.join(SUFFIXES)}", path=path)
    names = _tab_separated(path) if suffix == ".tsv" else _comma_separated(path, language)
    if not names:
        raise DataError("the vocabulary has no subjects", path=path)
    return Vocabulary(names)


def _tab_separated(path: Path) -> dict[str, str]:
    names: dict[str, str] = {}
    for number, line in enumerate(as_stream(line_blocks(path)), 1):
        with located(path, number):
            cells = [cell.strip() for cell in utf8(line).rstrip("\r\n").split("\t")]
            if not any(cells):
                continue
            if len(cells) < 2 or not cells[0]:
                raise DataError("expected an identifier, a tab and a name")
            _add(names, cells[0], cells[1])
    return names


def _comma_separated(path: Path, language: str) -> dict[str, str]:
    names: dict[str, str] = {}
    text = io.TextIOWrapper(as_stream(line_blocks(path)), encoding="utf-8", newline="")
    reader = csv.DictReader(text)
    try:
        columns = reader.fieldnames or []
        wanted = next((name for name in (f"label_{language}", "label", "name") if name in columns), None)
        wanted = wanted or next((name for name in columns if name.startswith("label_")), None)
        if "uri" not in columns or wanted is None:
            raise DataError(
                f"must have the columns 'uri' and 'label_{language}' (or 'label'); it has {', '.join(columns)}",
                path=path,
            )
        for row in reader:
            if row["uri"]:
                with located(path, reader.line_num):
                    _add(names, row["uri"], row[wanted] or "")
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"not a UTF-8 table: {error}", path=path, line=reader.line_num + 1) from error
    return names


def _add(names: dict[str, str], identifier: str, name: str) -> None:
    identifier = plain_uri(identifier)
    if names.setdefault(identifier, name or identifier) != (name or identifier):
        raise DataError(f"{identifier!r} is called {names[identifier]!r} before and {name!r} here; keep one line of it")


def _skos(path: Path, format: str, language: str) -> Vocabulary:
    try:
        rdflib = importlib.import_module("rdflib")
    except ImportError as error:
        raise DataError("SKOS vocabularies need rdflib: pip install 'extremegp[skos]'", path=path) from error
    from rdflib.namespace import DCTERMS, OWL, RDF, SKOS

    graph = rdflib.Graph()
    try:
        graph.parse(data=b"".join(byte_blocks(path)), format=format)
    except DataError:
        raise
    # Its parsers raise errors of many kinds, of XML, of Turtle and of their own.
    except Exception as error:
        raise DataError(f"not readable as {format}: {' '.join(str(error).split())[:200]}", path=path) from error
    names: dict[str, str] = {}
    replaced: dict[str, str | None] = {}
    for concept in graph.subjects(RDF.type, SKOS.Concept):
        if any(str(value).lower() in ("true", "1") for value in graph.objects(concept, OWL.deprecated)):
            successor = graph.value(concept, DCTERMS.isReplacedBy)
            replaced[str(concept)] = None if successor is None else str(successor)
            continue
        labels = sorted(
            graph.objects(concept, SKOS.prefLabel), key=lambda label: (label.language != language, str(label))
        )
        names[str(concept)] = str(labels[0]) if labels else str(concept)
    if not names:
        raise DataError("has no concepts in use (skos:Concept)", path=path)
    return Vocabulary(names, {old: _end(old, replaced) for old in replaced})


def _end(old: str, replaced: Mapping[str, str | None]) -> str | None:
    """Where a chain of replacements leads, if it does not turn in circles."""
    seen, current = {old}, replaced[old]
    while current is not None and current in replaced and current not in seen:
        seen.add(current)
        current = replaced[current]
    return None if current in seen else current
