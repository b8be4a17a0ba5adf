"""Every registered verifier on drawn tables, trees and prefixes of every kind of draw that it accepts."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tabular_cases import Case, tabular_decoder

from specdec.drafters.tabular import TabularDrafterOptions
from specdec.interfaces.declarations import Guarantee, Kind, Shape
from specdec.losslessness.exact.enumeration import prove_step
from specdec.plugins.loading import load_registry
from specdec.targets.tabular import TabularTargetOptions
from specdec.tree_builders.coupled import Coupled, CoupledOptions
from specdec.tree_builders.fixed import Fixed, FixedOptions
from specdec.tree_builders.pair import Pair, PairOptions
from specdec.tree_builders.sampled import Sampled, SampledOptions
from specdec.tree_builders.top_then_one import TopThenOne, TopThenOneOptions
from specdec.trees.draft_tree import Draw

VOCAB = 3
RULES = {
    name: found.cls
    for name, found in load_registry("all").parts[Kind.VERIFIER].items()
    if name != "judge" and found.cls.declares(found.cls.Options()).guarantee is Guarantee.LOSSLESS
}
BUILDERS = {
    Draw.DETERMINISTIC: lambda paths: (Fixed, FixedOptions(paths=paths)),
    Draw.IID: lambda paths: (Sampled, SampledOptions(paths=paths, replacement=True)),
    Draw.WITHOUT_REPLACEMENT: lambda paths: (Sampled, SampledOptions(paths=paths)),
    Draw.COUPLED: lambda paths: (Coupled, CoupledOptions(paths=paths)),
    Draw.TOP_THEN_ONE: lambda paths: (TopThenOne, TopThenOneOptions(paths=paths)),
    Draw.PAIR: lambda paths: (Pair, PairOptions(depth=max(map(len, paths)))),
}
CHAINS = [[(0,)], [(0,), (0, 0)]]
TREES = [[(0,), (1,)], [(0,), (1,), (1, 0)], [(0,), (0, 0), (1,)], [(0,), (1,), (2,)], [(0,), (0, 0), (0, 1)]]
HISTORIES = ["", *map(str, range(VOCAB)), *(f"{a},{b}" for a in range(VOCAB) for b in range(VOCAB)), "*"]

rows = st.lists(st.integers(0, 6), min_size=VOCAB, max_size=VOCAB).filter(any)
tables = st.lists(rows, min_size=len(HISTORIES), max_size=len(HISTORIES))
EVEN, CERTAIN, LOW, HIGH = [1, 1, 1], [0, 1, 0], [1, 0, 0], [0, 1, 3]
DEEPER = [[n % 4, 3, (5 * n + 1) % 7] for n in range(len(HISTORIES))]


def everywhere(row):
    return [row] * len(HISTORIES)


def named(table):
    return {key: [f"{weight}/{sum(row)}" for weight in row] for key, row in zip(HISTORIES, table, strict=True)}


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
@settings(max_examples=25, derandomize=True)
@given(p=tables, q=tables, number=st.integers(0, 10**6), prefix=st.lists(st.integers(0, VOCAB - 1), min_size=2, max_size=5))
@example(p=everywhere(EVEN), q=everywhere(EVEN), number=0, prefix=[0, 1])
@example(p=everywhere(LOW), q=everywhere(HIGH), number=1, prefix=[2, 0, 1])
@example(p=everywhere(CERTAIN), q=everywhere(EVEN), number=2, prefix=[1, 1])
@example(p=everywhere(EVEN), q=everywhere(CERTAIN), number=3, prefix=[0, 2])
@example(p=DEEPER, q=DEEPER[::-1], number=4, prefix=[1, 2])
@example(p=DEEPER[::-1], q=DEEPER, number=5, prefix=[2, 2, 0, 1])
def test_every_registered_rule_has_the_target_s_distribution_on_whatever_is_drawn(name, p, q, number, prefix):
    rule = RULES[name]
    declares = rule.declares(rule.Options())
    shapes = CHAINS if Shape.TREE not in declares.shapes else TREES
    for turn, draw in enumerate(sorted(declares.accepts)):
        case = Case(
            "drawn",
            TabularTargetOptions(vocab=VOCAB, rows=named(p), start=len(prefix)),
            TabularDrafterOptions(vocab=VOCAB, rows=named(q), start=len(prefix)),
        )
        parts = BUILDERS[draw](shapes[(number + turn) % len(shapes)])
        proof = prove_step(tabular_decoder(case, *parts, rule), prefix, depth=2)
        assert proof.holds, [violation.words for violation in proof.violations]
        assert not proof.violations
        assert not proof.accepted_at_least or proof.accepted_at_least[0] <= proof.best_first_accepted + 1e-12
