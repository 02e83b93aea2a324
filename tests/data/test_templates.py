from __future__ import annotations

import pickle
import re
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extremegp.data import CHUNKING_TEMPLATE, Template
from extremegp.data.templates import default_template
from extremegp.errors import DataError, SettingsError

SEQUENCE = [("He", "PRP"), ("reads", "VBZ"), (".", ".")]


def reference(line: str, sequence: list[tuple[str, ...]], t: int) -> str:
    """A line of a template at token t, as CRF++'s documentation describes it: macro by macro, index by index."""
    pieces = re.split(r"(%x\[-?\d+,\d+\])", line)
    for i in range(1, len(pieces), 2):
        row, column = map(int, re.findall(r"-?\d+", pieces[i]))
        position = t + row
        if position < 0:
            pieces[i] = f"_B{position}"
        elif position >= len(sequence):
            pieces[i] = f"_B+{position - len(sequence) + 1}"
        else:
            pieces[i] = sequence[position][column]
    return "".join(pieces)


def test_the_chunking_template_expands_as_by_hand() -> None:
    assert CHUNKING_TEMPLATE.expand(SEQUENCE) == [
        [
            "U00:_B-2", "U01:_B-1", "U02:He", "U03:reads", "U04:.", "U05:_B-1/He", "U06:He/reads",
            "U10:_B-2", "U11:_B-1", "U12:PRP", "U13:VBZ", "U14:.",
            "U15:_B-2/_B-1", "U16:_B-1/PRP", "U17:PRP/VBZ", "U18:VBZ/.",
            "U20:_B-2/_B-1/PRP", "U21:_B-1/PRP/VBZ", "U22:PRP/VBZ/.",
        ],
        [
            "U00:_B-1", "U01:He", "U02:reads", "U03:.", "U04:_B+1", "U05:He/reads", "U06:reads/.",
            "U10:_B-1", "U11:PRP", "U12:VBZ", "U13:.", "U14:_B+1",
            "U15:_B-1/PRP", "U16:PRP/VBZ", "U17:VBZ/.", "U18:./_B+1",
            "U20:_B-1/PRP/VBZ", "U21:PRP/VBZ/.", "U22:VBZ/./_B+1",
        ],
        [
            "U00:He", "U01:reads", "U02:.", "U03:_B+1", "U04:_B+2", "U05:reads/.", "U06:./_B+1",
            "U10:PRP", "U11:VBZ", "U12:.", "U13:_B+1", "U14:_B+2",
            "U15:PRP/VBZ", "U16:VBZ/.", "U17:./_B+1", "U18:_B+1/_B+2",
            "U20:PRP/VBZ/.", "U21:VBZ/./_B+1", "U22:./_B+1/_B+2",
        ],
    ]  # fmt: skip
    assert CHUNKING_TEMPLATE.has_bigrams
    assert not CHUNKING_TEMPLATE.indexed
    assert CHUNKING_TEMPLATE.n_columns == 2
    assert CHUNKING_TEMPLATE.expand_binary(SEQUENCE) == [[], [], []]


@given(
    st.lists(st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 2)), max_size=3), min_size=1, max_size=4),
    st.lists(st.tuples(*[st.sampled_from(["a", "%s", "%x[0,0]", "%", "{}", "/", ""])] * 3), max_size=5),
)
def test_templates_expand_as_their_definition(macros: list[list[tuple[int, int]]], sequence: Any) -> None:
    lines = [f"U{i}:" + "/".join(f"%x[{row},{column}]" for row, column in line) for i, line in enumerate(macros)]
    template = Template.parse([*lines, *(line.replace("U", "B") for line in lines), "B"])
    expected = [[reference(line, sequence, t) for line in lines] for t in range(len(sequence))]
    assert template.expand(sequence) == expected
    binary = [[f"B{f[1:]}" for f, line in zip(token, macros, strict=True) if line] for token in expected]
    assert template.expand_binary(sequence) == binary


def test_lines_without_macros_are_features_of_every_token() -> None:
    template = Template.parse("U\nUbias {}\nU1:%x[0,0]\n")
    assert template.expand([["a"], ["b"]]) == [["U", "Ubias {}", "U1:a"], ["U", "Ubias {}", "U1:b"]]
    assert (template.has_bigrams, template.indexed, template.n_columns) == (False, False, 1)


@pytest.mark.parametrize(
    ("lines", "has_bigrams", "indexed", "n_columns"),
    [
        ("U:%x[0,0]", False, False, 1),
        ("B", True, False, 0),
        ("B01", True, False, 0),
        ("U0:%x[0,0]\nB01:%x[-1,0]/%x[0,4]", True, True, 5),
    ],
)
def test_what_a_template_needs_follows_from_its_lines(
    lines: str, has_bigrams: bool, indexed: bool, n_columns: int
) -> None:
    template = Template.parse(lines)
    assert (template.has_bigrams, template.indexed, template.n_columns) == (has_bigrams, indexed, n_columns)


def test_bigram_lines_expand_apart() -> None:
    template = Template.parse("U00:%x[0,0]\nB\nB01:%x[-1,0]/%x[0,1]\n")
    assert template.expand(SEQUENCE) == [["U00:He"], ["U00:reads"], ["U00:."]]
    assert template.expand_binary(SEQUENCE) == [["B01:_B-1/PRP"], ["B01:He/VBZ"], ["B01:reads/."]]


