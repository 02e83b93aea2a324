"""Formulas of the documentation as browsers show them."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("latex2mathml")

from scripts.mathml import mathml

THIN, NONE = "0.1667em", "0"


def spaces(formula: str, name: str) -> list[tuple[str, str]]:
    """Spaces left and right of every operator of a name."""
    found = re.findall(rf"<mo ([^>]*)>{name}</mo>", mathml(formula, display=True))
    return [tuple(re.search(rf'{side}="([^"]*)"', each)[1] for side in ("lspace", "rspace")) for each in found]


@pytest.mark.parametrize(
    ("formula", "name", "expected"),
    [
        (r"a \cos t", "cos", (THIN, THIN)),
        (r"\cos t", "cos", (NONE, THIN)),
        (r"\cos(t)", "cos", (NONE, NONE)),
        (r"\log \left( x \right)", "log", (NONE, NONE)),
        (r"(a + b) \log x", "log", (THIN, THIN)),
        (r"a + \log \frac{1}{R}", "log", (NONE, THIN)),
        (r"x^2 \log_2 y", "log", (THIN, THIN)),
        (r"\exp \log x", "log", (NONE, THIN)),
        (r"\max_k f_k", "max", (NONE, THIN)),
        (r"2 \, \ln y", "ln", (NONE, THIN)),
    ],
)
def test_named_operators_stand_apart_from_operands_alone(formula: str, name: str, expected: tuple[str, str]) -> None:
    assert spaces(formula, name) == [expected]


def test_sums_in_brackets_have_their_limits_below() -> None:
    shown = mathml(r"\left[ \sum_{i=1}^N x_i - \prod_j y_j \right]", display=True)
    assert '<munderover><mo movablelimits="true">∑</mo>' in shown
    assert '<munder><mo movablelimits="true">∏</mo>' in shown
    assert "<msub><mi>x</mi>" in shown


def test_letters_of_a_style_are_letters_of_unicode() -> None:
    shown = mathml(r"\mathbb{E} \mathcal{GP} \mathcal{L}", display=False)
    assert re.findall(r"<mi>(.)</mi>", shown) == ["𝔼", "𝒢", "𝒫", "ℒ"]
    assert "mathvariant" not in shown


def test_bars_are_as_high_as_letters_unless_told_to_grow() -> None:
    assert mathml(r"\lVert \sum_i x_i \rVert", display=True).count('stretchy="false"') == 2
    assert 'stretchy="true"' in mathml(r"\left| \frac{a}{b} \right|", display=True)


@pytest.mark.parametrize("formula", [r"\begin{aligned} a &= b \end{aligned}", r"\unknown x", r"\boldsymbol{\mu}"])
def test_what_cannot_be_shown_is_refused(formula: str) -> None:
    with pytest.raises(ValueError, match="cannot be shown as MathML"):
        mathml(formula, display=False)
