"""Parts that share the target's noise where they must not: each is caught, and named."""

import pytest
import torch
from tabular_cases import drawn_case, tabular_decoder

from specdec.config.catalog import load_catalog
from specdec.config.resolver import check, read
from specdec.decoding.decoder import Decoder
from specdec.errors import PluginError, SpecdecError
from specdec.interfaces.declarations import ALL_SHAPES, VerifierDeclaration
from specdec.interfaces.parts import PartOptions, Verifier, build_part
from specdec.interfaces.results import Verdict
from specdec.losslessness.exact.enumeration import prove_step
from specdec.losslessness.exact.runs import prove_run
from specdec.losslessness.exact.shared_noise import NotTheTargetsDraws
from specdec.losslessness.exact.strategy import prove_strategy
from specdec.sampling.rng import SeededTargetRng
from specdec.tree_builders.sampled import Sampled, SampledOptions
from specdec.trees.draft_tree import Draw
from specdec.verifiers.match import Match
from specdec.verifiers.multi_round import MultiRound


class DrawsWithChoose(Sampled):
    """Draws with a target RNG of its own: under the spec's seed they are the very ones of the verifier."""

    name = "draws_with_choose"
    Options = SampledOptions

    @classmethod
    def build(cls, options, tools):
        made = cls(options.shape(tools.find_tree), replacement=True)
        made.seed = tools.sampling_seed
        return made

    def grow(self, root_token, root_position, budget, rng):
        return (yield from super().grow(root_token, root_position, budget, ResolvedPart(self.seed, root_position)))


class ResolvedPart:
    def __init__(self, seed, position):
        self.seed, self.position = seed, position

    def draw(self, probs, count, *, replacement):
        ids = probs.nonzero()[:, 0]
        return [SeededTargetRng(self.seed).choose(ids, probs[ids], self.position + 1)]


class ChoosesTwice(Verifier[PartOptions]):
    """Tries each candidate with a target sample of its own, all at one position."""

    name = "chooses_twice"
    Options = PartOptions

    @classmethod
    def declares(cls, options):
        return VerifierDeclaration(frozenset(Draw), ALL_SHAPES, reads_q=False)

    @classmethod
    def build(cls, options, tools):
        return cls()

    def verify(self, tree, p, rng):
        for child in tree.children[0]:
            if p.row(0).choose(rng, tree.root_position + 1) == tree.tokens[child]:
                return Verdict((child,), p.row(child).choose(rng, tree.root_position + 2), not tree.children[child])
        return Verdict((), p.row(0).choose(rng, tree.root_position + 1), not tree.children[0])


class Flips(ChoosesTwice):
    """The distribution of point masses: right where the draft is independent, wrong where it knows the residual's noise."""

    name = "flips"
    Options = PartOptions

    def verify(self, tree, p, rng):
        left = p.row(0)
        for child in tree.children[0]:
            if rng.flip(left.prob(tree.tokens[child])):
                return Verdict((child,), p.row(child).choose(rng, tree.root_position + 2), not tree.children[child])
            left = left.without(tree.tokens[child]) or left
        return Verdict((), left.choose(rng, tree.root_position + 1), not tree.children[0])


class AsksWithAnother(ChoosesTwice):
    """Emits what it draws, and draws from a distribution that is p only on average over the drafts."""

    name = "asks_with_another"
    Options = PartOptions

    def verify(self, tree, p, rng):
        dist = p.row(0)
        tilt = torch.ones_like(dist.probs)
        tilt[0] = 1.5
        weights = dist.probs * tilt
        return Verdict((), rng.choose(dist.ids, weights, tree.root_position + 1), not tree.children[0])


COUPLED = {
    "target": {"use": "tabular", "vocab": 3, "random": {"order": 2}},
    "drafter": {"use": "tabular", "vocab": 3, "random": {"order": 2, "seed": 5}},
    "tree": {"use": "coupled", "widths": [2]},
    "verifier": {"use": "match"},
    "sampling": {"temperature": 1.0},
}


