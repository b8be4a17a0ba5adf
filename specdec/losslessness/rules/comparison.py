"""One decoding run, and what every rule that fits its draws would have accepted of each draft."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from scipy import stats

from specdec.decoding.callbacks import StepInfo
from specdec.decoding.decoder import Decoder
from specdec.errors import SpecError
from specdec.interfaces.compatibility import NamedDeclaration, mismatches, too_many_drafts
from specdec.interfaces.declarations import BuilderDeclaration, DrafterDeclaration, Guarantee, Reads
from specdec.interfaces.parts import Verifier
from specdec.losslessness.rules.bounds import chain_bound, transport_bound
from specdec.losslessness.rules.expectation import Acceptance, acceptance
from specdec.sampling.keyed_noise import request_key
from specdec.sampling.params import SamplingParams
from specdec.trees.draft_tree import Draw

CONFIDENCE = 0.95

RARE = 0.01
"""Nodes that no rule comes to more often than this are left out of the optimum: it costs a sort of the vocabulary at each."""


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean of one value a prompt, with the half width of its 95 % interval; None: of a single prompt."""

    value: float
    spread: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Mean":
        """*Source: Student's t.*"""
        mean = sum(values) / len(values)
        if len(values) < 2:
            return cls(mean, None)
        variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
        spread = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * float((variance / len(values)) ** 0.5)
        return cls(mean, spread)


@dataclass(slots=True)
class RuleTally:
    """Of one rule. accepted: expected accepted tokens of each step, by prompt. tested, taken, bound: summed over nodes.

    tested: the probability with which the rule comes to a node whose optimum is known; taken: with which it then accepts a
    child; bound: with which it would, at the optimum of the transport. They count where `decides_by_node`: a rule that reads
    the whole tree beforehand is not bound at a node by what can be known there.
    """

    decides_by_node: bool
    accepted: list[list[float]] = field(default_factory=list)
    tested: float = 0.0
    taken: float = 0.0
    bound: float = 0.0

    def per_prompt(self) -> list[float]:
        """Accepted tokens a step, by prompt."""
        return [sum(steps) / len(steps) for steps in self.accepted if steps]

    def add(self, found: Acceptance, optima: dict[int, float]) -> None:
        """Count one step."""
        self.accepted[-1].append(found.expected)
        for node, optimum in optima.items() if self.decides_by_node else ():
            self.tested += found.reached[node]
            self.taken += found.reached[node] - found.left[node]
            self.bound += found.reached[node] * optimum


@dataclass(slots=True)
class RuleComparison:
    """What the rules accept of the drafts of one strategy.

    own: the strategy's rule. misfits: by rule that does not fit the draws, why. chain_bounds: by step, where drafts are drawn
    chains; their mean binds every rule.
    """

    own: str
    tallies: dict[str, RuleTally]
    misfits: dict[str, str]
    steps: int = 0
    chain_bounds: list[float] = field(default_factory=list)

    def difference(self, rule: str) -> Mean:
        """Accepted tokens a step more than the strategy's own rule, paired by prompt."""
        pairs = zip(self.tallies[rule].per_prompt(), self.tallies[self.own].per_prompt(), strict=True)
        return Mean.of([other - own for other, own in pairs])


def compare_rules(
    decoder: Decoder,
    rules: dict[str, Verifier],
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    seed: int,
    on_prompt: Callable[[], None] = lambda: None,
) -> RuleComparison:
    """Decode each prompt once; at each step give its draft, with its rows of p and q, to every rule that fits.

    All lossless rules emit the same distribution, so that the drafts of one serve the others. rules: by name, built.

    Raises:
        SpecError: At temperature 0, where every rule is greedy matching; for a strategy that drafts nothing; for a lossy one.
    """
    own = decoder.verifier.name
    _check(decoder)
    everyone = {**rules, own: decoder.verifier}
    fitting = {name: misfit(decoder, rule) for name, rule in everyone.items()}
    found = RuleComparison(
        own,
        {name: RuleTally(everyone[name].declaration.reads is Reads.PATH) for name, reason in fitting.items() if reason is None},
        {name: reason for name, reason in fitting.items() if reason is not None},
    )

    def on_step(info: StepInfo) -> None:
        if info.tree.num_drafted:
            _count(found, everyone, info)

    for number, prompt in enumerate(prompts):
        for tally in found.tallies.values():
            tally.accepted.append([])
        options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "seed": request_key(seed, number)}
        for _ in decoder.stream(list(prompt), step_callback=on_step, **options):
            pass
        on_prompt()
    if not found.steps:
        raise SpecError("nothing was drafted on these prompts, so that there is nothing to compare; longer answers would do")
    return found


def check_comparable(sampling: SamplingParams, drafter: DrafterDeclaration, builder: BuilderDeclaration) -> None:
    """Raise SpecError where there is nothing to compare: at temperature 0, for coupled drafts, and without any."""
    if not sampling.temperature:
        raise SpecError("at temperature 0 every rule is greedy matching; --set sampling.temperature=1 compares them")
    if builder.draw is Draw.COUPLED:
        raise SpecError("coupled drafts follow the target's own draws, so that only 'match' verifies them: nothing to compare")
    if not drafter.drafts:
        raise SpecError("this strategy drafts nothing, so nothing is accepted")


def _check(decoder: Decoder) -> None:
    check_comparable(decoder.sampling, decoder.drafter.declaration, decoder.builder.declaration)
    if decoder.verifier.declaration.guarantee is Guarantee.LOSSY:
        raise SpecError(f"verifier '{decoder.verifier.name}' is lossy: its texts are not the target's, name a lossless one")


def misfit(decoder: Decoder, rule: Verifier) -> str | None:
    """Why the rule cannot verify this strategy's drafts; None: it can."""
    builder = NamedDeclaration(decoder.builder.name, decoder.builder.declaration)
    verifier = NamedDeclaration(rule.name, rule.declaration)
    drafter = NamedDeclaration(decoder.drafter.name, decoder.drafter.declaration)
    broken = mismatches(drafter=drafter, builder=builder, verifier=verifier)
    many = too_many_drafts(builder, verifier, decoder.sampling.draft_truncation.top_k)
    return next((mismatch.message for mismatch in (*broken, many) if mismatch is not None), None)


def _count(found: RuleComparison, rules: dict[str, Verifier], info: StepInfo) -> None:
    found.steps += 1
    accepted = {name: acceptance(rules[name], info.tree, info.target_probs) for name in found.tallies}
    by_node = [accepted[name] for name, tally in found.tallies.items() if tally.decides_by_node]
    optima = _optima(info, {node for one in by_node for node, mass in one.reached.items() if mass > RARE})
    for name, tally in found.tallies.items():
        tally.add(accepted[name], optima)
    if info.tree.is_chain and info.tree.q is not None:
        vocab_size = info.tree.q.shape[1]
        found.chain_bounds.append(
            chain_bound(info.tree, [info.target_probs.row(node).dense(vocab_size) for node in range(len(info.tree))])
        )


def _optima(info: StepInfo, nodes: Collection[int]) -> dict[int, float]:
    """By node whose children were drawn: the optimum of the transport, where it is known."""
    tree, known = info.tree, dict[int, float]()
    for node in nodes:
        if tree.q is None or tree.q_row[node] < 0:
            continue
        q, drawn = tree.q_of(node), tree.draw_order[node]
        bound = transport_bound(info.target_probs.row(node).dense(len(q)), q, tree.draw_kind[node], len(drawn))
        if bound is not None:
            known[node] = bound
    return known
