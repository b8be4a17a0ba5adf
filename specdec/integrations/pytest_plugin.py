"""The pytest plug-in: fixtures that prove decoders and rules in a test suite, and a section of the report with the verdicts.

pytest loads it at every start, so that it imports nothing of specdec until a fixture is used.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

if TYPE_CHECKING:
    from specdec.losslessness.levels import LevelResult

PROPERTY = "specdec"
"""Name of the test property that a verdict travels in: to the report, through pytest-xdist, and into JUnit files."""

SUMMARY = "GITHUB_STEP_SUMMARY"
"""Environment variable of GitHub Actions: the file that is shown on a run's page."""

Inconclusive = Literal["fail", "skip", "pass"]


@dataclass(frozen=True, slots=True)
class _Verdict:
    name: str
    outcome: str
    words: str


@pytest.fixture
def assert_lossless(request: pytest.FixtureRequest) -> Callable[..., None]:
    """A function that fails the test where a decoder does not follow its target.

    Its arguments: `decoder`, a function (prompt ids, n, seed) -> ids or InstrumentedAnswer, or its name, "module:function";
    then, by name, `target`: the model's folder or hub id, or a part such as {"use": "tabular", ...}; `sampling`: such as
    {"temperature": 1.0}, which is the default; `seconds`: for the proof; `seed`; and `inconclusive`: whether such a verdict
    should "fail", "skip" or "pass".
    """

    def check(
        decoder: Any,
        *,
        target: Any = None,
        sampling: Mapping[str, Any] | None = None,
        seconds: float = 60.0,
        seed: int = 0,
        inconclusive: Inconclusive = "fail",
    ) -> None:
        result = _prove(decoder, target, sampling or {"temperature": 1.0}, seconds, seed)
        name = decoder if isinstance(decoder, str) else getattr(decoder, "__qualname__", type(decoder).__name__)
        details = "\n".join(f"  {title}: {words}" for title, words in result.lines)
        _judge(request, _Verdict(name, result.outcome.value, result.words), details, inconclusive)

    return check


@pytest.fixture
def assert_rule_lossless(request: pytest.FixtureRequest) -> Callable[..., None]:
    """A function that fails the test where a verification rule of one's own does not follow p: all outcomes are enumerated.

    Its arguments: `rule`, a function (p, q, drafts, uniforms) -> (accepted, next token); then, by name, `drafts`: "chain",
    "argmax-chain", "iid", "without-replacement" or "top"; `count`: drafted tokens; `models`: pairs of p and q; `vocab`: tokens.
    """

    def check(rule: Any, *, drafts: str = "chain", count: int = 2, models: int = 16, vocab: int | None = None) -> None:
        from specdec.losslessness.external.rules import Drafts, verify_rule

        size = max(3, count + 1) if vocab is None else vocab
        found = verify_rule(rule, Drafts(drafts), count, models=models, vocab_size=size)
        worst = max(found, key=lambda one: one.proof.tv)
        name = getattr(rule, "__qualname__", type(rule).__name__)
        if worst.proof.holds:
            _judge(request, _Verdict(name, "proved", f"lossless on {len(found)} pairs of p and q"), "", "fail")
        else:
            words = f"total variation {worst.proof.tv:.4g}, {worst.direction}"
            details = f"  model {worst.model}: {worst.proof.violations[0].words}"
            _judge(request, _Verdict(name, "refuted", words), details, "fail")

    return check


def _prove(decoder: Any, target: Any, sampling: Mapping[str, Any], seconds: float, seed: int) -> "LevelResult":
    from specdec.compose import resolve
    from specdec.config.catalog import load_catalog
    from specdec.losslessness.external.callables import find_callable
    from specdec.losslessness.external.level import prove_callable

    catalog = load_catalog()
    settings = [f"sampling.{key}={json.dumps(value)}" for key, value in sampling.items()]
    resolved = resolve("plain", catalog, settings=settings, target=target)
    function = find_callable(decoder, "assert_lossless") if isinstance(decoder, str) else decoder
    return prove_callable(function, resolved, catalog, seconds=seconds, seed=seed, progress=lambda share, words: None)


def _judge(request: pytest.FixtureRequest, verdict: _Verdict, details: str, inconclusive: Inconclusive) -> None:
    """Note the verdict for the report, and end the test where it is not passed."""
    request.node.user_properties.append((PROPERTY, json.dumps([verdict.name, verdict.outcome, verdict.words])))
    message = f"{verdict.name}: {verdict.outcome}: {verdict.words}\n{details}".rstrip()
    if verdict.outcome == "proved":
        return
    if verdict.outcome != "inconclusive" or inconclusive == "fail":
        pytest.fail(message, pytrace=False)
    if inconclusive == "skip":
        pytest.skip(message)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The verdicts, one a line; on GitHub also as a table on the run's page."""
    found = [(report.nodeid, verdict) for report in _calls(terminalreporter) for verdict in _verdicts(report)]
    if not found:
        return
    terminalreporter.section("specdec: does the output follow the target?")
    for node, verdict in found:
        terminalreporter.line(f"{verdict.outcome.upper():12} {verdict.name} ({node})")
        terminalreporter.line(f"{'':12} {verdict.words}")
    if os.environ.get(SUMMARY):
        head = ["", "### Does the output follow the target?", "", "| verdict | decoder | what was found |", "|---|---|---|"]
        rows = [f"| {verdict.outcome} | `{verdict.name}` | {verdict.words.replace('|', '/')} |" for _, verdict in found]
        with Path(os.environ[SUMMARY]).open("a", encoding="utf-8") as page:
            page.write("\n".join([*head, *rows, ""]))


def _calls(terminalreporter: Any) -> Iterator[Any]:
    for reports in terminalreporter.stats.values():
        yield from (report for report in reports if getattr(report, "when", None) == "call")


def _verdicts(report: Any) -> list[_Verdict]:
    return [_Verdict(*json.loads(value)) for name, value in report.user_properties if name == PROPERTY]
