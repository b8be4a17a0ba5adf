"""The kit for authors of parts: our own pass it, and each planted fault is named, with its place and what would be right."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from specdec.drafters.tabular import Tabular as TabularDrafter
from specdec.interfaces.declarations import (
    ALL_SHAPES,
    BuilderDeclaration,
    DrafterDeclaration,
    Gives,
    Guarantee,
    Kind,
    Shape,
    VerifierDeclaration,
)
from specdec.interfaces.parts import Drafter, DraftSession, PartOptions, TreeBuilder, Verifier
from specdec.interfaces.proposals import Candidates, Distributions, Frontier
from specdec.interfaces.results import Verdict
from specdec.plugins.loading import load_registry
from specdec.sampling.rng import SeededTargetRng
from specdec.targets.tabular import Tabular as TabularTarget
from specdec.targets.tabular import TabularTargetOptions
from specdec.testing import CheckFailed, check_builder, check_drafter, check_target, check_verifier
from specdec.tree_builders.chain import Chain
from specdec.tree_builders.coupled import Coupled
from specdec.tree_builders.sampled import Sampled
from specdec.trees.draft_tree import Draw, TreeSketch
from specdec.verifiers.base import siblings
from specdec.verifiers.match import Match
from specdec.verifiers.multi_round import MultiRound

REGISTRY = load_registry("all").parts
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "chain": [{}, {"length": 3, "draw": "sampled"}],
    "fixed": [{"widths": (2, 2)}],
    "dynamic": [{"width": 2, "depth": 3, "nodes": 5}],
    "sampled": [{"widths": (2, 1)}, {"widths": (2, 1), "replacement": True}, {"widths": (1, 1)}],
    "top_then_one": [{"widths": (3,)}, {"widths": (2, 2)}, {"widths": (1, 1)}],
    "pair": [{"depth": 1}, {"depth": 2}],
    "delayed": [{"stem": 1, "widths": (2,)}, {"stem": 2, "widths": (2, 1), "replacement": True}],
    "chains": [{"count": 2, "length": 2}, {"count": 1, "length": 3}],
    "coupled": [{"widths": (2, 1)}, {"widths": (1, 1, 1)}],
    "model": [{"model": "target"}],
    "tabular": [{"mode": "mixed"}],
    "eagle": [{"head": "builtin"}],
    "eagle3": [{"head": "builtin"}],
    "medusa": [{"head": "builtin"}],
    "block": [{"head": "builtin"}],
    "hydra": [{"head": "builtin"}],
    "mixture": [{"parts": ({"use": "ngram"}, {"use": "suffix"})}],
}
NOT_ON_A_TABLE = {
    "eagle": r"reads hidden states, and cannot run on a table; `specdec verify",
    "eagle3": r"no 'eagle3' head ships|reads hidden states",
    "block": r"no 'block' head ships|reads hidden states",
    "medusa": r"no 'medusa' head ships|reads hidden states",
    "hydra": r"no 'hydra' head ships|reads hidden states",
    "mixture": r"needs other drafters, and cannot run on a table",
}
TREES = [(name, options) for name in REGISTRY[Kind.TREE] for options in OPTIONS.get(name, [{}])]
DRAFTERS = [(name, options) for name in REGISTRY[Kind.DRAFTER] for options in OPTIONS.get(name, [{}])]
TABLE = {"vocab": 5, "random": {"order": 3}}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in REGISTRY[Kind.VERIFIER] if name != "judge"])
def test_every_registered_verifier_passes_that_can_run_on_a_table(name):
    report = check_verifier(REGISTRY[Kind.VERIFIER][name].cls)
    assert (report.largest_tv <= 1e-12) != report.lossy


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), TREES)
def test_every_registered_builder_passes(name, options):
    report = check_builder(REGISTRY[Kind.TREE][name].cls, options)
    assert report.proofs >= 15
    assert "two steps of the decode loop" in str(report)


@pytest.mark.parametrize(("name", "options"), DRAFTERS)
def test_every_registered_drafter_passes_or_says_where_it_can_be_checked(name, options):
    cls = REGISTRY[Kind.DRAFTER][name].cls
    if name in NOT_ON_A_TABLE:
        with pytest.raises(CheckFailed, match=NOT_ON_A_TABLE[name]):
            check_drafter(cls, options)
        return
    assert check_drafter(cls, options).proofs >= 6


def test_the_tabular_target_passes():
    assert len(check_target(TabularTarget, TABLE).rules) == 15


# Verifiers


class Rule(Verifier[PartOptions]):
    """Follows `match`; variants spoil it somewhere."""

    name = "rule"
    Options = PartOptions
    accepts = frozenset(Draw)
    reads_q = False
    guarantee = Guarantee.LOSSLESS

    @classmethod
    def declares(cls, options):
        return VerifierDeclaration(cls.accepts, ALL_SHAPES, reads_q=cls.reads_q, guarantee=cls.guarantee)

    @classmethod
    def build(cls, options, tools):
        return cls()

    def verify(self, tree, p, rng):
        return Match().verify(tree, p, rng)


class WholeQ(Rule):
    name = "whole_q"
    Options = PartOptions
    accepts = frozenset({Draw.IID, Draw.WITHOUT_REPLACEMENT})
    reads_q = True

    def verify(self, tree, p, rng):
        path, node = [], 0
        while True:
            left, drawn = p.row(node), siblings(tree, node, self.accepts, self.name)
            for child in drawn:
                q, token = tree.q_of(node), tree.tokens[child]
                if rng.flip(min(1.0, left.prob(token) / float(q[token]))):
                    path.append(child)
                    node = child
                    break
                left = left.residual(q) or left
            else:
                return Verdict(tuple(path), left.choose(rng, tree.root_position + tree.depths[node] + 1), not drawn)


class ChoosesTwice(Rule):
    name = "chooses_twice"
    Options = PartOptions

    def verify(self, tree, p, rng):
        for child in tree.children[0]:
            if p.row(0).choose(rng, tree.root_position + 1) == tree.tokens[child]:
                return Verdict((child,), p.row(child).choose(rng, tree.root_position + 2), not tree.children[child])
        return Verdict((), p.row(0).choose(rng, tree.root_position + 1), not tree.children[0])


class TakesAnyStamp(WholeQ):
    name = "takes_any_stamp"
    Options = PartOptions
    accepts = frozenset({Draw.DETERMINISTIC})
    reads_q = False

    def verify(self, tree, p, rng):
        return Match().verify(tree, p, rng)


class FlipsUnderSharedNoise(Rule):
    """The distribution of `point_mass` is right for drafts that are drawn apart, and wrong for coupled ones."""

    name = "flips_under_shared_noise"
    Options = PartOptions

    def verify(self, tree, p, rng):
        path, node = [], 0
        while True:
            left = p.row(node)
            for child in tree.children[node]:
                if rng.flip(left.prob(tree.tokens[child])):
                    path.append(child)
                    node = child
                    break
                left = left.without(tree.tokens[child]) or left
            else:
                last = not tree.children[node]
                return Verdict(tuple(path), left.choose(rng, tree.root_position + tree.depths[node] + 1), last)


class WrongWhenDeep(Rule):
    name = "wrong_when_deep"
    Options = PartOptions

    def verify(self, tree, p, rng):
        verdict = Match().verify(tree, p, rng)
        return replace(verdict, next_token=0) if len(verdict.path) >= 4 else verdict


class WrongWhenWide(Rule):
    name = "wrong_when_wide"
    Options = PartOptions

    def verify(self, tree, p, rng):
        verdict = Match().verify(tree, p, rng)
        return replace(verdict, next_token=0) if len(tree) > 9 else verdict


class CannotBeBuilt(Rule):
    name = "cannot_be_built"
    Options = PartOptions

    @classmethod
    def build(cls, options, tools):
        raise KeyError("weights")


class SpoilsQ(MultiRound):
    name = "spoils_q"
    Options = PartOptions

    def verify(self, tree, p, rng):
        verdict = MultiRound().verify(tree, p, rng)
        if tree.q is not None:
            tree.q.mul_(0.5)
        return verdict


class Lucky(Rule):
    name = "lucky"
    Options = PartOptions

    def verify(self, tree, p, rng):
        dist = p.row(0)
        token = int(dist.ids[int(torch.multinomial(dist.probs, 1))])
        return Verdict((), token, not tree.children[0])


class LuckyOnQ(Lucky):
    name = "lucky_on_q"
    Options = PartOptions
    accepts = frozenset({Draw.IID})


class Lossy(WholeQ):
    name = "lossy"
    Options = PartOptions
    guarantee = Guarantee.LOSSY


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (
            WholeQ,
            r"whole_q.*without-replacement draws.*next token is \d with probability.*the target's distribution.*tree 'sampled'",
        ),
        (ChoosesTwice, r"chooses_twice.*was chosen at position \d+ after one at \d+"),
        (TakesAnyStamp, r"takes_any_stamp.*stamped as iid draws.*expected PluginError"),
        (FlipsUnderSharedNoise, r"coupled draws.*emits token \d at node 0.*share the target's noise"),
        (SpoilsQ, r"spoils_q"),
        (Lucky, r"lucky.*draws nothing there"),
        (WrongWhenDeep, r"wrong_when_deep.*the distribution is the target's"),
        (WrongWhenWide, r"wrong_when_wide.*the distribution is the target's"),
        (CannotBeBuilt, r"cannot_be_built.*KeyError"),
        (LuckyOnQ, r"lucky_on_q.*NotAFunctionOfItsDraws"),
    ],
)
def test_a_wrong_verifier_is_refuted_and_told_where(cls, message):
    with pytest.raises(CheckFailed, match=f"(?s){message}"):
        check_verifier(cls)


@pytest.mark.slow
def test_a_lossy_verifier_is_measured_and_not_refuted():
    assert check_verifier(Lossy).largest_tv > 0.01


# Builders


class Tree(TreeBuilder[PartOptions]):
    """Two children of the root, drawn without replacement; `pick` may spoil it."""

    name = "tree"
    Options = PartOptions
    draw, shape, most = Draw.WITHOUT_REPLACEMENT, Shape.TREE, None

    @classmethod
    def declares(cls, options):
        return BuilderDeclaration(cls.draw, cls.shape, frozenset({Gives.DISTRIBUTIONS}), max_nodes=cls.most)

    @classmethod
    def build(cls, options, tools):
        return cls()

    def pick(self, q, rng, budget, position):
        return rng.draw(q, min(2, budget.nodes), replacement=False)

    def stamp(self):
        return self.draw

    def grow(self, root_token, root_position, budget, rng):
        sketch = TreeSketch(root_token, root_position)
        answer = yield Frontier(sketch, (0,))
        q = answer.q if hasattr(answer, "q") else answer.logits.softmax(-1)
        nodes = tuple(sketch.add(0, token) for token in self.pick(q[0], rng, budget, root_position + 1))
        return sketch.freeze(self.stamp(), draw_order={0: nodes} if nodes else {}, q=q, q_row=[0] + [-1] * len(nodes))


class ArgmaxWithSoftmax(Tree):
    """Drafts the likeliest token and states the whole softmax as q: a fault of released generators."""

    name = "argmax_with_softmax"
    Options = PartOptions

    def pick(self, q, rng, budget, position):
        return [int(q.argmax())]


class DropsTheUnlikely(Tree):
    name = "drops_the_unlikely"
    Options = PartOptions

    def pick(self, q, rng, budget, position):
        return [token for token in super().pick(q, rng, budget, position) if q[token] > 0.2]


class OwnRandomness(Tree):
    name = "own_randomness"
    Options = PartOptions

    def pick(self, q, rng, budget, position):
        return [int(torch.multinomial(q, 1))]


class StampsAnother(Tree):
    name = "stamps_another"
    Options = PartOptions

    def stamp(self):
        return Draw.IID


class NoChain(Tree):
    name = "no_chain"
    Options = PartOptions
    shape = Shape.CHAIN


class TooMany(Tree):
    name = "too_many"
    Options = PartOptions
    most = 1


class OverBudget(Tree):
    name = "over_budget"
    Options = PartOptions

    def pick(self, q, rng, budget, position):
        return rng.draw(q, 2, replacement=False)


class HiddenCoupling(Tree):
    """Draws with the target's noise and calls it a draw from q."""

    name = "hidden_coupling"
    Options = PartOptions

    def pick(self, q, rng, budget, position):
        return rng.couple(q, 1, position)


