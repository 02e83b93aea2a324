"""The plan of the folders: what may import what."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from extremegp.engine.part import Part

SOURCE = Path(__file__).parents[1] / "src" / "extremegp"
ROOMS = (
    "errors",
    "progress",
    "threads",
    "engine",
    "storage",
    "data",
    "metrics",
    "settings",
    "training",
    "prediction",
    "label_tree",
    "presets",
    "estimators",
    "datasets",
    "plots",
    "testing",
    "export",
    "server",
    "report",
    "cli",
)


def imported_rooms(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "extremegp":
            names = [f"extremegp.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [node.module]
        yield from (name.split(".")[1] for name in names if name.startswith("extremegp."))


def test_every_room_is_on_the_plan():
    rooms = {path.stem for path in SOURCE.iterdir() if not path.name.startswith("_") and path.suffix in ("", ".py")}
    assert rooms == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_from_rooms_above_it_alone(room: str):
    place = SOURCE / room
    allowed = {*ROOMS[: ROOMS.index(room) + 1], "__about__", "_lazy"}
    for path in [place.with_suffix(".py")] if not place.is_dir() else sorted(place.rglob("*.py")):
        assert set(imported_rooms(path)) <= allowed, path.relative_to(SOURCE)


def test_the_page_on_the_house_shows_every_room_in_order():
    page = (SOURCE.parents[1] / "docs" / "house.md").read_text(encoding="utf-8")
    shown = re.findall(r"^  (\w+)(?:, (\w+))?/? ", page, flags=re.MULTILINE)
    assert tuple(name for pair in shown for name in pair if name) == ROOMS


def concrete_parts() -> dict[str, str]:
    """Parts that are no base of others, with the modules that define them."""
    for path in sorted((SOURCE / "engine").rglob("*.py")):
        name = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
        importlib.import_module(name)
    found, waiting = {}, Part.__subclasses__()
    while waiting:
        part = waiting.pop()
        waiting += part.__subclasses__()
        if part.__module__.startswith("extremegp.engine") and not inspect.isabstract(part):
            found[part.__name__] = part.__module__
    return found


def test_nothing_asks_which_part_it_has_but_the_module_that_defines_the_part():
    """What a part is stands on the part: no `isinstance` on one elsewhere."""
    parts = concrete_parts()
    assert {"BernoulliLabels", "FactorMixing", "SparseGP", "SharedBasis", "LinearChain"} <= parts.keys()
    for path in sorted(SOURCE.rglob("*.py")):
        module = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "isinstance":
                asked = {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)}
                assert not {part for part in asked & parts.keys() if parts[part] != module}, (module, node.lineno)
