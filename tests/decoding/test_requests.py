import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from specdec.decoding.requests import Request, requests_of
from specdec.decoding.sequence import open_sequences
from specdec.errors import SpecError
from specdec.sampling.keyed_noise import request_key
from specdec.sampling.params import SamplingParams
from specdec.sampling.rng import seeded
from specdec.targets.tabular import Tabular as TabularTarget
from specdec.targets.tabular import TabularTargetOptions

WRONG = {
    "limit 0": ({"max_new_tokens": 0}, "max_new_tokens: got 0; expected a whole number of at least 1"),
    "limit 1.9": ({"max_new_tokens": 1.9}, "max_new_tokens: got 1.9"),
    "limit as text": ({"max_new_tokens": "3"}, "max_new_tokens: got '3'"),
    "limit true": ({"max_new_tokens": True}, "max_new_tokens: got True"),
    "no samples": ({"n": 0}, "n: got 0"),
    "samples None": ({"n": None}, "n: got None"),
    "logprobs -1": ({"logprobs": -1}, "logprobs: got -1; expected a whole number of at least 0"),
    "logprobs true": ({"logprobs": True}, "logprobs: got True"),
    "logprobs beyond the vocabulary": ({"logprobs": 9}, "logprobs: 9 asked for; the vocabulary has 8"),
    "seed -1": ({"seed": -1}, "seed: got -1"),
    "seed as text": ({"seed": "1"}, "seed: got '1'"),
    "stop as no text": ({"stop": ""}, "stop: got ''; .* none of them empty"),
    "stop as one id": ({"stop": 3}, "stop: got 3; expected a list"),
    "stop as ids": ({"stop": [3]}, "stop: got 3; .* single ids belong in stop_ids"),
    "stop None": ({"stop": None}, "stop: got None"),
    "stop empty text": ({"stop": ["a", ""]}, "stop: got ''; .* none of them empty"),
    "stop of bytes": ({"stop": [b"x"]}, r"stop: got b'x'; expected texts or id sequences"),
    "stop as bytes": ({"stop": b"x"}, "stop: got b'x'; expected a list"),
    "stop_ids as bytes": ({"stop_ids": b"x"}, "stop_ids: got b'x'; expected a list"),
    "seed as bytes": ({"seed": b"x"}, "seed: got b'x'"),
    "template arguments as a list": ({"chat_template_kwargs": ["a"]}, r"chat_template_kwargs: got \['a'\]; expected a mapping"),
    "template arguments for ids": ({"chat_template_kwargs": {"a": 1}}, "chat_template_kwargs: the prompt is no conversation"),
    "continuing ids": ({"continue_final_message": True}, "continue_final_message: the prompt is no conversation"),
    "continuing as text": ({"continue_final_message": "yes"}, "continue_final_message: got 'yes'; expected True or False"),
    "special tokens as a number": ({"skip_special_tokens": 1}, "skip_special_tokens: got 1; expected True or False"),
    "control tokens of its own": ({"control_tokens": "no"}, "control_tokens: got 'no'; expected allow, refuse, escape"),
    "stop empty sequence": ({"stop": [()]}, r"stop: got \(\)"),
    "stop of fractions": ({"stop": [(1.5,)]}, r"stop: got \(1.5,\)"),
    "stop outside the vocabulary": ({"stop": [(1, 99)]}, "token 99 is outside the target's vocabulary of 8"),
    "stop_ids as one id": ({"stop_ids": 3}, r"stop_ids: got 3; expected a list, such as \[3\]"),
    "stop_ids of texts": ({"stop_ids": ["a"]}, "stop_ids: got 'a'; expected whole numbers"),
    "stop_ids outside the vocabulary": ({"stop_ids": [8]}, "token 8 is outside"),
    "processors as one": ({"processors": max}, "processors: got <built-in function max>; expected a list"),
    "processors of texts": ({"processors": ["x"]}, "processors: got 'x'; expected callables"),
    "sampling as a number": ({"sampling": 1.0}, "sampling: got 1.0; expected SamplingParams or a mapping"),
    "sampling with a slip": ({"sampling": {"temprature": 1}}, "sampling.temprature: unknown key; did you mean 'temperature'"),
    "sampling below 0": ({"sampling": {"temperature": -1}}, "sampling.temperature: got -1, expected at least 0"),
    "sampling NaN": ({"sampling": {"temperature": float("nan")}}, "sampling.temperature: got NaN"),
    "sampling of truth": ({"sampling": {"top_k": True}}, "sampling.top_k: got true, expected a whole number"),
    "sampling of text": ({"sampling": {"top_p": "0.5"}}, "sampling.top_p: got .0.5., expected a number"),
    "sampling of objects": ({"sampling": {"top_p": object()}}, "sampling: holds a value that YAML could not"),
    "bias in words": ({"sampling": {"logit_bias": {"a": 1.0}}}, "sampling.logit_bias.a: got the key 'a'"),
    "seed 2**63": ({"seed": 2**63}, r"seed: got a larger number; expected a whole number below 2\*\*63"),
    "seed of 5000 digits": ({"seed": 10**5000}, "seed: got a larger number"),
    "half a character to stop at": ({"stop": ["a\ud800"]}, "stop: the character '.ud800' at 1 is half a pair"),
    "ignore_eos as text": ({"ignore_eos": "no"}, "ignore_eos: got 'no'; expected True or False"),
    "bias outside the vocabulary": ({"sampling": SamplingParams(logit_bias={8: 1.0})}, "token 8 is outside"),
    "an unknown option": ({"qqq": 3}, "unknown option 'qqq'; known are: .*ignore_eos, .*logprobs, max_new_tokens"),
    "a slip in an option": ({"ignore_eso": True}, "unknown option 'ignore_eso'; did you mean 'ignore_eos'?"),
    "max_tokens": ({"max_tokens": 3}, "unknown option 'max_tokens'; did you mean 'max_new_tokens'?"),
    "stop_strings": ({"stop_strings": ["a"]}, "unknown option 'stop_strings'; did you mean 'stop'?"),
    "stop_token_ids": ({"stop_token_ids": [1]}, "unknown option 'stop_token_ids'; did you mean 'stop_ids'?"),
    "logits_processor": ({"logits_processor": []}, "unknown option 'logits_processor'; did you mean 'processors'?"),
    "do_sample": ({"do_sample": True}, "unknown option 'do_sample'; did you mean 'temperature'. 0 is greedy"),
    "num_return_sequences": ({"num_return_sequences": 2}, "unknown option 'num_return_sequences'; did you mean 'n'?"),
    "temperature below 0": ({"temperature": -1.0}, "sampling.temperature: got -1.0, expected at least 0"),
    "too few seeds": ({"seed": [1, 2]}, "seed: got 2 seeds for 1 prompts"),
}


