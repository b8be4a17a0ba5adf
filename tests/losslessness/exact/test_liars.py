"""Parts that lie about their distribution somewhere: the proof of a strategy must find where."""

from dataclasses import replace
from types import ModuleType
from typing import Any

import pluggy
import pytest
import torch

from specdec.config.library import Catalog, library
from specdec.config.resolver import check, read
from specdec.errors import PluginError
from specdec.interfaces.declarations import (
    ALL_SHAPES,
    BuilderDeclaration,
    DrafterDeclaration,
    Gives,
    Shape,
    VerifierDeclaration,
)
from specdec.interfaces.parts import Drafter, DraftSession, PartOptions, TreeBuilder, Verifier
from specdec.interfaces.proposals import Distributions, Frontier
from specdec.interfaces.results import Verdict
from specdec.losslessness.exact.strategy import prove_strategy
from specdec.plugins import builtin as builtin_plugin
from specdec.plugins import hookspecs
from specdec.plugins.hookspecs import hookimpl
from specdec.plugins.loading import registry_of
from specdec.sampling.distribution import TokenDist
from specdec.trees.draft_tree import Draw, TreeSketch
from specdec.verifiers.base import siblings
from specdec.verifiers.multi_round import MultiRound

DRAWN = frozenset({Draw.IID, Draw.WITHOUT_REPLACEMENT})
TABLE = {"use": "tabular", "vocab": 4, "random": {"order": 1}}


def proof_of(*, seconds=1.0, **parts):
    """The proof of a strategy in which a key is a part class (the liar) or a part of a spec."""
    liars = [part for part in parts.values() if isinstance(part, type)]
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(builtin_plugin, "specdec")
    plugin = ModuleType("liar")
    for hook, base in (("drafters", Drafter), ("tree_builders", TreeBuilder), ("verifiers", Verifier)):
        found = [part for part in liars if issubclass(part, base)]
        setattr(plugin, f"specdec_{hook}", hookimpl(lambda found=found: found))
    manager.register(plugin)
    catalog = Catalog(registry_of(manager), library())
    spec: dict[str, Any] = {
        "target": TABLE,
        "drafter": TABLE,
        "tree": {"use": "sampled", "widths": [2, 1]},
        "verifier": {"use": "multi_round"},
        "sampling": {"temperature": 1.0},
    }
    spec |= {key: {"use": part.name} if isinstance(part, type) else part for key, part in parts.items()}
    return prove_strategy(check(read(spec, catalog), catalog), catalog, seconds=seconds)


class Tree(TreeBuilder[PartOptions]):
    """Two children a node, drawn without replacement, `levels` deep; `pick` may spoil it."""

    name = "tree"
    Options = PartOptions
    levels = 1

    @classmethod
    def declares(cls, options):
        return BuilderDeclaration(Draw.WITHOUT_REPLACEMENT, Shape.TREE, frozenset({Gives.DISTRIBUTIONS}))

    @classmethod
    def build(cls, options, tools):
        return cls()

    def pick(self, q, rng, budget, sketch, depth):
        return rng.draw(q, 2 if depth == 0 else 1, replacement=False)

    def grow(self, root_token, root_position, budget, rng):
        sketch, draws, rows, frontier = TreeSketch(root_token, root_position), {}, {}, [0]
        for depth in range(min(self.levels, budget.depth)):
            answer = (yield Frontier(sketch, tuple(frontier))) if frontier else None
            asked, frontier = frontier, []
            for node, q in zip(asked, answer.q if asked else (), strict=True):
                drawn = self.pick(q, rng, budget, sketch, depth)
                if drawn:
                    draws[node], rows[node] = tuple(sketch.add(node, token) for token in drawn), q
                    frontier += [child for child in draws[node] if sketch.tokens[child] not in budget.stop_ids]
        numbers = {node: row for row, node in enumerate(rows)}
        return sketch.freeze(
            Draw.WITHOUT_REPLACEMENT,
            draw_order=draws,
            q=torch.stack(list(rows.values())) if rows else None,
            q_row=[numbers.get(node, -1) for node in range(len(sketch))],
        )


class StatesTheRowOfAnotherNode(Tree):
    """Below the root, q is that of the root without its likeliest token."""

    name = "states_the_row_of_another_node"
    Options = PartOptions
    levels = 2

    def grow(self, root_token, root_position, budget, rng):
        tree = yield from super().grow(root_token, root_position, budget, rng)
        if tree.q is None or len(tree.q) < 2:
            return tree
        q = tree.q.clone()
        q[1] = torch.nn.functional.one_hot(q[0].argmin(), len(q[0])).double()
        return replace(tree, q=q)


class DropsStopTokens(Tree):
    name = "drops_stop_tokens"
    Options = PartOptions

    def pick(self, q, rng, budget, sketch, depth):
        return [token for token in super().pick(q, rng, budget, sketch, depth) if token not in budget.stop_ids]


