"""The text of an answer: special tokens, stop strings and stop tokens, in `generate`, `stream` and step callbacks alike."""

import pytest
from marked_letters import MarkedLetters

from specdec.compose import load

END = 3


@pytest.fixture
def marked(counter, watched):
    """Counts upwards; token 3 is the model's end and special, token 6 is special and nothing else."""
    return watched(counter(stop_ids=(END,)), MarkedLetters(12, {END: "<|end|>", 6: "<think>"}))


def streamed(decoder, prompt, **options):
    """(the events' text, their pieces' text, the texts that step callbacks saw, the answer)."""
    texts = []
    events = list(decoder.stream(prompt, step_callback=lambda info: texts.extend(info.texts), **options))
    pieces = "".join(text for event in events for text, _ in event.pieces)
    return "".join(event.text for event in events), pieces, "".join(texts), events[-1].generation


def test_a_stop_string_that_is_a_special_tokens_text_stops_with_the_models_own_ends_turned_off(compose, marked, strategy):
    decoder = compose(marked, strategy, "oracle")
    answer = decoder.generate([[0]], max_new_tokens=20, stop=["<|end|>"], ignore_eos=True)[0]
    assert (answer.tokens, answer.text, answer.stopped_by) == ((1, 2, END), "bc", "<|end|>")
    answer = decoder.generate([[0]], max_new_tokens=20, stop=["f<think>h"], ignore_eos=True)[0]
    assert (answer.tokens, answer.text, answer.stopped_by) == ((1, 2, 3, 4, 5, 6, 7), "bce", "f<think>h")


@pytest.mark.parametrize(("skip", "text"), [(True, "efhij"), (False, "ef<think>hij")])
def test_special_tokens_of_an_answer_are_shown_on_request(compose, marked, chain_of, skip, text):
    decoder = compose(marked, chain_of(2), "oracle")
    options = {"max_new_tokens": 6, "skip_special_tokens": skip}
    answer = decoder.generate([[3]], **options)[0]
    assert (answer.tokens, answer.text) == ((4, 5, 6, 7, 8, 9), text)
    shown, pieces, watched_texts, same = streamed(decoder, [3], **options)
    assert shown == pieces == same.text == text
    assert text == "e" + watched_texts


@pytest.mark.parametrize("skip", [True, False])
def test_a_stop_token_is_part_of_no_text_whether_it_is_special_or_not(compose, counter, marked, watched, chain_of, skip):
    for target in (marked, watched(counter(stop_ids=(END,)))):
        decoder = compose(target, chain_of(4), "oracle")
        shown, pieces, watched_texts, answer = streamed(decoder, [0], max_new_tokens=9, skip_special_tokens=skip)
        assert answer.tokens == (1, 2, END)
        assert shown == pieces == answer.text == "b" + watched_texts == "bc"


def test_text_behind_a_stop_string_is_shown_to_nobody(compose, counter, chain_of):
    decoder = compose(counter(), chain_of(4), "oracle")
    shown, pieces, watched_texts, answer = streamed(decoder, [0], max_new_tokens=9, stop=["ef"])
    assert shown == pieces == answer.text == "b" + watched_texts == "bcd"


def test_pieces_of_a_stream_name_the_drafter_or_the_target(compose, counter, chain_of):
    events = list(compose(counter(), chain_of(2), "oracle").stream([0], max_new_tokens=7))
    assert [event.pieces for event in events] == [
        (("b", -1),),
        (("c", 0), ("d", 0), ("e", -1)),
        (("f", 0), ("g", 0), ("h", -1)),
    ]


@pytest.mark.slow
def test_the_embedded_model_stops_at_its_end_as_a_stop_string_and_continues_an_answer():
    decoder = load("plain")
    question = {"role": "user", "content": "Say hi."}
    answer = decoder.generate([[question]], max_new_tokens=60, stop=["<|im_end|>"], ignore_eos=True)[0]
    assert (answer.finish_reason, answer.stopped_by) == ("stop", "<|im_end|>")
    assert "<|im_end|>" not in answer.text
    begun = [question, {"role": "assistant", "content": "Hello there, my"}]
    prompt = decoder.generate([begun], max_new_tokens=4, continue_final_message=True)[0].prompt_tokens
    assert decoder.target.codec.decode(prompt).endswith("assistant\nHello there, my")
