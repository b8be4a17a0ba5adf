"""`suffix` against a search of the whole text, and its datastore."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec.drafters.suffix import CONTEXTS, NOVELTY, STORE_TRUST, SuffixDrafter, SuffixOptions
from specdec.errors import SpecError, TargetMismatch
from specdec.interfaces.parts import BuildTools
from specdec.interfaces.proposals import DraftStart, Frontier
from specdec.interfaces.results import Committed, HiddenStates, Scored
from specdec.lookup.datastore import build_datastore, write_datastore
from specdec.performance.online_calibration import HIGHEST
from specdec.trees.draft_tree import TreeSketch

UNREAD = Scored(torch.empty(0, 0))
"""What the target said; this drafter does not look at it."""

TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def session_of(tokens, **options):
    drafter = SuffixDrafter.build(SuffixOptions(**options), BuildTools())
    return drafter.open([DraftStart(tuple(tokens[:-1]), tokens[-1], HiddenStates())])


def naive_contexts(text, context, longest):
    """The longest suffixes of `context` that something followed in `text`, each at other places: (length, followers)."""
    found = {}
    for length in range(1, min(longest, len(context)) + 1):
        suffix = context[len(context) - length :]
        ends = [i + length for i in range(len(text) - length + 1) if text[i : i + length] == suffix]
        followers = [text[end] for end in ends if end < len(text)]
        if followers:
            found[tuple(ends)] = (length, followers)
    return sorted(found.values(), reverse=True, key=lambda one: one[0])


def naive_estimates(contexts):
    estimates = {}
    for length, followers in reversed(contexts):
        unseen = NOVELTY * len(set(followers)) / length
        mixed = {token: unseen * p for token, p in estimates.items()}
        for token in followers:
            mixed[token] = mixed.get(token, 0) + 1
        estimates = {token: weight / (len(followers) + unseen) for token, weight in mixed.items()}
    return estimates


def offered(session, tree, node):
    answer = session.expand([Frontier(tree, (node,))])[0]
    return {token: math.exp(score) for token, score in zip(answer.tokens[0], answer.scores[0], strict=True)}


@given(TOKENS, st.lists(st.integers(0, 3), max_size=4), st.integers(1, 6))
def test_estimates_are_those_of_a_search_of_the_whole_text(text, path, longest):
    session = session_of(text, longest=longest, candidates=9, min_confidence=0.0)
    tree, node = TreeSketch(text[-1], 0), 0
    for token in path:
        node = tree.add(node, token)
    wanted = naive_estimates(naive_contexts(text, [*text, *path], longest)[:CONTEXTS])
    assert offered(session, tree, node) == pytest.approx({token: min(p, HIGHEST) for token, p in wanted.items()})


@given(TOKENS, st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), max_size=4))
def test_reading_step_by_step_is_reading_at_once(text, steps):
    grown = session_of(text, min_confidence=0.0)
    for tokens in steps:
        grown.observe([Committed(tuple(tokens), tuple(range(len(tokens))))], [UNREAD])
    whole = [*text, *(token for tokens in steps for token in tokens)]
    tree = TreeSketch(whole[-1], 0)
    assert offered(grown, tree, 0) == offered(session_of(whole, min_confidence=0.0), tree, 0)


def test_a_repeated_text_is_drafted_to_its_end_with_growing_confidence():
    text = [5, 3, 8, 1, 9, 2, 7, 4, 0, 5, 3, 8]
    session, tree, node, sure = session_of(text), TreeSketch(8, 11), 0, []
    for expected in (1, 9, 2, 7, 4, 0):
        found = offered(session, tree, node)
        assert max(found, key=found.get) == expected
        sure.append(found[expected])
        node = tree.add(node, expected)
    assert sure == sorted(sure)


def test_two_continuations_make_two_branches_the_more_frequent_first():
    session = session_of([1, 2, 3, 9, 1, 2, 4, 9, 1, 2, 4, 9, 1, 2], min_confidence=0.0)
    answer = session.expand([Frontier(TreeSketch(2, 13), (0,))])[0]
    assert answer.tokens[0][:2] == (4, 3)


def test_of_equally_frequent_continuations_the_later_comes_first():
    session = session_of([1, 2, 3, 9, 1, 2, 4, 9, 1, 2], min_confidence=0.0, candidates=1)
    assert session.expand([Frontier(TreeSketch(2, 9), (0,))])[0].tokens == ((4,),)


def test_a_text_without_repetition_drafts_nothing():
    assert offered(session_of([1, 2, 3, 4]), TreeSketch(4, 3), 0) == {}


def test_paths_below_the_confidence_are_left_out():
    text = [1, 2, 3, 4, 9, 1, 2, 3]
    assert offered(session_of(text, min_confidence=0.0), TreeSketch(3, 7), 0)
    assert offered(session_of(text, min_confidence=0.99), TreeSketch(3, 7), 0) == {}


def test_estimates_that_fail_are_believed_less():
    session = session_of([1, 2] * 10 + [1], min_confidence=0.0)
    before = offered(session, TreeSketch(1, 0), 0)[2]
    for _ in range(30):
        offered(session, TreeSketch(1, 0), 0)
        session.observe([Committed((7, 1), (0, 1))], [UNREAD])
        session.observe([Committed((2, 1), (0, 1))], [UNREAD])
        offered(session, TreeSketch(1, 0), 0)
        session.observe([Committed((7, 1), (0, 1))], [UNREAD])
    assert offered(session, TreeSketch(1, 0), 0).get(2, 0) < before


def test_rows_share_nothing_and_dropped_rows_leave():
    starts = [DraftStart((1, 2, 3, 1, 2), 3, HiddenStates()), DraftStart((7, 8), 9, HiddenStates())]
    session = SuffixDrafter.build(SuffixOptions(), BuildTools()).open(starts)
    first, second = session.expand([Frontier(TreeSketch(3, 5), (0,)), Frontier(TreeSketch(9, 2), (0,))])
    assert (first.tokens, second.tokens) == (((1,),), ((),))
    session.keep([1])
    session.observe([Committed((7, 8, 9), (0, 1, 2))], [UNREAD])
    assert session.expand([Frontier(TreeSketch(9, 5), (0,))])[0].tokens == ((7,),)
    assert session.expand([None]) == [None]


@pytest.fixture
def store_file(tmp_path):
    def make(texts, vocabulary=None):
        path = tmp_path / "texts.store"
        write_datastore(path, build_datastore(texts, vocabulary=vocabulary))
        return str(path)

    return make


def test_a_datastore_continues_what_the_sequence_has_never_seen(store_file):
    session = session_of([9, 1, 2], datastore=store_file([[1, 2, 3, 4, 5]]), min_confidence=0.01)
    tree, node, tokens = TreeSketch(2, 2), 0, []
    for _ in range(5):
        found = offered(session, tree, node)
        if not found:
            break
        tokens.append(max(found, key=found.get))
        node = tree.add(node, tokens[-1])
    assert tokens == [3, 4, 5]


def test_what_the_sequence_says_itself_counts_more_than_what_is_stored(store_file):
    stored = store_file([[1, 2, 7]])
    found = offered(session_of([1, 2, 3, 9, 1, 2], datastore=stored, min_confidence=0.0), TreeSketch(2, 5), 0)
    assert found[7] == pytest.approx(STORE_TRUST * found[3])


def test_a_store_of_another_vocabulary_is_refused(store_file):
    class Codec:
        def vocabulary(self):
            return {"a": 0}

    target = SimpleNamespace(codec=Codec(), facts=SimpleNamespace(vocab_size=9))
    path = store_file([[1, 2]], vocabulary="0123")
    with pytest.raises(TargetMismatch, match="another vocabulary than the target's"):
        SuffixDrafter.build(SuffixOptions(datastore=path), BuildTools(target=target))


def test_a_file_that_is_no_store_is_refused(tmp_path):
    path = tmp_path / "x"
    path.write_text("hello")
    with pytest.raises(SpecError, match="not a datastore"):
        SuffixDrafter.build(SuffixOptions(datastore=str(path)), BuildTools())


def test_after_a_step_of_one_token_a_datastore_is_searched_for_the_older_ones_too(store_file):
    session = session_of([9, 1], datastore=store_file([[1, 2, 3], [4, 2, 5], [6, 2, 5], [7, 2, 5]]), min_confidence=0.0)
    session.observe([Committed((2,), (0,))], [UNREAD])
    found = offered(session, TreeSketch(2, 2), 0)
    assert max(found, key=found.get) == 3
