"""LaTeX formulas as MathML that a browser sets as TeX would."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from latex2mathml.converter import convert

_NAMESPACE = "http://www.w3.org/1998/Math/MathML"
_THIN = "0.1667em"
_LIMITS = {*"∑∏⋃⋂", "max", "min", "sup", "inf", "lim"}
_WITH_LIMITS = {"msub": "munder", "msup": "mover", "msubsup": "munderover"}
_SCRIPTED = {*_WITH_LIMITS, *_WITH_LIMITS.values()}
_ROWS = {"math", "mrow", "mstyle", "mtd"}
# An ampersand of an alignment, and letters of a style that browsers no longer take from an attribute.
_NOT_SHOWN = re.compile(r'\\|<mi>&</mi>|mathvariant="(?!normal")')
# The converter knows the letters of a style one by one.
_STYLED_WORD = re.compile(r"(\\math(?:bb|bf|cal|frak|scr))\{(\w\w+)\}")

ET.register_namespace("", _NAMESPACE)


def mathml(formula: str, display: bool) -> str:
    """A LaTeX formula as MathML.

    Raises:
        ValueError: the formula has a command that the converter does not know, or knows but no browser shows.
    """
    letters = _STYLED_WORD.sub(lambda word: "".join(f"{word[1]}{{{letter}}}" for letter in word[2]), formula)
    converted = convert(letters.strip(), display="block" if display else "inline")
    if _NOT_SHOWN.search(converted):
        raise ValueError(f"cannot be shown as MathML: {formula.strip()}")
    root = ET.fromstring(converted)
    for element in list(root.iter()):
        _put_limits_below(element)
        _keep_bars_short(element)
        _space_names(element)
    return ET.tostring(root, encoding="unicode")


def _tag(element: ET.Element) -> str:
    return element.tag.partition("}")[2]


def _core(element: ET.Element) -> ET.Element:
    """What carries the scripts of an element, or the element."""
    return _core(element[0]) if _tag(element) in _SCRIPTED else element


def _is_name(element: ET.Element) -> bool:
    """Whether it is an operator with a name, such as log, with or without scripts."""
    core = _core(element)
    return _tag(core) in ("mi", "mo") and len(core.text or "") > 1 and (core.text or "").isalpha()


def _put_limits_below(element: ET.Element) -> None:
    """Limits of sums stand below and above them where there is room, in brackets that grow too."""
    if _tag(element) in _WITH_LIMITS and element[0].text in _LIMITS:
        element.tag = f"{{{_NAMESPACE}}}{_WITH_LIMITS[_tag(element)]}"
        element[0].set("movablelimits", "true")


def _keep_bars_short(element: ET.Element) -> None:
    """Bars that no command asked to grow stay as high as letters, and stand close to what they are around."""
    if _tag(element) == "mo" and element.text in ("|", "‖") and element.get("stretchy") is None:
        element.attrib.update(stretchy="false", lspace="0", rspace="0")


def _space_names(parent: ET.Element) -> None:
    """Thin spaces between the name of a function and what is no bracket or operator beside it."""
    if _tag(parent) not in _ROWS:
        return
    for before, element, after in zip([None, *parent], parent, [*parent[1:], None], strict=False):
        if _is_name(element):
            name = _core(element)
            name.tag = f"{{{_NAMESPACE}}}mo"
            apart = before is not None and not _is_name(before) and _is_operand(before, -1)
            name.set("lspace", _THIN if apart else "0")
            name.set("rspace", _THIN if after is not None and _is_operand(after, 0) else "0")


def _is_operand(element: ET.Element, side: int) -> bool:
    """Whether an element is no operator as seen from its first (0) or last (-1) part; a closing bracket ends one."""
    tag = _tag(element)
    if len(element) and (tag in _ROWS or (tag in _SCRIPTED and side == 0)):
        return _is_operand(element[side], side)
    near = "" if side == 0 else ")]}⟩⌋⌉"
    return tag != "mspace" and (tag != "mo" or _is_name(element) or (element.text or "") in {*near, *"|‖"})
