"""The distribution of a decoder on a tabular target, by running its own code once per outcome of its random draws."""

import itertools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import fsum
from typing import Any

from torch import Tensor

from specdec.decoding.decoder import Decoder
from specdec.decoding.drafting import DraftRunner
from specdec.decoding.requests import Request
from specdec.decoding.sequence import Sequence as LiveSequence
from specdec.decoding.sequence import open_sequences
from specdec.interfaces.declarations import Features, Reads
from specdec.interfaces.parts import Target
from specdec.interfaces.proposals import DraftStart
from specdec.interfaces.results import HiddenStates, Verdict
from specdec.losslessness.exact.acceptance_bound import MOST_TOKENS, best_acceptance
from specdec.losslessness.exact.checked_rng import REPEATS, Probe, distribution_of
from specdec.losslessness.exact.distance import Emission, ExactProof, NextDistribution, prove
from specdec.losslessness.exact.guards import WatchedProbs, blamed, check_reads, check_stated_q, check_verdict
from specdec.losslessness.exact.places import drafted_places, visible_places
from specdec.losslessness.exact.shared_noise import Witness, check_step, owes_the_draws, shares_noise
from specdec.sampling.logits_warper import LogitsWarper
from specdec.sampling.params import SamplingParams
from specdec.sampling.rng import RequestRng
from specdec.trees.draft_tree import DraftTree

PROBES = 24
"""Walks from which the size of an enumeration is guessed."""

LONG = 128
"""Tokens that a request may emit where nothing else limits the draft: as much as a request asks for by default."""


def prove_step(decoder: Decoder, prefix: Sequence[int], *, depth: int | None, deadline: float | None = None) -> ExactProof:
    """One step from a root that is the last of `prefix`, drafting at most `depth` levels (None: all that the builder wants).

    deadline: on the clock of `time.monotonic`. Raises OutOfTime, NotAFunctionOfItsDraws, and PluginError for a part that fails.
    """
    drafts = draft_distribution(decoder, prefix, depth=depth, deadline=deadline)
    next_distribution = target_distribution(decoder.target, decoder.sampling, prefix)
    proof = prove(_law_given(decoder, prefix, drafts, deadline), next_distribution)
    best = _best_first_accepted(drafts, next_distribution(()))
    proof = replace(
        proof,
        drafted=frozenset().union(*(drafted_places(draft.tree) for draft in drafts)),
        nodes=max(draft.tree.num_drafted for draft in drafts),
        tested=frozenset().union(*(visible_places(draft.tree, next_distribution) for draft in drafts)),
    )
    if shares_noise(decoder) and decoder.sampling.temperature:
        proof = replace(proof, expected_accepted=math.nan, accepted_at_least=())
        if not owes_the_draws(decoder):
            proof = replace(proof, tv=math.nan, violations=())
    return replace(proof, best_first_accepted=best)


def _best_first_accepted(drafts: Mapping["Draft", float], p: Sequence[float]) -> float:
    if len(p) > MOST_TOKENS:
        return math.nan
    sets: dict[frozenset[int], float] = {}
    for draft, mass in drafts.items():
        tree = draft.tree
        drafted = frozenset(tree.tokens[child] for child in tree.children[0] if child not in tree.scouts)
        sets[drafted] = sets.get(drafted, 0.0) + mass
    return best_acceptance(p, sets)


def target_distribution(target: Target, sampling: SamplingParams, prompt: Sequence[int]) -> NextDistribution:
    """The target's warped distribution after `prompt` and the emitted tokens, from prefills alone: no tree, no cache."""
    vocab_size, stop_ids = target.facts.vocab_size, target.facts.stop_ids
    warper = LogitsWarper(sampling, prompt_length=len(prompt), stop_ids=stop_ids)

    @cache
    def next_distribution(emitted: tuple[int, ...]) -> tuple[float, ...]:
        if any(token in stop_ids for token in emitted):
            return tuple(float(token == emitted[-1]) for token in range(vocab_size))
        tokens = [*prompt, *emitted]
        logits: Tensor = target.prefill([tokens], Features()).scored[0].logits[0]
        return tuple(warper.row(logits, tokens).dense(vocab_size).tolist())

    return next_distribution


@dataclass(frozen=True, slots=True)
class Draft:
    """A drawn tree that stands for all draws with the same outcome and the same q."""

    key: Hashable
    tree: DraftTree

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Draft) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def step_distribution(
    decoder: Decoder, prefix: Sequence[int], *, depth: int | None, deadline: float | None = None
) -> dict[Emission, float]:
    """The distribution of one step of a decoder whose parts keep no state between steps.

    The draft's random draws and the verifier's are independent streams, so that the draft's distribution is enumerated first,
    then the verifier's given each distinct draft: far fewer leaves than through `Decoder.step`, the same distribution.
    """
    return _law_given(decoder, prefix, draft_distribution(decoder, prefix, depth=depth, deadline=deadline), deadline)


