from specdec.drafters.none import NoDrafter, NoneOptions
from specdec.interfaces.declarations import Gives
from specdec.interfaces.parts import BuildTools
from specdec.interfaces.proposals import DraftStart, Frontier
from specdec.interfaces.results import HiddenStates
from specdec.trees.draft_tree import TreeSketch


def test_nothing_is_proposed_for_any_node_and_nothing_is_asked_of_rows_that_ask_nothing():
    session = NoDrafter.build(NoneOptions(), BuildTools()).open([DraftStart((1,), 2, HiddenStates())] * 2)
    sketch = TreeSketch(2, 1)
    answer, silent = session.expand([Frontier(sketch, (0, sketch.add(0, 3))), None])
    assert answer.top(5) == ([[], []], [[], []])
    assert silent is None


def test_it_declares_that_it_drafts_nothing():
    declared = NoDrafter.declares(NoneOptions())
    assert (declared.gives, declared.drafts) == (Gives.CANDIDATES, False)