class DrawsWithChoose(Tree):
    """Makes a target RNG of its own and draws with their `choose`: with the request's seed, the target's very noise."""

    name = "draws_with_choose"
    Options = PartOptions

    def pick(self, q, rng, budget, position):
        ids = q.nonzero()[:, 0]
        return [SeededTargetRng(0).choose(ids, q[ids], position)]


class AsksForChoose(Tree):
    name = "asks_for_choose"
    Options = PartOptions

    def pick(self, q, rng, budget, position):
        return [rng.choose(q.nonzero()[:, 0], q, position)]


class Random(Tree):
    name = "random"
    Options = PartOptions
    draw = Draw.DETERMINISTIC

    def pick(self, q, rng, budget, position):
        return rng.draw(q, 1, replacement=True)


class HalfCoupled(Tree):
    name = "half_coupled"
    Options = PartOptions
    draw = Draw.COUPLED

    def stamp(self):
        return Draw.IID


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (ArgmaxWithSoftmax, r"argmax_with_softmax.*stated q is not what was drawn from.*root, child 1.*with probability 1;"),
        (DropsTheUnlikely, r"stated q is not what was drawn from.*drop, sort or merge nothing"),
        (OwnRandomness, r"all randomness must come from"),
        (StampsAnother, r"declares without-replacement draws and stamps some as iid"),
        (NoChain, r"declares a chain, and node 0 has 2 children"),
        (TooMany, r"declares at most 1 nodes, and grew 2"),
        (OverBudget, r"with a budget of .* nodes it grew"),
        (HiddenCoupling, r"hidden_coupling.*noise by which the target draws.*declare draw=Draw.COUPLED"),
        (DrawsWithChoose, r"stated q is not what was drawn from"),
        (AsksForChoose, r"asks_for_choose.*fails: AttributeError"),
        (Random, r"declares deterministic draws, and grows \d different trees"),
        (HalfCoupled, r"declares coupled draws and stamps some as iid"),
    ],
)
def test_a_wrong_builder_is_refuted_and_told_where(cls, message):
    with pytest.raises(CheckFailed, match=f"(?s){message}"):
        check_builder(cls)


