import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.lookup.suffix_automaton import START, SuffixAutomaton

TEXTS = st.integers(1, 4).flatmap(lambda size: st.lists(st.integers(0, size), max_size=50))


def naive(text, context, longest):
    """The longest suffix of `context` that something followed in `text`: its length, and {token: (times, end of the last)}."""
    for length in range(min(longest, len(context)), 0, -1):
        suffix = context[len(context) - length :]
        ends = [i + length for i in range(len(text) - length) if text[i : i + length] == suffix]
        if ends:
            followers = [text[end] for end in ends]
            return length, {text[end]: (followers.count(text[end]), end + 1) for end in ends}
    return 0, {}


@given(TEXTS, st.lists(st.integers(0, 4), max_size=5), st.integers(1, 8))
@settings(max_examples=300)
def test_matches_and_counts_are_those_of_a_search(text, path, longest):
    automaton = SuffixAutomaton(longest)
    automaton.extend(text)
    place = automaton.suffix
    for token in path:
        place = automaton.step(place, token)
    place = automaton.followed(place)
    length, followers = naive(text, [*text, *path], longest)
    assert place.length == length
    if length:
        assert {token: (count, latest) for token, count, latest in automaton.followers(place)} == followers


@given(TEXTS, st.integers(1, 8))
def test_shorter_places_have_more_occurrences(text, longest):
    automaton = SuffixAutomaton(longest)
    automaton.extend(text)
    place, seen = automaton.followed(automaton.suffix), -1
    while place != START:
        times = sum(count for _, count, _ in automaton.followers(place))
        assert times >= seen
        place, seen = automaton.followed(automaton.shorter(place)), times


@given(TEXTS, TEXTS)
def test_reading_in_pieces_is_reading_at_once(first, second):
    parts, whole = SuffixAutomaton(5), SuffixAutomaton(5)
    parts.extend(first)
    parts.extend(second)
    whole.extend([*first, *second])
    assert parts.suffix == whole.suffix
    assert sorted(parts.followers(START)) == sorted(whole.followers(START))


@pytest.mark.parametrize("text", [[1] * 2000, [1, 2] * 1000, list(range(2000))])
def test_there_are_at_most_two_states_a_token_and_counting_stays_short(text):
    automaton = SuffixAutomaton(8)
    automaton.extend(text)
    assert len(automaton._links) <= 2 * len(text)
    assert max(automaton._counts) <= len(text)
    counted, state = 0, automaton._counted.state
    while state > 0:
        counted, state = counted + 1, automaton._links[state]
    assert counted <= 9
