"""A trace as one HTML page that needs nothing else: no network, no server, no other file."""

import html
import json
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from specdec.trace.layout import layout
from specdec.trace.steps import Trace, TraceHeader, TraceStep

PROMPT_LETTERS = 300
"""Of the prompt that the page shows."""

VISITED_DIGITS = 4
"""Digits of the probabilities that are shown."""


def page(trace: Trace) -> str:
    """The page. All of the trace is in it as JSON; a few lines of script show one step at a time."""
    parts = files("specdec.trace").joinpath("assets")
    read = {name: parts.joinpath(name).read_text(encoding="utf-8") for name in ("page.html", "page.css", "page.js")}
    data = json.dumps(page_data(trace), ensure_ascii=False, separators=(",", ":"))
    texts = {
        "{{title}}": html.escape(f"{trace.header.strategy}: trace"),
        "{{style}}": read["page.css"],
        "{{script}}": read["page.js"],
        "{{data}}": _inert(data),
    }
    # In one pass: a text that looks like a mark is not one.
    return re.sub("|".join(texts), lambda mark: texts[mark[0]], read["page.html"])


def _inert(data: str) -> str:
    """JSON that cannot end the script element that it stands in, whatever the model wrote."""
    return data.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def page_data(trace: Trace) -> dict[str, Any]:
    """What the page's script reads."""
    header, end = trace.header, trace.end
    first = trace.steps[0].texts[0] if trace.steps else "" if end is None else end.text or ""
    return {
        "strategy": header.strategy,
        "drafters": header.drafters,
        "verifier": header.verifier,
        "facts": _facts(trace),
        "first": first,
        "steps": [_step(step) for step in trace.steps],
    }


def _facts(trace: Trace) -> list[list[str]]:
    header, end, steps = trace.header, trace.end, trace.steps
    tokens = sum(len(step.emitted) for step in steps)
    facts = [
        ["target", header.target],
        ["drafter", ", ".join(header.drafters)],
        ["verifier", f"{header.verifier} ({header.guarantee})"],
        ["tree", _part_words(header.spec.get("tree"))],
        ["prompt", _prompt_words(header)],
        ["steps", str(len(steps))],
        ["tau", f"{tokens / len(steps):.2f}" if steps else "no step"],
        ["seed", str(header.seed)],
    ]
    if end is None:
        return [*facts, ["ended", "the trace was broken off"]]
    seconds = f"{len(end.tokens)} tokens in {end.seconds:.2f} s ({end.prefill_seconds:.2f} s prefill)"
    return [*facts, ["answer", seconds], ["ended", end.finish_reason]]


def _part_words(part: Any) -> str:
    """Such as 'dynamic (width 8, depth 5)'."""
    if not isinstance(part, Mapping):
        return "not written down"
    options = [f"{name} {value}" for name, value in part.items() if name != "use" and value is not None]
    return str(part.get("use", "")) + (f" ({', '.join(options)})" if options else "")


def _prompt_words(header: TraceHeader) -> str:
    """How long it is, and how it begins."""
    count = f"{len(header.prompt_tokens)} tokens"
    if not header.prompt_text:
        return count
    text = " ".join(header.prompt_text.split())
    return f"{text if len(text) <= PROMPT_LETTERS else text[: PROMPT_LETTERS - 1] + '…'} ({count})"


def _step(step: TraceStep) -> dict[str, Any]:
    placed = layout(step.parents)
    return {
        "position": step.root_position,
        "tokens": step.tokens,
        "texts": step.texts,
        "parents": step.parents,
        "source": step.source,
        "columns": placed.columns,
        "lines": placed.lines,
        "width": placed.num_columns,
        "height": placed.num_lines,
        "draw": dict(step.draw),
        "p": [_short(value) for value in step.p],
        "q": [_short(value) for value in step.q],
        "path": step.path,
        "next": [step.next_token, step.next_text, _short(step.next_p)],
        "ending": step.ending.value,
        "emitted": step.emitted_texts,
        "ids": step.emitted,
        "seconds": {phase: round(seconds * 1e3, 2) for phase, seconds in step.seconds.items()},
    }


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{VISITED_DIGITS}g}")
