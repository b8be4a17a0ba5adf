"""How what is wrong with a request is said: the field, what was got, and what would work."""

from collections.abc import Collection, Mapping
from typing import Any, Literal, TypeAlias, get_args

from pydantic_core import ErrorDetails

from specdec.errors import did_you_mean

ControlTokens: TypeAlias = Literal["allow", "refuse", "escape"]

WANTED = {
    "prompt": "a prompt",
    "max_new_tokens": "a whole number of at least 1",
    "sampling": "SamplingParams or a mapping",
    "seed": "a whole number of at least 0",
    "stop": "texts or id sequences, none of them empty; single ids belong in stop_ids",
    "stop_ids": "whole numbers",
    "ignore_eos": "True or False",
    "n": "a whole number of at least 1",
    "logprobs": "a whole number of at least 0",
    "processors": "callables (input_ids, scores) -> scores",
    "chat_template_kwargs": "a mapping, such as {'enable_thinking': False}",
    "continue_final_message": "True or False",
    "control_tokens": ", ".join(get_args(ControlTokens)),
    "skip_special_tokens": "True or False",
    "response_format": "a mapping, such as {'type': 'json_object'}",
}
"""What the fields of a request expect, in words and in their order."""

LISTS = ("stop", "stop_ids", "processors")

ELSEWHERE = {
    "max_tokens": "max_new_tokens",
    "max_length": "max_new_tokens",
    "stop_strings": "stop",
    "stop_sequences": "stop",
    "stop_token_ids": "stop_ids",
    "eos_token_id": "stop_ids",
    "logits_processor": "processors",
    "logits_processors": "processors",
    "do_sample": "temperature",
    "num_return_sequences": "n",
    "min_tokens": "min_new_tokens",
    "messages": "prompts",
    "guided_json": "response_format",
    "guided_regex": "response_format",
    "json_schema": "response_format",
    "regex": "response_format",
}
"""What other libraries call an option, and what it is called here."""


def explanation(error: ErrorDetails, values: Mapping[str, Any]) -> str:
    """One line for an error of `Request`: the field, what was got, what is expected. values: as given."""
    name, place = str(error["loc"][0]), next((step for step in error["loc"][1:] if isinstance(step, int)), None)
    if name not in WANTED:
        return f"unknown option {name!r}{meant(name, WANTED)}"
    if name not in values:
        return f"{name}: is required"
    got = values[name]
    if error["type"] in ("less_than", "int_parsing_size"):
        return f"{name}: got a larger number; expected a whole number below 2**63"
    if name in LISTS and place is None:
        return f"{name}: got {got!r}; expected a list, such as [{got!r}]"
    if name in LISTS and place is not None and not isinstance(got, str):
        got = list(got)[place]
    return f"{name}: got {got!r}; expected {WANTED[name]}"


def meant(name: str, known: Collection[str]) -> str:
    """The option that may be meant, in place of one that does not exist."""
    if name == "do_sample":
        return "; did you mean 'temperature'? 0 is greedy, and anything above draws"
    if name in ELSEWHERE:
        return f"; did you mean '{ELSEWHERE[name]}'?"
    return did_you_mean(name, known, listing="known are")