def coupled_decoder(verifier) -> Decoder:
    catalog = load_catalog()
    resolved = check(read(COUPLED, catalog), catalog)
    made = tabular_decoder(drawn_case(3), resolved.parts["tree"].cls, resolved.parts["tree"].options, Match)
    return made.replace(verifier=build_part(verifier))


def test_a_builder_that_draws_with_choose_is_refuted():
    decoder = tabular_decoder(drawn_case(3), DrawsWithChoose, SampledOptions(widths=[1]), MultiRound)
    proof = prove_step(decoder, (0, 0), depth=1)
    assert proof.tv > 0.01
    assert proof.violations[0].prefix == ()
    assert "at the root" in proof.violations[0].words


def test_a_verifier_that_chooses_twice_at_one_position_is_named():
    for decoder in (
        coupled_decoder(ChoosesTwice),
        tabular_decoder(drawn_case(3), Sampled, SampledOptions(widths=[2]), ChoosesTwice),
    ):
        with pytest.raises(PluginError, match=r"verifier 'chooses_twice'.*the random draw"):
            prove_step(decoder, (0, 0), depth=1)


def test_it_is_named_in_production_too():
    decoder = tabular_decoder(drawn_case(0), Sampled, SampledOptions(widths=[2]), ChoosesTwice)
    with pytest.raises(SpecdecError, match="the random draw"):
        decoder.generate([[0]] * 20, max_new_tokens=12, seed=list(range(20)))


@pytest.mark.parametrize(
    ("verifier", "message"), [(Flips, "the only possible one"), (AsksWithAnother, "something else than p")]
)
def test_a_rule_that_is_not_the_target_s_own_draws_is_refuted_under_coupled_drafts(verifier, message):
    with pytest.raises(NotTheTargetsDraws, match=rf"'{verifier.name}' emits token \d at node \d.*({message})"):
        prove_step(coupled_decoder(verifier), (0, 0), depth=1)


def test_it_is_refuted_in_the_loop_too():
    with pytest.raises(NotTheTargetsDraws, match="at position 2, where nothing was drawn"):
        prove_run(coupled_decoder(Flips), (0,), steps=1, max_new_tokens=3)


def test_a_coupled_strategy_is_proved():
    catalog = load_catalog()
    proof = prove_strategy(check(read(COUPLED, catalog), catalog), catalog, seconds=0.6)
    assert proof.holds
    assert proof.reason is None


def test_argmax_drafts_that_state_a_softmax_give_the_distribution_that_was_reported(single_case):
    """[.4, .3, .2, .1] came out of a released generator as [.572, .283, .144, .000]."""

    class Argmax(Sampled):
        name = "argmax"
        Options = SampledOptions

        def grow(self, root_token, root_position, budget, rng):
            return (yield from super().grow(root_token, root_position, budget, Likeliest()))

    class Likeliest:
        def draw(self, probs, count, *, replacement):
            return [int(probs.argmax())]

    case = single_case("B_sglang10308")
    rows = {"*": (0.4, 0.3, 0.2, 0.1)}, {"*": (0.7, 0.1, 0.1, 0.1)}
    target, drafter = (
        options.model_copy(update={"rows": row}) for options, row in zip((case.target, case.drafter), rows, strict=True)
    )
    decoder = tabular_decoder(type(case)("reported", target, drafter, (0, 0)), Argmax, SampledOptions(widths=[1]), MultiRound)
    proof = prove_step(decoder, (0, 0), depth=1)
    assert not proof.holds
    [violation] = proof.violations
    assert violation.got == pytest.approx((4 / 7, 2 / 7, 1 / 7, 0.0), abs=1e-12)
    assert violation.wanted == pytest.approx((0.4, 0.3, 0.2, 0.1))
    assert violation.tv == pytest.approx(4 / 7 - 0.4)
