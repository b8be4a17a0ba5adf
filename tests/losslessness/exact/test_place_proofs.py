"""A rule that is wrong at one place of a tree only is refuted, at every place of every shipped tree."""

import math
from functools import partial
from pathlib import Path
from types import ModuleType

import leaf_first_reference
import pluggy
import pytest
import torch
from typer.testing import CliRunner

import specdec.cli.verify
import specdec.decoding.sequence
from specdec.cli import app
from specdec.config.catalog import load_catalog
from specdec.config.library import Catalog, library
from specdec.config.resolver import check, read
from specdec.errors import SpecdecError
from specdec.interfaces.declarations import ALL_SHAPES, Kind, VerifierDeclaration
from specdec.interfaces.parts import PartOptions, Verifier
from specdec.interfaces.results import Verdict
from specdec.losslessness.exact.enumeration import prove_step
from specdec.losslessness.exact.on_tables import OnTables
from specdec.losslessness.exact.place_models import Siblings, place_model
from specdec.losslessness.exact.place_proofs import PlaceProver
from specdec.losslessness.exact.strategy import SECONDS, prove_strategy
from specdec.losslessness.report import StrategyProof
from specdec.plugins import builtin, hookspecs
from specdec.plugins.hookspecs import hookimpl
from specdec.plugins.loading import registry_of
from specdec.sampling.distribution import point_mass, truncate
from specdec.sampling.logits_warper import TargetProbs
from specdec.testing.proving import HOT, decoder_of, table_drafter, target_of
from specdec.tree_builders.fixed import Fixed, FixedOptions
from specdec.tree_builders.sampled import Sampled, SampledOptions
from specdec.trees.draft_tree import Draw
from specdec.trees.tree_file import read_tree
from specdec.trees.tree_shape import TreeShape
from specdec.verifiers.base import siblings

TREES = Path(__file__).parents[3] / "trees"
DRAWN = frozenset({Draw.IID, Draw.WITHOUT_REPLACEMENT})
RANKED = frozenset({Draw.DETERMINISTIC})


class WrongAt(Verifier[PartOptions]):
    """`multi_round`, which accepts a little too often at one place; of ranked drafts, `point_mass` that does."""

    name = "wrong_at"
    Options = PartOptions
    place = (1, 1)
    accepts = DRAWN

    @classmethod
    def declares(cls, options):
        return VerifierDeclaration(cls.accepts, ALL_SHAPES, reads_q=cls.accepts is DRAWN)

    @classmethod
    def build(cls, options, tools):
        return cls()

    def verify(self, tree, target_probs, rng):
        path, node = [], 0
        while True:
            left, drawn = target_probs.row(node), siblings(tree, node, self.accepts, self.name)
            q = tree.q_of(node).to(torch.float64) if drawn and self.accepts is DRAWN else None
            for rank, child in enumerate(drawn, 1):
                token = tree.tokens[child]
                chance = left.prob(token) if q is None else left.prob(token) / float(q[token])
                if rng.flip(min(1.0, chance * (1.1 if (tree.depths[node] + 1, rank) == self.place else 1.0))):
                    path.append(child)
                    node = child
                    break
                left = (left.without(token) if q is None else left.residual(q)) or left
                if tree.draw_kind[node] is Draw.WITHOUT_REPLACEMENT:
                    q = q.index_fill(0, torch.tensor(token), 0.0)
                    q = q / q.sum().clamp_min(torch.finfo(q.dtype).tiny)
            else:
                token = left.choose(rng, tree.root_position + tree.depths[node] + 1)
                return Verdict(tuple(path), token, all_accepted=not drawn)


def wrong_at(depth, rank, accepts=DRAWN):
    return type("WrongAt", (WrongAt,), {"name": "wrong_at", "Options": PartOptions, "place": (depth, rank), "accepts": accepts})


