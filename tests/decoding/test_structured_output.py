"""Answers that match a grammar: masked plain decoding's distribution under every rule, and stop tokens at its end only."""

import re
import sys

import pytest
import torch
from tabular_cases import drawn_case, tabular_decoder

from specdec.decoding.requests import Request
from specdec.errors import SpecError, TargetMismatch
from specdec.sampling.enumeration import outcomes
from specdec.sampling.params import SamplingParams
from specdec.tree_builders.chain import Chain, ChainOptions
from specdec.tree_builders.chains import Chains, ChainsOptions
from specdec.tree_builders.sampled import Sampled, SampledOptions
from specdec.verifiers.block import Block
from specdec.verifiers.ensemble import Ensemble, EnsembleOptions
from specdec.verifiers.gbv import Gbv
from specdec.verifiers.match import Match
from specdec.verifiers.multi_round import MultiRound
from specdec.verifiers.traversal import Traversal
from specdec.verifiers.typical import Typical

PARTS = {
    "match": (Chain, ChainOptions(length=2), Match),
    "block": (Chain, ChainOptions(length=2, draw="sampled"), Block),
    "traversal": (Sampled, SampledOptions(widths=(2, 1)), Traversal),
    "gbv": (Chains, ChainsOptions(count=2, length=2), Gbv),
    "multi_round": (Sampled, SampledOptions(widths=(2, 1)), MultiRound),
}
PATTERN = "a(a|b)(ba)*"
REGEX = {"type": "regex", "regex": PATTERN}
STOPS = (2, 3)
LENGTH = 3


def completed(text):
    """Whether the pattern matches the whole text; its language is small enough to be listed."""
    return re.fullmatch(PATTERN, text) is not None


def continues(text):
    """Whether some text that begins so matches."""
    return any(completed(text + rest) for rest in ("", "a", "b", "aa", "ab", "ba", "aba", "bba", "baba"))


class Twin:
    """The plain twin: allows a letter where some match begins so, and the stop tokens where the text matches."""

    def __call__(self, input_ids, scores):
        text = "".join("abcd"[token] for token in input_ids[0, 2:].tolist())
        allowed = [continues(text + "ab"[token]) if token < 2 else completed(text) for token in range(scores.shape[1])]
        return scores.masked_fill(~torch.tensor(allowed), float("-inf"))

    def fork(self):
        return self


def distribution(decoder, **options):
    def run(rng):
        request = Request(prompt=[0, 1], max_new_tokens=LENGTH, stop_ids=STOPS, **options)
        batch = decoder.start([request], rng_for=lambda _: rng)
        while batch.sequences:
            decoder.step(batch)
        return tuple(batch.everyone[0].emitted.tokens)

    return outcomes(run)


def case(number=1):
    return drawn_case(3 * number, vocab=4)


@pytest.mark.parametrize("name", PARTS)
def test_the_distribution_is_that_of_plain_decoding_with_a_mask_written_by_hand(name):
    plain = distribution(tabular_decoder(case(), Chain, ChainOptions(length=1), Match), processors=[Twin()])
    found = distribution(tabular_decoder(case(), *PARTS[name]), response_format=REGEX)
    assert found == pytest.approx(plain, abs=1e-12)
    assert {tokens[-1] for tokens in found} >= set(STOPS)


@pytest.mark.parametrize("name", [*PARTS, "typical"])
def test_at_temperature_0_tokens_are_those_of_plain_decoding(name):
    parts = PARTS.get(name, (Chain, ChainOptions(length=2), Typical))
    greedy = SamplingParams(temperature=0.0)
    plain = tabular_decoder(case(), Chain, ChainOptions(length=1), Match, sampling=greedy)
    decoder = tabular_decoder(case(), *parts, sampling=greedy)
    options = {"max_new_tokens": 12, "stop_ids": STOPS, "seed": 0}
    want = plain.generate([[0, 1], [1, 1]], **options, processors=[Twin()])
    got = decoder.generate([[0, 1], [1, 1]], **options, response_format=REGEX)
    assert [one.tokens for one in got] == [one.tokens for one in want]


def test_samples_and_requests_of_a_batch_are_constrained_each_by_itself():
    decoder = tabular_decoder(case(), *PARTS["traversal"])
    requests = [
        Request(prompt=[0, token], max_new_tokens=8, seed=token, n=2, stop_ids=STOPS, response_format=own)
        for token, own in enumerate([REGEX, None, {"type": "regex", "regex": "b+"}])
    ]
    together = [answer.tokens for answer in decoder.generate(requests)]
    assert together == [answer.tokens for request in requests for answer in decoder.generate([request])]
    assert all(token == 1 or token in STOPS for tokens in together[4:] for token in tokens)


