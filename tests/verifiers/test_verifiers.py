"""Laws of every verifier: its naive twin in fractions on the same rng, its refusals, and what it may look at."""

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.errors import NumericsError, PluginError
from specdec.interfaces.declarations import Shape
from specdec.interfaces.parts import PartOptions
from specdec.sampling.distribution import TokenDist
from specdec.sampling.enumeration import outcomes
from specdec.sampling.logits_warper import LogitsWarper
from specdec.sampling.params import SamplingParams
from specdec.sampling.rng import RequestRng, SeededDraftRng, TargetRng, seeded
from specdec.trees.draft_tree import SINGLE_DRAWS, DraftTree, Draw, TreeSketch, root_only
from specdec.verifiers.block import Block
from specdec.verifiers.chain import Chain
from specdec.verifiers.match import Match
from specdec.verifiers.multi_round import MultiRound
from specdec.verifiers.point_mass import PointMass
from specdec.verifiers.traversal import Traversal

VOCAB = 4
ROOT_POSITION = 7
PATH_RULES = (Match, PointMass, Chain, MultiRound)
TREE_RULES = (Block, Traversal)
"""Those that read the whole tree: their naive twins are whole distributions, in losslessness/exact/test_leaf_first_rules.py."""
RULES = PATH_RULES + TREE_RULES


def chains_only(rule):
    return Shape.TREE not in rule.declares(PartOptions()).shapes


class Rows:
    """p by node, as TargetProbs gives it, recording what was looked at."""

    def __init__(self, rows):
        logits = torch.tensor(rows, dtype=torch.float64).log()
        self.asked: list[int] = []
        self.warper = LogitsWarper(SamplingParams(temperature=1.0), prompt_length=1, stop_ids=frozenset())
        self.logits = logits

    def target_probs(self, tree):
        return self.warper.target_probs(self.logits, [0], tree)


class Scripted(TargetRng):
    """RequestRng from a list of numbers in [0, 1); `choose` inverts the cumulative distribution."""

    def __init__(self, numbers):
        self.numbers = iter(numbers)
        self.chosen: list[int] = []

    def choose(self, ids, probs, position):
        self.chosen.append(position)
        return pick(next(self.numbers), {int(i): Fraction(float(w)) for i, w in zip(ids, probs, strict=True)})

    def flip(self, probability):
        return next(self.numbers) < probability

    def skip(self, position):
        self.chosen.append(position)
        next(self.numbers)


def pick(u, weights):
    total = sum(weights.values())
    running = Fraction(0)
    for token in sorted(weights):
        running += weights[token]
        if Fraction(u) * total < running:
            return token
    return max(weights)


@st.composite
def fractions(draw, *, positive_on=()):
    weights = draw(st.lists(st.integers(0, 6), min_size=VOCAB, max_size=VOCAB))
    for token in positive_on:
        weights[token] = max(1, weights[token])
    if not any(weights):
        weights[0] = 1
    return [Fraction(weight, sum(weights)) for weight in weights]


@st.composite
def drafts(draw, *, chain=False, kinds=(Draw.IID, Draw.WITHOUT_REPLACEMENT)):
    """(tree, rows of p, rows of q) with up to two levels; q is positive on what was drafted."""
    kind = draw(st.sampled_from(kinds))
    sketch = TreeSketch(0, ROOT_POSITION)
    draws, q_rows = {}, []
    frontier = [0]
    for _ in range(2):
        deeper = []
        for node in frontier:
            size = 1 if chain else draw(st.integers(0, 3))
            unique = kind is not Draw.IID
            tokens = draw(st.lists(st.integers(0, VOCAB - 1), min_size=size, max_size=size, unique=unique))
            if not tokens:
                continue
            node_of = {token: sketch.add(node, token) for token in dict.fromkeys(tokens)}
            draws[node] = tuple(node_of[token] for token in tokens)
            q_rows.append((node, draw(fractions(positive_on=tokens))))
            deeper += node_of.values()
        frontier = deeper
    p_rows = [draw(fractions()) for _ in range(len(sketch))]
    row_of = {node: row for row, (node, _) in enumerate(q_rows)}
    q = torch.tensor([[float(x) for x in row] for _, row in q_rows], dtype=torch.float64) if q_rows else None
    tree = sketch.freeze(kind, draw_order=draws, q=q, q_row=[row_of.get(node, -1) for node in range(len(sketch))])
    return tree, p_rows, dict(q_rows)


# Naive twins: python numbers and dictionaries, one function a rule.


def naive(rule, tree, p_rows, q_rows, rng):
    node, path = 0, []
    while True:
        p = dict(enumerate(p_rows[node]))
        q = dict(enumerate(q_rows.get(node, [])))
        accepted = None
        if rule is Match:
            token = coin_choice(p, rng)
            accepted = next((c for c in tree.children[node] if tree.tokens[c] == token), None)
            if accepted is None:
                return path, token
        else:
            for child in tree.draw_order.get(node, ()):
                token = tree.tokens[child]
                threshold = p[token] if rule is PointMass else min(Fraction(1), p[token] / q[token])
                if next(rng) < threshold:
                    accepted = child
                    break
                p = struck(p, token) if rule is PointMass else residual(p, q)
                if rule is MultiRound and tree.draw_kind[node] is Draw.WITHOUT_REPLACEMENT:
                    q = struck(q, token)
            if accepted is None:
                return path, coin_choice(p, rng)
        path.append(accepted)
        node = accepted


