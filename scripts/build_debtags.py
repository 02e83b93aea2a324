"""Build the bundled dataset: descriptions of Debian packages and their debtags.

    python scripts/build_debtags.py --packages packages.json.xz --out src/extremegp/data/bundled

The input is a JSON list (plain or ``.xz``) of records ``[name, description, section, depends, debtags]`` taken from the
package index of Debian main; ``depends`` is not used. The output is ``debtags-train.jsonl.xz`` and
``debtags-test.jsonl.xz``: one object ``{"name", "text", "labels"}`` a line, packages and labels in alphabetical order.
The same input gives the same lines: nothing depends on a random generator or on hash order. The compressed bytes are
the same too, for one version of liblzma.

The steps:

1. Keep packages with at least ``MIN_TAGS`` debtags and ``MIN_CHARS`` characters of description. Labels are the debtags,
   without the vocabulary's ``TODO`` placeholders, plus ``section::NAME``.
2. Group packages that are likely to come from one source package. They share a stem of the name (``libfoo1``,
   ``libfoo-dev`` and ``python3-foo`` are all ``foo``), its first word (``foo-bar``), a paragraph of the description, or
   many word triples. A word or paragraph that more than ``MAX_SHARED`` packages share is too common to tell.
3. Of each group keep the ``MAX_PER_GROUP`` packages with most labels, and no text twice.
4. Draw whole groups into the test part, by a hash of the group's first name.
5. Drop labels with fewer than ``MIN_TRAIN`` training packages, then packages without a label.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

MIN_TAGS = 4
MIN_CHARS = 150
MIN_PARAGRAPH_WORDS = 12
MIN_OVERLAP = 0.3
MAX_SHARED = 40
MAX_PER_GROUP = 3
TEST_SHARE = 0.22
MIN_TRAIN = 10
SEED = "extremegp-debtags-1"

PREFIX = re.compile(
    r"^(?:lib(?:rust|ghc6?|mono|ext)?-?|python3?-|pypy-|ruby-|node-|golang-|r-(?:cran|bioc|other)-|php\d*-|haskell-|lua-|"
    r"erlang-|elpa-|cl-|tcl-|ocaml-|octave-|gir1\.2-|fonts?-|[ot]tf-|xfonts-|texlive-|task-)"
)
SUFFIX = re.compile(
    r"-(?:dev|devel|docs?|dbg|dbgsym|common|data|base|core|extras?|bin|runtime|utils?|tools?|progs?|examples?|headers|source|"
    r"server|client|daemon|gui|cli|tui|x11|nox|gtk|qt|gnome|kde|sdl|ncurses|curses|full|light|lite|all|static|plugins?|"
    r"modules?|mod|driver|manual|l10n|i18n|html|pdf|perl|java|ruby|php|lua|ocaml|cil|el|python|mysql|pgsql|sqlite|[a-z])$"
)
VERSION = re.compile(r"(?:-?v?\d[\d.+~]*[a-z]?|-\d[\w.]*)$")


@dataclass(frozen=True)
class Package:
    name: str
    text: str
    labels: tuple[str, ...]


def read_packages(path: Path) -> list[Package]:
    """The packages with enough tags and text, by name."""
    data = path.read_bytes()
    records = json.loads(lzma.decompress(data) if path.suffix == ".xz" else data)
    packages = []
    for name, text, section, _, debtags in records:
        tags = {tag for tag in debtags if not tag.endswith("TODO")}
        if len(tags) >= MIN_TAGS and len(text) >= MIN_CHARS:
            packages.append(Package(name, text, tuple(sorted({*tags, f"section::{section}"}))))
    return sorted(packages, key=lambda package: package.name)


def stem(name: str) -> str:
    """What is left of a package's name without language prefixes, kinds of content and versions."""
    before = ""
    while name != before:
        before = name
        for affix in (PREFIX, SUFFIX, VERSION):
            shorter = affix.sub("", name)
            # A stem of one or two letters would join strangers.
            name = shorter if len(shorter) > 2 else name
    return name


def relatives(name: str) -> set[str]:
    return {stem(name), re.split(r"[-.]", stem(name))[0]}


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def paragraphs(text: str) -> set[tuple[str, ...]]:
    """The word sequences of the paragraphs long enough to tell where a text comes from."""
    _, _, body = text.partition("\n")
    split = (tuple(words(paragraph)) for paragraph in body.split("\n.\n"))
    return {paragraph for paragraph in split if len(paragraph) >= MIN_PARAGRAPH_WORDS}


