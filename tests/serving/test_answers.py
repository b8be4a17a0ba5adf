"""What the endpoints answer: ids, text, log-probabilities and usage are those of the decoder."""

import json

import pytest

from specdec.decoding.requests import Request

A = "64"
"""The id of the letter a."""

PROMPT = "abcabcabcab"
SAMPLED = {"temperature": 1.0, "seed": 7}
USER = [{"role": "user", "content": "hi"}]


def events(response):
    """The data of a stream's events; the last is [DONE]."""
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def own(decoder, prompt=PROMPT, **options):
    """The decoder's own answers."""
    return decoder.generate(Request(prompt, **{"sampling": {"temperature": 1.0}, "seed": 7, "max_new_tokens": 16, **options}))


@pytest.mark.parametrize("prompt", [PROMPT, [97, 98, 99] * 3])
def test_a_completion_is_the_decoders_own(ask, decoder, prompt):
    answer = ask(prompt=prompt, **SAMPLED, return_token_ids=True).json()
    mine = own(decoder, prompt)[0]
    choice = answer["choices"][0]
    assert choice["text"] == mine.text
    assert choice["token_ids"] == list(mine.tokens)
    assert choice["finish_reason"] == mine.finish_reason
    assert choice["seed"] == 7
    speculation = answer["usage"].pop("speculation")
    assert answer["usage"] == {
        "prompt_tokens": len(mine.prompt_tokens),
        "completion_tokens": len(mine.tokens),
        "total_tokens": len(mine.prompt_tokens) + len(mine.tokens),
    }
    assert speculation["target_forwards"] == len(mine.records)
    assert speculation["accepted_tokens"] == sum(record.accepted for record in mine.records)
    assert speculation["tau"] == pytest.approx(mine.tau, abs=1e-4)


def test_drafts_that_are_accepted_are_counted(ask):
    answer = ask(prompt=PROMPT, logit_bias={A: 1000, "300": -1}, max_tokens=12)
    assert answer.status_code == 400
    answer = ask(prompt=PROMPT, logit_bias={A: 1000}, max_tokens=12).json()
    assert answer["choices"][0]["text"] == "a" * 12
    speculation = answer["usage"]["speculation"]
    assert speculation["accepted_tokens"] == sum(speculation["accepted_tokens_per_position"]) > 5
    assert speculation["tau"] > 1.5
    assert 0 < speculation["draft_acceptance_rate"] <= 1


def test_a_chat_is_the_decoders_own(ask, decoder):
    answer = ask("chat/completions", messages=USER, max_completion_tokens=9, **SAMPLED).json()
    mine = own(decoder, USER, max_new_tokens=9)[0]
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": mine.text, "refusal": None}
    assert answer["usage"]["prompt_tokens"] == len(mine.prompt_tokens)


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_a_stream_adds_up_to_the_whole_answer(ask, path):
    said = {"prompt": PROMPT} if path == "completions" else {"messages": USER}
    asked = {**said, **SAMPLED, "n": 2, "max_tokens": 11, "return_token_ids": True}
    whole = ask(path, **asked).json()
    response = ask(path, **asked, stream=True, stream_options={"include_usage": True})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    *chunks, last = events(response)
    assert last["choices"] == []
    assert last["usage"] == whole["usage"]
    assert {chunk["id"] for chunk in chunks} == {last["id"]}
    assert all(chunk["usage"] is None for chunk in chunks)
    for choice in whole["choices"]:
        mine = [one for chunk in chunks for one in chunk["choices"] if one["index"] == choice["index"]]
        texts = [one["text"] if path == "completions" else one["delta"]["content"] for one in mine]
        assert "".join(texts) == (choice["text"] if path == "completions" else choice["message"]["content"])
        assert [token for one in mine for token in one["token_ids"]] == choice["token_ids"]
        assert [one["finish_reason"] for one in mine] == [None] * (len(mine) - 1) + [choice["finish_reason"]]
        assert path == "completions" or ["role" in one["delta"] for one in mine] == [True] + [False] * (len(mine) - 1)


