"""Output distributions of a part among correct partners, on small models that are adversarial in different ways."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specdec.decoding.decoder import Decoder
from specdec.drafters.tabular import Tabular as TabularDrafter
from specdec.drafters.tabular import TabularDrafterOptions
from specdec.interfaces.compatibility import NamedDeclaration, mismatches
from specdec.interfaces.parts import BuildTools, Drafter, PartOptions, Target, TreeBuilder, Verifier, build_part
from specdec.losslessness.exact.budget import CUTS
from specdec.losslessness.exact.distance import ExactProof
from specdec.losslessness.exact.enumeration import prove_step, step_size
from specdec.losslessness.exact.guards import with_smaller_drafts
from specdec.losslessness.exact.runs import prove_run, run_leaves
from specdec.losslessness.exact.toy_models import StandIn, shown, stand_in
from specdec.sampling.params import SamplingParams
from specdec.targets.tabular import Tabular as TabularTarget
from specdec.targets.tabular import TabularTargetOptions
from specdec.testing.report import Checked, CheckFailed
from specdec.tree_builders.chain import Chain, ChainOptions
from specdec.tree_builders.chains import Chains, ChainsOptions
from specdec.tree_builders.coupled import Coupled, CoupledOptions
from specdec.tree_builders.dynamic import Dynamic, DynamicOptions
from specdec.tree_builders.fixed import Fixed, FixedOptions
from specdec.tree_builders.pair import Pair, PairOptions
from specdec.tree_builders.sampled import Sampled, SampledOptions
from specdec.tree_builders.top_then_one import TopThenOne, TopThenOneOptions
from specdec.verifiers.chain import Chain as ChainRule
from specdec.verifiers.match import Match
from specdec.verifiers.multi_round import MultiRound
from specdec.verifiers.point_mass import PointMass

WIDE, DEEP, SMALL = 4, 3, 2
"""Vocabularies: wide enough for siblings, deep enough for levels, small enough for the decode loop."""

MOST_LEAVES = 1500.0
"""Outcomes of one proof; drafts are cut until they are no more."""

RUN_LEAVES = 400.0

HOT = SamplingParams(temperature=1.0)
GREEDY = SamplingParams(temperature=0.0)
RULES: tuple[type[Verifier], ...] = (Match, PointMass, ChainRule, MultiRound)


@dataclass(frozen=True, slots=True)
class Partner:
    """A builder with options, by which drafts are made for the part under test."""

    cls: type[TreeBuilder]
    options: PartOptions
    vocab_size: int

    @property
    def words(self) -> str:
        given = self.options.model_dump(exclude_defaults=True)
        shown = ", ".join(f"{key}: {list(value) if isinstance(value, tuple) else value}" for key, value in given.items())
        return f"tree '{self.cls.name}' {{{shown}}}"


PARTNERS = (
    Partner(Chain, ChainOptions(length=2, draw="sampled"), DEEP),
    Partner(Chain, ChainOptions(length=1, draw="sampled"), WIDE),
    Partner(Chain, ChainOptions(length=3, draw="sampled"), SMALL),
    Partner(Chain, ChainOptions(length=3), DEEP),
    Partner(Sampled, SampledOptions(widths=(2,)), WIDE),
    Partner(Sampled, SampledOptions(widths=(3,)), WIDE),
    Partner(Sampled, SampledOptions(widths=(2, 1)), DEEP),
    Partner(Sampled, SampledOptions(widths=(1, 1)), DEEP),
    Partner(Sampled, SampledOptions(widths=(2,), replacement=True), WIDE),
    Partner(Sampled, SampledOptions(widths=(2, 1), replacement=True), SMALL),
    Partner(Chains, ChainsOptions(count=2, length=2), SMALL),
    Partner(Chains, ChainsOptions(count=2, length=1), WIDE),
    Partner(Chains, ChainsOptions(count=3, length=1), DEEP),
    Partner(TopThenOne, TopThenOneOptions(widths=(3,)), WIDE),
    Partner(TopThenOne, TopThenOneOptions(widths=(2, 2)), DEEP),
    Partner(Pair, PairOptions(depth=1), WIDE),
    Partner(Pair, PairOptions(depth=2), DEEP),
    Partner(Fixed, FixedOptions(widths=(2,)), WIDE),
    Partner(Fixed, FixedOptions(widths=(2, 2)), DEEP),
    Partner(Dynamic, DynamicOptions(width=2, depth=3, nodes=5), DEEP),
    Partner(Coupled, CoupledOptions(widths=(1, 1)), DEEP),
    Partner(Coupled, CoupledOptions(widths=(2,)), WIDE),
    Partner(Chain, ChainOptions(length=6), SMALL),
    Partner(Chain, ChainOptions(length=5, draw="sampled"), SMALL),
    Partner(Fixed, FixedOptions(widths=(4, 2, 1)), WIDE),
    Partner(Sampled, SampledOptions(widths=(2, 2, 2)), SMALL),
    Partner(Sampled, SampledOptions(widths=(2, 2), replacement=True), SMALL),
    Partner(Coupled, CoupledOptions(widths=(1, 1, 1, 1, 1)), SMALL),
)


def target_of(model: StandIn) -> TabularTarget:
    """The stand-in's target."""
    return TabularTarget(TabularTargetOptions(**{k: v for k, v in model.target.items() if k != "use"}))