def test_a_row_below_a_token_that_the_grammar_forbids_is_not_read_by_chains():
    plain = distribution(tabular_decoder(case(2), Chain, ChainOptions(length=1), Match), processors=[Twin()])
    found = distribution(tabular_decoder(case(2), Chains, ChainsOptions(count=2, length=3), Gbv), response_format=REGEX)
    assert found == pytest.approx(plain, abs=1e-12)


WRONG = {
    "a type that does not exist": (
        {"type": "json_shema"},
        r"response_format.type: got 'json_shema'; did you mean 'json_schema'",
    ),
    "no type": ({"regex": "a"}, "response_format.type: is required"),
    "no mapping": ("json", "response_format: got 'json'; expected a mapping"),
    "a stray key": ({"type": "json_object", "regex": "a"}, "response_format.regex: unknown key"),
    "no schema": ({"type": "json_schema", "json_schema": {"name": "x"}}, "response_format.json_schema.schema: is required"),
    "an empty pattern": ({"type": "regex", "regex": ""}, "response_format.regex:"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_format_of_the_wrong_shape_is_refused_naming_the_key(name):
    given, message = WRONG[name]
    with pytest.raises(SpecError, match=message):
        Request([0], response_format=given)


def schema(given):
    return {"type": "json_schema", "json_schema": {"schema": given}}


NOT_COMPILED = {
    "an open group": ({"type": "regex", "regex": "("}, r"response_format.regex: cannot be compiled: unclosed group"),
    "look-around": ({"type": "regex", "regex": "a(?=b)"}, "response_format.regex: cannot be compiled: look-around"),
    "a keyword that is not kept": (schema({"not": {"type": "string"}}), r'json_schema.schema: cannot be compiled: .*"not"'),
    "a type that does not exist": (schema({"type": "wat"}), "json_schema.schema: cannot be compiled: Invalid type: wat"),
    "a schema elsewhere": (schema({"$ref": "http://x/y"}), "json_schema.schema: cannot be compiled: .*http://x/y"),
    "nothing is valid": (schema({"enum": []}), "json_schema.schema: cannot be compiled: Unsatisfiable"),
}


@pytest.mark.parametrize("name", NOT_COMPILED)
def test_what_cannot_be_compiled_is_refused_by_name_before_anything_runs(name):
    given, message = NOT_COMPILED[name]
    with pytest.raises(SpecError, match=message):
        tabular_decoder(case(), *PARTS["match"]).start([Request([0], stop_ids=STOPS, response_format=given)])


def test_an_answer_that_no_token_could_end_is_refused():
    with pytest.raises(SpecError, match=r"response_format: no token is known to end an answer.*stop_ids"):
        tabular_decoder(case(), *PARTS["match"]).generate([[0]], response_format=REGEX)


def test_without_the_extra_the_error_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(SpecError, match=r"response_format: needs llguidance: pip install 'specdec\[structured\]'"):
        tabular_decoder(case(), *PARTS["match"]).generate([[0]], stop_ids=STOPS, response_format=REGEX)


def test_a_target_without_a_tokenizer_is_refused():
    decoder = tabular_decoder(drawn_case(0, vocab=30), *PARTS["match"])
    with pytest.raises(TargetMismatch, match="has no tokenizer that a grammar can read"):
        decoder.generate([[0]], stop_ids=STOPS, response_format=REGEX)


def test_a_rule_that_accepts_impossible_tokens_is_refused_by_name():
    decoder = tabular_decoder(case(), Chain, ChainOptions(length=2, draw="sampled"), Ensemble, EnsembleOptions(weight=0.5))
    with pytest.raises(
        SpecError, match="response_format: the lossy verifier 'ensemble' accepts tokens that a grammar rules out"
    ):
        decoder.generate([[0]], stop_ids=STOPS, response_format=REGEX)


def test_a_minimum_length_that_the_grammar_cannot_reach_is_refused_naming_it():
    decoder = tabular_decoder(case(), *PARTS["match"])
    with pytest.raises(
        SpecError, match=r"response_format: every token that the grammar allows here is forbidden.*min_new_tokens"
    ):
        decoder.generate([[0]], stop_ids=STOPS, min_new_tokens=9, response_format={"type": "regex", "regex": "a"})


def test_free_text_is_asked_for_as_openai_does():
    assert Request([0], response_format={"type": "text"}).response_format is None