@pytest.mark.slow
def test_the_honest_builder_of_which_they_are_variants_passes():
    assert check_builder(Tree).largest_tv <= 1e-12


@pytest.mark.parametrize(("cls", "options"), [(Chain, {"lenght": 3}), (Sampled, {}), (Coupled, {"widths": (0,)})])
def test_options_that_are_none_are_said_to_be(cls, options):
    with pytest.raises(CheckFailed, match=r"options can be read.*options="):
        check_builder(cls, options)


@pytest.mark.parametrize("options", ["abc", [1]])
def test_options_of_another_type_are_refused_with_what_is_expected(options):
    with pytest.raises(CheckFailed, match="expected a mapping of options"):
        check_builder(Chain, options)


# Drafters


class Last(Drafter[PartOptions]):
    """Expects the last token again; `session` may spoil it."""

    name = "last"
    Options = PartOptions
    gives = Gives.CANDIDATES

    @classmethod
    def declares(cls, options):
        return DrafterDeclaration(gives=cls.gives)

    @classmethod
    def build(cls, options, tools):
        return cls()

    def open(self, starts):
        return LastSession([start.first_token for start in starts])


class LastSession(DraftSession):
    @staticmethod
    def root_of(start):
        return start.first_token

    def __init__(self, roots):
        self.roots = roots
        self.asked = 0

    def answer(self, frontier, row):
        return Candidates(tuple((frontier.tree.tokens[n],) for n in frontier.nodes), ((-0.5,),) * len(frontier.nodes))

    def expand(self, frontiers):
        return [None if f is None else self.answer(f, row) for row, f in enumerate(frontiers)]

    def observe(self, committed, scored):
        self.roots = [news.tokens[-1] for news in committed]

    def keep(self, rows):
        self.roots = [self.roots[row] for row in rows]

    def join(self, other):
        self.roots = [*self.roots, *other.roots]


