"""Each mistake that was seen in the wild, kept: enumeration must find it lossy, by the known amount."""

from typing import Any

import pytest

from specdec.decoding.decoder import Decoder
from specdec.drafters.tabular import Tabular as TabularDrafter
from specdec.errors import PluginError, SpecdecError
from specdec.interfaces.declarations import BuilderDeclaration, Gives, Shape
from specdec.interfaces.parts import BuildTools, PartOptions, TreeBuilder, Verifier, build_part
from specdec.interfaces.proposals import Frontier
from specdec.interfaces.results import Verdict
from specdec.losslessness.exact.enumeration import prove_step
from specdec.sampling.params import SamplingParams
from specdec.targets.tabular import Tabular as TabularTarget
from specdec.tree_builders.chain import Chain, ChainOptions
from specdec.trees.draft_tree import Draw, TreeSketch
from specdec.verifiers.chain import Chain as ChainRule
from specdec.verifiers.match import Match
from specdec.verifiers.multi_round import MultiRound
from specdec.verifiers.point_mass import PointMass

DRAWN = BuilderDeclaration(draw=Draw.IID, shape=Shape.TREE, needs=frozenset({Gives.DISTRIBUTIONS}))


class OneLevel(TreeBuilder[PartOptions]):
    """Children that `pick` takes from q, stamped as `kind`, truly or not."""

    name = "one_level"
    Options = PartOptions

    def __init__(self, pick: Any, kind: Draw) -> None:
        self.pick, self.kind = pick, kind

    @classmethod
    def declares(cls, options):
        return DRAWN

    @classmethod
    def build(cls, options, tools):
        raise NotImplementedError

    def grow(self, root_token, root_position, budget, rng):
        sketch = TreeSketch(root_token, root_position)
        answer = yield Frontier(sketch, (0,))
        tokens = self.pick(answer.q[0], rng)
        node = {token: sketch.add(0, token) for token in dict.fromkeys(tokens)}
        draws = {0: tuple(node[token] for token in tokens)} if tokens else {}
        return sketch.freeze(self.kind, draw_order=draws, q=answer.q, q_row=[0] + [-1] * len(node))


class StopAfterLowConfidence(OneLevel):
    """A chain of two that ends after a drawn token with low q; the token itself is kept."""

    def grow(self, root_token, root_position, budget, rng):
        sketch = TreeSketch(root_token, root_position)
        first = yield Frontier(sketch, (0,))
        [token] = rng.draw(first.q[0], 1, replacement=True)
        node = sketch.add(0, token)
        if first.q[0, token] < 0.4:
            return sketch.freeze(Draw.IID, q=first.q, q_row=[0, -1])
        second = yield Frontier(sketch, (node,))
        sketch.add(node, rng.draw(second.q[0], 1, replacement=True)[0])
        return sketch.freeze(Draw.IID, q=first.q.new_tensor([first.q[0].tolist(), second.q[0].tolist()]), q_row=[0, 1, -1])


class Rule(Verifier[PartOptions]):
    name = "wrong"
    Options = PartOptions

    @classmethod
    def declares(cls, options):
        return Match.declares(options)

    @classmethod
    def build(cls, options, tools):
        return cls()


class ResampleFromTarget(Rule):
    def verify(self, tree, p, rng):
        [child] = tree.children[0]
        token = tree.tokens[child]
        if rng.flip(min(1.0, p.row(0).prob(token) / float(tree.q_of(0)[token]))):
            return Verdict((child,), p.row(child).choose(rng, tree.root_position + 2), True)
        return Verdict((), p.row(0).choose(rng, tree.root_position + 1), False)


class NeverStrikesOut(Rule):
    def verify(self, tree, p, rng):
        for child in tree.draw_order[0]:
            if rng.flip(p.row(0).prob(tree.tokens[child])):
                return Verdict((child,), p.row(child).choose(rng, tree.root_position + 2), True)
        return Verdict((), p.row(0).choose(rng, tree.root_position + 1), False)


class FreshSamplePerCandidate(Rule):
    """`spread` fakes the position, without which a second choice would be refused."""

    spread = 10

    def verify(self, tree, p, rng):
        for tries, child in enumerate(tree.draw_order[0]):
            sample = p.row(0).choose(rng, tree.root_position + 1 + self.spread * tries)
            if sample == tree.tokens[child]:
                return Verdict((child,), p.row(child).choose(rng, tree.root_position + 1000), True)
        return Verdict((), p.row(0).choose(rng, tree.root_position + 1 + self.spread * 50), False)


