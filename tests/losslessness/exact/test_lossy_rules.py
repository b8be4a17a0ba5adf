"""The rest of the trap table: mistakes of block verification, and rules that are lossy by design, by the known amounts."""

from fractions import Fraction

import pytest
from tabular_cases import tabular_decoder

from specdec.interfaces.declarations import ALL_SHAPES, Reads, VerifierDeclaration
from specdec.interfaces.parts import PartOptions, Verifier
from specdec.interfaces.results import Verdict
from specdec.losslessness.exact.enumeration import prove_step
from specdec.sampling.distribution import from_dense
from specdec.tree_builders.chain import Chain, ChainOptions
from specdec.tree_builders.fixed import Fixed, FixedOptions
from specdec.trees.draft_tree import Draw
from specdec.verifiers.ensemble import Ensemble, EnsembleOptions
from specdec.verifiers.lenience import Lenience, LenienceOptions
from specdec.verifiers.thresholds import Thresholds
from specdec.verifiers.typical import Typical

SAMPLED = (Chain, ChainOptions(length=1, draw="sampled"))


class Rule(Verifier[PartOptions]):
    """Along a chain of drawn tokens."""

    name = "rule"
    Options = PartOptions

    @classmethod
    def declares(cls, options):
        return VerifierDeclaration(frozenset(Draw), ALL_SHAPES, reads_q=True, reads=Reads.TREE)

    @classmethod
    def build(cls, options, tools):
        return cls()

    def draw(self, dense, rng, tree, nodes):
        """The next token after `nodes`, from weights."""
        return from_dense(dense).choose(rng, tree.root_position + 1 + len(nodes))

    def verdict(self, tree, nodes, token):
        last = nodes[-1] if nodes else 0
        return Verdict(tuple(nodes), token, not tree.children[last])


class Block(Rule):
    """Block verification, arXiv 2403.10444; `first_failure` and `token_residual` spoil it."""

    first_failure = False
    token_residual = False

    def verify(self, tree, p, rng):
        chain = tree.path(len(tree) - 1)
        rows = [p.row(node).dense(len(tree.q_of(0))) for node in (0, *chain)]
        weights, passed = [1.0], []
        for level, node in enumerate(chain):
            token = tree.tokens[node]
            ratio = float(rows[level][token] / tree.q_of(tree.parents[node])[token])
            weights.append(min(1.0, weights[-1] * ratio))
            passed.append(rng.flip(self._threshold(tree, rows, chain, level + 1, weights[-1])))
        if self.first_failure:
            kept = passed.index(False) if False in passed else len(passed)
        else:
            kept = max((level for level, good in enumerate(passed, 1) if good), default=0)
        nodes = chain[:kept]
        left = rows[kept]
        if kept < len(chain):
            q = tree.q_of(nodes[-1] if nodes else 0)
            left = ((1.0 if self.token_residual else weights[kept]) * left - q).clamp_min(0)
            left = left if bool(left.any()) else rows[kept]
        return self.verdict(tree, nodes, self.draw(left, rng, tree, nodes))

    def _threshold(self, tree, rows, chain, level, weight):
        if level == len(chain):
            return weight
        surplus = float((weight * rows[level] - tree.q_of(chain[level - 1])).clamp_min(0).sum())
        return surplus / (surplus + 1 - weight) if surplus + 1 - weight > 0 else 1.0


class FirstFailure(Block):
    first_failure = True
    name = "first_failure"
    Options = PartOptions


class TokenResidual(Block):
    token_residual = True
    name = "token_residual"
    Options = PartOptions


def proof_of(case, rule, length=1, builder=None):
    parts = builder or (Chain, ChainOptions(length=length, draw="sampled"))
    return prove_step(tabular_decoder(case, *parts, rule), (0, 0), depth=length)


@pytest.mark.parametrize("name", ["T1_iid_A", "T2_context", "T3_toy2", "T6_disjoint2", "T7_sharp_q"])
def test_the_control_right_block_verification_is_lossless_with_the_known_acceptance(known_answers, sequence_case, name):
    proof = proof_of(sequence_case(name), Block, 2)
    assert proof.holds
    known = known_answers["sequence"][name]["chain"]["2"]["block"]["E_tau"]["float"]
    assert proof.expected_accepted == pytest.approx(known, abs=1e-12)


