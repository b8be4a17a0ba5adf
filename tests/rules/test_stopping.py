"""A sequence ends where the plain loop ends it, with the same text, cause and counts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.decoding.stopping import Emitted, StopRules
from specdec.drafters.tabular import TabularDrafterOptions
from specdec.errors import SpecError
from specdec.interfaces.text_codec import TextCodec
from specdec.sampling.params import SamplingParams
from specdec.targets.tabular import LetterCodec

LETTERS = LetterCodec(12)


@pytest.fixture
def check(compose, next_logits, plain_loop, finished):
    """The record of a speculative run, which equals the plain loop's, streamed and not."""

    def run(target, parts, prompt, *, drafter="oracle", limit=20, stop=(), stop_ids=(), sampling=None):
        decoder = compose(target, parts, drafter, sampling=sampling)
        options = {"max_new_tokens": limit, "stop": stop, "stop_ids": stop_ids, "logprobs": 0}
        answer = decoder.generate([prompt], **options)[0]
        expected = plain_loop(
            next_logits(target),
            prompt,
            limit=limit,
            stop=stop,
            stop_ids={*stop_ids, *target.facts.stop_ids},
            decode=target.codec.decode,
        )
        assert finished(answer) == expected
        events = list(decoder.stream(prompt, **options))
        assert finished(events[-1].generation) == expected
        assert "".join(event.text for event in events) == expected.text
        assert tuple(token for event in events for token in event.tokens) == expected.ids
        return answer

    return run


# After the prompt's 0 the counter says 1 (prefill), then 2, 3, 4, 5 (drafted) and 6 (the next token), and so on.


@pytest.mark.parametrize("end", range(1, 8))
@pytest.mark.parametrize("mode", ["oracle", "mixed"])
def test_an_end_at_the_first_token_at_any_draft_position_or_at_the_next_token_ends_the_text(
    check, counter, strategy, end, mode
):
    answer = check(counter(stop_ids=(end,)), strategy, [0], drafter=mode)
    assert answer.tokens == tuple(range(1, end + 1))
    assert (answer.finish_reason, answer.stopped_by) == ("stop", end)


@pytest.mark.parametrize("end", range(1, 7))
def test_either_of_two_end_tokens_ends_the_text(check, counter, strategy, end):
    assert check(counter(stop_ids=(end, end + 2)), strategy, [0]).stopped_by == end
    assert check(counter(stop_ids=(end + 2,)), strategy, [0], stop_ids=(end,)).stopped_by == end


def test_a_prompt_that_ends_in_an_end_token_is_answered_until_one_is_drawn(check, counter, strategy):
    """As a chat that is continued may: only an emitted end ends the answer."""
    answer = check(counter(stop_ids=(0,)), strategy, [1, 0])
    assert answer.tokens == (*range(1, 12), 0)


def test_ignore_eos_turns_the_models_own_ends_off_and_leaves_the_requests(compose, counter, strategy):
    decoder = compose(counter(stop_ids=(3,)), strategy, "oracle")
    answer = decoder.generate([[0]], max_new_tokens=20, ignore_eos=True, stop_ids=[6])[0]
    assert answer.tokens == (1, 2, 3, 4, 5, 6)


ALWAYS_ENDS = TabularDrafterOptions(vocab=12, rows={"*": [0] * 11 + [1]})


def test_an_end_that_is_drafted_and_rejected_ends_nothing(check, table, strategy):
    rows = {"*": [0.1, 0.2, 0.3, 0.1, 0.3, 0, 0, 0, 0, 0, 0, 0]}
    answer = check(table(12, rows=rows, stop_ids=(11,)), strategy, [0], drafter=ALWAYS_ENDS)
    assert (answer.finish_reason, len(answer.tokens)) == ("length", 20)
    assert sum(record.accepted for record in answer.records) == 0


def test_nothing_is_drafted_below_a_drafted_end(compose, table, strategy):
    target = table(12, stop_ids=(11,))
    answer = compose(target, strategy, ALWAYS_ENDS).generate([[0]], max_new_tokens=10, ignore_eos=False)[0]
    assert max(record.depth for record in answer.records) == 1


@pytest.mark.parametrize("limit", range(1, 9))
@pytest.mark.parametrize("end", range(1, 9))
def test_a_stop_wins_on_the_limit_and_before_it_and_loses_beyond(check, counter, chain_of, end, limit):
    answer = check(counter(stop_ids=(end,)), chain_of(6), [0], limit=limit)
    assert len(answer.tokens) == min(end, limit)
    assert answer.finish_reason == ("stop" if end <= limit else "length")


@pytest.mark.parametrize("stop", [["c"], ["bc"], ["cd", "efg"], ["hij", "gh"], ["abcdefg"], ["jkl"], ["zz"]])
@pytest.mark.parametrize("mode", ["oracle", "mixed"])
def test_a_stop_string_anywhere_in_a_run_or_over_two_steps_cuts_the_text_before_it(check, counter, strategy, stop, mode):
    check(counter(), strategy, [0], stop=stop, limit=11, drafter=mode)


