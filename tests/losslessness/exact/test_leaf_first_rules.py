"""Rules that verify from the leaves to the root: known answers as fractions, the code beside its twin, and known mistakes."""

from dataclasses import replace
from fractions import Fraction
from functools import partial

import leaf_first_reference
import pytest
import reference_rules
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tabular_cases import Case, drawn_case, tabular_decoder

from specdec.drafters.tabular import TabularDrafterOptions
from specdec.interfaces.proposals import DraftProbs
from specdec.losslessness.exact.enumeration import prove_step, step_distribution
from specdec.targets.tabular import TabularTargetOptions
from specdec.tree_builders.chain import Chain, ChainOptions
from specdec.tree_builders.chains import Chains, ChainsOptions
from specdec.tree_builders.delayed import Delayed, DelayedOptions
from specdec.tree_builders.sampled import Sampled, SampledOptions
from specdec.trees.draft_tree import Draw
from specdec.verifiers.block import Block
from specdec.verifiers.chain import Chain as ChainRule
from specdec.verifiers.gbv import Gbv
from specdec.verifiers.multi_round import MultiRound
from specdec.verifiers.traversal import Traversal

SEQUENCE = ("T1_iid_A", "T2_context", "T3_toy2", "T5_equal_ctx", "T6_disjoint2", "T7_sharp_q")
SHAPES = ("2x1", "1x2", "2x2", "3x1")
DRAWN = frozenset({Draw.IID, Draw.WITHOUT_REPLACEMENT})
WOR = partial(leaf_first_reference.traversal, replacement=False)
IID = partial(leaf_first_reference.traversal, replacement=True)


def fractions(row):
    return [Fraction(x) for x in row]


def rows_of(entry, distribution):
    root, below, deeper = (entry[f"{distribution}_{part}"] for part in ("root", "given", "deeper"))
    return lambda path: fractions(root if not path else below[path[0]] if len(path) == 1 else deeper)


def widths_of(shape):
    return [int(width) for width in shape.split("x")]


def tree_parts(widths, *, replacement=False):
    return Sampled, SampledOptions(widths=widths, replacement=replacement)


def chain_parts(length):
    return Chain, ChainOptions(length=length, draw="sampled")


@pytest.mark.parametrize("name", SEQUENCE)
def test_block_along_a_chain_is_the_known_fractions(known_answers, name):
    entry = known_answers["sequence"][name]
    p, q = rows_of(entry, "p"), rows_of(entry, "q")
    for length, known in entry["chain"].items():
        distribution = leaf_first_reference.step_distribution(
            p, q, [1] * int(length), reference_rules.iid, leaf_first_reference.block
        )
        levels = reference_rules.accepted_at_least(distribution, int(length))
        assert str(sum(levels)) == known["block"]["E_tau"]["exact"]
        assert [str(level) for level in levels if level] == [x["exact"] for x in known["block"]["P_tau_ge"] if x["float"]]
        assert reference_rules.total_variation(distribution, p, int(length) + 1) == 0
        token = reference_rules.step_distribution(p, q, [1] * int(length), reference_rules.iid, reference_rules.chain)
        assert sum(levels) >= sum(reference_rules.accepted_at_least(token, int(length)))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", SEQUENCE)
def test_traversal_of_a_tree_is_the_known_fractions(known_answers, name, shape):
    entry = known_answers["sequence"][name]
    p, q = rows_of(entry, "p"), rows_of(entry, "q")
    distribution = leaf_first_reference.step_distribution(p, q, widths_of(shape), reference_rules.without_replacement, WOR)
    known = entry["tree"][shape]["traversal_without_replacement"]
    levels = reference_rules.accepted_at_least(distribution, 2)
    assert str(sum(levels)) == known["E_tau"]["exact"]
    assert [str(level) for level in levels if level] == [x["exact"] for x in known["P_tau_ge"] if x["float"]]
    assert reference_rules.total_variation(distribution, p, 3) == 0


VOCAB = 3
HISTORIES = ["", *map(str, range(VOCAB)), *(f"{a},{b}" for a in range(VOCAB) for b in range(VOCAB)), "*"]
rows = st.lists(st.integers(0, 6), min_size=VOCAB, max_size=VOCAB).filter(any)
tables = st.lists(rows, min_size=len(HISTORIES), max_size=len(HISTORIES))


def named(table):
    return {key: [f"{weight}/{sum(row)}" for weight in row] for key, row in zip(HISTORIES, table, strict=True)}