def leaf_first_wrong_at(depth, rank, replacement):
    """`traversal`, likewise."""
    given = partial(leaf_first_reference.traversal, replacement=replacement, wrong_at=(depth, rank))
    rule = leaf_first_reference.verifier(given, DRAWN)
    return type("WrongAt", (rule,), {"name": "wrong_at", "Options": PartOptions})


def largest_distance(shape: TreeShape, depth: int, rank: int, *, replacement: bool = False, leaf_first: bool = False) -> float:
    """Over the models of the widest siblings of that depth; ranked drafts where draws of so many would take too long."""
    counts = shape.child_counts()
    count, parent = max((count, parent) for parent, count in counts.items() if len(parent) == depth - 1)
    ranked = count > 4
    if ranked:
        builder, verifier = (Fixed, FixedOptions(paths=shape.paths)), wrong_at(depth, rank, RANKED)
    else:
        builder = (Sampled, SampledOptions(paths=shape.paths, replacement=replacement))
        verifier = leaf_first_wrong_at(depth, rank, replacement) if leaf_first else wrong_at(depth, rank)
    largest = 0.0
    for number in (count, rank - 1, 0, count - 1) if replacement and count > 1 else (rank - 1, 0, count - 1):
        undecided = replacement and number == count
        model = place_model(Siblings(parent, count), number, (0, 1, 0), ranked=ranked, undecided=undecided)
        decoder = decoder_of(target_of(model), table_drafter(model), builder, (verifier, PartOptions()), HOT)
        largest = max(largest, prove_step(decoder, model.prefix, depth=None).tv)
        if largest > 1e-12:
            break
    return largest


@pytest.mark.slow
@pytest.mark.parametrize("tree", sorted(path.stem for path in TREES.glob("*.yaml")))
def test_a_rule_that_is_wrong_at_one_place_of_a_shipped_tree_is_refuted(tree):
    shape = read_tree(TREES / f"{tree}.yaml").shape
    places = [(depth, rank) for depth, most in enumerate(shape.max_children, 1) for rank in range(1, most + 1)]
    missed = [place for place in places if largest_distance(shape, *place) <= 1e-12]
    assert not missed


PLACES = [
    (widths, (depth, rank))
    for widths in ((3, 2, 1), (2, 2, 2), (1, 1, 1, 1, 1))
    for depth, most in enumerate(widths, 1)
    for rank in range(1, most + 1)
]


@pytest.mark.slow
@pytest.mark.parametrize("leaf_first", [False, True])
@pytest.mark.parametrize(("widths", "place"), PLACES)
def test_so_is_one_for_repeated_draws(widths, place, leaf_first):
    assert largest_distance(TreeShape.k_ary(widths), *place, replacement=True, leaf_first=leaf_first) > 1e-12


@pytest.mark.slow
@pytest.mark.parametrize(("widths", "place"), PLACES)
def test_so_is_one_that_goes_from_the_leaves_to_the_root(widths, place):
    assert largest_distance(TreeShape.k_ary(widths), *place, leaf_first=True) > 1e-12


@pytest.mark.parametrize("place", [(5, 2), (4, 3)])
def test_a_leaf_first_rule_that_is_wrong_deep_in_a_tree_is_refuted(place):
    """The weight of the node must still leave something for a later sibling."""
    assert largest_distance(read_tree(TREES / "eagle-25.yaml").shape, *place, leaf_first=True) > 1e-12


def test_the_twin_of_these_rules_is_lossless_where_it_is_wrong_nowhere():
    for replacement in (False, True):
        model = place_model(Siblings((), 2), 0, (0, 1, 0))
        builder = Sampled, SampledOptions(widths=(2, 1), replacement=replacement)
        verifier = leaf_first_wrong_at(9, 9, replacement), PartOptions()
        decoder = decoder_of(target_of(model), table_drafter(model), builder, verifier, HOT)
        assert prove_step(decoder, model.prefix, depth=None).tv <= 1e-12


