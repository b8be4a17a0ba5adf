from dataclasses import replace

import pytest

from specdec.builders.chain import Chain, ChainOptions
from specdec.builders.fixed import Fixed, FixedOptions
from specdec.contracts import BuilderDeclaration, DrafterDeclaration, Draw, Gives, Shape
from specdec.distributions import Sampling
from specdec.drafters.tabular import TabularDrafterOptions
from specdec.errors import PluginError, SpecdecError
from specdec.interfaces import Drafter, DraftSession, Frontier, PartOptions, TreeBuilder
from specdec.records import Candidates, DraftProbs
from specdec.tree import TreeSketch
from specdec.verifiers.match import Match
from specdec.verifiers.multi_round import MultiRound


def builder_of(fault, draw=Draw.DETERMINISTIC):
    """A builder that grows a chain of two tokens, and spoils the finished tree."""

    class Lying(TreeBuilder):
        name = "lying"
        Options = PartOptions

        @classmethod
        def declares(cls, options):
            return BuilderDeclaration(draw=draw, shape=Shape.TREE, needs=frozenset(Gives))

        @classmethod
        def build(cls, options, tools):
            return cls()

        def grow(self, root_token, root_position, budget, chance):
            sketch = TreeSketch(root_token, root_position)
            yield Frontier(sketch, (0,))
            node = 0
            for token in range(1, 1 + min(2, budget.depth)):
                node = sketch.add(node, token)
            return fault(sketch, budget)

    return Lying


def frozen(sketch, **changes):
    return replace(sketch.freeze(Draw.DETERMINISTIC), **changes)


def grown(sketch, count):
    node = len(sketch) - 1
    for number in range(count):
        node = sketch.add(node, number % 2)
    return frozen(sketch)


LIES = {
    "another root token": (lambda s, b: frozen(s, tokens=(7 - s.tokens[0], *s.tokens[1:])), "another root"),
    "another root position": (lambda s, b: frozen(s, root_position=s.root_position + 1), "another root"),
    "too deep": (lambda s, b: grown(s, b.depth), "the budget is .* of depth"),
    "an orphan": (lambda s, b: frozen(s, parents=(-1, 0, 9)), "node 2: parent 9"),
    "a token outside the vocabulary": (lambda s, b: frozen(s, tokens=(*s.tokens[:2], 99)), "node 2: token 99"),
    "no root": (lambda s, b: frozen(s, tokens=(), parents=(), depths=(), children=(), draws={}, draw={}), "0 nodes"),
    "no tree": (lambda s, b: None, "returned NoneType, not a DraftTree"),
    "a sketch": (lambda s, b: s, "returned TreeSketch, not a DraftTree"),
}


@pytest.mark.parametrize(("fault", "message"), LIES.values(), ids=LIES.keys())
def test_a_builder_that_returns_a_wrong_tree_is_refused_by_name(compose, table, parts_of, fault, message):
    decoder = compose(table(8), parts_of(builder_of(fault), PartOptions(), Match))
    with pytest.raises(PluginError, match=f"tree builder 'lying'.*{message}"):
        decoder.generate([[1]], max_new_tokens=6)


def test_a_builder_that_tells_the_truth_is_not_refused(compose, table, parts_of):
    decoder = compose(table(8), parts_of(builder_of(lambda s, b: frozen(s)), PartOptions(), Match))
    assert len(decoder.generate([[1]], max_new_tokens=6)[0].tokens) >= 3


def test_a_builder_that_stamps_a_kind_of_draw_that_the_verifier_does_not_accept_is_refused(compose, table, parts_of):
    lying = builder_of(lambda sketch, budget: sketch.freeze(Draw.DETERMINISTIC), draw=Draw.WITHOUT_REPLACEMENT)
    decoder = compose(table(8), parts_of(lying, PartOptions(), MultiRound))
    with pytest.raises(PluginError, match=r"node 0: .*stamped as deterministic draws; verifier 'multi_round'"):
        decoder.generate([[1]], max_new_tokens=6)


def test_a_builder_that_asks_for_a_node_that_is_not_there_is_refused_by_name(compose, table, parts_of):
    class Asks(builder_of(None)):
        def grow(self, root_token, root_position, budget, chance):
            sketch = TreeSketch(root_token, root_position)
            yield Frontier(sketch, (5,))
            return sketch.freeze(Draw.DETERMINISTIC)

    with pytest.raises(PluginError, match=r"tree builder 'lying' asked for nodes 5 of a tree of 1 nodes"):
        compose(table(8), parts_of(Asks, PartOptions(), Match)).generate([[1]], max_new_tokens=6)