def lookup(table):
    at = {key: [Fraction(weight, sum(row)) for weight in row] for key, row in zip(HISTORIES, table, strict=True)}
    return lambda path: at.get(",".join(map(str, path)), at["*"])


@pytest.mark.parametrize(
    ("widths", "replacement", "rule", "reference"),
    [
        ((1, 1, 1), True, Block, leaf_first_reference.block),
        ((2, 1), False, Traversal, WOR),
        ((2, 1), True, Traversal, IID),
        ((1, 2), True, Traversal, IID),
        ((3,), False, Traversal, WOR),
    ],
)
@settings(max_examples=6, derandomize=True)
@given(p=tables, q=tables)
def test_the_code_has_the_distribution_of_its_twin_in_fractions(widths, replacement, rule, reference, p, q):
    case = Case(
        "drawn",
        TabularTargetOptions(vocab=VOCAB, rows=named(p), start=2),
        TabularDrafterOptions(vocab=VOCAB, rows=named(q), start=2),
    )
    drafts = reference_rules.iid if replacement else reference_rules.without_replacement
    wanted = leaf_first_reference.step_distribution(lookup(p), lookup(q), widths, drafts, reference)
    found = step_distribution(
        tabular_decoder(case, *tree_parts(widths, replacement=replacement), rule), (0, 0), depth=len(widths)
    )
    assert {(o.tokens, o.accepted[0]): mass for o, mass in found.items() if mass > 1e-15} == pytest.approx(
        {key: float(mass) for key, mass in wanted.items()}, abs=1e-12
    )
    assert reference_rules.total_variation(wanted, lookup(p), len(widths) + 1) == 0


@pytest.mark.parametrize("replacement", [False, True])
def test_traversal_of_one_chain_is_block(replacement):
    for number in range(6):
        case = drawn_case(number)
        parts = tree_parts((1, 1, 1), replacement=replacement)
        one, other = (
            step_distribution(tabular_decoder(case, *parts, rule), case.prefix, depth=3) for rule in (Block, Traversal)
        )
        assert one == pytest.approx(other, abs=1e-15)


CASES = {
    "chain": (chain_parts(3), Block, ChainRule),
    "without replacement": (tree_parts((2, 1)), Traversal, MultiRound),
    "i.i.d.": (tree_parts((2, 1), replacement=True), Traversal, MultiRound),
    "uneven": ((Sampled, SampledOptions(paths=[(0,), (1,), (1, 0), (1, 1)])), Traversal, MultiRound),
}


def hold_on(parts, rule, plain, numbers):
    for number in numbers:
        case = drawn_case(number, vocab=2 + number % 2)
        proof = prove_step(tabular_decoder(case, *parts, rule), case.prefix, depth=3)
        assert proof.tv <= 1e-12
        other = prove_step(tabular_decoder(case, *parts, plain), case.prefix, depth=3)
        assert proof.expected_accepted >= other.expected_accepted - 1e-12


@pytest.mark.parametrize("kind", CASES)
def test_drawn_tables_are_matched_and_no_less_is_accepted_than_from_the_root(kind):
    hold_on(*CASES[kind], range(12))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["i.i.d.", "uneven"])
def test_so_are_a_hundred_more(kind):
    hold_on(*CASES[kind], range(12, 112))


ENDING = {
    "chains": ((Chains, ChainsOptions(count=2, length=2)), (Gbv, Traversal)),
    "chain": (chain_parts(3), (Block, Gbv, Traversal)),
    "delayed": ((Delayed, DelayedOptions(stem=1, widths=(2, 1))), (Traversal,)),
    "i.i.d.": (tree_parts((2, 1), replacement=True), (Traversal,)),
}


@pytest.mark.parametrize("kind", ENDING)
def test_drafts_that_end_early_at_a_stop_token_keep_the_distribution(kind):
    parts, rules = ENDING[kind]
    for number in range(2):
        case = drawn_case(number)
        ends = case.target.model_copy(update={"stop_ids": (number % VOCAB,)})
        case = replace(case, target=ends, prefix=((number + 1) % VOCAB, (number + 2) % VOCAB))
        for rule in rules:
            assert prove_step(tabular_decoder(case, *parts, rule), case.prefix, depth=3).tv <= 1e-12


