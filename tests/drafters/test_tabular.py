import pytest
import torch
from pydantic import ValidationError

from specdec.drafters.tabular import Tabular, TabularDrafterOptions
from specdec.errors import TargetMismatch
from specdec.interfaces.parts import BuildTools
from specdec.interfaces.probability_table import RandomRows
from specdec.interfaces.proposals import DraftStart, Frontier
from specdec.interfaces.results import Committed, HiddenStates, Scored
from specdec.targets.tabular import Tabular as TabularTarget
from specdec.targets.tabular import TabularTargetOptions
from specdec.trees.draft_tree import TreeSketch

TARGET = TabularTarget(TabularTargetOptions(vocab=4, random=RandomRows(order=3, seed=1)))


def drafter(**options) -> Tabular:
    return Tabular.build(TabularDrafterOptions(**options), BuildTools(target=TARGET))


def start(*tokens) -> DraftStart:
    return DraftStart(tuple(tokens[:-1]), tokens[-1], HiddenStates())


def root_frontier(token, position) -> Frontier:
    return Frontier(TreeSketch(token, position), (0,))


def p_after(tokens):
    return TARGET._table.log_probs(tokens)


def test_the_oracle_is_the_target_and_the_anti_oracle_never_proposes_its_likeliest():
    for tokens in ([0, 1], [2, 2, 3], [1]):
        best = int(p_after(tokens).argmax())
        assert torch.equal(drafter(mode="oracle").logits(tokens), p_after(tokens))
        assert drafter(mode="anti").logits(tokens)[best] == float("-inf")
        mixed = drafter(mode="mixed").logits(tokens)
        assert (int(mixed.argmax()) == best) == (len(tokens) % 2 == 0)


def test_the_anti_oracle_of_a_certain_target_still_proposes_something():
    certain = TabularTarget(TabularTargetOptions(vocab=3, rows={"*": [0, 1, 0]}))
    made = Tabular.build(TabularDrafterOptions(mode="anti"), BuildTools(target=certain))
    assert made.logits([0]).softmax(-1).tolist() == [0.5, 0, 0.5]


def test_a_session_follows_what_was_committed_and_drops_rows():
    session = drafter(mode="oracle").open([start(0, 1), start(2, 3), start(1, 1)])
    first = session.expand([root_frontier(1, 1), None, root_frontier(1, 1)])
    assert first[1] is None
    assert torch.equal(first[0].logits[0], p_after([0, 1]))
    session.keep([1, 2])
    scored = [Scored(torch.zeros(1, 4))] * 2
    session.observe([Committed((2, 0), (0, 1)), Committed((3,), (0,))], scored)
    sketch = TreeSketch(0, 3)
    node = sketch.add(0, 2)
    answers = session.expand([Frontier(sketch, (node, 0)), root_frontier(3, 2)])
    assert torch.equal(answers[0].logits, torch.stack([p_after([2, 3, 2, 0, 2]), p_after([2, 3, 2, 0])]))
    assert torch.equal(answers[1].logits[0], p_after([1, 1, 3]))


def test_a_part_of_the_vocabulary_is_given_with_its_target_ids():
    made = drafter(vocab=2, rows={"*": [0.25, 0.75]}, target_ids=[3, 1])
    [answer] = made.open([start(0, 0)]).expand([root_frontier(0, 1)])
    assert answer.top(2) == ([[1, 3]], [pytest.approx([torch.log(torch.tensor(p)).item() for p in (0.75, 0.25)])])
    seen = drafter(mode="oracle", target_ids=[2, 0]).logits([0, 1])
    assert torch.equal(seen, p_after([0, 1])[[2, 0]])


def test_a_vocabulary_that_the_target_lacks_is_refused():
    with pytest.raises(TargetMismatch, match="token 4"):
        drafter(vocab=5, random=RandomRows())
    with pytest.raises(TargetMismatch, match="token 9"):
        drafter(vocab=1, random=RandomRows(), target_ids=[9])
    with pytest.raises(TargetMismatch, match="there is none"):
        Tabular.build(TabularDrafterOptions(mode="oracle"), BuildTools())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs `vocab`"),
        ({"vocab": 2}, "`rows` or `random`"),
        ({"vocab": 2, "random": RandomRows(), "target_ids": [1]}, "1 entries"),
        ({"vocab": 2, "random": RandomRows(), "target_ids": [1, 1]}, "twice"),
    ],
)
def test_options_that_make_no_drafter_are_refused(options, message):
    with pytest.raises(ValidationError, match=message):
        TabularDrafterOptions(**options)