def table_drafter(model: StandIn) -> tuple[type[Drafter], TabularDrafterOptions]:
    """The stand-in's drafter and its options."""
    return TabularDrafter, TabularDrafterOptions(**{k: v for k, v in model.drafter.items() if k != "use"})


def decoder_of(
    target: Target,
    drafter: tuple[type[Drafter], PartOptions],
    builder: tuple[type[TreeBuilder], PartOptions],
    verifier: tuple[type[Verifier], PartOptions],
    sampling: SamplingParams,
) -> Decoder:
    """A decoder of these parts; `misfit` says whether it should be."""
    tools = BuildTools(target=target)
    made: list[Any] = [build_part(cls, options, tools) for cls, options in (drafter, builder, verifier)]
    return Decoder(target, *made, sampling=sampling, name="check")


def misfit(decoder: Decoder) -> bool:
    """Whether the contract refuses these parts together; a lossy verifier is not refused."""
    return bool(
        mismatches(
            drafter=NamedDeclaration("drafter", decoder.drafter.declaration),
            builder=NamedDeclaration("tree", decoder.builder.declaration),
            verifier=NamedDeclaration("verifier", decoder.verifier.declaration),
            allow_lossy=True,
        )
    )


def prove_steps(decoder: Decoder, model: StandIn, words: str, report: Checked, *, lossless: bool = True) -> ExactProof | None:
    """One step on a stand-in, its drafts cut to what can be enumerated; None where nothing can be. Raises CheckFailed."""
    smaller = enumerable(decoder, model.prefix)
    if smaller is None:
        return None
    return _judged(prove_step(smaller, model.prefix, depth=None), model, words, report, lossless)


def prove_loop(decoder: Decoder, model: StandIn, words: str, report: Checked, *, lossless: bool = True) -> ExactProof | None:
    """Two steps of the decode loop on a stand-in; None where they cannot be enumerated. Raises CheckFailed."""
    prompt = model.prefix[-5:]
    for nodes in (None, 3, 2, 1):
        smaller = with_smaller_drafts(decoder, depth=None, nodes=nodes)
        if run_leaves(smaller, prompt, steps=2, max_new_tokens=6, probes=8) <= RUN_LEAVES:
            proof = prove_run(smaller, prompt, steps=2, max_new_tokens=6)
            return _judged(proof, model, f"{words}, two steps", report, lossless)
    return None


def enumerable(decoder: Decoder, prefix: tuple[int, ...]) -> Decoder | None:
    """The decoder with drafts cut to what can be enumerated; None where even one node cannot be."""
    for depth, nodes in CUTS:
        smaller = with_smaller_drafts(decoder, depth=depth, nodes=nodes)
        size = step_size(smaller, prefix, depth=None, probes=8)
        if size.leaves + 2 * size.drafts <= MOST_LEAVES:
            return smaller
    return None


def _judged(proof: ExactProof, model: StandIn, words: str, report: Checked, lossless: bool) -> ExactProof:
    judged(proof, model.name, model.vocab_size, model.prefix, words, report, lossless)
    return proof


def judged(
    proof: ExactProof, model: str, vocab_size: int, prefix: Sequence[int], words: str, report: Checked, lossless: bool
) -> None:
    """Count a proof. Raises CheckFailed, the finding first, where a lossless rule's output distribution is not the target's."""
    report.proofs += 1
    report.levels, report.nodes = max(report.levels, *(depth for depth, _ in proof.drafted), 0), max(report.nodes, proof.nodes)
    report.largest_tv = max(report.largest_tv, proof.tv)
    if lossless and not proof.holds:
        found = proof.violations[0].words if proof.violations else "the output distribution is not the target's"
        raise CheckFailed(
            f"{found} (total variation {proof.tv:.3g}); with {words}, on model '{model}' of {vocab_size} tokens after "
            f"{shown(prefix)}"
        )


def models_of(vocab_size: int, count: int) -> list[StandIn]:
    """Stand-ins of different tempers, the flat one first."""
    return [stand_in(number, vocab_size) for number in range(count)]
