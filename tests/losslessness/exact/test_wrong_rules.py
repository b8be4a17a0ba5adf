"""Rules that are wrong in one respect, as they were seen or could be written: enumeration finds each of them lossy."""

from dataclasses import replace

import pytest
import torch
from tabular_cases import drawn_case, tabular_decoder

from specdec.errors import PluginError
from specdec.interfaces.declarations import Reads
from specdec.losslessness.exact.enumeration import prove_step
from specdec.tree_builders.chain import Chain, ChainOptions
from specdec.tree_builders.chains import Chains, ChainsOptions
from specdec.tree_builders.delayed import Delayed, DelayedOptions
from specdec.tree_builders.pair import Pair, PairOptions
from specdec.tree_builders.sampled import Sampled, SampledOptions
from specdec.tree_builders.top_then_one import TopThenOne, TopThenOneOptions
from specdec.verifiers import block, gbv, k_seq, optimal_transport, spec_hub, traversal
from specdec.verifiers.base import block_length
from specdec.verifiers.block import Block
from specdec.verifiers.gbv import Gbv
from specdec.verifiers.greedy_last import GreedyLast
from specdec.verifiers.k_seq import KSeq
from specdec.verifiers.multi_round import MultiRound
from specdec.verifiers.optimal_transport import OptimalTransport
from specdec.verifiers.spec_hub import SpecHub
from specdec.verifiers.traversal import Traversal

RIGHT = 1e-12


def tv_of(case, builder, options, verifier, depth=2):
    return prove_step(tabular_decoder(case, builder, options, verifier), case.prefix, depth=depth).tv


def stopped_at_the_first_failure(rows, q_rows, ratios, rng):
    """Each beginning is tried in turn, and the first that fails ends it."""
    weights = [1.0]
    for ratio in ratios:
        weights.append(min(1.0, weights[-1] * ratio))
    length = 0
    for number in range(1, len(ratios) + 1):
        weight = passing = weights[number]
        if number < len(ratios):
            excess = float(rows[number].excess(q_rows[number], weight).sum())
            passing = excess / (excess + (1 - weight)) if excess or weight < 1 else 1.0
        if not rng.flip(passing):
            break
        length = number
    return length, weights[length]


def without_the_weight(rows, q_rows, ratios, rng):
    """The residual of a single token: it forgets how likely the beginning was."""
    return block_length(rows, q_rows, ratios, rng)[0], 1.0


@pytest.mark.parametrize(
    ("wrong", "name", "known"), [(stopped_at_the_first_failure, "T1_iid_A", 1 / 5), (without_the_weight, "T7_sharp_q", 1 / 200)]
)
def test_block_verification_is_lossy_by_the_known_amount_with_its_classic_mistakes(
    sequence_case, monkeypatch, wrong, name, known
):
    parts = Chain, ChainOptions(length=2, draw="sampled")
    assert tv_of(sequence_case(name), *parts, Block) <= RIGHT
    monkeypatch.setattr(block, "block_length", wrong)
    assert max(tv_of(sequence_case(one), *parts, Block) for one in (name, "T2_context", "T7_sharp_q")) >= known - 1e-9


class LastBranchFirst(Traversal):
    def _visit(self, tree, node, weight, target_probs, *, is_leaf=False):
        visit = super()._visit(tree, node, weight, target_probs, is_leaf=is_leaf)
        visit.waiting.reverse()
        return visit


class StrikesNothing(Traversal):
    def _visit(self, tree, node, weight, target_probs, *, is_leaf=False):
        visit = super()._visit(tree, node, weight, target_probs, is_leaf=is_leaf)
        visit.strikes = False
        return visit


class ForgetsTheWeight(traversal._Visit):
    def give_up(self, token, target_probs):
        self.weight = 1.0
        super().give_up(token, target_probs)


@pytest.mark.parametrize(
    ("wrong", "options"),
    [
        (LastBranchFirst, SampledOptions(widths=(2, 1))),
        (StrikesNothing, SampledOptions(widths=(2, 1))),
    ],
)
def test_traversal_is_lossy_in_another_order_or_with_another_q(wrong, options):
    case = drawn_case(0)
    assert tv_of(case, Sampled, options, Traversal) <= RIGHT
    assert tv_of(case, Sampled, options, wrong) > 1e-3


def test_traversal_is_lossy_where_a_node_forgets_its_weight(monkeypatch):
    case = drawn_case(0)
    monkeypatch.setattr(traversal, "_Visit", ForgetsTheWeight)
    assert tv_of(case, Delayed, DelayedOptions(stem=1, widths=(2,)), Traversal) > 1e-3


class TiesByPlace(gbv._Level):
    """p/q counts as at most 1; of equally good drafts the first is selected, and the distribution goes by their ids."""

    def __init__(self, p, q, reached, worse, count):
        self.value = torch.where(q > 0, p / q, torch.inf).clamp_max(1)
        rising = 1 + 1e-13 * torch.arange(len(q), dtype=q.dtype)
        super().__init__(torch.minimum(p, q) * rising, q, reached, worse, count)

    def rank(self, token):
        return float(self.value[token])


@pytest.mark.parametrize(("count", "known"), [(2, 1 / 20), (3, 207 / 1952)])
def test_the_best_of_several_chains_is_lossy_by_the_known_amount_where_ties_are_broken_in_two_ways(
    single_case, monkeypatch, count, known
):
    monkeypatch.setattr(gbv, "_Level", TiesByPlace)
    found = tv_of(single_case("A_generic3"), Chains, ChainsOptions(count=count, length=1), Gbv, depth=1)
    assert found == pytest.approx(known, abs=1e-9)