def draft_distribution(
    decoder: Decoder, prefix: Sequence[int], *, depth: int | None, deadline: float | None = None
) -> dict[Draft, float]:
    """The distribution of the first draft after `prefix`, drafting at most `depth` levels."""
    return distribution_of(lambda rng: _draft(decoder, prefix, depth, rng), deadline=deadline)


def _law_given(
    decoder: Decoder, prefix: Sequence[int], drafts: Mapping[Draft, float], deadline: float | None
) -> dict[Emission, float]:
    distribution: dict[Emission, float] = {}
    for number, (draft, draft_mass) in enumerate(drafts.items()):
        repeats = 1 if number else REPEATS
        verdicts = distribution_of(_verification(decoder, prefix, draft.tree), deadline=deadline, repeats=repeats)
        for verdict, mass in verdicts.items():
            tokens = tuple(draft.tree.tokens[node] for node in verdict.path)
            outcome = Emission((*tokens, verdict.next_token), (len(verdict.path),))
            distribution[outcome] = distribution.get(outcome, 0.0) + draft_mass * mass
    return distribution


@dataclass(frozen=True, slots=True)
class Size:
    """What a step would take to enumerate, by estimate, and the largest draft that was met on the way."""

    drafts: float
    leaves: float
    depth: int
    nodes: int


def step_size(decoder: Decoder, prefix: Sequence[int], *, depth: int | None, probes: int = PROBES) -> Size:
    """The size of `step_distribution`, from a few walks through it."""
    drafts, leaves, trees = list[float](), list[float](), list[DraftTree]()
    for number in range(probes):
        walk = Probe(number)
        trees.append(_draft(decoder, prefix, depth, walk.rng).tree)
        drafts.append(walk.leaves)
        _verification(decoder, prefix, trees[-1])(walk.rng)
        leaves.append(walk.leaves)
    return Size(
        fsum(drafts) / probes, fsum(leaves) / probes, max(t.max_depth for t in trees), max(t.num_drafted for t in trees)
    )


def _sequence(decoder: Decoder, prefix: Sequence[int], depth: int | None, rng: RequestRng) -> LiveSequence:
    request = Request(tuple(prefix[:-1]), max_new_tokens=LONG if depth is None else depth + 2)
    (sequence,) = open_sequences(
        [request], target=decoder.target, sampling=decoder.sampling, numbers=itertools.count(), rng_for=lambda _: rng
    )
    sequence.emit([prefix[-1]], [])
    return sequence


def sample_draft(decoder: Decoder, prefix: Sequence[int], number: int) -> DraftTree:
    """One of the drafts after `prefix`; another number takes other ways through the random draws."""
    return _draft(decoder, prefix, None, Probe(number).rng).tree


def _draft(decoder: Decoder, prefix: Sequence[int], depth: int | None, rng: RequestRng) -> Draft:
    with blamed(f"drafter '{decoder.drafter.name}'"):
        session = decoder.drafter.open([DraftStart(tuple(prefix[:-1]), prefix[-1], HiddenStates())])
    with blamed(f"tree '{decoder.builder.name}'"):
        runner = DraftRunner(target=decoder.target, drafter=decoder.drafter, builder=decoder.builder)
        tree = runner.grow([_sequence(decoder, prefix, depth, rng)], session)[0]
    if decoder.verifier.declaration.reads_q:
        check_stated_q(tree, decoder.builder.name)
    q = () if tree.q is None else tuple(map(tuple, tree.q.tolist()))
    key = (
        tree.tokens,
        tree.parents,
        tuple(sorted(tree.draw_order.items())),
        tuple(sorted(tree.draw_kind.items())),
        tree.q_row,
        q,
    )
    return Draft((*key, tree.scouts), tree)


def _verification(decoder: Decoder, prefix: Sequence[int], tree: DraftTree) -> Callable[[RequestRng], Verdict]:
    with blamed(f"the target on a draft of tree '{decoder.builder.name}' and drafter '{decoder.drafter.name}'"):
        state = decoder.target.prefill([prefix[:-1]], Features()).state
        logits = decoder.target.score(state, [tree])[0].logits
    warper = LogitsWarper(decoder.sampling, prompt_length=len(prefix), stop_ids=decoder.target.facts.stop_ids)
    p = warper.target_probs(logits, list(prefix), tree)
    verifier, vocab_size = decoder.verifier, decoder.target.facts.vocab_size
    coupled = owes_the_draws(decoder)

    def run(rng: RequestRng) -> Verdict:
        witness = Witness(rng.target) if coupled else None
        watched: Any = WatchedProbs(p)
        with blamed(f"verifier '{verifier.name}'"):
            verdict = verifier.verify(tree, watched, witness or rng.target)
        checked = check_verdict(verdict, tree, vocab_size=vocab_size, verifier=verifier.name)
        if verifier.declaration.reads is Reads.PATH:
            check_reads(watched.asked, checked, verifier.name)
        if witness is not None:
            check_step(witness, tree, p, checked, verifier.name)
        return checked

    return run
