"""The page of a trace: whole, self-contained, and run by node where there is one."""

import dataclasses
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from specdec.trace.page import page, page_data
from specdec.trace.steps import TraceEnd

HOT = {"sampling": {"temperature": 1.0}}
RUN_PAGE = Path(__file__).with_name("run_page.js")


def data_of(text):
    return re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1]


def test_the_page_needs_nothing_else(traced, strategy):
    text = page(traced(strategy, **HOT)[0])
    addresses = re.findall(r"https?://[^\s\"'<>]+", text)
    assert set(addresses) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"\b(src|href)=|@import|url\(", text)
    assert "{{" not in text


def test_the_data_of_the_page_is_that_of_the_trace(traced, strategy):
    trace, _ = traced(strategy, **HOT)
    found = json.loads(data_of(page(trace)))
    assert found == json.loads(json.dumps(page_data(trace)))
    assert len(found["steps"]) == len(trace.steps)


def test_what_the_model_writes_cannot_break_out_of_the_page(traced, chain_of):
    trace, _ = traced(chain_of(3), **HOT)
    evil = "</script><script>alert(1)</script><!-- {{script}}"
    step = dataclasses.replace(trace.steps[0], emitted_texts=tuple(evil for _ in trace.steps[0].emitted))
    trace = dataclasses.replace(trace, steps=(step, *trace.steps[1:]))
    text = page(trace)
    assert text.count("</script>") == 2
    assert json.loads(data_of(text))["steps"][0]["emitted"][0] == evil


def test_a_trace_without_a_step_or_an_end_has_a_page(traced, chain_of):
    trace, _ = traced(chain_of(3), max_new_tokens=1)
    assert page_data(trace)["first"] == trace.end.text
    assert ["ended", "the trace was broken off"] in page_data(dataclasses.replace(trace, end=None))["facts"]
    assert isinstance(trace.end, TraceEnd)


@pytest.fixture
def run_page(tmp_path):
    """What the page's own script shows after some keys: by node, on a document of a few lines."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed")

    def run(trace, *keys):
        file = tmp_path / "page.html"
        file.write_text(page(trace))
        done = subprocess.run(["node", RUN_PAGE, file, *keys], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_the_script_shows_every_token_and_one_node_for_every_draft(traced, strategy, run_page):
    trace, generation = traced(strategy, **HOT)
    shown = run_page(trace, "End")
    assert re.sub(r"<[^>]*>", "", shown["answer"]) == generation.text
    last = trace.steps[-1]
    extra = 0 if last.ending.value.startswith("cut") else 1
    assert shown["tree"].count("<rect ") == len(last.tokens) + extra
    assert shown["place"] == f"step {len(trace.steps)} of {len(trace.steps)}"


def test_keys_move_from_step_to_step_and_stop_at_the_ends(traced, chain_of, run_page):
    trace, _ = traced(chain_of(3), **HOT)
    count = len(trace.steps)
    assert run_page(trace, "ArrowLeft")["place"] == f"step 1 of {count}"
    assert run_page(trace, "ArrowRight", "ArrowRight", "ArrowLeft")["place"] == f"step 2 of {count}"
    assert run_page(trace, "End", "ArrowRight", "Home")["place"] == f"step 1 of {count}"
    assert run_page(trace, "x")["place"] == f"step 1 of {count}"


def test_the_script_escapes_what_the_model_writes(traced, chain_of, run_page):
    trace, _ = traced(chain_of(3), **HOT)
    evil = '<img src=x onerror="alert(1)">'
    first = trace.steps[0]
    step = dataclasses.replace(
        first, emitted_texts=(evil,) * len(first.emitted), texts=(evil,) * len(first.texts), next_text=evil
    )
    shown = run_page(dataclasses.replace(trace, steps=(step, *trace.steps[1:])))
    assert all("<img" not in shown[part] for part in ("answer", "tree", "words"))


@pytest.mark.slow
def test_hundreds_of_steps_of_wide_trees_are_a_page_of_less_than_two_megabytes_that_opens_at_once(traced, parts_of, run_page):
    from specdec.tree_builders.fixed import Fixed, FixedOptions
    from specdec.verifiers.match import Match

    parts = parts_of(Fixed, FixedOptions(widths=[4, 3, 1, 1]), Match)
    trace, _ = traced(parts, vocab=26, max_new_tokens=900, **HOT)
    assert len(trace.steps) > 400
    assert len(page(trace)) < 2_000_000
    assert run_page(trace, "End")["milliseconds"] < 2000


def test_a_strategy_named_like_a_mark_of_the_page_is_only_a_name(traced, chain_of):
    trace, _ = traced(chain_of(3))
    header = dataclasses.replace(trace.header, strategy="{{data}}<b>{{title}}")
    text = page(dataclasses.replace(trace, header=header))
    assert "<title>{{data}}&lt;b&gt;{{title}}: trace</title>" in text
    assert json.loads(data_of(text))["strategy"] == "{{data}}<b>{{title}}"


def test_the_page_names_prompt_and_tree(traced, chain_of):
    trace, _ = traced(chain_of(3))
    header = dataclasses.replace(trace.header, prompt_text="What <is>\n this?", spec={"tree": {"use": "chain", "depth": 3}})
    facts = dict(page_data(dataclasses.replace(trace, header=header))["facts"])
    assert facts["tree"] == "chain (depth 3)"
    assert facts["prompt"] == f"What <is> this? ({len(trace.header.prompt_tokens)} tokens)"
    old = dataclasses.replace(trace.header, prompt_text=None, spec={})
    assert dict(page_data(dataclasses.replace(trace, header=old))["facts"])["tree"] == "not written down"
