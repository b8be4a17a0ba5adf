"""JSON by schema on the embedded model: valid where it ends by a stop token, and plain constrained decoding's own tokens."""

import json

import jsonschema
import llguidance
import pytest

import specdec

LEAVES = [
    {"type": "integer"},
    {"type": "boolean"},
    {"type": "string", "maxLength": 12},
    {"enum": ["red", "green", "blue"]},
    {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
]


def an_object(**properties):
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


SCHEMAS = [
    *(an_object(value=leaf) for leaf in LEAVES),
    *(an_object(first=leaf, second=other) for leaf in LEAVES for other in LEAVES[:3]),
    *(an_object(inner=an_object(value=leaf)) for leaf in LEAVES),
    *({"anyOf": [leaf, {"type": "null"}]} for leaf in LEAVES),
]
MOST = 24


def answers(strategy, target):
    requests = [
        specdec.Request(f"Question {number}: give JSON.\n", max_new_tokens=MOST, seed=number, response_format=wanted(schema))
        for number, schema in enumerate(SCHEMAS)
    ]
    return specdec.load(strategy, target=target).generate(requests, temperature=0.0)


def wanted(schema):
    return {"type": "json_schema", "json_schema": {"schema": schema}}


def accepted(schema, tokens, tokenizer):
    """Whether every beginning of the tokens is accepted, by a grammar of its own."""
    matcher = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema)))
    return all(matcher.consume_token(token) for token in tokens)


@pytest.mark.slow
def test_thirty_schemas_give_valid_json_and_plain_decodings_tokens_under_adaptive_and_eagle3():
    target = specdec.load("plain", set=["target.dtype=float32"]).target
    plain, *others = (answers(strategy, target) for strategy in ("plain", "adaptive", "eagle3"))
    assert len(SCHEMAS) == 30
    for found in others:
        assert [answer.tokens for answer in found] == [answer.tokens for answer in plain]
    tokenizer = llguidance.LLTokenizer(target.codec.tokenizer_json())
    stopped = [answer.finish_reason == "stop" for answer in plain]
    for schema, answer, complete in zip(SCHEMAS, plain, stopped, strict=True):
        if complete:
            jsonschema.validate(json.loads(answer.text), schema)
        else:
            assert accepted(schema, answer.tokens, tokenizer)
    assert sum(stopped) >= 10
