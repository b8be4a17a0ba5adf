import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from specdec.drafters.ngram import NOVELTY, NgramDrafter, NgramIndex, NgramOptions
from specdec.interfaces.declarations import Gives
from specdec.interfaces.parts import BuildTools
from specdec.interfaces.proposals import DraftStart, Frontier
from specdec.interfaces.results import Committed, HiddenStates
from specdec.trees.draft_tree import TreeSketch

TOKENS = st.lists(st.integers(0, 2), max_size=30)


def naive_match(text, path, shortest, longest):
    """By scanning: the longest suffix of text + path that stands in the text before a token, and the tokens after it."""
    context = [*text, *path]
    for length in range(min(longest, len(context)), shortest - 1, -1):
        suffix = context[len(context) - length :]
        after = [text[i + length] for i in range(len(text) - length) if text[i : i + length] == suffix]
        if after:
            return length, after
    return 0, []


@given(text=TOKENS, path=st.lists(st.integers(0, 2), max_size=4), shortest=st.integers(1, 3), more=st.integers(0, 4))
def test_the_index_finds_what_a_scan_of_the_text_finds(text, path, shortest, more):
    index = NgramIndex(shortest, shortest + more)
    index.extend(text)
    length, followers = index.match(path)
    expected_length, after = naive_match(text, path, shortest, shortest + more)
    assert (length, followers) == (expected_length, dict(Counter(after)))
    if after:
        latest = {token: place for place, token in enumerate(after)}
        ranked = sorted(latest, key=lambda token: (-after.count(token), -latest[token]))
        weight = len(after) + NOVELTY / length
        assert index.predict(path, 9) == [(token, after.count(token) / weight) for token in ranked]
    else:
        assert index.predict(path, 9) == []


@given(st.lists(TOKENS, max_size=5))
def test_reading_in_pieces_is_reading_at_once(pieces):
    parts, whole = NgramIndex(1, 4), NgramIndex(1, 4)
    for piece in pieces:
        parts.extend(piece)
    whole.extend([token for piece in pieces for token in piece])
    assert parts.match([]) == whole.match([])
    assert parts._followers == whole._followers


def test_a_token_costs_one_entry_for_each_length_however_long_the_text_is():
    index = NgramIndex(2, 5)
    index.extend(range(1000))
    entries = sum(map(len, index._followers.values()))
    index.extend([7])
    assert sum(map(len, index._followers.values())) - entries == 4
    assert len(index.tail) == 5


def session_of(prompt, first, **options):
    return NgramDrafter.build(NgramOptions(**options), BuildTools()).open([DraftStart(tuple(prompt), first, HiddenStates())])


def greedy_chain(session, root, length):
    sketch, node, tokens = TreeSketch(root, 0), 0, []
    for _ in range(length):
        best = session.expand([Frontier(sketch, (node,))])[0].top(1)[0][0]
        if not best:
            break
        node = sketch.add(node, best[0])
        tokens += best
    return tokens


def test_a_repeated_text_is_drafted_to_its_end_and_beyond():
    text = [5, 3, 8, 1, 9, 2, 7, 4]
    assert greedy_chain(session_of([*text, 0, *text[:3]], text[3], adaptive=False), text[3], 5) == [9, 2, 7, 4, 0]


def test_without_an_earlier_occurrence_nothing_is_drafted():
    assert greedy_chain(session_of([1, 2, 3], 4), 4, 5) == []


def test_a_prompt_of_one_token_works():
    assert greedy_chain(session_of([1], 2), 2, 5) == []
    assert greedy_chain(session_of([1], 1, min_confidence=0.0), 1, 3) == [1, 1, 1]


def test_candidates_are_different_best_first_and_at_most_as_many_as_asked():
    session = session_of([1, 2, 9, 1, 3, 9, 1, 3, 9, 1, 4, 9, 1, 5, 9], 1, candidates=3, min_confidence=0.0, max_ngram=1)
    tokens, scores = session.expand([Frontier(TreeSketch(1, 15), (0,))])[0].top(9)
    assert tokens == [[3, 5, 4]]
    assert scores[0] == sorted(scores[0], reverse=True)
    assert scores[0] == pytest.approx([math.log(n / (5 + NOVELTY)) for n in (2, 1, 1)])


