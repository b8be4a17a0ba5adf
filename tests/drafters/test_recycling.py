"""`recycling`: the target's own choices come back."""

import math

import pytest
import torch

from specdec.drafters.recycling import TRUST, RecyclingDrafter, RecyclingOptions
from specdec.errors import SpecError
from specdec.interfaces.parts import BuildTools
from specdec.interfaces.proposals import DraftStart, Frontier
from specdec.interfaces.results import Committed, HiddenStates, Scored
from specdec.lookup.successors import SuccessorTables, likeliest, read_successors, write_successors
from specdec.trees.draft_tree import Draw, TreeSketch


def session_of(prompt, first, **options):
    drafter = RecyclingDrafter.build(RecyclingOptions(min_confidence=0.0, **options), BuildTools())
    return drafter.open([DraftStart(tuple(prompt), first, HiddenStates())])


def logits(*rows, vocab=12):
    table = torch.full((len(rows), vocab), float("-inf"))
    for row, chances in enumerate(rows):
        for token, rng in chances.items():
            table[row, token] = math.log(rng)
    return Scored(table)


def offered(session, tree, node=0):
    answer = session.expand([Frontier(tree, (node,))])[0]
    return {token: round(math.exp(score), 6) for token, score in zip(answer.tokens[0], answer.scores[0], strict=True)}


def test_nothing_is_known_at_first():
    assert offered(session_of([1, 2], 3), TreeSketch(3, 2)) == {}


def test_what_was_likely_behind_two_tokens_comes_back_behind_them():
    session = session_of([1, 2], 3)
    session.observe([Committed((4, 2, 3), (0, 1, 2), tree=chain(3, [4, 2]))], [logits({4: 0.7, 5: 0.3}, {2: 1}, {3: 1})])
    assert offered(session, TreeSketch(3, 5)) == pytest.approx({4: TRUST[2] * 0.7, 5: TRUST[2] * 0.3})


def test_behind_one_token_it_counts_for_less():
    session = session_of([1, 2], 3)
    session.observe([Committed((9, 3), (0, 1), tree=chain(3, [9]))], [logits({4: 0.7, 9: 0.3}, {3: 1})])
    assert offered(session, TreeSketch(3, 4)) == pytest.approx({4: TRUST[1] * 0.7, 9: TRUST[1] * 0.3})


def test_with_a_context_of_one_only_the_last_token_counts():
    session = session_of([1, 2], 3, context=1)
    session.observe([Committed((4, 2, 3), (0, 1, 2), tree=chain(3, [4, 2]))], [logits({4: 1}, {2: 1}, {3: 1})])
    assert offered(session, TreeSketch(3, 5)) == pytest.approx({4: TRUST[1]})


def test_rejected_nodes_are_remembered_too():
    session = session_of([1, 2], 3)
    tree = chain(3, [8, 7])
    session.observe([Committed((5,), (0,), tree=tree)], [logits({5: 1}, {7: 1}, {6: 1})])
    growing = TreeSketch(5, 3)
    node = growing.add(growing.add(0, 8), 7)
    assert offered(session, growing, node) == pytest.approx({6: TRUST[2]})


def test_the_latest_choice_replaces_the_earlier():
    session = session_of([1, 2], 3)
    for token in (4, 5):
        session.observe([Committed((2, 3), (0, 1), tree=chain(3, [2]))], [logits({token: 1}, {3: 1})])
    assert offered(session, TreeSketch(3, 6)) == pytest.approx({5: TRUST[2]})


def test_candidates_limit_what_is_kept():
    session = session_of([1, 2], 3, candidates=2)
    session.observe([Committed((2, 3), (0, 1), tree=chain(3, [2]))], [logits({4: 0.5, 5: 0.3, 6: 0.2}, {3: 1})])
    assert set(offered(session, TreeSketch(3, 4))) == {4, 5}


def test_rows_share_nothing_and_dropped_rows_leave():
    starts = [DraftStart((1, 2), 3, HiddenStates())] * 2
    session = RecyclingDrafter.build(RecyclingOptions(min_confidence=0.0), BuildTools()).open(starts)
    news = [Committed((2, 3), (0, 1), tree=chain(3, [2]))] * 2
    session.observe(news, [logits({4: 1}, {3: 1}), logits({5: 1}, {3: 1})])
    session.keep([1])
    assert offered(session, TreeSketch(3, 4)) == pytest.approx({5: TRUST[2]})


def test_a_file_is_where_a_sequence_starts_and_it_is_never_changed(tmp_path):
    tables = SuccessorTables()
    tables.enter([2, 3], ((7, 0.5), (8, 0.25)))
    write_successors(tmp_path / "t", tables, vocabulary=None)
    drafter = RecyclingDrafter.build(RecyclingOptions(start=str(tmp_path / "t"), min_confidence=0.0), BuildTools())
    first = drafter.open([DraftStart((1, 2), 3, HiddenStates())])
    assert offered(first, TreeSketch(3, 2)) == pytest.approx({7: TRUST[2] * 0.5, 8: TRUST[2] * 0.25})
    first.observe([Committed((2, 3), (0, 1), tree=chain(3, [2]))], [logits({4: 1}, {3: 1})])
    assert set(offered(first, TreeSketch(3, 4))) == {4}
    second = drafter.open([DraftStart((1, 2), 3, HiddenStates())])
    assert set(offered(second, TreeSketch(3, 2))) == {7, 8}


def test_tables_come_back_from_their_file(tmp_path):
    tables = SuccessorTables()
    tables.enter([5], ((1, 0.5),))
    tables.enter([5, 6], ((2, 0.25), (3, 0.125)))
    write_successors(tmp_path / "t", tables, vocabulary="v")
    again, vocabulary = read_successors(tmp_path / "t")
    assert (again.tables, vocabulary) == (tables.tables, "v")
    with pytest.raises(SpecError, match="fewer than two tokens"):
        write_successors(tmp_path / "u", SuccessorTables(), vocabulary=None)


@pytest.mark.parametrize(("vocab", "error"), [(5, 1e-5), (3000, 1e-5), (49152, 0.2)])
def test_the_likeliest_are_those_of_a_softmax_and_nearly_as_likely(vocab, error):
    torch.manual_seed(vocab)
    table = torch.randn(6, vocab) * 2
    exact = table.softmax(-1)
    for row, found in zip(exact, likeliest(table, 8), strict=True):
        best = row.topk(min(8, vocab))
        assert [token for token, _ in found] == best.indices.tolist()
        for (_, estimate), value in zip(found, best.values.tolist(), strict=True):
            assert estimate == pytest.approx(value, rel=error)


def test_impossible_tokens_are_not_remembered():
    assert likeliest(logits({3: 1.0}).logits, 4) == [((3, pytest.approx(1.0)),)]


def chain(root, tokens):
    sketch, node = TreeSketch(root, 2), 0
    for token in tokens:
        node = sketch.add(node, token)
    return sketch.freeze(Draw.DETERMINISTIC)


def test_after_a_step_of_one_token_the_context_is_that_and_the_one_before():
    session = session_of([1, 2], 3)
    session.observe([Committed((4, 2, 3), (0, 1, 2), tree=chain(3, [4, 2]))], [logits({4: 1}, {2: 1}, {3: 1})])
    session.observe([Committed((4,), (0,), tree=chain(3, []))], [logits({4: 1})])
    assert offered(session, TreeSketch(4, 6)) == pytest.approx({2: TRUST[2]})