def without_q_below(token, builder):
    """The builder, whose drafter has nothing to offer below a token, as one that has run out of room."""

    def grow(root_token, root_position, budget, rng):
        growing = type(builder).grow(builder, root_token, root_position, budget, rng)
        frontier = next(growing)
        while True:
            answer = yield frontier
            empty = [node > 0 and frontier.tree.tokens[node] == token for node in frontier.nodes]
            q = answer.q.masked_fill(torch.tensor(empty)[:, None], 0.0)
            try:
                frontier = growing.send(DraftProbs(q))
            except StopIteration as end:
                return end.value

    return grow


@pytest.mark.parametrize("kind", ENDING)
def test_so_do_drafts_that_end_where_the_drafter_has_nothing_to_offer(kind, monkeypatch):
    (parts, rules), shorter = ENDING[kind], False
    for number in range(2):
        case = drawn_case(number)
        for rule in rules:
            decoder = tabular_decoder(case, *parts, rule)
            whole = prove_step(decoder, case.prefix, depth=3)
            monkeypatch.setattr(decoder.builder, "grow", without_q_below(number % VOCAB, decoder.builder))
            cut = prove_step(decoder, case.prefix, depth=3)
            assert cut.tv <= 1e-12
            shorter |= cut.num_outcomes < whole.num_outcomes
    assert shorter


def block_tv(known_answers, name, length, **mistakes):
    entry = known_answers["sequence"][name]
    p, q = rows_of(entry, "p"), rows_of(entry, "q")
    rule = partial(leaf_first_reference.block, **mistakes)
    distribution = leaf_first_reference.step_distribution(p, q, [1] * length, reference_rules.iid, rule)
    levels = reference_rules.accepted_at_least(distribution, length)
    return reference_rules.total_variation(distribution, p, length + 1), sum(levels)


def test_the_classic_mistakes_of_block_are_lossy_by_the_known_amounts(known_answers):
    assert block_tv(known_answers, "T1_iid_A", 2, first_failure=True) == (Fraction(1, 5), Fraction(17, 20))
    assert block_tv(known_answers, "T7_sharp_q", 2, weighted=False) == (Fraction(1, 200), Fraction(4, 5))
    assert block_tv(known_answers, "T1_iid_A", 2, certain_ratio=True)[0] > Fraction(1, 20)
    assert block_tv(known_answers, "T1_iid_A", 2, certain_residual=True)[0] > Fraction(1, 20)


def test_a_one_hot_q_throughout_is_lossless_and_accepts_as_little_as_match(known_answers):
    tv, accepted = block_tv(known_answers, "T1_iid_A", 2, certain_ratio=True, certain_residual=True)
    entry = known_answers["sequence"]["T1_iid_A"]
    matched = reference_rules.step_distribution(
        rows_of(entry, "p"), rows_of(entry, "q"), [1, 1], reference_rules.iid, reference_rules.match
    )
    assert tv == 0
    assert accepted == sum(reference_rules.accepted_at_least(matched, 2))


MISTAKES = {
    "stop at the first failure": (chain_parts(2), partial(leaf_first_reference.block, first_failure=True)),
    "block's residual without w": (chain_parts(2), partial(leaf_first_reference.block, weighted=False)),
    "one-hot ratio": (chain_parts(2), partial(leaf_first_reference.block, certain_ratio=True)),
    "siblings in reverse": (tree_parts((2, 1)), partial(WOR, reverse=True)),
    "q not struck": (tree_parts((2, 1)), partial(WOR, strike=False)),
    "residual without w": (tree_parts((2, 2)), partial(WOR, weighted=False)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_enumeration_refutes_a_planted_mistake(sequence_case, mistake):
    parts, given_tree = MISTAKES[mistake]
    wrong = leaf_first_reference.verifier(given_tree, DRAWN)
    tvs = [
        prove_step(tabular_decoder(sequence_case(name), *parts, wrong), (0, 0), depth=2).tv
        for name in ("T1_iid_A", "T7_sharp_q")
    ]
    assert max(tvs) > 0.004


@pytest.mark.parametrize(("parts", "given_tree"), [(chain_parts(2), leaf_first_reference.block), (tree_parts((2, 2)), WOR)])
def test_the_same_twin_without_a_mistake_is_lossless(sequence_case, parts, given_tree):
    correct = leaf_first_reference.verifier(given_tree, DRAWN)
    assert prove_step(tabular_decoder(sequence_case("T2_context"), *parts, correct), (0, 0), depth=2).tv <= 1e-12
