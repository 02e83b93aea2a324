"""The parameters of the estimators as their sources state them: mistakes are told of without loading PyTorch."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_type_hints

import extremegp

_KNOWN = {"Literal": Literal, "bool": bool, "float": float, "int": int, "str": str, "tuple": tuple}


class _Any(type):
    """Of types that the command line has no text for: arrays, kernels and so on."""

    def __getitem__(cls, item: Any) -> _Any:
        return cls


class Other(metaclass=_Any):
    """A type whose values are no text."""


@cache
def parameter_types(estimator: str) -> dict[str, Any]:
    """The types of an estimator's parameters by name, `Other` for those that are no text."""
    classes, aliases = _sources()
    if estimator not in classes:
        # Installed without sources.
        return get_type_hints(getattr(extremegp, estimator))
    annotations: dict[str, ast.expr] = {}

    def collect(name: str) -> None:
        if name not in classes:
            return
        for base in reversed(classes[name].bases):
            collect(ast.unparse(base))
        if any(ast.unparse(decorator).startswith("dataclass(") for decorator in classes[name].decorator_list):
            annotations.update(_fields(classes[name]))

    collect(estimator)
    return {name: _type(annotation, aliases) for name, annotation in annotations.items()}


@cache
def _sources() -> tuple[dict[str, ast.ClassDef], dict[str, ast.expr]]:
    """The classes of the estimators, and the names that their modules give to values."""
    classes: dict[str, ast.ClassDef] = {}
    aliases: dict[str, ast.expr] = {}
    for path in sorted((Path(extremegp.__file__).parent / "estimators").glob("*.py")):
        for statement in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(statement, ast.ClassDef):
                classes[statement.name] = statement
            elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                aliases[statement.targets[0].id] = statement.value
    return classes, aliases


def _fields(of_class: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    """What the constructor that `dataclass` writes takes, with annotations."""
    for statement in of_class.body:
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        learnt = isinstance(statement.value, ast.Call) and any(k.arg == "init" for k in statement.value.keywords)
        if not learnt and not ast.unparse(statement.annotation).startswith("ClassVar"):
            yield statement.target.id, statement.annotation


def _type(annotation: ast.expr, aliases: dict[str, ast.expr]) -> Any:
    match annotation:
        case ast.Constant(value=None):
            return type(None)
        case ast.Name(id=name):
            return _type(aliases[name], aliases) if name in aliases else _KNOWN.get(name, Other)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _type(left, aliases) | _type(right, aliases)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=listed):
            return Literal[ast.literal_eval(listed)]
        case ast.Subscript(value=value, slice=ast.Tuple(elts=parts)):
            return _type(value, aliases)[tuple(_type(part, aliases) for part in parts)]
        case _:
            return Other