def drafter_of(answer):
    """A drafter that answers a batch of frontiers by `answer`."""

    class Session(DraftSession):
        def expand(self, frontiers):
            return answer(frontiers)

        def observe(self, committed, scored):
            """Nothing to learn."""

        def keep(self, rows):
            """Nothing to drop."""

    class Lying(Drafter):
        name = "lying"
        Options = PartOptions

        @classmethod
        def declares(cls, options):
            return DrafterDeclaration(gives=Gives.CANDIDATES)

        @classmethod
        def build(cls, options, tools):
            return cls()

        def open(self, starts):
            return Session()

    return Lying()


def candidates(count):
    return Candidates(((1,),) * count, ((-0.1,),) * count)


WRONG_ANSWERS = {
    "none at all": (lambda fs: [None for _ in fs], "left a frontier of 1 nodes unanswered"),
    "too many nodes": (lambda fs: [candidates(2) for _ in fs], "answered 2 nodes; the frontier has 1"),
    "too few nodes": (lambda fs: [candidates(0) for _ in fs], "answered 0 nodes; the frontier has 1"),
    "too few rows": (lambda fs: [candidates(1)], "answered 1 sequences; 2 asked"),
    "too many rows": (lambda fs: [candidates(1)] * 3, "answered 3 sequences; 2 asked"),
    "something else": (lambda fs: [(1,) for _ in fs], "answered with tuple"),
}


@pytest.mark.parametrize(("answer", "message"), WRONG_ANSWERS.values(), ids=WRONG_ANSWERS.keys())
def test_a_drafter_that_answers_wrongly_is_refused_by_name(compose, table, chain_of, answer, message):
    with pytest.raises(PluginError, match=f"drafter 'lying' .*{message}"):
        compose(table(8), chain_of(2), drafter_of(answer)).generate([[1], [2]], max_new_tokens=6)


def test_every_fault_of_a_part_is_a_specdec_error(compose, table, chain_of):
    with pytest.raises(SpecdecError):
        compose(table(8), chain_of(2), drafter_of(lambda fs: [])).generate([[1]], max_new_tokens=6)


class Listens(TreeBuilder):
    """Remembers what it is answered."""

    name = "listens"
    Options = PartOptions
    draw = Draw.DETERMINISTIC

    def __init__(self):
        self.answers = []

    @classmethod
    def declares(cls, options):
        return BuilderDeclaration(draw=cls.draw, shape=Shape.CHAIN, needs=frozenset(Gives))

    @classmethod
    def build(cls, options, tools):
        return cls()

    def grow(self, root_token, root_position, budget, chance):
        sketch = TreeSketch(root_token, root_position)
        self.answers.append((yield Frontier(sketch, (0,))))
        return sketch.freeze(self.draw)


class ListensAndDraws(Listens):
    """The same, as a drawing builder."""

    draw = Draw.IID


Q = TabularDrafterOptions(vocab=4, rows={"*": [0.1, 0.2, 0.3, 0.4]})


def test_a_drawing_builder_gets_the_warped_q_and_a_ranking_one_the_raw_logits(compose, table, parts_of):
    for builder in (Listens, ListensAndDraws):
        decoder = compose(table(8), parts_of(builder, PartOptions(), Match), Q, sampling=Sampling(temperature=0.5))
        decoder.generate([[1]], max_new_tokens=3)
        answer = decoder.builder.answers[0]
        if builder is ListensAndDraws:
            assert isinstance(answer, DraftProbs)
            assert answer.q[0].tolist() == pytest.approx([1 / 30, 4 / 30, 9 / 30, 16 / 30, 0, 0, 0, 0])
        else:
            assert answer.logits[0].exp().tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])


@pytest.mark.parametrize("limit", range(1, 8))
def test_a_draft_is_never_longer_than_what_may_still_be_emitted(compose, counter, parts_of, watched, limit):
    for builder, options in ((Chain, ChainOptions(length=5)), (Fixed, FixedOptions(widths=[2, 2, 1, 1]))):
        target = watched(counter())
        answer = compose(target, parts_of(builder, options, Match), "oracle").generate([[0]], max_new_tokens=limit)[0]
        assert len(answer.tokens) == limit
        assert all(record.depth < limit for record in answer.records)