class HonestlyPlacedFreshSamples(FreshSamplePerCandidate):
    spread = 0


class ResidualOfTheRowAbove(Rule):
    def verify(self, tree, p, rng):
        path, node = [], 0
        while tree.children[node]:
            [child] = tree.children[node]
            token, q = tree.tokens[child], tree.q_of(node)
            if not rng.flip(min(1.0, p.row(node).prob(token) / float(q[token]))):
                above = max(0, tree.parents[node])
                left = p.row(above).residual(tree.q_of(above))
                return Verdict(tuple(path), left.choose(rng, tree.root_position + tree.depths[child]), False)
            path.append(child)
            node = child
        return Verdict(tuple(path), p.row(node).choose(rng, tree.root_position + tree.depths[node] + 1), True)


def decoder(case, builder, verifier) -> Decoder:
    target = TabularTarget(case.target)
    builder.declaration, verifier.declaration = builder.declares(PartOptions()), verifier.declares(PartOptions())
    return Decoder(
        target,
        build_part(TabularDrafter, case.drafter, BuildTools(target=target)),
        builder,
        verifier,
        sampling=SamplingParams(temperature=1.0),
    )


def top_two(q, rng):
    kept = q.where(q >= q.topk(2).values[-1], 0.0)
    return rng.draw(kept, 1, replacement=True)


def confident(q, rng):
    [token] = rng.draw(q, 1, replacement=True)
    return [token] if q[token] >= 0.4 else []


def without_replacement(count):
    return lambda q, rng: rng.draw(q, count, replacement=False)


def sorted_by_q(q, rng):
    return sorted(rng.draw(q, 2, replacement=False), key=lambda token: -float(q[token]))


def reverse(q, rng):
    return rng.draw(q, 2, replacement=False)[::-1]


def deduplicated(q, rng):
    return list(dict.fromkeys(rng.draw(q, 2, replacement=True)))


ONE_LEVEL = {
    "resample_from_p_not_residual": (without_replacement(1), Draw.IID, ResampleFromTarget),
    "argmax_draft_verified_with_full_q": (lambda q, rng: [int(q.argmax())], Draw.IID, MultiRound),
    "topk_truncated_draft_verified_with_raw_q": (top_two, Draw.IID, MultiRound),
    "CONTROL_wr_drafts_deduplicated_then_wor_rule": (deduplicated, Draw.WITHOUT_REPLACEMENT, MultiRound),
    "wor_drafts_verified_as_wr": (without_replacement(2), Draw.IID, MultiRound),
    "wor_siblings_verified_in_sorted_order": (sorted_by_q, Draw.WITHOUT_REPLACEMENT, MultiRound),
    "wor_siblings_verified_in_reverse_draw_order": (reverse, Draw.WITHOUT_REPLACEMENT, MultiRound),
    "wr_siblings_deduplicated": (deduplicated, Draw.IID, MultiRound),
    "sampled_draft_dropped_by_its_own_confidence": (confident, Draw.IID, MultiRound),
    "topk_accept_p_without_zero_and_renormalise": (
        lambda q, rng: q.topk(2).indices.tolist(),
        Draw.DETERMINISTIC,
        NeverStrikesOut,
    ),
    "nss_fresh_target_sample_per_candidate": (
        lambda q, rng: q.topk(2).indices.tolist(),
        Draw.DETERMINISTIC,
        FreshSamplePerCandidate,
    ),
}


@pytest.mark.parametrize("trap", ONE_LEVEL)
def test_a_wrong_rule_is_lossy_by_the_known_amount(known_answers, single_case, trap):
    pick, kind, verifier = ONE_LEVEL[trap]
    proof = prove_step(decoder(single_case("A_generic3"), OneLevel(pick, kind), verifier()), (0, 0), depth=1)
    entry = known_answers["traps"][trap]
    assert proof.tv == pytest.approx(entry["tv"]["float"], abs=1e-9)
    assert proof.expected_accepted == pytest.approx(entry["E_tau"]["float"], abs=1e-9)
    assert proof.holds == trap.startswith("CONTROL")
    if not proof.holds:
        assert proof.worst_prefix == ()