@pytest.mark.parametrize(("options", "message"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_option_is_refused_with_what_was_got_and_what_is_expected(compose, table, chain_of, options, message):
    with pytest.raises(SpecError, match=message):
        compose(table(8), chain_of(2)).generate([[1]], **options)


PROMPTS = {
    "bytes": (b"ab", "prompts: got bytes; expected a text, ids"),
    "a prompt of bytes": ([b"hi"], "prompt: got bytes; expected a text, a list of ids or a conversation"),
    "a prompt of changing bytes": ([bytearray(b"hi")], "prompt: got bytearray"),
    "None": (None, "prompts: got NoneType"),
    "no ids": ([[]], "the prompt is empty"),
    "no letters": ([""], "the prompt is empty"),
    "fractions": ([[1.0]], "prompt: got list; expected a text, a list of ids or a conversation"),
    "truth": ([[True]], "prompt: got list"),
    "nested": ([[[1]]], "prompt: got list"),
    "a prompt None": ([None], "prompt: got NoneType"),
    "an id outside the vocabulary": ([[1, 8]], "token 8 is outside the target's vocabulary of 8"),
    "a negative id": ([[-1]], "token -1 is outside"),
    "half a character": (["a\ud800"], "prompt: the character '.ud800' at 1 is half a pair"),
    "a turn without a role": ([[{"content": "a"}]], "turn 0 has no 'role'"),
    "a turn without content": ([[{"role": "user"}]], "turn 0 has no 'content'"),
    "content None": ([[{"role": "user", "content": None}]], "turn 0: content is NoneType; expected a text"),
    "content 3": ([[{"role": "user", "content": 3}]], "content is int"),
    "content in parts": (
        [[{"role": "user", "content": [{"type": "text"}]}]],
        "turn 0: content has a part of type 'text'; expected",
    ),
    "an image": ([[{"role": "user", "content": [{"type": "image_url"}]}]], "content has a part of type 'image_url'"),
    "a tensor of fractions": (torch.tensor([1.0]), "prompt: got list"),
    "a tensor of three dimensions": (torch.ones(1, 1, 1), "got Tensor of 3 dimensions; expected 1"),
    "several rows as one prompt": ([torch.ones(2, 2, dtype=torch.int64)], "got Tensor of 2 rows; expected one prompt"),
    "an encoding of nothing": ({"input_ids": None}, "got input_ids of NoneType"),
    "a role of its own": ([[{"role": "usr", "content": "a"}]], "turn 0: role 'usr' is not known; known are system, user"),
    "half a character in a turn": ([[{"role": "user", "content": "\udc80"}]], "turn 0: content: the character"),
    "letters outside the vocabulary": (["az"], "the text has 'z'"),
}


@pytest.mark.parametrize(("prompts", "message"), PROMPTS.values(), ids=PROMPTS.keys())
def test_a_wrong_prompt_is_refused_with_what_was_got_and_what_is_expected(compose, table, chain_of, prompts, message):
    with pytest.raises(SpecError, match=message):
        compose(table(8), chain_of(2)).generate(prompts)


class Chatting(type(TabularTarget(TabularTargetOptions(vocab=8, random={})).codec)):
    """A codec whose chat template writes contents one after the other."""

    def chat(self, messages, chat_format):
        return [token for message in messages for token in self.encode(message["content"])]


CHAT = [{"role": "user", "content": "ab"}]
ONE = {
    "a text": "ab",
    "ids": [0, 1],
    "a tuple": (0, 1),
    "a conversation": CHAT,
    "content in parts": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
    "a request": Request((0, 1)),
    "a tensor": torch.tensor([0, 1]),
    "a row": torch.tensor([[0, 1]]),
    "an array": np.array([0, 1]),
    "an encoding": {"input_ids": [0, 1], "attention_mask": [1, 1]},
    "a padded encoding": {"input_ids": torch.tensor([[5, 0, 1]]), "attention_mask": torch.tensor([[0, 1, 1]])},
    "a list with a tensor": [torch.tensor([0, 1])],
    "a list with an encoding": [{"input_ids": [[0, 1]]}],
}


@pytest.mark.parametrize("prompt", ONE.values(), ids=ONE.keys())
def test_one_prompt_in_any_form_gives_a_list_with_one_answer(compose, table, chain_of, watched, prompt):
    decoder = compose(watched(table(8), Chatting(8)), chain_of(2))
    [answer] = decoder.generate(prompt, max_new_tokens=3)
    assert answer.prompt_tokens == (0, 1)


def test_rows_of_a_tensor_and_of_an_encoding_are_prompts(compose, table, chain_of):
    decoder = compose(table(8), chain_of(2))
    rows = {"input_ids": [[0, 1], [2]]}
    assert [a.prompt_tokens for a in decoder.generate(rows, max_new_tokens=2)] == [(0, 1), (2,)]
    assert [a.prompt_tokens for a in decoder.generate(torch.tensor([[0, 1], [2, 3]]), max_new_tokens=2)] == [(0, 1), (2, 3)]
    [*events] = decoder.stream(torch.tensor([0, 1]), max_new_tokens=2)
    assert events[-1].generation.prompt_tokens == (0, 1)


def test_a_request_shows_its_prompt_and_what_is_asked_beyond_the_defaults():
    assert repr(Request("ab")) == "Request('ab')"
    assert repr(Request([1], seed=3, stop="x", n=2)) == "Request([1], seed=3, stop=('x',), n=2)"
    assert len(repr(Request("a" * 5000))) < 100


def test_a_request_by_itself_is_checked_and_cannot_be_changed():
    with pytest.raises(SpecError, match="unknown option 'max_tokens'; did you mean 'max_new_tokens'"):
        Request("ab", max_tokens=3)
    with pytest.raises(SpecError, match="prompt: is required"):
        Request()
    with pytest.raises(SpecError, match="n: got 0; expected a whole number of at least 1"):
        replace(Request("ab"), n=0)
    with pytest.raises(AttributeError):
        Request("ab").n = 3
    assert Request("ab", 5).max_new_tokens == 5


def test_one_stop_text_may_stand_alone(compose, table, chain_of):
    decoder = compose(table(8), chain_of(2))
    alone, listed = (decoder.generate("ab", stop=stop, max_new_tokens=6)[0].tokens for stop in ("e", ["e"]))
    assert alone == listed
    assert Request("ab", stop="e").stop == ("e",)


def test_sampling_options_by_themselves_are_laid_over_the_decoders(table):
    below = SamplingParams(repetition_penalty=1.2, top_k=3)
    [request] = requests_of([[1]], below, temperature=0.7)
    assert (request.sampling.temperature, request.sampling.top_k, request.sampling.repetition_penalty) == (0.7, 3, 1.2)
    [request] = requests_of([[1]], below, sampling={"top_p": 0.5}, min_p=0.1)
    assert request.sampling == SamplingParams(top_p=0.5, min_p=0.1)
    [request] = requests_of([Request([1], sampling={"temperature": 2.0})], below, top_p=0.5, seed=4)
    assert (request.sampling, request.seed) == (SamplingParams(temperature=2.0, top_p=0.5), 4)
    assert requests_of([[1]], SamplingParams(), top_k=2)[0].sampling.temperature == 1


def test_one_wrong_request_among_others_is_refused_by_its_place_before_anything_runs(compose, table, chain_of, watched):
    target = watched(table(8, max_positions=4))
    decoder = compose(target, chain_of(2))
    for prompts, options, message in (
        ([[1], [2, 99], [3]], {}, r"prompts\[1\]: token 99 is outside"),
        ([[1], [3], [1] * 5], {}, r"prompts\[2\]: the prompt has 5 tokens; the target's context holds 4"),
        ([[1], []], {}, r"prompts\[1\]: the prompt is empty"),
        (["a", [{"role": "usr", "content": "a"}]], {}, r"prompts\[1\]: turn 0: role 'usr' is not known"),
        (["a", 3], {}, r"prompts\[1\]: got int; expected a text"),
        ([[1], [2]], {"seed": [1, -1]}, r"prompts\[1\]: seed: got -1"),
        ([[1], [2]], {"logprobs": 9}, r"prompts\[0\]: logprobs: 9 asked for"),
    ):
        with pytest.raises(SpecError, match=message):
            decoder.generate(prompts, **options)
    assert target.prefills == []


def test_a_target_without_a_tokenizer_asks_for_ids(compose, table, chain_of):
    decoder = compose(table(30), chain_of(2))
    with pytest.raises(SpecError, match="no tokenizer: give the prompt as a list of token ids"):
        decoder.generate(["abc"])
    with pytest.raises(SpecError, match="no tokenizer, so that only id sequences can stop it"):
        decoder.generate([[1]], stop=["abc"])


def test_prompts_of_every_kind_go_together(compose, table, chain_of):
    decoder = compose(table(8), chain_of(2))
    answers = decoder.generate(["ab", [0, 1], (0, 1), Request((0, 1))], max_new_tokens=5)
    assert {answer.prompt_tokens for answer in answers} == {(0, 1)}
    assert len({answer.tokens for answer in answers}) == 1
    assert decoder.generate([]) == []


def test_an_option_is_laid_over_a_request_and_the_rest_of_it_stays():
    own = Request((1,), max_new_tokens=5, seed=7, stop_ids=[3])
    [request] = requests_of([own], max_new_tokens=9)
    assert request == replace(own, max_new_tokens=9)
    assert requests_of([own], seed=[8])[0].seed == 8
    assert [r.seed for r in requests_of([[1], [2]], seed=[8, None])] == [8, None]
    assert [r.seed for r in requests_of([[1], [2]], seed=3)] == [3, 3]


def keys(requests, target, spec_seed=0):
    rows = open_sequences(
        requests,
        target=target,
        sampling=SamplingParams(seed=spec_seed),
        numbers=itertools.count(),
        rng_for=lambda key: seeded(key),
    )
    return [row.seed for row in rows]


def test_a_sequences_key_is_its_seed_or_one_of_the_specs_seed_and_the_requests_number(table):
    target = table(8)
    assert keys([Request((1,), seed=5), Request((1,)), Request((1,))], target) == [5, request_key(0, 1), request_key(0, 2)]
    assert keys([Request((1,))], target, spec_seed=1) == [request_key(1, 0)]


def test_samples_of_one_request_have_different_keys_and_the_first_has_the_requests_own(table):
    first, *others = keys([Request((1,), seed=5, n=4)], table(8))
    assert first == 5
    assert len({first, *others}) == 4
    assert keys([Request((1,), seed=5, n=2)], table(8)) == [first, others[0]]


def test_samples_of_requests_with_different_seeds_have_different_keys(table):
    found = keys([Request((1,), seed=5, n=3), Request((1,), seed=6, n=3), Request((1,), n=3), Request((2,), n=3)], table(8))
    assert len(set(found)) == 12


def test_sampling_may_be_a_mapping(compose, table, chain_of):
    decoder = compose(table(8), chain_of(2))
    given = {"temperature": 1, "logit_bias": {3: 2.5}, "draft": {"temperature": 0.5}}
    as_mapping, as_object = (
        decoder.generate([[1]], sampling=sampling, seed=3, max_new_tokens=9)[0].tokens
        for sampling in (given, SamplingParams(**given))
    )
    assert as_mapping == as_object != decoder.generate([[1]], seed=3, max_new_tokens=9)[0].tokens


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": True},
        {"temperature": "1"},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_k": 2.0},
        {"top_k": True},
        {"seed": True},
        {"seed": 2**63},
        {"logit_bias": {1: float("nan")}},
        {"logit_bias": {1: float("-inf")}},
        {"logit_bias": {1: True}},
        {"logit_bias": {True: 1.0}},
        {"logit_bias": {"1": 1.0}},
        {"draft": {"temperature": "1"}},
    ],
    ids=str,
)
def test_sampling_takes_nothing_for_something_else(wrong):
    with pytest.raises(ValueError):
        SamplingParams(**wrong)


def test_every_key_is_a_seed(table):
    assert all(0 <= key < 2**63 for key in keys([Request((1,), n=50)] * 4, table(8)))


def test_a_template_that_refuses_a_conversation_is_a_fault_of_the_prompt(compose, table, chain_of, watched):
    class Strict(type(table(8).codec)):
        def chat(self, messages, chat_format=None):
            raise ZeroDivisionError("roles must alternate")

    decoder = compose(watched(table(8), Strict(8)), chain_of(2))
    with pytest.raises(SpecError, match="the chat template refuses the conversation: roles must alternate"):
        decoder.generate([[{"role": "user", "content": "a"}]])