@pytest.mark.parametrize("offset", [-1000, 1000])
def test_the_farthest_rows_and_no_tokens_at_all_expand(offset: int) -> None:
    template = Template.parse(f"U:%x[{offset},0]")
    far = ["_B-1000", "_B-999"] if offset < 0 else ["_B+999", "_B+1000"]
    assert template.expand([["a"], ["b"]]) == [[f"U:{cell}"] for cell in far]
    assert template.expand([]) == []


@pytest.mark.parametrize(
    "make", [str, lambda text: text.splitlines(keepends=True), lambda text: iter(text.split("\n"))]
)
def test_text_and_lines_parse_alike_and_comments_are_dropped(make: Any) -> None:
    text = "\ufeff# words\r\n\r\nU00:%x[0,0] \t\r\n  \n#U\nB"
    template = Template.parse(make(text))
    assert str(template) == "U00:%x[0,0]\nB\n"


@pytest.mark.parametrize("template", [CHUNKING_TEMPLATE, Template.parse("# a\nU:%x[0,0]%x[-1,12]\n\nB3:%x[2,0]\nB")])
def test_a_template_is_restored_from_its_text_and_pickled(template: Template) -> None:
    assert Template.parse(str(template)) == template
    assert hash(Template.parse(str(template))) == hash(template)
    assert pickle.loads(pickle.dumps(template)) == template
    assert template != Template.parse("U")


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("", "words.tpl: the template has no lines"),
        ("# only\n\n", "words.tpl: the template has no lines"),
        ("U0:%x[0,0]\nX:%x[0,0]", "words.tpl:2: a line starts with U .*not 'X:%x"),
        (" U0:%x[0,0]", "words.tpl:1: a line starts with U"),
        ("u0:%x[0,0]", "words.tpl:1: a line starts with U"),
        ("U:%x[0]", "words.tpl:1: a % starts a macro %x.row,column"),
        ("U:%x[0,0", "words.tpl:1: a % starts a macro"),
        ("U:%x[0,-1]", "words.tpl:1: a % starts a macro"),
        ("U:%x[+1,0]", "words.tpl:1: a % starts a macro"),
        ("U:%x[0, 0]", "words.tpl:1: a % starts a macro"),
        ("U:%x[a,0]", "words.tpl:1: a % starts a macro"),
        ("U:%x[0,0]%", "words.tpl:1: a % starts a macro"),
        ("U:%y[0,0]", "words.tpl:1: a % starts a macro"),
        ("U:%x[٣,0]", "words.tpl:1: a % starts a macro"),
        ("U:%x[99999,0]", "words.tpl:1: a % starts a macro"),
        ("U:%x[-1001,0]", "words.tpl:1: the row -1001 is beyond 1000 tokens"),
        ("U:%x[1001,0]", "words.tpl:1: the row 1001 is beyond 1000 tokens"),
        ("#\nU:%x[0,0]\nB\nU:%x[0,0]", "words.tpl:4: the same as line 2: .*remove one"),
        ("B\nB", "words.tpl:2: the same as line 1"),
    ],
)
def test_malformed_lines_are_refused_with_their_number(lines: str | Iterable[str], problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        Template.parse(lines, name="words.tpl")


@pytest.mark.parametrize(
    ("sequence", "problem"),
    [
        ([("a", "b"), ("a",)], "token 1 .*has 1 columns, but the template's line 'B:%x.0,1.' asks for one beyond"),
        (["ab"], "token 0 .*of type str, not a tuple of columns"),
        ("ab", "expected a list of tokens, not str"),
        ([{"a": "b"}], "token 0 .*of type dict"),
        ([("a", "b"), ("a", 1)], "token 1 .*has columns that are not strings"),
    ],
)
def test_tokens_without_the_columns_are_refused(sequence: Any, problem: str) -> None:
    template = Template.parse("U:%x[0,0]\nB:%x[0,1]")
    for expand in (template.expand, template.expand_binary):
        with pytest.raises(DataError, match=problem):
            expand(sequence)


def test_long_hostile_lines_are_refused() -> None:
    # Backtracking over such a line would run into the timeout of the tests.
    with pytest.raises(DataError, match="starts a macro"):
        Template.parse("U" + "%x[-1," * 200_000)


def test_the_default_template_has_neighbours_and_pairs_of_every_column() -> None:
    template = default_template(2)
    assert template.expand(SEQUENCE)[1] == [
        "U0.0:_B-1", "U0.1:He", "U0.2:reads", "U0.3:.", "U0.4:_B+1", "U0.5:He/reads", "U0.6:reads/.",
        "U1.0:_B-1", "U1.1:PRP", "U1.2:VBZ", "U1.3:.", "U1.4:_B+1", "U1.5:PRP/VBZ", "U1.6:VBZ/.",
    ]  # fmt: skip
    assert (template.n_columns, template.has_bigrams, template.indexed) == (2, True, False)
    assert Template.parse(str(template)) == template


@pytest.mark.parametrize("n_columns", [1, 11, 120])
def test_features_of_default_templates_never_coincide(n_columns: int) -> None:
    features = default_template(n_columns).expand([("same",) * n_columns] * 5)[2]
    assert len(set(features)) == len(features) == 7 * n_columns


@pytest.mark.parametrize("n_columns", [0, -1, 10_001])
def test_a_default_template_needs_columns_that_macros_can_name(n_columns: int) -> None:
    with pytest.raises(SettingsError, match="n_columns must be an integer from 1 to 10000"):
        default_template(n_columns)