def spoiled(session_class, **attributes):
    def open_session(self, starts):
        return session_class([session_class.root_of(start) for start in starts])

    spelled = {"name": session_class.__name__, "Options": PartOptions, "open": open_session, **attributes}
    return type(session_class.__name__, (Last,), spelled)


class OfTheFirstRow(LastSession):
    def answer(self, frontier, row):
        return Candidates(((self.roots[0],),) * len(frontier.nodes), ((-0.5,),) * len(frontier.nodes))


class KeepsTheFirst(LastSession):
    """Expects the very first token of the text again."""

    @staticmethod
    def root_of(start):
        return start.prompt[0]

    def keep(self, rows):
        self.roots = self.roots[: len(rows)]

    def observe(self, committed, scored):
        pass

    def answer(self, frontier, row):
        return Candidates(((self.roots[row],),) * len(frontier.nodes), ((-0.5,),) * len(frontier.nodes))


class JoinsInFront(KeepsTheFirst):
    def keep(self, rows):
        self.roots = [self.roots[row] for row in rows]

    def join(self, other):
        self.roots = [*other.roots, *self.roots]


class Stale(LastSession):
    """Never told what was emitted."""

    def observe(self, committed, scored):
        pass

    def answer(self, frontier, row):
        return Candidates(((self.roots[row],),) * len(frontier.nodes), ((-0.5,),) * len(frontier.nodes))


