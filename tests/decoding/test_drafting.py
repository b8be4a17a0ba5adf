from dataclasses import replace

import pytest
import torch

from specdec.decoding.requests import Request
from specdec.drafters.tabular import TabularDrafterOptions
from specdec.errors import PluginError, SpecdecError
from specdec.interfaces.declarations import BuilderDeclaration, DrafterDeclaration, Gives, Shape
from specdec.interfaces.parts import Drafter, DraftSession, PartOptions, TreeBuilder
from specdec.interfaces.proposals import Candidates, Distributions, DraftProbs, Frontier
from specdec.interfaces.results import Verdict
from specdec.sampling.params import SamplingParams
from specdec.tree_builders.chain import Chain, ChainOptions
from specdec.tree_builders.fixed import Fixed, FixedOptions
from specdec.trees.draft_tree import Draw, TreeSketch
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

        def grow(self, root_token, root_position, budget, rng):
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
    "a fraction for a token": (lambda s, b: frozen(s, tokens=(*s.tokens[:2], 1.0)), "node 2: its token is a float"),
    "no tokens at all": (lambda s, b: frozen(s, tokens=None), "fails: TypeError"),
    "no root": (lambda s, b: frozen(s, tokens=(), parents=(), depths=(), children=(), draw_order={}, draw_kind={}), "0 nodes"),
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
        def grow(self, root_token, root_position, budget, rng):
            sketch = TreeSketch(root_token, root_position)
            yield Frontier(sketch, (5,))
            return sketch.freeze(Draw.DETERMINISTIC)

    with pytest.raises(PluginError, match=r"tree builder 'lying' asked for nodes 5 of a tree of 1 nodes"):
        compose(table(8), parts_of(Asks, PartOptions(), Match)).generate([[1]], max_new_tokens=6)


def drafter_of(answer, gives=Gives.CANDIDATES):
    """A drafter that answers a batch of frontiers by `answer`."""

    class Session(DraftSession):
        def expand(self, frontiers):
            return answer(frontiers)

        def observe(self, committed, scored):
            """Nothing to learn."""

        def keep(self, rows):
            """Nothing to drop."""

        def join(self, other):
            """Nothing to append."""

    class Lying(Drafter):
        name = "lying"
        Options = PartOptions

        @classmethod
        def declares(cls, options):
            return DrafterDeclaration(gives=gives)

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
    "no list": (lambda fs: None, "answered with NoneType, not with a list"),
    "a fraction": (lambda fs: [Candidates(((1.5,),), ((-0.1,),))] * 2, r"proposed 1\.5; expected an id"),
    "truth": (lambda fs: [Candidates(((True,),), ((-0.1,),))] * 2, "proposed True"),
    "an id too large": (lambda fs: [Candidates(((8,),), ((-0.1,),))] * 2, "proposed 8; .* vocabulary of 8"),
    "a negative id": (lambda fs: [Candidates(((-1,),), ((-0.1,),))] * 2, "proposed -1"),
    "a score above 0": (lambda fs: [Candidates(((1,),), ((0.1,),))] * 2, r"gave a score of 0\.1"),
    "a score NaN": (lambda fs: [Candidates(((1,),), ((float("nan"),),))] * 2, "gave a score of nan"),
    "a score None": (lambda fs: [Candidates(((1,),), ((None,),))] * 2, "gave a score of None"),
}


def distributions(*shape, dtype=torch.float32, ids=None, value=0.0):
    logits = torch.full(shape, value, dtype=dtype)
    return lambda fs: [Distributions(logits, None if ids is None else torch.tensor(ids)) for _ in fs]