def coin_choice(weights, rng):
    return pick(next(rng), {token: weight for token, weight in weights.items() if weight})


def struck(weights, token):
    rest = {t: Fraction(0) if t == token else w for t, w in weights.items()}
    total = sum(rest.values())
    return {t: w / total for t, w in rest.items()} if total else rest


def residual(p, q):
    rest = {t: max(Fraction(0), p[t] - q[t]) for t in p}
    total = sum(rest.values())
    return {t: w / total for t, w in rest.items()}


# Uniform draws that sit on no threshold: fractions of small denominators never equal odd multiples of 2^-30.
uniform_lists = st.lists(st.integers(0, 2**20 - 1).map(lambda n: (2 * n + 1) / 2**21), min_size=20, max_size=20)


@pytest.mark.parametrize("rule", PATH_RULES)
@settings(max_examples=80)
@given(data=st.data())
def test_a_rule_agrees_with_its_twin_in_fractions_on_the_same_draws(rule, data):
    tree, p_rows, q_rows = data.draw(drafts(chain=chains_only(rule)))
    uniforms = data.draw(uniform_lists)
    rng = Scripted(uniforms)
    verdict = rule().verify(tree, Rows([[float(x) for x in row] for row in p_rows]).target_probs(tree), rng)
    path, token = naive(rule, tree, p_rows, q_rows, iter(uniforms))
    assert (list(verdict.path), verdict.next_token) == (path, token)
    last = path[-1] if path else 0
    assert verdict.all_accepted == (not tree.children[last])
    assert rng.chosen[-1] == ROOT_POSITION + tree.depths[last] + 1


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=60)
@given(data=st.data())
def test_at_temperature_zero_every_rule_is_greedy_matching(rule, data):
    tree, p_rows, _ = data.draw(drafts(chain=chains_only(rule)))
    logits = torch.tensor([[float(x) for x in row] for row in p_rows], dtype=torch.float64).log()
    p = LogitsWarper(SamplingParams(temperature=0.0), prompt_length=1, stop_ids=frozenset()).target_probs(logits, [0], tree)
    verdict = rule().verify(tree, p, seeded(data.draw(st.integers(0, 1000))).target)
    node, path = 0, []
    while True:
        best = max(range(VOCAB), key=lambda token: (p_rows[node][token], -token))
        child = next((c for c in tree.children[node] if tree.tokens[c] == best), None)
        if child is None:
            break
        path.append(child)
        node = child
    assert (list(verdict.path), verdict.next_token) == (path, best)


@pytest.mark.parametrize("rule", PATH_RULES)
@settings(max_examples=60)
@given(data=st.data())
def test_only_rows_on_the_path_are_read_and_in_path_order(rule, data):
    tree, p_rows, _ = data.draw(drafts(chain=chains_only(rule)))
    seen = []

    def processor(input_ids, scores):
        seen.append(input_ids[0, 1:].tolist())
        return scores

    warper = LogitsWarper(SamplingParams(temperature=1.0), prompt_length=1, stop_ids=frozenset(), processors=[processor])
    logits = torch.tensor([[float(x) for x in row] for row in p_rows], dtype=torch.float64).log()
    verdict = rule().verify(tree, warper.target_probs(logits, [0], tree), seeded(data.draw(st.integers(0, 1000))).target)
    assert seen == [tree.path_tokens(node) for node in (0, *verdict.path)]


@pytest.mark.parametrize("rule", TREE_RULES)
@settings(max_examples=60)
@given(data=st.data())
def test_a_rule_that_reads_the_tree_reads_each_row_once_and_parents_before_children(rule, data):
    tree, p_rows, _ = data.draw(drafts(chain=chains_only(rule)))
    seen = []

    def processor(input_ids, scores):
        seen.append(tuple(input_ids[0, 1:].tolist()))
        return scores

    warper = LogitsWarper(SamplingParams(temperature=1.0), prompt_length=1, stop_ids=frozenset(), processors=[processor])
    logits = torch.tensor([[float(x) for x in row] for row in p_rows], dtype=torch.float64).log()
    verdict = rule().verify(tree, warper.target_probs(logits, [0], tree), seeded(data.draw(st.integers(0, 1000))).target)
    assert len(set(seen)) == len(seen)
    assert all(path[:-1] in seen[:number] for number, path in enumerate(seen) if path)
    assert tuple(tree.path_tokens(verdict.path[-1] if verdict.path else 0)) in seen


def tree_of(kind, tokens, q=None) -> DraftTree:
    sketch = TreeSketch(0, ROOT_POSITION)
    node = {token: sketch.add(0, token) for token in dict.fromkeys(tokens)}
    rows = None if q is None else torch.tensor([q], dtype=torch.float64)
    draws = {0: tuple(node[token] for token in tokens)}
    return sketch.freeze(kind, draw_order=draws, q=rows, q_row=[-1 if q is None else 0] + [-1] * len(node))


