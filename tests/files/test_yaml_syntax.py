"""A text that is no YAML: the message has the place, the line itself, and the slip that is likely behind it."""

from textwrap import dedent

import pytest

from specdec.errors import SpecError
from specdec.files.yaml_document import read_text

ERRORS = {
    "a tab": (
        "drafter:\n\tuse: ngram\n",
        ["x:2: not YAML: found character '\\t' that cannot start any token (column 1)", "line 2 is indented with a tab"],
    ),
    "no space after a colon": ("drafter:\n  use:ngram\n  max: 3\n", ["a space is missing after 'use:'"]),
    "an open brace": (
        "drafter: {use: ngram\ntree: chain\n",
        ["x:2: not YAML", "(column 5)", "    tree: chain\n        ^", "'{' of line 1 is not closed"],
    ),
    "a no-break space": (
        "drafter: ngram\n\u00a0 tree: chain\nsampling: {\n",
        ["line 2, column 1 is a no-break space (U+00A0); an ordinary space would work"],
    ),
}


@pytest.mark.parametrize(("text", "words"), ERRORS.values(), ids=ERRORS.keys())
def test_a_syntax_error_has_column_excerpt_and_hint(text, words):
    with pytest.raises(SpecError) as raised:
        read_text(text, "x")
    for word in words:
        assert word in str(raised.value), str(raised.value)


PROBLEMS = {
    "- a\n- b\n": "x:1: got a list, expected a mapping of keys to values, such as 'name: x'; a line that begins with '-'",
    "drafter:ngram\n": "x:1: got the text \"drafter:ngram\", expected a mapping of keys to values, such as 'name: x'; "
    "a space is missing after 'drafter:'",
    "just words\n": 'x:1: got the text "just words", expected a mapping',
    "tree: {use:chain}\n": "x:1: tree: got \"use:chain\": a space is missing after 'use:'",
    "tree:{use: chain}\n": "x:1: got \"tree:{use\": a space is missing after 'tree:'",
    "drafter:\u00a0{use: ngram}\n": 'the key "drafter:\\u00a0{use" holds a no-break space (U+00A0) at column 9',
    "tr\u00a0ee: chain\n": 'x:1: the key "tr\\u00a0ee" holds a no-break space (U+00A0) at column 3',
    "tree: chain\u00a0\n": 'x:1: tree: got "chain\\u00a0", which begins or ends with a no-break space (U+00A0)',
    "use:\u00a0chain\n": "holds a no-break space (U+00A0), which YAML takes for a letter",
}


@pytest.mark.parametrize(("text", "message"), PROBLEMS.items(), ids=repr)
def test_yaml_that_says_something_else_than_was_meant_names_the_slip(text, message):
    [problem] = read_text(text, "x").problems
    assert message in str(problem)


def test_spaces_inside_of_texts_and_keys_in_quotes_with_colons_are_left_alone():
    document = read_text('description: 5\u00a0GB of it\n"a:b": 1\nurl: http://x\n', "x")
    assert not document.problems
    assert document.data["description"] == "5\u00a0GB of it"


def test_a_long_line_is_cut_around_the_place():
    with pytest.raises(SpecError) as raised:
        read_text(dedent(f"a: {'x' * 5000}: y\n"), "x")
    assert len(str(raised.value)) < 400
