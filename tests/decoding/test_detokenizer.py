import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.decoding.detokenizer import Detokenizer, certain_length, find_stop
from specdec.decoding.stopping import Emitted, StopRules
from specdec.interfaces.parts import TextCodec


class ByteCodec(TextCodec):
    """Ids are bytes, and from 256 on pairs of letters, so that characters split over tokens and tokens over characters."""

    pairs = ("ab", "ba", "xaby", "é!")

    def encode(self, text):
        return list(text.encode())

    def decode(self, ids):
        raw = b"".join(bytes([i]) if i < 256 else self.pairs[i - 256].encode() for i in ids)
        return raw.decode(errors="replace")

    def chat(self, messages):
        return self.encode("".join(turn["content"] for turn in messages))

    def vocabulary(self):
        return {chr(i): i for i in range(256)}


CODEC = ByteCodec()
texts = st.text(alphabet="abxyé€🙂 \n", max_size=30)


@given(texts)
def test_the_pieces_of_a_detokenised_stream_are_the_whole_text(text):
    stream = Detokenizer(CODEC)
    for token in CODEC.encode(text):
        stream.push(token)
        assert text.startswith(stream.text)
    stream.finish()
    assert stream.text == text


def test_an_unfinished_character_is_held_back_and_shown_at_the_end():
    stream = Detokenizer(CODEC)
    for token in "é".encode()[:1]:
        stream.push(token)
    assert stream.text == ""
    stream.finish()
    assert stream.text == "\ufffd"


@given(texts, st.lists(st.text(alphabet="abxyé", min_size=1, max_size=3), max_size=3), st.integers(0, 30))
def test_the_earliest_stop_in_the_text_wins(text, stops, since):
    found = find_stop(text, stops, since=0)
    starts = [(text.find(stop), -len(stop)) for stop in stops if stop in text]
    assert (found is None) == (not starts)
    if found is not None:
        assert (found[0], -len(found[1])) == min(starts)


@given(texts, st.lists(st.text(alphabet="abxyé", min_size=1, max_size=4), max_size=3))
def test_text_that_could_begin_a_stop_is_not_certain(text, stops):
    naive = min((len(text) - n for s in stops for n in range(1, len(s)) if text.endswith(s[:n])), default=len(text))
    assert certain_length(text, stops) == naive


def emit(tokens, rules, chunks):
    """The tokens, text, streamed text and finish of an answer whose tokens come in chunks."""
    out = Emitted(rules, CODEC)
    shown, at = "", 0
    for size in chunks:
        if out.finish is not None or at >= len(tokens):
            break
        out.push(tokens[at : at + size])
        at += size
        shown += out.new_text()
    return out.tokens, out.text, shown, out.finish


@given(texts, st.lists(st.sampled_from(["ab", "xy", "b", "é€"]), max_size=2, unique=True), st.integers(1, 40), st.data())
def test_an_answer_does_not_depend_on_how_its_tokens_are_grouped(text, stops, limit, data):
    tokens = CODEC.encode(text)
    rules = StopRules(limit, ids=frozenset({10}), sequences=((120, 121, 120),), strings=tuple(stops))
    single = emit(tokens, rules, [1] * 200)
    grouped = emit(tokens, rules, data.draw(st.lists(st.integers(1, 8), min_size=200, max_size=200)))
    assert grouped == single
    assert single[3] is None or single[1] == single[2]
    assert not any(stop in single[2] for stop in stops)


@pytest.mark.parametrize(
    ("tokens", "stop", "taken", "text", "reason"),
    [
        ([97, 98, 99, 100, 101, 102, 103, 104], "ab", 2, "", "stop"),
        ([258, 99], "ab", 1, "x", "stop"),
        ([99, 97, 98, 120], "ab", 3, "c", "stop"),
        ([99] * 8, "ab", 5, "ccccc", "length"),
        ([99, 99, 99, 99, 98], "b", 5, "cccc", "stop"),
    ],
)
def test_a_stop_string_ends_the_answer_at_the_token_that_completes_it(tokens, stop, taken, text, reason):
    out = Emitted(StopRules(5, strings=(stop,)), CODEC)
    assert out.push(tokens) == taken
    assert out.text == text
    assert out.finish is not None
    assert out.finish.reason == reason


def test_a_stop_that_falls_on_the_limit_is_a_stop_and_one_behind_it_is_not():
    for stop_at, reason in ((2, "stop"), (4, "stop"), (5, "length")):
        out = Emitted(StopRules(5, ids=frozenset({7})), None)
        run = [1] * 6
        run[stop_at] = 7
        assert out.push(run) == min(stop_at + 1, 5)
        assert out.finish is not None
        assert out.finish.reason == reason


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
def test_a_stop_sequence_may_be_split_over_steps(cut):
    tokens = [1, 5, 6, 7, 9, 9]
    out = Emitted(StopRules(10, sequences=((5, 6, 7),)), None)
    taken = out.push(tokens[:cut])
    if out.finish is None:
        taken += out.push(tokens[cut:])
    assert out.tokens == [1, 5, 6, 7]
    assert taken == 4
    assert out.finish is not None
    assert out.finish.cause == (5, 6, 7)


def test_the_text_of_a_stop_id_is_not_part_of_the_answer():
    out = Emitted(StopRules(10, ids=frozenset({10})), CODEC)
    out.push([97, 10, 98])
    assert out.tokens == [97, 10]
    assert out.text == "a"