def test_trees_that_are_no_chains_are_refused_by_the_rule_for_chains():
    with pytest.raises(PluginError, match=r"no i\.i\.d\. chains"):
        tv_of(drawn_case(0), Sampled, SampledOptions(widths=(2, 2), replacement=True), Gbv)


class WholeQ(GreedyLast):
    def _token(self, tree, node, drawn, target_probs, rng):
        (*_, last) = drawn
        token, dist, q = tree.tokens[last], target_probs.row(node), tree.q_of(node)
        if rng.flip(min(1.0, dist.prob(token) / float(q[token]))):
            return token
        return (dist.residual(q) or dist).choose(rng, tree.root_position + tree.depths[node] + 1)


class ResidualWithoutTheChildren(GreedyLast):
    """What is left is drawn from tokens that are no children: as if these had been tried one by one."""

    @classmethod
    def declares(cls, options):
        return replace(super().declares(options), reads=Reads.TREE)

    def verify(self, tree, target_probs, rng):
        verdict = super().verify(tree, target_probs, rng)
        certain = tree.draw_order[0][:-1]
        if verdict.path and verdict.path[0] in certain and len(tree.draw_order[0]) > 1:
            rest = target_probs.row(0)
            for child in certain:
                rest = rest.without(tree.tokens[child]) or rest
            return replace(verdict, path=(), next_token=int(rest.ids[0]), all_accepted=False)
        return verdict


@pytest.mark.parametrize("wrong", [WholeQ, ResidualWithoutTheChildren])
def test_greedy_multi_draft_is_lossy_with_a_q_that_was_not_drawn_from_or_a_smaller_residual(wrong):
    parts = TopThenOne, TopThenOneOptions(widths=(2,))
    assert tv_of(drawn_case(0), *parts, GreedyLast, depth=1) <= RIGHT
    assert tv_of(drawn_case(0), *parts, wrong, depth=1) > 1e-3


def test_spec_hub_is_lossy_where_the_likeliest_token_takes_no_more_than_it_is_offered(monkeypatch):
    parts = Pair, PairOptions(depth=1)
    assert max(tv_of(drawn_case(number), *parts, SpecHub, depth=1) for number in range(6)) <= RIGHT
    monkeypatch.setattr(spec_hub, "_share", lambda wanted, offered: 1.0)
    assert max(tv_of(drawn_case(number), *parts, SpecHub, depth=1) for number in range(6)) > 1e-3


def test_k_seq_is_lossy_where_too_little_room_is_left_for_later_drafts(monkeypatch):
    parts = Sampled, SampledOptions(widths=(2,), replacement=True)
    assert tv_of(drawn_case(0), *parts, KSeq, depth=1) <= RIGHT
    monkeypatch.setattr(k_seq, "room_for", lambda p, q, count: 1.0)
    assert tv_of(drawn_case(0), *parts, KSeq, depth=1) > 1e-3


def test_optimal_transport_is_lossy_where_draws_of_one_token_twice_are_left_out(monkeypatch):
    right = optimal_transport.drafted_sets
    optimal_transport._planned.cache_clear()
    monkeypatch.setattr(
        optimal_transport,
        "drafted_sets",
        lambda q, count: {s: m if len(s) > 1 else 0.3 * m for s, m in right(q, count).items()},
    )
    parts = Sampled, SampledOptions(widths=(2,), replacement=True)
    assert max(tv_of(drawn_case(number), *parts, OptimalTransport, depth=1) for number in range(6)) > 1e-3
    optimal_transport._planned.cache_clear()


NEW = {
    Block: (Chain, ChainOptions(length=3, draw="sampled")),
    KSeq: (Sampled, SampledOptions(widths=(3,), replacement=True)),
    Traversal: (Sampled, SampledOptions(widths=(2, 1))),
    Gbv: (Chains, ChainsOptions(count=2, length=1)),
    GreedyLast: (TopThenOne, TopThenOneOptions(widths=(2, 1))),
    SpecHub: (Pair, PairOptions(depth=1)),
}


@pytest.mark.slow
@pytest.mark.parametrize("rule", NEW)
def test_a_rule_is_lossless_on_three_hundred_drawn_instances(rule):
    assert max(tv_of(drawn_case(number), *NEW[rule], rule) for number in range(300)) <= RIGHT


@pytest.mark.slow
def test_optimal_transport_is_lossless_on_thirty_drawn_instances():
    parts = Sampled, SampledOptions(widths=(2, 1), replacement=True)
    assert max(tv_of(drawn_case(number), *parts, OptimalTransport) for number in range(30)) <= RIGHT


@pytest.mark.parametrize("number", range(6))
def test_traversal_accepts_at_least_as_much_as_trying_siblings_and_block_as_tokens_one_by_one(number):
    def accepted(builder, options, verifier):
        case = drawn_case(number)
        return prove_step(tabular_decoder(case, builder, options, verifier), case.prefix, depth=3).expected_accepted

    tree, chain = (Sampled, SampledOptions(widths=(2, 2))), (Chain, ChainOptions(length=3, draw="sampled"))
    assert accepted(*tree, Traversal) >= accepted(*tree, MultiRound) - RIGHT
    assert accepted(*chain, Block) >= accepted(*chain, MultiRound) - RIGHT
    assert accepted(*chain, Block) == pytest.approx(accepted(*chain, Traversal), abs=RIGHT)