@pytest.mark.slow
def test_the_default_budget_reaches_every_place_of_every_shipped_strategy():
    catalog = load_catalog()
    missing = {}
    for name in catalog.library.strategies():
        resolved = check(read(name, catalog), catalog)
        tables = OnTables(resolved, catalog)
        prover = PlaceProver(
            decoder_for=tables.table_decoder,
            own=False,
            samplings=tables.samplings,
            declares=resolved.parts[Kind.TREE].declares,
            seconds=SECONDS,
            deadline=math.inf,
            depth=None,
            vocab_size=None,
            on_proof=lambda instance: instance.proof.holds,
            lengths=(),
            later_steps=(),
        )
        prover.run()
        missing[name] = prover.coverage.missing
    assert not {name: places for name, places in missing.items() if places}


def planted(verifier) -> Catalog:
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(builtin, "specdec")
    plugin = ModuleType("planted")
    plugin.specdec_verifiers = hookimpl(lambda: [verifier])
    manager.register(plugin, "planted")
    return Catalog(registry_of(manager), library())


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "place"), [("eagle3-traversal", (2, 2)), ("eagle3-block", (5, 1))])
def test_the_command_refutes_a_leaf_first_one_too(strategy, place, monkeypatch):
    wrong = leaf_first_wrong_at(*place, replacement=False)
    monkeypatch.setattr(specdec.cli.verify, "load_catalog", lambda **_: planted(wrong))
    result = CliRunner().invoke(app, ["verify", strategy, "--set", "verifier.use=wrong_at"])
    assert result.exit_code == 1, result.output
    assert result.stdout.startswith(f"{strategy}: REFUTED")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "place"),
    [
        ("self-iid", (1, 3)),
        ("self-wor", (3, 1)),
        ("eagle-sampled", (4, 2)),
        ("self-sampled-chain", (4, 1)),
        ("draft-model-sampled", (5, 1)),
        ("own-model-eagle-sampled", (1, 4)),
    ],
)
def test_the_command_refutes_it_with_its_default_budget(strategy, place, monkeypatch):
    monkeypatch.setattr(specdec.cli.verify, "load_catalog", lambda **_: planted(wrong_at(*place)))
    result = CliRunner().invoke(app, ["verify", strategy, "--set", "verifier.use=wrong_at"])
    assert result.exit_code == 1, result.output
    assert result.stdout.startswith(f"{strategy}: REFUTED: the output distribution is not the target's")
    where = "at the root" if place[0] == 1 else f"at the node of that path (depth {place[0] - 1})"
    assert where in result.stdout


def test_places_that_were_not_reached_are_named_and_the_command_exits_three():
    result = CliRunner().invoke(app, ["verify", "self-wor", "--depth", "1", "--budget", "1"])
    assert result.exit_code == 3
    assert "exact to depth 1: siblings 1-3; not reached: depth 2: siblings 1-2; depth 3: sibling 1;" in result.stdout


def first_proofs(strategy: str, **limits) -> StrategyProof:
    catalog = load_catalog()
    return prove_strategy(check(read(strategy, catalog), catalog), catalog, **limits)


def test_a_warper_that_ends_below_a_prompts_own_stop_token_is_refuted(monkeypatch):
    """A prompt may end in a stop token, as a chat that is continued does; only an emitted one ends the answer."""

    def compute(self, node):
        if self._tree.tokens[node] in self._warper.stop_ids:
            return point_mass(self._tree.tokens[node])
        return truncate(self._logits[node], self._warper.sampling)

    monkeypatch.setattr(TargetProbs, "_compute", compute)
    assert first_proofs("plain", seconds=2.0).refuted


def test_samples_that_draw_with_another_requests_key_are_reported(monkeypatch):
    monkeypatch.setattr(specdec.decoding.sequence, "mix", lambda own, sample: 2 * (90 + sample))
    with pytest.raises(SpecdecError, match="two sequences of a batch, of different requests or samples of one"):
        first_proofs("plain", seconds=2.0)