class GreedyAfterSomeRoots(Tree):
    name = "greedy_after_some_roots"
    Options = PartOptions

    def pick(self, q, rng, budget, sketch, depth):
        if sketch.tokens[0] == 0:
            return super().pick(q, rng, budget, sketch, depth)
        return [int(q.argmax())]


class GreedyFarFromTheStart(Tree):
    name = "greedy_far_from_the_start"
    Options = PartOptions

    def pick(self, q, rng, budget, sketch, depth):
        honest = super().pick(q, rng, budget, sketch, depth)
        return honest if sketch.root_position < 100 else [int(q.argmax())]


class GreedyAtTheThirdLevel(Tree):
    name = "greedy_at_the_third_level"
    Options = PartOptions
    levels = 3

    def pick(self, q, rng, budget, sketch, depth):
        return super().pick(q, rng, budget, sketch, depth) if depth < 2 else [int(q.argmax())]


class GreedyOnManyTokens(Tree):
    name = "greedy_on_many_tokens"
    Options = PartOptions

    def pick(self, q, rng, budget, sketch, depth):
        return super().pick(q, rng, budget, sketch, depth) if len(q) < 9 else [int(q.argmax())]


class GreedyWithALongLimit(Tree):
    name = "greedy_with_a_long_limit"
    Options = PartOptions

    def pick(self, q, rng, budget, sketch, depth):
        return super().pick(q, rng, budget, sketch, depth) if budget.depth < 50 else [int(q.argmax())]


class OwnRandomness(Tree):
    name = "own_randomness"
    Options = PartOptions

    def pick(self, q, rng, budget, sketch, depth):
        return [int(torch.multinomial(q, 1))]


class WholeQ(Verifier[PartOptions]):
    """Siblings drawn without replacement, each tested against all of q. `honest` may say where it is not done."""

    name = "whole_q"
    Options = PartOptions

    @classmethod
    def declares(cls, options):
        return VerifierDeclaration(DRAWN, ALL_SHAPES, reads_q=True)

    @classmethod
    def build(cls, options, tools):
        return cls()

    def verify(self, tree, p, rng):
        path, node = [], 0
        while True:
            left = p.row(node)
            for child in siblings(tree, node, DRAWN, self.name):
                q, token = tree.q_of(node), tree.tokens[child]
                if rng.flip(min(1.0, left.prob(token) / float(q[token]))):
                    path.append(child)
                    node = child
                    break
                left = left.residual(q) or left
            else:
                return Verdict(tuple(path), left.choose(rng, tree.root_position + tree.depths[node] + 1), True)


class SecondStepOfARequest(WholeQ):
    """Right in the first step after a prefix, for ever wrong after that."""

    name = "second_step_of_a_request"
    Options = PartOptions

    def verify(self, tree, p, rng):
        if len(p._prefix) - p._warper.prompt_length < 2:
            return MultiRound().verify(tree, p, rng)
        first = tree.children[0][:1]
        last = first[-1] if first else 0
        token = p.row(last).choose(rng, tree.root_position + 1 + len(first))
        return Verdict(first, token, not tree.children[last])


class Faulty(WholeQ):
    """Returns, or raises, what the test says."""

    name = "faulty"
    Options = PartOptions
    answer: Any = None

    def verify(self, tree, p, rng):
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


@pytest.mark.parametrize("widths", [[2, 1], [3, 1]])
def test_siblings_without_replacement_that_all_meet_the_whole_q_are_refuted(widths):
    """With three tokens one is left after a rejection, and the rule is exact: it takes four to see."""
    proof = proof_of(tree={"use": "sampled", "widths": widths}, verifier=WholeQ)
    assert proof.tv > 0.01
    assert not proof.holds


@pytest.mark.parametrize(
    "builder",
    [
        DropsStopTokens,
        GreedyAfterSomeRoots,
        GreedyFarFromTheStart,
        GreedyAtTheThirdLevel,
        GreedyOnManyTokens,
        GreedyWithALongLimit,
    ],
)
def test_a_builder_that_lies_in_one_place_only_is_refuted(builder):
    proof = proof_of(tree=builder)
    assert proof.reason is None
    assert proof.tv > 1e-3


def test_a_builder_that_rules_out_what_it_drew_is_named_and_not_the_verifier():
    with pytest.raises(PluginError, match=r"tree 'states_the_row_of_another_node': node \d+: token \d+ was drawn, and the q"):
        proof_of(tree=StatesTheRowOfAnotherNode)


def test_the_honest_builder_of_which_they_are_variants_is_proved():
    assert proof_of(tree=Tree).holds


@pytest.mark.slow
def test_a_verifier_that_lies_in_the_second_step_only_is_refuted():
    proof = proof_of(tree={"use": "sampled", "widths": [1]}, verifier=SecondStepOfARequest, seconds=4.0)
    assert not proof.holds
    assert all(instance.proof.holds for instance in proof.instances if instance.steps == 1)