class MixesRowsInTheSecondStep(KeepsTheFirst):
    def keep(self, rows):
        self.roots = [self.roots[row] for row in rows]

    def observe(self, committed, scored):
        self.asked += 1
        if self.asked == 2:
            self.roots = self.roots[::-1]


class LosesTheLastRow(KeepsTheFirst):
    """Where it is the first that leaves."""

    def keep(self, rows):
        self.roots = self.roots[:-1] if rows[0] else [self.roots[row] for row in rows]


class FourAtMost(LastSession):
    """Rows of a larger batch all get the answer of the first."""

    def expand(self, frontiers):
        return [self.answer(frontiers[0 if len(frontiers) > 3 else row], row) for row in range(len(frontiers))]


class ByPlaceInTheFrontier(LastSession):
    """The first node that is asked for is taken for the root."""

    def answer(self, frontier, row):
        tokens = [self.roots[row], *(frontier.tree.tokens[node] for node in frontier.nodes[1:])]
        return Candidates(tuple((token,) for token in tokens), ((-0.5,),) * len(frontier.nodes))


class Moody(LastSession):
    def answer(self, frontier, row):
        score = -float(torch.rand(()))
        return Candidates(((self.roots[row],),) * len(frontier.nodes), ((score,),) * len(frontier.nodes))


class Unlikely(LastSession):
    def answer(self, frontier, row):
        return Candidates(((self.roots[row],),) * len(frontier.nodes), ((0.5,),) * len(frontier.nodes))


class Twice(LastSession):
    def answer(self, frontier, row):
        twice = [(frontier.tree.tokens[node],) * 2 for node in frontier.nodes]
        return Candidates(tuple(twice), ((-0.5, -0.7),) * len(frontier.nodes))


class OfTheFirstRowWhenDeep(LastSession):
    def answer(self, frontier, row):
        own = [frontier.tree.tokens[node] if frontier.tree.depths[node] < 4 else self.roots[0] for node in frontier.nodes]
        return Candidates(tuple((token,) for token in own), ((-0.5,),) * len(frontier.nodes))


class StaleFromTheSixthStep(LastSession):
    def observe(self, committed, scored):
        self.asked += 1
        if self.asked < 6:
            super().observe(committed, scored)

    def answer(self, frontier, row):
        return Candidates(((self.roots[row],),) * len(frontier.nodes), ((-0.5,),) * len(frontier.nodes))


class Short(LastSession):
    def answer(self, frontier, row):
        return Distributions(torch.zeros(1, 3))


class Other(LastSession):
    def answer(self, frontier, row):
        return Distributions(torch.zeros(len(frontier.nodes), 3))