NAN, INF = float("nan"), float("inf")
WRONG_LOGITS = {
    "no tensor": (lambda fs: [Distributions([[0.0] * 8]) for _ in fs], "logits that are list"),
    "one dimension": (distributions(8), r"logits that are float32 \[8\]"),
    "three dimensions": (distributions(1, 1, 8), r"float32 \[1, 1, 8\]"),
    "whole numbers": (distributions(1, 8, dtype=torch.int64), "logits that are int64"),
    "too many nodes": (distributions(2, 8), "answered 2 nodes"),
    "too many columns": (distributions(1, 9), "9 columns of logits; the target's vocabulary has 8"),
    "no columns": (distributions(1, 0), "0 columns"),
    "NaN": (distributions(1, 8, value=NAN), "NaN or infinity"),
    "infinity": (distributions(1, 8, value=INF), "NaN or infinity"),
    "ids twice": (distributions(1, 3, ids=[1, 2, 1]), "two columns of logits to the same target id"),
    "ids outside": (distributions(1, 3, ids=[1, 2, 8]), "maps a column to 8"),
    "negative ids": (distributions(1, 3, ids=[1, -2, 3]), "maps a column to -2"),
    "too few ids": (distributions(1, 3, ids=[1, 2]), "2 target_ids for 3 columns"),
    "ids in rows": (distributions(1, 3, ids=[[1, 2, 3]]), r"target_ids that are int64 \[1, 3\]"),
    "fractions for ids": (distributions(1, 3, ids=[1.0, 2.0, 3.0]), "target_ids that are float32"),
    "a mask for ids": (distributions(1, 3, ids=[True, False, True]), "target_ids that are bool"),
}


@pytest.mark.parametrize("draw", ["deterministic", "sampled"])
@pytest.mark.parametrize(("answer", "message"), WRONG_LOGITS.values(), ids=WRONG_LOGITS.keys())
def test_a_drafter_that_answers_with_wrong_logits_is_refused_by_name(compose, table, parts_of, answer, message, draw):
    drafter = drafter_of(answer, Gives.DISTRIBUTIONS)
    decoder = compose(table(8), parts_of(Chain, ChainOptions(length=2, draw=draw), Match), drafter)
    with pytest.raises(PluginError, match=f"drafter 'lying'.*{message}"):
        decoder.generate([[1]], max_new_tokens=6)


@pytest.mark.parametrize("row", [[NAN] + [0.0] * 7, [0.0] * 7 + [NAN], [INF] + [0.0] * 7], ids=str)
def test_one_nan_among_the_logits_is_found(compose, table, chain_of, row):
    drafter = drafter_of(lambda fs: [Distributions(torch.tensor([row])) for _ in fs], Gives.DISTRIBUTIONS)
    with pytest.raises(PluginError, match=r"drafter 'lying'.*NaN or infinity"):
        compose(table(8), chain_of(2), drafter).generate([[1]], max_new_tokens=6)


def test_column_ids_that_change_in_place_are_looked_at_again(compose, table, chain_of):
    ids = torch.tensor([1, 2, 3])

    def answer(frontiers):
        ids[0] += 1
        return [Distributions(torch.zeros(1, 3), ids) for _ in frontiers]

    with pytest.raises(PluginError, match="same target id"):
        compose(table(8), chain_of(4), drafter_of(answer, Gives.DISTRIBUTIONS)).generate([[1]], max_new_tokens=9)


def test_an_impossible_candidate_is_no_fault(compose, table, chain_of):
    drafter = drafter_of(lambda fs: [Candidates(((1,),), ((-INF,),)) for _ in fs])
    assert len(compose(table(8), chain_of(2), drafter).generate([[1]], max_new_tokens=6)[0].tokens) == 6


def failing(*arguments):
    raise ZeroDivisionError("oops")


def leaving(*arguments):
    raise SystemExit(3)


