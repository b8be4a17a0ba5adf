"""The page of documentation lists the limits as they are."""

import re
from pathlib import Path

import pytest

from specdec.errors import SpecError
from specdec.serving.bodies import ChatBody, CompletionBody
from specdec.serving.limits import ServerLimits, limits_of

PAGE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()


def test_every_limit_and_its_default_is_documented():
    rows = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", PAGE, re.MULTILINE))
    fields = ServerLimits.model_fields
    assert rows.keys() == fields.keys()
    for name, field in fields.items():
        assert rows[name] == ("unset" if field.default is None else f"{field.default:.10g}"), name
        assert field.description in PAGE


def test_every_field_of_a_request_is_documented():
    for name in ChatBody.model_fields | CompletionBody.model_fields:
        assert f"`{name}`" in PAGE, name


def test_all_wrong_limits_are_told_at_once():
    with pytest.raises(SpecError, match=r"limit max_n: got 0.*\n.*max_foo"):
        limits_of({"max_n": 0, "max_foo": 1})
