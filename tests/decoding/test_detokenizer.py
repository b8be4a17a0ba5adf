import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.decoding.detokenizer import Detokenizer, certain_length, find_stop, text_of, token_text
from specdec.decoding.stopping import Emitted, StopRules
from specdec.interfaces.text_codec import TextCodec


class ByteCodec(TextCodec):
    """Ids are bytes, and from 256 on pairs of letters, so that characters split over tokens and tokens over characters."""

    special_tokens = {}
    control_tokens = ()
    chat_template = None

    pairs = ("ab", "ba", "xaby", "é!")

    def encode(self, text, **options):
        return list(text.encode())

    def decode(self, ids):
        raw = b"".join(bytes([i]) if i < 256 else self.pairs[i - 256].encode() for i in ids)
        return raw.decode(errors="replace")

    def chat(self, messages, chat_format=None):
        return self.encode("".join(turn["content"] for turn in messages))

    def tokenizer_json(self):
        return None

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


class MarkedCodec(ByteCodec):
    """Bytes, and two special tokens."""

    special_tokens = {300: "<think>", 301: "<|end|>"}

    def decode(self, ids):
        return super().decode([token for token in ids if token not in self.special_tokens])


class SpacedCodec(MarkedCodec):
    """As SentencePiece: the first token of a text loses the space that it begins with."""

    def decode(self, ids):
        return super().decode(ids).removeprefix(" ")


MARKED, SPACED = MarkedCodec(), SpacedCodec()
THINK, END = 300, 301
marked_tokens = st.lists(st.one_of(st.sampled_from([THINK, END]), st.sampled_from(list("ab xé€".encode()))), max_size=24)


@given(marked_tokens)
def test_a_stream_is_the_decoded_whole_with_special_tokens_left_out_wherever_they_stand(tokens):
    assert text_of(MARKED, tokens, skip_special_tokens=True) == MARKED.decode(tokens)
    assert text_of(SPACED, tokens, skip_special_tokens=True) == SPACED.decode(tokens)


@given(st.lists(st.one_of(st.sampled_from([THINK, END]), st.sampled_from(list(b"ab x"))), max_size=24))
def test_a_text_with_its_special_tokens_has_each_where_it_was_said(tokens):
    expected = "".join(MARKED.special_tokens.get(token) or chr(token) for token in tokens)
    assert text_of(MARKED, tokens) == expected


def test_a_space_behind_a_special_token_is_kept():
    assert text_of(SPACED, [97, THINK, 32, 98]) == "a<think> b"
    assert text_of(SPACED, [97, THINK, 32, 98], skip_special_tokens=True) == "a b"


def test_a_space_behind_a_special_token_is_kept_though_a_character_was_left_unfinished():
    half = "é".encode()[0]
    assert text_of(SPACED, [97, half, THINK, 32, 98]) == "a\ufffd<think> b"


def test_a_token_by_itself_has_its_own_text_or_its_id():
    assert [token_text(MARKED, token) for token in (97, THINK)] == ["a", "<think>"]
    assert token_text(None, 5) == "‹5›"


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize(
    ("said", "stop", "text", "full"),
    [
        ([97, END, 98], "<|end|>", "a", "a"),
        ([97, THINK, 98, END, 99], "b<|end|>", "a", "a<think>"),
        ([97, END, 98, 99], "<|end|>b", "a", "a"),
        ([END], "<|end|>", "", ""),
        ([97, THINK, END, 98], "<|end|>", "a", "a<think>"),
        ([97, THINK, 98, 99], "b", "a", "a<think>"),
    ],
)
def test_a_stop_string_with_a_special_token_in_it_stops_whether_the_text_shows_it_or_not(said, stop, text, full, skip):
    out = Emitted(StopRules(9, strings=(stop,)), MARKED, skip_special_tokens=skip)
    shown = ""
    for token in said:
        if out.finish is None:
            out.push([token])
            shown += out.new_text()
    assert out.finish is not None
    assert out.finish.cause == stop
    assert out.text == shown == (text if skip else full)


def test_a_stop_string_is_not_found_in_part_of_a_special_token_that_the_text_leaves_out():
    for stop in ("think", "<", "a<"):
        out = Emitted(StopRules(4, strings=(stop,)), MARKED)
        out.push([97, THINK, 98, 99])
        assert (out.finish.reason, out.text) == ("length", "abc")


@given(marked_tokens, st.lists(st.sampled_from(["ab", "b<think>", "<|end|>", "x<|end|>a", "é€"]), max_size=2), st.booleans())
def test_with_special_tokens_too_the_grouping_of_tokens_changes_nothing(tokens, stops, skip):
    def run(size):
        out, shown, pieces = Emitted(StopRules(40, strings=tuple(stops)), MARKED, skip_special_tokens=skip), "", []
        for at in range(0, len(tokens), size):
            if out.finish is None:
                taken = out.push(tokens[at : at + size])
                shown += out.new_text()
                pieces += out.token_texts(taken)
        return tuple(out.tokens), out.text, out.finish, shown if out.finish else None, "".join(pieces)

    one_by_one, *grouped = run(1), run(3), run(30)
    assert {one_by_one[:4]} == {answer[:4] for answer in grouped}
    for _, text, finish, shown, pieces in (one_by_one, *grouped):
        assert finish is None or text == shown
        assert finish is None or pieces.startswith(text)


def test_pieces_of_the_text_name_the_token_that_they_come_from():
    out = Emitted(StopRules(9, ids=frozenset({10}), strings=("bcx",)), MARKED)
    out.push([97, 98, 99])
    assert out.new_pieces() == [("a", 0)]
    out.push([97, THINK, *"é".encode(), 10])
    assert out.new_pieces() == [("b", 1), ("c", 2), ("a", 3), ("é", 6)]
    assert out.token_texts(5) == ("a", "", "", "é", "")


def test_a_stop_that_only_the_end_of_the_text_shows_is_a_stop_though_the_limit_falls_there():
    """`END` and half a character in one token: nothing of it is certain before the answer ends."""

    class Halves(ByteCodec):
        def decode(self, ids):
            return b"".join(b"END\xc3" if i == 300 else bytes([i]) for i in ids).decode(errors="replace")

    emitted = Emitted(StopRules(2, strings=("END",)), Halves())
    assert emitted.push([97, 300]) == 2
    assert (emitted.finish.reason, emitted.finish.cause) == ("stop", "END")
    assert emitted.text == "a"