@pytest.mark.parametrize("fault", [failing, leaving])
def test_a_part_that_raises_is_named_with_its_package_and_the_exception(compose, table, parts_of, chain_of, fault):
    where = f"of '{__name__.partition('.')[0]}' fails: (ZeroDivisionError: oops|SystemExit: 3)"
    with pytest.raises(PluginError, match=f"drafter 'lying' {where}") as caught:
        compose(table(8), chain_of(2), drafter_of(fault)).generate([[1]], max_new_tokens=6)
    assert isinstance(caught.value.__cause__, ZeroDivisionError | SystemExit)
    with pytest.raises(PluginError, match=f"tree builder 'lying' {where}"):
        compose(table(8), parts_of(builder_of(fault), PartOptions(), Match)).generate([[1]], max_new_tokens=6)


@pytest.mark.parametrize("method", ["observe", "keep"])
def test_a_session_that_fails_later_is_named_too(compose, table, chain_of, method):
    drafter = drafter_of(lambda fs: [None if f is None else candidates(1) for f in fs])
    inner = drafter.open([])
    setattr(type(inner), method, failing)
    with pytest.raises(PluginError, match=r"drafter 'lying' .* ZeroDivisionError"):
        compose(table(8), chain_of(1), drafter).generate([Request((1,), max_new_tokens=2), Request((2,), max_new_tokens=9)])


def test_a_drafter_that_opens_no_session_is_refused(compose, table, chain_of):
    drafter = drafter_of(lambda fs: fs)
    type(drafter).open = lambda self, starts: None
    with pytest.raises(PluginError, match="drafter 'lying' opened NoneType, not a DraftSession"):
        compose(table(8), chain_of(2), drafter).generate([[1]], max_new_tokens=6)


def test_a_builder_that_yields_no_frontier_is_refused(compose, table, parts_of):
    class Yields(builder_of(None)):
        def grow(self, root_token, root_position, budget, rng):
            yield (0,)

    with pytest.raises(PluginError, match="tree builder 'lying' yielded tuple, not a Frontier"):
        compose(table(8), parts_of(Yields, PartOptions(), Match)).generate([[1]], max_new_tokens=6)


WRONG_VERDICTS = {
    "none": (lambda tree: None, "returned NoneType, not a Verdict"),
    "a list": (lambda tree: Verdict([1], 0, False), r"accepted \[1\]"),
    "no node": (lambda tree: Verdict((7,), 0, True), r"accepted \(7,\)"),
    "the root": (lambda tree: Verdict((0,), 0, False), r"accepted \(0,\)"),
    "a jump": (lambda tree: Verdict((2,), 0, True), r"accepted \(2,\)"),
    "backwards": (lambda tree: Verdict((2, 1), 0, True), r"accepted \(2, 1\)"),
    "truth": (lambda tree: Verdict((True,), 0, False), r"accepted \(True,\)"),
    "no token": (lambda tree: Verdict((1,), None, False), "drew None"),
    "a fraction": (lambda tree: Verdict((1,), 1.0, False), r"drew 1\.0"),
    "a token outside": (lambda tree: Verdict((1,), 8, False), "drew 8; .* vocabulary of 8"),
    "a leaf that is none": (lambda tree: Verdict((1,), 0, True), "all_accepted=True; the path ends above a leaf"),
    "a leaf denied": (lambda tree: Verdict((1, 2), 0, False), "all_accepted=False; the path ends at a leaf"),
    "no truth": (lambda tree: Verdict((1,), 0, 0), "all_accepted=0"),
    "an exception": (failing, "fails: ZeroDivisionError: oops"),
}


@pytest.mark.parametrize(("answer", "message"), WRONG_VERDICTS.values(), ids=WRONG_VERDICTS.keys())
def test_a_verifier_that_answers_wrongly_is_refused_by_name(compose, table, parts_of, answer, message):
    class Lying(Match):
        name = "lying"

        @classmethod
        def build(cls, options, tools):
            return cls()

        def verify(self, tree, p, rng):
            return answer(tree)

    decoder = compose(table(8), parts_of(Chain, ChainOptions(length=2), Lying), drafter_of(lambda fs: [candidates(1)]))
    with pytest.raises(PluginError, match=f"verifier 'lying' .*{message}"):
        decoder.generate([[1]], max_new_tokens=6)


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

    def grow(self, root_token, root_position, budget, rng):
        sketch = TreeSketch(root_token, root_position)
        self.answers.append((yield Frontier(sketch, (0,))))
        return sketch.freeze(self.draw)


