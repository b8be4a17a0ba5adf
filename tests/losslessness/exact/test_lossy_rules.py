"""The rest of the trap table: mistakes of block verification, and rules that are lossy by design, by the known amounts."""

import pytest
from tabular_cases import tabular_decoder

from specdec.interfaces.declarations import ALL_SHAPES, VerifierDeclaration
from specdec.interfaces.parts import PartOptions, Verifier
from specdec.interfaces.results import Verdict
from specdec.losslessness.exact.enumeration import prove_step
from specdec.sampling.distribution import from_dense
from specdec.tree_builders.chain import Chain, ChainOptions
from specdec.tree_builders.fixed import Fixed, FixedOptions
from specdec.trees.draft_tree import Draw


class Rule(Verifier[PartOptions]):
    """Along a chain of drawn tokens."""

    name = "rule"
    Options = PartOptions

    @classmethod
    def declares(cls, options):
        return VerifierDeclaration(frozenset(Draw), ALL_SHAPES, reads_q=True)

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


class Lenient(Rule):
    """Accept min(1, p / (l q)); the residual is norm((p - l q)+). *Source: arXiv 2211.17192, lenience.*"""

    lenience = 1.0

    def verify(self, tree, p, rng):
        [node] = tree.children[0]
        row, q, token = p.row(0).dense(len(tree.q_of(0))), tree.q_of(0), tree.tokens[node]
        if rng.flip(min(1.0, float(row[token] / (self.lenience * q[token])))):
            return self.verdict(tree, [node], p.row(node).choose(rng, tree.root_position + 2))
        return self.verdict(tree, [], self.draw((row - self.lenience * q).clamp_min(0), rng, tree, []))


class Ensemble(Rule):
    """Verify against half p and half q."""

    def verify(self, tree, p, rng):
        [node] = tree.children[0]
        q, token = tree.q_of(0), tree.tokens[node]
        row = 0.5 * p.row(0).dense(len(q)) + 0.5 * q
        if rng.flip(min(1.0, float(row[token] / q[token]))):
            return self.verdict(tree, [node], p.row(node).choose(rng, tree.root_position + 2))
        return self.verdict(tree, [], self.draw((row - q).clamp_min(0), rng, tree, []))


class Synthetic(Rule):
    """Accept at a rate that was measured elsewhere; reject into the residual."""

    def verify(self, tree, p, rng):
        [node] = tree.children[0]
        q = tree.q_of(0)
        if rng.flip(0.7):
            return self.verdict(tree, [node], p.row(node).choose(rng, tree.root_position + 2))
        return self.verdict(tree, [], self.draw((p.row(0).dense(len(q)) - q).clamp_min(0), rng, tree, []))


class TypicalAcceptance(Rule):
    """Take the first child if p of it exceeds min(eps, delta e^-H). *Source: arXiv 2401.10774.*"""

    def verify(self, tree, p, rng):
        node = tree.children[0][0]
        row = p.row(0)
        entropy = -float((row.probs * row.probs.log()).sum())
        if row.prob(tree.tokens[node]) > min(0.3, 0.09 * 2.718281828459045**-entropy):
            return self.verdict(tree, [node], p.row(node).choose(rng, tree.root_position + 2))
        return self.verdict(tree, [], row.choose(rng, tree.root_position + 1))


def lenient(value):
    return type("Lenient", (Lenient,), {"lenience": value, "name": "lenient", "Options": PartOptions})


@pytest.mark.parametrize(
    ("trap", "rule", "builder"),
    [
        ("LOSSY_lenience_1", lenient(1.0), None),
        ("LOSSY_lenience_3/4", lenient(0.75), None),
        ("LOSSY_lenience_1/2", lenient(0.5), None),
        ("LOSSY_ensemble_w_1/2", Ensemble, None),
        ("LOSSY_synthetic_rate_0.7", Synthetic, None),
        ("LOSSY_medusa_typical_eps0.3_delta0.09", TypicalAcceptance, (Fixed, FixedOptions(widths=[1]))),
    ],
)
def test_a_rule_that_is_lossy_by_design_is_so_by_the_known_amount(known_answers, single_case, trap, rule, builder):
    proof = proof_of(single_case("A_generic3"), rule, 1, builder)
    known = known_answers["traps"][trap]["tv"]["float"]
    assert proof.tv == pytest.approx(known, abs=1e-12)
    assert proof.holds == (known == 0)
