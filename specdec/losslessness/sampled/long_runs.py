"""Texts of a real model, decoded by the strategy itself, and every token of them held against one plain forward."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specdec.decoding.decoder import Decoder
from specdec.losslessness.reference_model import Reference
from specdec.losslessness.sampled.evidence import Drawn, Evidence
from specdec.losslessness.sampled.recording_drafter import Context, Notes, overheard
from specdec.losslessness.sampled.statistics import Floats
from specdec.sampling.distribution import TokenDist, truncate
from specdec.sampling.keyed_noise import mix, uniforms
from specdec.sampling.logits_warper import LogitsWarper

ROW_TOKENS = 32
"""Tokens of a real row that is kept for the runs on memoised rows: the likeliest of p and q together."""

EDGE = 1e-3
"""Relative to the least probability that a cut kept: a token so close to it fell on the other side by rounding."""


@dataclass(frozen=True, slots=True, eq=False)
class RealRow:
    """p and q at one real prefix, over the tokens that matter there. p, q: [tokens] at temperature 1, sum 1."""

    p: Floats
    q: Floats


@dataclass(slots=True)
class LongRuns:
    """Batches of answers, token after token. numeric: TV between the verification pass and the plain forward, by token."""

    decoder: Decoder
    reference: Reference
    prompts: Sequence[Sequence[int]]
    seed: int
    evidence: Evidence = field(default_factory=lambda: Evidence("long runs"))
    numeric: list[float] = field(default_factory=list)
    texts: list[Context] = field(default_factory=list)
    edges: int = 0
    _drafted: list[RealRow] = field(default_factory=list)
    _undrafted: list[RealRow] = field(default_factory=list)
    _notes: Notes = field(default_factory=Notes)
    _batches: int = 0

    @property
    def rows(self) -> list[RealRow]:
        """P and q of every prefix so far; those where the drafter gave something come first."""
        return [*self._drafted, *self._undrafted]

    def run(self, *, batch: int, num_tokens: int) -> int:
        """Decode one more batch and judge it; the number of tokens judged. Seeds never come twice."""
        self._notes.clear()
        numbers = [self._batches * batch + n for n in range(batch)]
        self._batches += 1
        answers = overheard(self.decoder, self._notes).generate(
            [list(self.prompts[n % len(self.prompts)]) for n in numbers],
            seed=[mix(self.seed, 11, n) >> 1 for n in numbers],
            max_new_tokens=num_tokens,
            ignore_eos=True,
        )
        texts = [((*a.prompt_tokens, *a.tokens), len(a.prompt_tokens)) for a in answers]
        distributions = self.reference.rows(texts)
        judged = sum(
            self._judge(tokens, first, distribution, number)
            for (tokens, first), distribution, number in zip(texts, distributions, numbers, strict=True)
        )
        self.texts += [tokens for tokens, _ in texts]
        self._notes.clear()
        return judged

    def _judge(self, tokens: Context, first: int, logits: Tensor, number: int) -> int:
        judge = Judge(
            LogitsWarper(self.decoder.sampling, prompt_length=first, stop_ids=frozenset()), mix(self.seed, 12, number)
        )
        for place in range(first, len(tokens)):
            context, row = tokens[:place], logits[place - first]
            offered = self._notes.draft_logits(context, row.shape[-1])
            distribution = judge.see(row, context, tokens[place], None if offered is None else self._drawn(offered))
            if context in self._notes.logits:
                said = judge.warper.row(self._notes.logits[context].cpu(), context)
                self.numeric.append(total_variation(distribution, said, row.shape[-1]))
            (self._undrafted if offered is None else self._drafted).append(_real_row(row, offered))
        judge.hand_in(self.evidence)
        self.edges += judge.edges
        return len(tokens) - first

    def _drawn(self, offered: Tensor) -> Tensor:
        """[vocab] the distribution that a drawing builder draws from."""
        return truncate(offered, self.decoder.sampling.draft_truncation).dense(offered.shape[-1])


class Judge:
    """The tokens of one text against the distributions before them."""

    def __init__(self, warper: LogitsWarper, key: int) -> None:
        self.warper = warper
        self.edges = 0
        self._key = key
        self._impossible = 0
        self._drawn = Drawn()

    def see(self, logits: Tensor, context: Context, token: int, q: Tensor | None) -> TokenDist:
        """Judge one token; the target's distribution there. logits: [vocab] plain. q: [vocab] the drafter's, if known."""
        distribution = self.warper.row(logits, context)
        slot = int(torch.searchsorted(distribution.ids, token))
        if slot >= len(distribution.ids) or int(distribution.ids[slot]) != token:
            self._outside(logits, context, distribution, token)
            return distribution
        uniform = float(uniforms(mix(self._key, len(context)), torch.tensor([0]))[0])
        offered = None if q is None else q[distribution.ids].numpy()
        self._drawn.add(distribution.probs.numpy(), offered, slot, uniform)
        return distribution

    def _outside(self, logits: Tensor, context: Context, distribution: TokenDist, token: int) -> None:
        """A token that the target's distribution does not hold: impossible, unless it stood at the very edge of a cut."""
        scores = self.warper.processed(logits, context).double()
        lowest = float(scores[distribution.ids].min())
        if (
            float(scores[token]) >= lowest - EDGE * (self.warper.sampling.temperature or 1.0)
            and self.warper.sampling.temperature
        ):
            self.edges += 1
        else:
            self._impossible += 1

    def hand_in(self, evidence: Evidence) -> None:
        """Add what was seen to `evidence`."""
        evidence.impossible += self._impossible
        self._drawn.hand_in(evidence)


def total_variation(one: TokenDist, other: TokenDist, vocab_size: int) -> float:
    """Between two distributions over the same ids."""
    return float((one.dense(vocab_size) - other.dense(vocab_size)).abs().sum()) / 2


def _real_row(logits: Tensor, offered: Tensor | None) -> RealRow:
    p = logits.double().softmax(-1)
    q = p.square() if offered is None else offered.double().softmax(-1)
    q = q / q.sum()
    ids = (p + q).topk(min(ROW_TOKENS, len(p))).indices
    return RealRow(_normalised(p[ids]), _normalised(q[ids]))


def _normalised(weights: Tensor) -> Floats:
    row = weights.numpy()
    result: Floats = row / row.sum()
    return result