def test_randomness_outside_the_coins_is_refuted_as_such():
    proof = proof_of(tree=OwnRandomness)
    assert proof.conclusive
    assert not proof.holds
    assert proof.reason is not None
    assert proof.reason.startswith("not a function of its random draws")


@pytest.mark.parametrize(
    "answer",
    [
        None,
        KeyError("x"),
        SystemExit(1),
        Verdict((99,), 0, True),
        Verdict((0,), 0, True),
        Verdict((), 10**6, False),
        Verdict((), -1, False),
        Verdict((), 0.5, False),
        Verdict((), torch.tensor(0), False),
        Verdict([], 0, False),
        Verdict((), 0, None),
    ],
    ids=repr,
)
def test_a_verifier_that_breaks_its_contract_is_named(answer):
    class Broken(Faulty):
        name = "broken"
        Options = PartOptions

    Broken.answer = answer
    with pytest.raises(PluginError, match="verifier 'broken'"):
        proof_of(verifier=Broken)


class TwoColumnsForOneToken(Drafter[PartOptions]):
    name = "two_columns_for_one_token"
    Options = PartOptions

    @classmethod
    def declares(cls, options):
        return DrafterDeclaration(gives=Gives.DISTRIBUTIONS)

    @classmethod
    def build(cls, options, tools):
        return cls()

    def open(self, starts):
        return TwoColumns()


class TwoColumns(DraftSession):
    def expand(self, frontiers):
        ids = torch.tensor([1, 1, 2])
        return [None if f is None else Distributions(torch.zeros(len(f.nodes), 3), ids) for f in frontiers]

    def observe(self, committed, scored):
        pass

    def keep(self, rows):
        pass

    def join(self, other):
        pass


def test_a_drafter_whose_columns_share_a_token_is_refused():
    with pytest.raises(PluginError, match="two_columns_for_one_token"):
        proof_of(drafter=TwoColumnsForOneToken)


@pytest.mark.slow
def test_an_own_drafter_runs_itself_beside_the_tables():
    proof = proof_of(seconds=2.0)
    assert proof.own_drafter == "some"
    assert proof.because is None


@pytest.mark.slow
def test_what_is_too_large_is_cut_and_said_to_be():
    proof = proof_of(tree={"use": "sampled", "widths": [3, 2, 1]})
    assert proof.holds
    assert any("CUT" in words for words in proof.covered)


def test_what_cannot_be_cut_is_not_called_proved():
    class Wasteful(Tree):
        name = "wasteful"
        Options = PartOptions

        def pick(self, q, rng, budget, sketch, depth):
            for _ in range(12):
                rng.flip(0.5)
            return super().pick(q, rng, budget, sketch, depth)

    proof = proof_of(tree=Wasteful)
    assert not proof.conclusive
    assert not proof.holds
    assert proof.left_out


class LikeliestAlone(Tree):
    """Draws one of the 16 likeliest tokens, and states the whole q."""

    name = "likeliest_alone"
    Options = PartOptions

    def pick(self, q, rng, budget, sketch, depth):
        cut = torch.where(q >= q.topk(min(16, len(q))).values[-1], q, 0.0)
        return rng.draw(cut, 1, replacement=False)


class ResidualOfTheLikeliest(MultiRound):
    name = "residual_of_the_likeliest"

    def verify(self, tree, p, rng):
        return MultiRound().verify(tree, LikeliestRows(p), rng)


class LikeliestRows:
    """Rows of p whose residual keeps the 16 likeliest tokens."""

    def __init__(self, p):
        self.p, self.fall_back = p, p.fall_back

    def row(self, node):
        return LikeliestLeft(self.p.row(node))


class LikeliestLeft:
    def __init__(self, dist):
        self.dist, self.prob, self.choose = dist, dist.prob, dist.choose

    def residual(self, q):
        left = self.dist.residual(q)
        if left is None or len(left.ids) <= 16:
            return left
        kept = left.probs.topk(16).indices.sort().values
        return TokenDist(left.ids[kept], left.probs[kept] / left.probs[kept].sum())


class TakesTheUnlikely(MultiRound):
    """Accepts what was drafted with a probability below a hundred-thousandth, whatever the target thinks of it."""

    name = "takes_the_unlikely"

    def verify(self, tree, p, rng):
        for node in tree.draw_order.get(0, ())[:1]:
            if float(tree.q_of(0)[tree.tokens[node]]) < 1e-5:
                return Verdict((node,), p.row(node).choose(rng, tree.root_position + 2), not tree.children[node])
        return MultiRound().verify(tree, p, rng)


@pytest.mark.slow
@pytest.mark.parametrize(
    "part", [{"tree": LikeliestAlone}, {"verifier": ResidualOfTheLikeliest}, {"verifier": TakesTheUnlikely}]
)
def test_a_part_that_is_wrong_only_in_a_row_of_many_or_very_unlikely_tokens_is_refuted(part):
    proof = proof_of(seconds=20.0, **{"tree": {"use": "chain", "length": 2, "draw": "sampled"}, **part})
    assert proof.refuted