def test_stopping_after_a_low_confidence_token_that_is_kept_is_lossless(known_answers, single_case):
    parts = decoder(single_case("A_generic3"), StopAfterLowConfidence(None, Draw.IID), MultiRound())
    proof = prove_step(parts, (0, 0), depth=2)
    entry = known_answers["traps"]["CONTROL_stop_after_low_confidence_token_kept"]
    assert proof.tv <= 1e-12
    assert proof.expected_accepted == pytest.approx(entry["E_tau"]["float"], abs=1e-12)


def test_a_residual_of_another_position_is_lossy_and_the_proof_names_the_guilty_prefix(known_answers, sequence_case):
    chain = Chain(ChainOptions(length=2, draw="sampled"))
    case = sequence_case("T2_context")
    made = decoder(case, OneLevel(None, Draw.IID), ResidualOfTheRowAbove())
    proof = prove_step(with_builder(made, chain), (0, 0), depth=2)
    entry = known_answers["traps"]["residual_taken_from_wrong_position"]
    assert proof.tv == pytest.approx(entry["tv"]["float"], abs=1e-9)
    assert proof.expected_accepted == pytest.approx(entry["E_tau"]["float"], abs=1e-9)
    assert len(proof.worst_prefix) == 1
    assert prove_step(decoder_of(case, chain, ChainRule()), (0, 0), depth=2).holds


def with_builder(made: Decoder, builder: TreeBuilder) -> Decoder:
    builder.declaration = made.builder.declaration
    return made.replace(builder=builder)


def decoder_of(case, builder, verifier) -> Decoder:
    return with_builder(decoder(case, OneLevel(None, Draw.IID), verifier), builder)


def test_a_second_target_sample_at_one_position_is_refused(single_case):
    pick, kind, _ = ONE_LEVEL["nss_fresh_target_sample_per_candidate"]
    made = decoder(single_case("A_generic3"), OneLevel(pick, kind), HonestlyPlacedFreshSamples())
    with pytest.raises(SpecdecError, match="the random draw"):
        prove_step(made, (0, 0), depth=1)


@pytest.mark.parametrize("verifier", [Match, PointMass, MultiRound])
def test_pruning_drawn_nodes_is_lossy_only_for_rules_that_read_q(single_case, verifier):
    """Keep the likelier of two i.i.d. draws: a rank over what was drawn."""

    def best_of_two(q, rng):
        return [max(rng.draw(q, 2, replacement=True), key=lambda token: float(q[token]))]

    proof = prove_step(decoder(single_case("A_generic3"), OneLevel(best_of_two, Draw.IID), verifier()), (0, 0), depth=1)
    assert proof.holds == (verifier is not MultiRound)
    assert proof.tv > 0.1 or proof.holds


@pytest.mark.parametrize("lie", [Draw.IID, Draw.WITHOUT_REPLACEMENT])
def test_top_k_children_under_the_drawn_rule_are_lossy(single_case, lie):
    """The pair that contracts refuse; the stamp refuses it too, so that it takes a lie to run it."""

    def best_two(q, rng):
        return q.topk(2).indices.tolist()

    case = single_case("A_generic3")
    assert prove_step(decoder(case, OneLevel(best_two, lie), MultiRound()), (0, 0), depth=1).tv > 0.1
    with pytest.raises(PluginError, match=r"node 0.*deterministic"):
        prove_step(decoder(case, OneLevel(best_two, Draw.DETERMINISTIC), MultiRound()), (0, 0), depth=1)


@pytest.mark.parametrize("stamp", [Draw.DETERMINISTIC, Draw.IID, Draw.WITHOUT_REPLACEMENT])
@pytest.mark.parametrize("verifier", [Match, PointMass])
def test_rules_that_ignore_q_are_lossless_whatever_the_draw_claims(single_case, verifier, stamp):
    """Even for children that a mean drafter chose so that none is likely, with a q that is a lie."""

    def meanest(q, rng):
        return q.topk(2, largest=False).indices.tolist()

    for name in ("A_generic3", "C_reversed4", "F_onehot_p", "H_zeros5"):
        assert prove_step(decoder(single_case(name), OneLevel(meanest, stamp), verifier()), (0, 0), depth=1).holds