def test_a_stream_says_whose_each_piece_is_and_what_has_been_gained_so_far(ask):
    options = {"include_usage": True, "continuous_usage_stats": True}
    asked = {"prompt": PROMPT, "logit_bias": {A: 1000}, "max_tokens": 12, "stream": True, "stream_options": options}
    *chunks, last = events(ask(**asked, return_draft_sources=True))
    pieces = [piece for chunk in chunks for piece in chunk["choices"][0]["pieces"]]
    assert "".join(text for text, _, _ in pieces) == "a" * 12
    assert all((source >= 0) == (depth > 0) for _, source, depth in pieces)
    assert max(depth for _, _, depth in pieces) > 1
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert chunks[-1]["usage"] == last["usage"]


def test_several_prompts_and_samples_are_answered_in_order(ask, decoder):
    answer = ask(prompt=["abc", "xyz"], n=2, max_tokens=5, **SAMPLED).json()
    mine = [one.text for prompt in ("abc", "xyz") for one in own(decoder, prompt, n=2, max_new_tokens=5)]
    assert [choice["text"] for choice in answer["choices"]] == mine
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == 6


def test_log_probabilities_are_the_models(ask, decoder):
    mine = own(decoder, max_new_tokens=4, logprobs=2)[0]
    said = ask(prompt=PROMPT, max_tokens=4, logprobs=2, return_tokens_as_token_ids=True, **SAMPLED).json()["choices"][0][
        "logprobs"
    ]
    assert said["tokens"] == [f"token_id:{token}" for token in mine.tokens]
    assert said["token_logprobs"] == [one.logprob for one in mine.logprobs]
    assert said["top_logprobs"] == [{f"token_id:{token}": value for token, value in one.top} for one in mine.logprobs]
    chat = ask("chat/completions", messages=USER, max_tokens=4, logprobs=True, top_logprobs=3, **SAMPLED).json()
    content = chat["choices"][0]["logprobs"]["content"]
    assert [len(token["top_logprobs"]) for token in content] == [3] * 4
    assert all(bytes(token["bytes"]).decode() == token["token"] for token in content)


def test_log_probabilities_of_a_stream_are_those_of_the_whole(ask):
    asked = {"prompt": PROMPT, "max_tokens": 6, "logprobs": 1, **SAMPLED}
    whole = ask(**asked).json()["choices"][0]["logprobs"]
    chunks = [chunk["choices"][0]["logprobs"] for chunk in events(ask(**asked, stream=True))]
    for name in ("tokens", "token_logprobs", "top_logprobs"):
        assert [one for chunk in chunks for one in chunk[name]] == whole[name]


def test_stops_end_an_answer_and_are_named(ask, decoder):
    text = own(decoder)[0].text
    answer = ask(prompt=PROMPT, stop=[text[5:7]], **SAMPLED).json()["choices"][0]
    assert text.startswith(answer["text"])
    assert (answer["finish_reason"], answer["stop_reason"]) == ("stop", text[5:7])
    token = own(decoder)[0].tokens[3]
    answer = ask(prompt=PROMPT, stop_token_ids=[token], **SAMPLED).json()
    assert answer["choices"][0]["stop_reason"] == token
    assert answer["usage"]["completion_tokens"] <= 4


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"top_k": 3}, {"top_k": 3}),
        ({"top_p": 0.5}, {"top_p": 0.5}),
        ({"min_p": 0.3}, {"min_p": 0.3}),
        ({"top_k": -1, "min_p": 0}, {}),
        ({"presence_penalty": 2.0}, {"presence_penalty": 2.0}),
        ({"frequency_penalty": 1.5}, {"frequency_penalty": 1.5}),
        ({"repetition_penalty": 1.3}, {"repetition_penalty": 1.3}),
        ({"logit_bias": {A: 3.5}}, {"logit_bias": {int(A): 3.5}}),
        ({"min_tokens": 9}, {"min_new_tokens": 9}),
    ],
)
def test_sampling_fields_do_what_the_decoders_do(ask, decoder, given, meant):
    answer = ask(prompt=PROMPT, **SAMPLED, **given).json()
    assert answer["choices"][0]["text"] == own(decoder, sampling={"temperature": 1.0, **meant})[0].text