@pytest.mark.parametrize(
    ("session", "message"),
    [
        (OfTheFirstRow, r"batch mates.*row 1 gets another answer.*alone it was"),
        (KeepsTheFirst, r"`keep`.*row 2 answers.*must drop rows by their place"),
        (JoinsInFront, r"`join` stand.*row 0 answers.*append the other session's rows behind its own"),
        (Stale, r"`observe` tells a row.*as if it had not been told.*`observe` must enter the committed tokens"),
        (MixesRowsInTheSecondStep, r"after `observe` each row.*in step 2, row 0 answers.*each row's own tokens"),
        (LosesTheLastRow, r"`keep`.*rows 0 and 1 of 3 have left.*must drop rows by their place"),
        (FourAtMost, r"batch mates.*asked beside others, after"),
        (ByPlaceInTheFrontier, r"what is asked with it.*asked at once about a tree of 7 nodes it was"),
        (Moody, r"same question.*another session"),
        (Unlikely, r"score of 0.5"),
        (Twice, r"proposed \[\d+, \d+\] after one node; expected each token once"),
        (OfTheFirstRowWhenDeep, r"batch mates.*row 1 gets another answer.*at node 6"),
        (StaleFromTheSixthStep, r"`observe` tells a row.*as if it had not been told"),
        (Short, r"answered 1 nodes; the frontier has 7"),
        (Other, r"declares candidates, and answered with Distributions"),
    ],
)
def test_a_wrong_drafter_is_refuted_and_told_where(session, message):
    with pytest.raises(CheckFailed, match=f"(?s){message}"):
        check_drafter(spoiled(session))


def test_the_honest_drafter_of_which_they_are_variants_passes():
    assert check_drafter(Last).largest_tv <= 1e-12


@pytest.mark.slow
def test_a_drafter_for_one_vocabulary_is_checked_at_that():
    assert check_drafter(TabularDrafter, {"vocab": 3, "rows": {"*": (0.5, 0.3, 0.2)}}, vocab_size=3).proofs == 18


def test_a_class_that_cannot_be_registered_is_told_why():
    class Nameless(Last):
        Options = PartOptions

    with pytest.raises(CheckFailed, match="has no name"):
        check_drafter(Nameless)


# Targets


class Spoiled(TabularTarget):
    """The tabular target with a fault: `fault` names it."""

    name = "spoiled"
    Options = TabularTargetOptions
    fault = ""

    def score(self, state, trees):
        if self.fault == "mask":
            trees = [self._flat(tree) for tree in trees]
        return super().score(state, trees)

    def _flat(self, tree):
        """Reads node after node as if each followed the one before it."""
        sketch = TreeSketch(tree.tokens[0], tree.root_position)
        for node in range(1, len(tree)):
            sketch.add(node - 1, tree.tokens[node])
        return sketch.freeze(Draw.DETERMINISTIC)

    def commit(self, state, paths):
        if self.fault == "commit":
            paths = [path if path is None else path[:-1] for path in paths]
        if self.fault == "rollback":
            paths = [[] if path is None else path for path in paths]
        super().commit(state, paths)

    def keep(self, state, rows):
        super().keep(state, [0] * len(rows) if self.fault == "keep" else rows)

    def join(self, state, other):
        super().join(state, other)
        if self.fault == "join":
            state.rows.sort(key=lambda row: len(row.cached))
        if self.fault == "joined rows":
            state.rows[-1].cached.reverse()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("mask", r"a node's logits are those of its path: row 0, node \d \(path.*reading that path alone"),
        ("commit", r"after a commit.*caches \[.*\] tokens by row; expected"),
        ("rollback", r"rolled back.*tokens by row; expected"),
        ("keep", r"`keep` and `fork`"),
        ("join", r"rows that `join` continue behind the others: the state says that it caches"),
        ("joined rows", r"rows that `join` continue behind the others: row \d"),
    ],
)
def test_a_wrong_target_is_refuted_and_told_where(fault, message):
    cls = type("Spoiled", (Spoiled,), {"name": "spoiled", "Options": TabularTargetOptions, "fault": fault})
    with pytest.raises(CheckFailed, match=f"(?s){message}"):
        check_target(cls, TABLE)


def test_features_are_asked_of_those_targets_only_that_have_them():
    assert not any("hidden states" in rule for rule in check_target(TabularTarget, TABLE).rules)