class ListensAndDraws(Listens):
    """The same, as a drawing builder."""

    draw = Draw.IID


Q = TabularDrafterOptions(vocab=4, rows={"*": [0.1, 0.2, 0.3, 0.4]})


def test_a_drawing_builder_gets_the_warped_q_and_a_ranking_one_the_raw_logits(compose, table, parts_of):
    for builder in (Listens, ListensAndDraws):
        decoder = compose(table(8), parts_of(builder, PartOptions(), Match), Q, sampling=SamplingParams(temperature=0.5))
        decoder.generate([[1]], max_new_tokens=3)
        answer = decoder.builder.answers[0]
        if builder is ListensAndDraws:
            assert isinstance(answer, DraftProbs)
            assert answer.q[0].tolist() == pytest.approx([1 / 30, 4 / 30, 9 / 30, 16 / 30, 0, 0, 0, 0])
        else:
            assert answer.logits[0].exp().tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])


LIKELIEST_TWO = [0, 0, 3 / 7, 4 / 7]
SHAPED = {
    "greedy target": ({}, [0.1, 0.2, 0.3, 0.4]),
    "hotter drafts": ({"temperature": 0.5, "draft": {"temperature": 2.0}}, [n**0.5 / 6.1463 for n in (1, 2, 3, 4)]),
    "hotter drafts of a greedy target": ({"draft": {"temperature": 2.0}}, [n**0.5 / 6.1463 for n in (1, 2, 3, 4)]),
    "greedy drafts": ({"temperature": 1.0, "draft": {"temperature": 0}}, [0, 0, 0, 1]),
    "uncut drafts": ({"top_k": 1, "draft": {"temperature": 1.0}}, [0.1, 0.2, 0.3, 0.4]),
    "top_k": ({"top_k": 2}, LIKELIEST_TWO),
    "top_p": ({"top_p": 0.65}, LIKELIEST_TWO),
    "min_p": ({"min_p": 0.6}, LIKELIEST_TWO),
    "top_k of drafts": ({"temperature": 1.0, "draft": {"top_k": 2}}, LIKELIEST_TWO),
    "top_p of drafts": ({"temperature": 1.0, "draft": {"top_p": 0.65}}, LIKELIEST_TWO),
    "min_p of drafts": ({"temperature": 1.0, "draft": {"min_p": 0.6}}, LIKELIEST_TWO),
}


@pytest.mark.parametrize(("sampling", "q"), SHAPED.values(), ids=SHAPED.keys())
def test_each_option_of_drafts_alone_shapes_the_q_that_a_builder_draws_from(compose, table, parts_of, sampling, q):
    parts = parts_of(ListensAndDraws, PartOptions(), Match)
    decoder = compose(table(8), parts, Q, sampling=SamplingParams.model_validate(sampling))
    decoder.generate([[1]], max_new_tokens=3)
    assert decoder.builder.answers[0].q[0].tolist() == pytest.approx([*q, 0, 0, 0, 0], abs=1e-4)


@pytest.mark.parametrize("limit", range(1, 8))
def test_a_draft_is_never_longer_than_what_may_still_be_emitted(compose, counter, parts_of, watched, limit):
    for builder, options in ((Chain, ChainOptions(length=5)), (Fixed, FixedOptions(widths=[2, 2, 1, 1]))):
        target = watched(counter())
        answer = compose(target, parts_of(builder, options, Match), "oracle").generate([[0]], max_new_tokens=limit)[0]
        assert len(answer.tokens) == limit
        assert all(record.depth < limit for record in answer.records)