EVEN = [0.25] * VOCAB


@pytest.mark.parametrize("kind", Draw)
@pytest.mark.parametrize("tokens", [(1,), (1, 2)])
@pytest.mark.parametrize("rule", RULES)
def test_a_rule_refuses_exactly_the_draws_that_it_does_not_declare(rule, kind, tokens):
    tree = tree_of(kind, tokens, EVEN)
    declared = rule.declares(PartOptions())
    alike = SINGLE_DRAWS if kind in SINGLE_DRAWS and len(tokens) == 1 else {kind}
    fits = bool(alike & declared.accepts) and (len(tokens) == 1 or Shape.TREE in declared.shapes)
    p = Rows([EVEN] * len(tree)).target_probs(tree)
    if fits:
        rule().verify(tree, p, seeded(1).target)
        return
    with pytest.raises(PluginError, match="node 0"):
        rule().verify(tree, p, seeded(1).target)


@pytest.mark.parametrize("rule", [Chain, MultiRound, Block, Traversal])
@pytest.mark.parametrize("bad", [0.0, float("nan"), -0.5])
def test_a_draft_that_its_own_q_rules_out_is_a_numerics_error(rule, bad):
    tree = tree_of(Draw.IID, (1,), [0.5, bad, 0.5, 0.0])
    with pytest.raises(NumericsError, match=r"node 1: token 1"):
        rule().verify(tree, Rows([EVEN, EVEN]).target_probs(tree), seeded(1).target)


@pytest.mark.parametrize("rule", RULES)
def test_without_a_draft_every_rule_draws_from_the_target(rule):
    tree = root_only(0, ROOT_POSITION)
    distribution = outcomes(lambda rng: rule().verify(tree, Rows([[0.1, 0.2, 0.3, 0.4]]).target_probs(tree), rng.target))
    assert {verdict.next_token: mass for verdict, mass in distribution.items()} == pytest.approx(
        {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4}
    )
    assert all(verdict.all_accepted and not verdict.path for verdict in distribution)


class Unlucky(TargetRng):
    """Rejects whatever is not certain."""

    def choose(self, ids, probs, position):
        return int(ids[0])

    def flip(self, probability):
        return False

    def skip(self, position):
        pass


@pytest.mark.parametrize("rule", [Chain, MultiRound, Block, Traversal])
def test_an_empty_residual_falls_back_to_the_target_and_is_counted(rule):
    """p = q: a rejection can only be a matter of rounding."""
    tree = tree_of(Draw.IID, (1,), EVEN)
    p = Rows([EVEN, EVEN]).target_probs(tree)
    verdict = rule().verify(tree, p, Unlucky())
    assert verdict.next_token == 0
    assert p.fallbacks == 1


def test_scouts_are_never_verified():
    tree = replace(tree_of(Draw.DETERMINISTIC, (1, 2)), scouts=frozenset({1}))
    for rule in (Match, PointMass):
        distribution = outcomes(lambda rng, rule=rule: rule().verify(tree, Rows([EVEN] * 3).target_probs(tree), rng.target))
        assert all(1 not in verdict.path for verdict in distribution)


def test_match_follows_the_noise_of_plain_decoding_for_every_tree():
    """Pathwise: whatever was drafted, the emitted tokens are those that position-keyed draws give without a draft."""
    generator = torch.Generator().manual_seed(0)
    table = torch.rand(VOCAB**3, VOCAB, generator=generator, dtype=torch.float64)

    def p_after(tokens):
        return table[sum(token * VOCAB**i for i, token in enumerate(tokens[-3:]))]

    for seed in range(40):
        rng: RequestRng = seeded(seed)
        plain = plain_tokens(p_after, rng.target, 3)
        tree = drawn_tree(SeededDraftRng(seed))
        logits = torch.stack([p_after([0, *tree.path_tokens(node)]).log() for node in range(len(tree))])
        warper = LogitsWarper(SamplingParams(temperature=1.0), prompt_length=1, stop_ids=frozenset())
        verdict = Match().verify(tree, warper.target_probs(logits, [0], tree), seeded(seed).target)
        emitted = [*(tree.tokens[node] for node in verdict.path), verdict.next_token]
        assert emitted == plain[: len(emitted)]


def plain_tokens(p_after, rng, count):
    tokens = [0]
    for _ in range(count):
        weights = p_after(tokens)
        dist = TokenDist(torch.arange(VOCAB), weights / weights.sum())
        tokens.append(dist.choose(rng, ROOT_POSITION + len(tokens)))
    return tokens[1:]


def drawn_tree(rng):
    sketch = TreeSketch(0, ROOT_POSITION)
    for parent in [0, *(sketch.add(0, token) for token in rng.draw(torch.ones(VOCAB), 2, replacement=False))]:
        if parent:
            for token in rng.draw(torch.ones(VOCAB), 2, replacement=False):
                sketch.add(parent, token)
    return sketch.freeze(Draw.WITHOUT_REPLACEMENT)
