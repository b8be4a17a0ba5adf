"""`verify`: proofs of shipped strategies, and a refutation of a lying one."""

import json
from types import ModuleType
from typing import ClassVar

import pluggy
import pytest
from typer.testing import CliRunner

from specdec.cli import app
from specdec.config.catalog import load_catalog
from specdec.config.library import Catalog, library
from specdec.config.resolver import check, read
from specdec.interfaces.declarations import ALL_SHAPES, Guarantee, VerifierDeclaration
from specdec.interfaces.parts import PartOptions, Verifier
from specdec.interfaces.results import Verdict
from specdec.losslessness.exact.strategy import prove_strategy
from specdec.plugins import builtin as builtin_plugin
from specdec.plugins import hookspecs
from specdec.plugins.hookspecs import hookimpl
from specdec.plugins.loading import registry_of
from specdec.trees.draft_tree import Draw


class FirstChild(Verifier[PartOptions]):
    """Always accepts the first child: wrong, whatever it claims."""

    name: ClassVar[str] = "first_child"
    Options: ClassVar[type[PartOptions]] = PartOptions

    @classmethod
    def declares(cls, options):
        return VerifierDeclaration(frozenset(Draw), ALL_SHAPES, reads_q=False, guarantee=Guarantee.LOSSLESS)

    @classmethod
    def build(cls, options, tools):
        return cls()

    def verify(self, tree, p, rng):
        path = tree.children[0][:1]
        last = path[-1] if path else 0
        return Verdict(tuple(path), p.row(last).choose(rng, tree.root_position + 1 + len(path)), not tree.children[last])


def test_a_verifier_that_lies_is_refuted_with_its_distance():
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(builtin_plugin, "specdec")
    liar = ModuleType("liar")
    liar.specdec_verifiers = hookimpl(lambda: [FirstChild])
    manager.register(liar)
    catalog = Catalog(registry_of(manager), library())
    resolved = check(read("self-fixed", catalog, settings=["verifier.use=first_child"]), catalog)
    proof = prove_strategy(resolved, catalog, seconds=0.5, depth=1, models=2)
    assert not proof.holds
    assert proof.tv > 0.05


@pytest.mark.parametrize(
    "strategy",
    [
        "plain",
        pytest.param("ngram-chain", marks=pytest.mark.slow),
        pytest.param("self-greedy-chain", marks=pytest.mark.slow),
        "self-sampled-chain",
    ],
)
def test_a_shipped_strategy_is_proved_and_the_command_exits_zero(strategy):
    result = CliRunner().invoke(app, ["verify", strategy, "--budget", "0.5", "--json"])
    assert result.exit_code == 0, result.stderr
    facts = json.loads(result.stdout)
    assert facts["verdict"].startswith("L3 distribution-exact")
    assert facts["places"]["not_reached"] == []
    assert facts["tv"] <= 1e-12
    assert 1 in {instance["temperature"] for instance in facts["instances"]}


@pytest.mark.slow
def test_no_shipped_strategy_is_refuted():
    catalog = load_catalog()
    alike: dict[str, str] = {}
    for name in catalog.library.strategies():
        spec = check(read(name, catalog), catalog).spec.model_dump()
        weights = {key: spec["drafter"].pop(key) for key in ("head", "model") if key in spec["drafter"]}
        alike.setdefault(repr((spec["drafter"], sorted(weights), spec["tree"], spec["verifier"], spec["sampling"])), name)
    for name in alike.values():
        proof = prove_strategy(check(read(name, catalog), catalog), catalog, seconds=1.0)
        assert proof.instances, name
        assert not proof.refuted, name


@pytest.mark.slow
def test_the_words_say_what_was_proved():
    result = CliRunner().invoke(app, ["verify", "ngram-chain", "--budget", "1"])
    assert result.stdout.startswith(
        "ngram-chain: L3 distribution-exact for every place of the tree (depths 1-16: sibling 1); prefixes of 2-"
    )
    assert "'ngram' itself" in result.stdout
    assert "8 models of 4 tokens, own drafter, one step: whole drafts" in result.stdout
    assert "two steps of the decode loop" in result.stdout


def test_the_verdict_itself_says_that_the_drafter_was_not_run():
    settings = [
        "--set",
        "drafter.model={use: builtin}",
        "--set",
        "target={use: tabular, vocab: 3, random: {}}",
    ]
    result = CliRunner().invoke(app, ["verify", "self-greedy-chain", "--budget", "0.5", *settings])
    assert result.exit_code == 0, result.stderr
    assert "with a table in the place of drafter 'model', which was NOT run" in result.stdout.splitlines()[0]
    assert "it needs a model" in result.stdout


def test_a_proof_on_two_tokens_alone_is_inconclusive_and_exits_three():
    result = CliRunner().invoke(app, ["verify", "plain", "--vocab", "2", "--models", "1", "--budget", "0.5"])
    assert result.exit_code == 3
    assert result.stdout.startswith("plain: INCONCLUSIVE")
