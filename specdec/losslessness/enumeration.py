"""The law of a decoder on a tabular target, by running its own code once per outcome of its coins."""

import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache

from torch import Tensor

from specdec.chance import Coins, TargetChance, outcomes
from specdec.contracts import Features
from specdec.decoder import Decoder
from specdec.distributions import Sampling
from specdec.growth import Grower
from specdec.interfaces import DraftStart, Target
from specdec.losslessness.exact import Emission, ExactProof, NextLaw, prove
from specdec.records import HiddenStates, Verdict
from specdec.requests import Request, Row, open_rows
from specdec.tree import DraftTree
from specdec.warp import TargetDists, Warp


def prove_step(decoder: Decoder, prefix: Sequence[int], *, depth: int) -> ExactProof:
    """One step from a root that is the last of `prefix`, drafting at most `depth` levels."""
    law = step_law(decoder, prefix, depth=depth)
    return prove(law, target_law(decoder.target, decoder.sampling, prefix))


def prove_run(
    decoder: Decoder, prompt: Sequence[int], *, steps: int = 2, max_new_tokens: int = 6, num_tokens: int | None = None
) -> ExactProof:
    """Prefill and `steps` consecutive steps of `Decoder.step`, states and all."""
    law = run_law(decoder, prompt, steps=steps, max_new_tokens=max_new_tokens)
    return prove(law, target_law(decoder.target, decoder.sampling, prompt), num_tokens=num_tokens)


def target_law(target: Target, sampling: Sampling, prompt: Sequence[int]) -> NextLaw:
    """The target's warped law after `prompt` and the emitted tokens, from prefills alone: no tree, no cache."""
    vocab_size, stop_ids = target.facts.vocab_size, target.facts.stop_ids
    warp = Warp(sampling, prompt_length=len(prompt), stop_ids=stop_ids)

    @cache
    def next_law(emitted: tuple[int, ...]) -> tuple[float, ...]:
        if any(token in stop_ids for token in emitted):
            return tuple(float(token == emitted[-1]) for token in range(vocab_size))
        tokens = [*prompt, *emitted]
        logits: Tensor = target.prefill([tokens], Features()).scored[0].logits[0]
        return tuple(warp.row(logits, tokens).dense(vocab_size).tolist())

    return next_law


def run_law(decoder: Decoder, prompt: Sequence[int], *, steps: int, max_new_tokens: int) -> dict[Emission, float]:
    """The law of what `steps` calls of `Decoder.step` emit after the prefill, at most `max_new_tokens` tokens.

    A run that has ended early keeps its end. Emission.accepted has an entry per step, 0 for steps that did not happen.
    """

    def run(coins: Coins) -> Emission:
        batch = decoder.start([Request(tuple(prompt), max_new_tokens=max_new_tokens)], coins=lambda _: coins)
        row = (batch.rows + batch.ended)[0]
        for _ in range(steps):
            decoder.step(batch)
            if batch.state is not None:
                batch.state.check_integrity()
        accepted = [record.accepted for record in row.records]
        tokens = tuple(row.tokens[len(prompt) :])
        return Emission(tokens, tuple(accepted + [0] * (steps - len(accepted))))

    return outcomes(run)


@dataclass(frozen=True, slots=True)
class Draft:
    """A drawn tree that stands for all draws with the same outcome and the same q."""

    key: Hashable
    tree: DraftTree

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Draft) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def step_law(decoder: Decoder, prefix: Sequence[int], *, depth: int) -> dict[Emission, float]:
    """The law of one step of a decoder whose parts keep no state between steps.

    The draft's coins and the verifier's are independent streams, so that the draft's law is enumerated first, then the
    verifier's given each distinct draft: far fewer leaves than through `Decoder.step`, the same law.
    """
    law: dict[Emission, float] = {}
    for draft, draft_mass in outcomes(lambda coins: _draft(decoder, prefix, depth, coins)).items():
        for outcome, mass in _verify(decoder, prefix, draft.tree).items():
            law[outcome] = law.get(outcome, 0.0) + draft_mass * mass
    return law


def _row(decoder: Decoder, prefix: Sequence[int], depth: int, coins: Coins) -> Row:
    request = Request(tuple(prefix[:-1]), max_new_tokens=depth + 2)
    rows, _ = open_rows(
        [request], target=decoder.target, sampling=decoder.sampling, numbers=itertools.count(), coins=lambda _: coins
    )
    rows[0].emit([prefix[-1]], [])
    return rows[0]


def _draft(decoder: Decoder, prefix: Sequence[int], depth: int, coins: Coins) -> Draft:
    grower = Grower(target=decoder.target, drafter=decoder.drafter, builder=decoder.builder, declared=decoder.declared)
    session = decoder.drafter.open([DraftStart(tuple(prefix[:-1]), prefix[-1], HiddenStates())])
    tree = grower.grow([_row(decoder, prefix, depth, coins)], session)[0]
    q = () if tree.q is None else tuple(map(tuple, tree.q.tolist()))
    key = (tree.tokens, tree.parents, tuple(sorted(tree.draws.items())), tuple(sorted(tree.draw.items())), tree.q_row, q)
    return Draft((*key, tree.scouts), tree)


def _verify(decoder: Decoder, prefix: Sequence[int], tree: DraftTree) -> dict[Emission, float]:
    state = decoder.target.prefill([prefix[:-1]], Features()).state
    logits = decoder.target.score(state, [tree])[0].logits
    warp = Warp(decoder.sampling, prompt_length=len(prefix), stop_ids=decoder.target.facts.stop_ids)
    p = warp.dists(logits, list(prefix), tree)
    law: dict[Emission, float] = {}
    for verdict, mass in outcomes(_verification(decoder, tree, p)).items():
        tokens = tuple(tree.tokens[node] for node in verdict.path)
        outcome = Emission((*tokens, verdict.next_token), (len(verdict.path),))
        law[outcome] = law.get(outcome, 0.0) + mass
    return law


def _verification(decoder: Decoder, tree: DraftTree, p: TargetDists) -> Callable[[Coins], Verdict]:
    def run(coins: Coins) -> Verdict:
        chance: TargetChance = coins.target
        return decoder.verifier.verify(tree, p, chance)

    return run