@pytest.mark.parametrize(
    ("trap", "rule", "name"),
    [
        ("block_stop_at_first_failure", FirstFailure, "T1_iid_A"),
        ("block_with_token_level_residual", TokenResidual, "T7_sharp_q"),
    ],
)
def test_a_wrong_block_verification_is_lossy_by_the_known_amount(known_answers, sequence_case, trap, rule, name):
    proof = proof_of(sequence_case(name), rule, 2)
    assert not proof.holds
    assert proof.tv == pytest.approx(known_answers["traps"][trap]["tv"]["float"], abs=1e-12)
    assert proof.violations


def test_a_token_level_residual_is_seen_only_where_rows_differ(sequence_case):
    """Rows that are the same at every depth hide it: why models here are not i.i.d."""
    assert proof_of(sequence_case("T1_iid_A"), TokenResidual, 2).holds


class Synthetic(Rule):
    """Accept at a rate that was measured elsewhere; reject into the residual."""

    def verify(self, tree, p, rng):
        [node] = tree.children[0]
        q = tree.q_of(0)
        if rng.flip(0.7):
            return self.verdict(tree, [node], p.row(node).choose(rng, tree.root_position + 2))
        return self.verdict(tree, [], self.draw((p.row(0).dense(len(q)) - q).clamp_min(0), rng, tree, []))


LOSSY = [
    ("LOSSY_lenience_1", Lenience, {"lenience": 1.0}, SAMPLED),
    ("LOSSY_lenience_3/4", Lenience, {"lenience": 0.75}, SAMPLED),
    ("LOSSY_lenience_1/2", Lenience, {"lenience": 0.5}, SAMPLED),
    ("LOSSY_ensemble_w_1/2", Ensemble, {"weight": 0.5}, SAMPLED),
    ("LOSSY_synthetic_rate_0.7", Synthetic, {}, SAMPLED),
    ("LOSSY_medusa_typical_eps0.3_delta0.09", Typical, {}, (Fixed, FixedOptions(widths=[1]))),
    (
        "LOSSY_medusa_typical_eps0.3_delta0.09",
        Typical,
        {"posterior_threshold": 0.3, "posterior_alpha": 0.09},
        (Fixed, FixedOptions(widths=[1])),
    ),
    ("LOSSY_sglang_threshold_single_0.25", Thresholds, {"single": 0.25}, (Fixed, FixedOptions(widths=[2]))),
]


@pytest.mark.parametrize(("trap", "rule", "options", "builder"), LOSSY)
def test_a_rule_that_is_lossy_by_design_is_so_by_the_known_amount(known_answers, single_case, trap, rule, options, builder):
    decoder = tabular_decoder(single_case("A_generic3"), *builder, rule, rule.Options(**options))
    proof = prove_step(decoder, (0, 0), depth=1)
    known = known_answers["traps"][trap]
    assert proof.tv == pytest.approx(known["tv"]["float"], abs=1e-12)
    assert proof.expected_accepted == pytest.approx(known["E_tau"]["float"], abs=1e-12)
    assert proof.holds == (known["tv"]["float"] == 0)


@pytest.mark.parametrize("weight", [0.25, 0.5, 0.9])
def test_an_ensemble_is_as_far_from_the_target_as_its_weight_leaves_of_the_draft(known_answers, single_case, weight):
    for name, entry in known_answers["single_step"].items():
        p, q = ([float(Fraction(x)) for x in entry[key]] for key in "pq")
        decoder = tabular_decoder(single_case(name), *SAMPLED, Ensemble, EnsembleOptions(weight=weight))
        apart = sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2
        assert prove_step(decoder, (0, 0), depth=1).tv == pytest.approx((1 - weight) * apart, abs=1e-12)


@pytest.mark.parametrize("lenience", ["1/4", "2/3", "1"])
def test_leniency_costs_what_its_formula_says(known_answers, single_case, lenience):
    factor = Fraction(lenience)
    for name, entry in known_answers["single_step"].items():
        p, q = ([Fraction(x) for x in entry[key]] for key in "pq")
        taken = [min(a / factor, b) for a, b in zip(p, q, strict=True)]
        left = [max(Fraction(0), a - factor * b) for a, b in zip(p, q, strict=True)]
        rest = 1 - sum(taken)
        emitted = [a + (rest * b / sum(left) if rest else 0) for a, b in zip(taken, left, strict=True)]
        decoder = tabular_decoder(single_case(name), *SAMPLED, Lenience, LenienceOptions(lenience=float(factor)))
        known = float(sum(abs(a - b) for a, b in zip(emitted, p, strict=True)) / 2)
        proof = prove_step(decoder, (0, 0), depth=1)
        assert proof.tv == pytest.approx(known, abs=1e-12)
        assert proof.expected_accepted == pytest.approx(float(sum(taken)), abs=1e-12)