def test_of_two_stop_strings_the_earlier_match_in_the_text_wins(check, counter, strategy):
    answer = check(counter(), strategy, [0], stop=["ghi", "fg"])
    assert (answer.text, answer.stopped_by) == ("bcde", "fg")


class PairCodec(TextCodec):
    """Every token is two letters: token 1 is 'bc', token 2 is 'cd' and so on."""

    special_tokens = {}
    control_tokens = ()
    chat_template = None

    def encode(self, text, **options):
        return [LETTERS.encode(letter)[0] for letter in text[::2]]

    def decode(self, ids):
        return "".join("abcdefghijklmnop"[i : i + 2] for i in ids)

    def chat(self, messages, chat_format=None):
        raise NotImplementedError

    def tokenizer_json(self):
        return None

    def vocabulary(self):
        return {self.decode([i]): i for i in range(12)}


@pytest.mark.parametrize("stop", ["b", "cc", "cd", "dde", "hi", "hh"])
def test_a_stop_string_may_begin_and_end_inside_a_token(check, counter, watched, strategy, stop):
    target = watched(counter(), PairCodec())
    answer = check(target, strategy, [0], stop=[stop], limit=9)
    assert stop not in answer.text


@pytest.mark.parametrize("first", range(1, 9))
def test_a_stop_sequence_anywhere_in_a_run_or_over_two_steps_ends_right_after_it(check, counter, strategy, first):
    sequence = (first, first + 1, first + 2)
    answer = check(counter(), strategy, [0], stop=[sequence])
    assert answer.tokens == tuple(range(1, first + 3))
    assert answer.stopped_by == sequence


def test_a_stop_sequence_that_begins_in_the_prompt_does_not_count(check, counter, strategy):
    assert check(counter(), strategy, [0], stop=[(0, 1)], limit=8).finish_reason == "length"


@pytest.mark.parametrize("end", range(2, 8))
@pytest.mark.parametrize("kind", ["end token", "sequence", "text"])
def test_every_count_is_of_returned_tokens_only(compose, counter, strategy, kind, end):
    decoder = compose(counter(stop_ids=(end,) if kind == "end token" else ()), strategy, "oracle")
    stop = {"end token": [], "sequence": [(end - 1, end)], "text": [LETTERS.decode([end])]}[kind]
    answer = decoder.generate([[0]], max_new_tokens=20, stop=stop)[0]
    assert answer.tokens == tuple(range(1, end + 1))
    emitted = [token for record in answer.records for token in record.emitted]
    assert (answer.tokens[0], *emitted) == answer.tokens
    assert sum(r.committed for r in answer.records) == len(answer.tokens) - 1
    assert all(r.accepted <= r.committed == len(r.emitted) == len(r.sources) for r in answer.records)
    assert all(r.accepted <= r.tested <= r.committed for r in answer.records)
    assert all(sum(source >= 0 for source in r.sources) == r.accepted for r in answer.records)


def test_no_end_among_the_first_tokens_and_an_end_right_after(compose, table, strategy):
    target = table(6, rows={"*": [0.05, 0.25, 0.05, 0.05, 0.1, 0.5]}, stop_ids=(5,))
    decoder = compose(target, strategy, "oracle", sampling=SamplingParams(min_new_tokens=4))
    answer = decoder.generate([[0]], max_new_tokens=12)[0]
    assert answer.tokens == (1, 1, 1, 1, 5)
    assert answer.finish_reason == "stop"


def test_a_minimum_beyond_the_limit_is_refused_with_both_numbers(compose, table, strategy):
    decoder = compose(table(), strategy, sampling=SamplingParams(min_new_tokens=9))
    with pytest.raises(SpecError, match="min_new_tokens 9 exceeds max_new_tokens 5"):
        decoder.generate([[0]], max_new_tokens=5)


ids = st.lists(st.integers(0, 5), max_size=24)


@settings(max_examples=40)
@given(ids, st.lists(st.integers(1, 8), min_size=1, max_size=24), st.lists(st.text("abcdef", min_size=1, max_size=3)))
def test_the_same_ids_in_any_chunks_give_the_same_answer(tokens, sizes, stops):
    rules = StopRules(limit=20, ids=frozenset({5}), sequences=((1, 2),), strings=tuple(stops))

    def consumed(pieces):
        answer, shown = Emitted(rules, LETTERS), ""
        for piece in pieces:
            taken = answer.push(piece)
            shown += answer.new_text()
            if answer.finish is not None:
                assert taken <= len(piece)
                break
        return answer.tokens, answer.text, answer.finish, shown if answer.finish is not None else None

    chunks, rest = [], tokens
    for size in sizes * 24:
        chunks, rest = [*chunks, rest[:size]], rest[size:]
    assert consumed([chunk for chunk in chunks if chunk]) == consumed([[token] for token in tokens])