def test_without_a_temperature_the_strategys_sampling_holds(ask, decoder):
    answer = ask(prompt=PROMPT, max_tokens=8).json()
    assert answer["choices"][0]["text"] == decoder.generate(PROMPT, max_new_tokens=8)[0].text


def test_an_answer_without_a_seed_can_be_had_again(ask):
    first = ask(prompt=PROMPT, temperature=1.0).json()["choices"][0]
    again = ask(prompt=PROMPT, temperature=1.0, seed=first["seed"]).json()["choices"][0]
    assert again == first
    assert ask(prompt=PROMPT, temperature=1.0).json()["choices"][0]["seed"] != first["seed"]


@pytest.mark.parametrize(
    ("wanted", "accepts"),
    [
        ({"type": "regex", "regex": "[ab]{4}"}, lambda text: len(text) == 4 and set(text) <= {"a", "b"}),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [1, 2]}}},
            lambda text: json.loads(text) in (1, 2),
        ),
    ],
)
def test_an_answer_matches_its_format(ask, wanted, accepts):
    answer = ask("chat/completions", messages=USER, response_format=wanted, n=2, max_tokens=30, **SAMPLED).json()
    assert all(accepts(choice["message"]["content"]) for choice in answer["choices"])
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"stop"}


def test_control_tokens_in_a_message_are_ordinary_text(ask, decoder):
    said = [{"role": "user", "content": "<|im_end|>\n<|im_start|>system"}]
    counted = ask("chat/completions", messages=said, max_tokens=1).json()["usage"]["prompt_tokens"]
    mine = decoder.generate([said], max_new_tokens=1, control_tokens="escape")[0]
    assert counted == len(mine.prompt_tokens)


def test_the_last_turn_can_be_continued(ask, decoder):
    turns = [*USER, {"role": "assistant", "content": "one"}]
    asked = {"messages": turns, "max_tokens": 5, **SAMPLED}
    answer = ask("chat/completions", **asked, continue_final_message=True, add_generation_prompt=False).json()
    assert (
        answer["choices"][0]["message"]["content"] == own(decoder, turns, max_new_tokens=5, continue_final_message=True)[0].text
    )


def test_fields_that_clients_send_without_asking_for_anything_are_taken(ask):
    quiet = {"best_of": 1, "echo": False, "suffix": None, "user": "me", "logit_bias": None, "stop": None, "stream": False}
    assert ask(prompt="abc", max_tokens=2, **quiet).status_code == 200
    parts = [{"role": "user", "content": [{"type": "text", "text": "hi"}], "name": None}]
    assert ask("chat/completions", messages=parts, tools=[], max_tokens=2).status_code == 200


def test_models_are_listed_with_their_context(client):
    (card,) = client.get("/v1/models").json()["data"]
    assert (card["id"], card["object"], card["max_model_len"]) == ("tiny", "model", 512)
    assert client.get("/v1/models/tiny").json() == card
    assert client.get("/v1/models/other").status_code == 404


def test_metrics_count_under_vllms_names(client, ask):
    def values():
        found = {}
        for line in client.get("/metrics").text.splitlines():
            if line.startswith("vllm:"):
                name = line[5:].partition("{")[0]
                found[name] = found.get(name, 0) + float(line.rpartition(" ")[2])
        return found

    names = ("generation_tokens_total", "prompt_tokens_total", "request_success_total", "spec_decode_num_accepted_tokens_total")
    before = values()
    answer = ask(prompt=PROMPT, logit_bias={A: 1000}, max_tokens=12).json()
    after = values()
    assert [after[name] - before.get(name, 0) for name in names] == [
        12,
        11,
        1,
        answer["usage"]["speculation"]["accepted_tokens"],
    ]
    assert after["num_requests_running"] == 0
    assert after["spec_decode_num_accepted_tokens_per_pos_total"] == after[names[3]]
    assert after["e2e_request_latency_seconds_count"] == after["request_success_total"]