def links(keys: Iterable[Iterable[Hashable]]) -> list[tuple[int, int]]:
    """Pairs of positions that share a key of few holders, as chains: enough for connected components."""
    holders = defaultdict(list)
    for position, held in enumerate(keys):
        for key in held:
            holders[key].append(position)
    return [pair for positions in holders.values() if len(positions) <= MAX_SHARED for pair in pairwise(positions)]


def overlapping(texts: Sequence[str]) -> list[tuple[int, int]]:
    """Pairs of texts whose sets of word triples overlap: Jaccard index of at least ``MIN_OVERLAP``."""
    numbers: dict[tuple[str, str, str], int] = {}
    rows, columns = [], []
    for row, text in enumerate(texts):
        split = words(text)
        for triple in set(zip(split, split[1:], split[2:], strict=False)):
            rows.append(row)
            columns.append(numbers.setdefault(triple, len(numbers)))
    held = csr_array((np.ones(len(rows), dtype=np.int32), (rows, columns)), shape=(len(texts), len(numbers)))
    sizes: np.ndarray = held.sum(axis=1)
    shared = (held @ held.T).tocoo()
    left, right = shared.coords
    near = (left < right) & (shared.data >= MIN_OVERLAP * (sizes[left] + sizes[right] - shared.data))
    return list(zip(left[near].tolist(), right[near].tolist(), strict=True))


def group(packages: Sequence[Package]) -> list[list[Package]]:
    """The packages, each in one group of relatives; groups and their members in order of name."""
    texts = [package.text for package in packages]
    pairs = links(relatives(package.name) for package in packages)
    pairs += links(paragraphs(text) for text in texts)
    pairs += overlapping(texts)
    left, right = np.array(pairs).T
    graph = csr_array((np.ones(len(pairs), dtype=np.int8), (left, right)), shape=(len(packages), len(packages)))
    _, components = connected_components(graph, directed=False)
    members = defaultdict(list)
    for package, component in zip(packages, components.tolist(), strict=True):
        members[component].append(package)
    return list(members.values())


def richest(members: Sequence[Package]) -> list[Package]:
    """At most ``MAX_PER_GROUP`` of a group, those with most labels, no two with the same words."""
    distinct: dict[tuple[str, ...], Package] = {}
    for package in sorted(members, key=lambda package: (-len(package.labels), package.name)):
        distinct.setdefault(tuple(words(package.text)), package)
    return list(distinct.values())[:MAX_PER_GROUP]


def in_test(members: Sequence[Package]) -> bool:
    digest = hashlib.sha256(f"{SEED}:{members[0].name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < TEST_SHARE * 2**64


def split(groups: Sequence[Sequence[Package]]) -> tuple[list[Package], list[Package]]:
    """The training and the test packages, with the labels frequent enough in training."""
    train = [package for members in groups if not in_test(members) for package in richest(members)]
    test = [package for members in groups if in_test(members) for package in richest(members)]
    frequency = Counter(label for package in train for label in package.labels)

    def trimmed(packages: Iterable[Package]) -> list[Package]:
        kept = (
            Package(
                package.name, package.text, tuple(label for label in package.labels if frequency[label] >= MIN_TRAIN)
            )
            for package in packages
        )
        return sorted((package for package in kept if package.labels), key=lambda package: package.name)

    return trimmed(train), trimmed(test)


def write(path: Path, packages: Iterable[Package]) -> None:
    lines = (
        json.dumps({"name": package.name, "text": package.text, "labels": package.labels}, ensure_ascii=False) + "\n"
        for package in packages
    )
    path.write_bytes(lzma.compress("".join(lines).encode(), preset=9 | lzma.PRESET_EXTREME))


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the bundled debtags dataset.")
    parser.add_argument("--packages", type=Path, required=True, help="JSON list of package records, plain or .xz")
    parser.add_argument("--out", type=Path, required=True, help="folder for the two .jsonl.xz files")
    arguments = parser.parse_args()

    groups = group(read_packages(arguments.packages))
    parts = dict(zip(("train", "test"), split(groups), strict=True))
    arguments.out.mkdir(parents=True, exist_ok=True)
    for part, packages in parts.items():
        path = arguments.out / f"debtags-{part}.jsonl.xz"
        write(path, packages)
        labels = [label for package in packages for label in package.labels]
        print(
            f"{path}: {len(packages)} packages, {len(set(labels))} labels, "
            f"{len(labels) / len(packages):.2f} labels a package, {path.stat().st_size} bytes"
        )


if __name__ == "__main__":
    main()
