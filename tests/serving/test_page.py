"""The page loads nothing from elsewhere, and text becomes no markup."""

import re

import pytest

from specdec.serving.page import FILES


@pytest.mark.parametrize("path", FILES)
def test_the_browser_may_load_nothing_from_elsewhere(client, path):
    response = client.get(path)
    policy = dict(rule.split(" ", 1) for rule in response.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert {policy[name] for name in ("script-src", "style-src", "connect-src")} == {"'self'"}
    assert policy["frame-ancestors"] == "'none'"
    assert "unsafe" not in response.headers["content-security-policy"]
    assert response.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"https?://|//\w", response.text.replace("// ", ""))


def test_text_is_inserted_as_text_only(client):
    script = client.get("/page.js").text
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "setTimeout("):
        assert way not in script
    markup = client.get("/").text
    assert not re.search(r"<script(?![^>]*src=)|\son\w+=|style=|<style", markup)


def test_everything_that_the_script_looks_for_is_in_the_page(client):
    markup, script = client.get("/").text, client.get("/page.js").text
    wanted = set(re.findall(r'find\("(\w+)"\)', script))
    assert wanted <= set(re.findall(r'id="(\w+)"', markup))
    assert len(wanted) > 10


def test_the_card_of_a_model_has_what_the_page_shows(client):
    (card,) = client.get("/v1/models").json()["data"]
    assert card["drafters"] == ["ngram"]
    assert (card["verifier"], card["guarantee"]) == ("match", "lossless")
    assert "/" not in card["root"]