def test_a_short_match_counts_less_and_a_path_below_the_confidence_is_left_out():
    prompt = [1, 2, 3, 4, 9, 4]
    assert greedy_chain(session_of(prompt, 4, min_confidence=0.5, adaptive=False), 4, 9) == []
    long = [1, 2, 3, 4, 9, 1, 2, 3]
    assert greedy_chain(session_of(long, 4, min_confidence=0.4, adaptive=False), 4, 9) == [9, 1]
    strict = session_of(long, 4, min_ngram=5, min_confidence=0.0)
    assert greedy_chain(strict, 4, 9) == []


@pytest.mark.parametrize("right", [True, False])
def test_own_success_within_the_request_raises_or_lowers_the_estimate(right):
    session = session_of([1, 2] * 3, 1, max_ngram=1, min_confidence=0.0)
    text = NgramIndex(1, 1)
    text.extend([1, 2] * 3 + [1])
    for step in range(5):
        (token, probability), *_ = text.predict([], 1)
        score = session.expand([Frontier(TreeSketch(1, 0), (0,))])[0].scores[0][0]
        shift = score - math.log(probability)
        assert shift == pytest.approx(0) if step == 0 else (shift > 0) is right
        news = (token if right else 50 + step, 1)
        session.observe([Committed(news, (0, 1))], [])
        text.extend(news)


def test_a_drafter_that_is_always_wrong_falls_silent():
    session = session_of([1, 2, 1, 3] * 2, 1, max_ngram=1, min_confidence=0.1)
    drafted = []
    for step in range(200):
        sketch = TreeSketch(1, 0)
        drafted.append(sum(map(len, session.expand([Frontier(sketch, (0,))])[0].tokens)))
        session.observe([Committed((50 + step, 1), (0, 1))], [])
    assert drafted[0] == 2
    assert drafted[-1] == 0


def test_rows_are_independent_and_dropped_rows_leave():
    starts = [DraftStart((1, 2, 3, 1, 2), 3, HiddenStates()), DraftStart((7, 8), 9, HiddenStates())]
    session = NgramDrafter.build(NgramOptions(), BuildTools()).open(starts)
    first, second = session.expand([Frontier(TreeSketch(3, 5), (0,)), Frontier(TreeSketch(9, 2), (0,))])
    assert first.tokens == ((1,),)
    assert second.tokens == ((),)
    session.keep([1])
    session.observe([Committed((7, 8, 9), (0, 1, 2))], [])
    assert session.expand([Frontier(TreeSketch(9, 5), (0,))])[0].tokens == ((7,),)
    assert session.expand([None]) == [None]


def test_two_requests_of_one_drafter_share_nothing():
    drafter = NgramDrafter.build(NgramOptions(), BuildTools())
    long = drafter.open([DraftStart((1, 2, 3, 1, 2), 3, HiddenStates())])
    long.observe([Committed((4, 5), (0, 1))], [])
    fresh = drafter.open([DraftStart((1,), 2, HiddenStates())])
    assert fresh.expand([Frontier(TreeSketch(2, 1), (0,))])[0].tokens == ((),)


@given(st.lists(st.integers(0, 3), min_size=2, max_size=40))
def test_scores_are_at_most_zero_and_fall(text):
    session = session_of(text[:-1], text[-1], min_confidence=0.0)
    answer = session.expand([Frontier(TreeSketch(text[-1], 0), (0,))])[0]
    assert all(score <= 0 for row in answer.scores for score in row)
    assert all(list(row) == sorted(row, reverse=True) for row in answer.scores)
    assert all(len(set(row)) == len(row) for row in answer.tokens)


def test_options_are_checked_and_declared():
    assert NgramDrafter.declares(NgramOptions()).gives is Gives.CANDIDATES
    with pytest.raises(ValidationError, match="min_ngram is 5 and max_ngram 3"):
        NgramOptions(min_ngram=5, max_ngram=3)
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        NgramOptions(min_ngram=0)
