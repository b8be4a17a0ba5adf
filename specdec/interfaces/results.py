"""What targets and verifiers return, and what a run leaves behind."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specdec.interfaces.declarations import Features, Guarantee, context_in_words
from specdec.trees.draft_tree import DraftTree


@dataclass(frozen=True, slots=True, eq=False)
class HiddenStates:
    """Hidden states of some tokens. last: [tokens, hidden] after the final norm; layers: [tokens, layers, hidden]."""

    last: Tensor | None = None
    layers: Tensor | None = None

    def rows(self, index: list[int]) -> "HiddenStates":
        """The states of these rows, in this order."""
        return HiddenStates(
            None if self.last is None else self.last[index], None if self.layers is None else self.layers[index]
        )


def united(own: Features, parts: Iterable[Features]) -> Features:
    """Everything that several readers of hidden states want, each layer once, in the order in which it is first named."""
    every = [own, *parts]
    layers = dict.fromkeys(layer for features in every for layer in features.layers)
    return Features(last=any(features.last for features in every), layers=tuple(layers))


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """The target's answer for one sequence.

    logits: [nodes, vocab] unwarped, for the tree's nodes from `first_node` on (those that no earlier call has scored).
    hidden: the hidden states asked for at prefill, for the same nodes.
    """

    logits: Tensor
    hidden: HiddenStates = field(default_factory=HiddenStates)
    first_node: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one verification.

    path: accepted nodes from below the root down. next_token: drawn at the path's last node. all_accepted: that is a leaf.
    """

    path: tuple[int, ...]
    next_token: int
    all_accepted: bool


@dataclass(frozen=True, slots=True, eq=False)
class Committed:
    """What one sequence emitted in a step, after stop and limit.

    nodes[i] is the node *at which* token i was drawn: the root first. hidden: [tokens, ...] the states of those nodes.
    tree: the draft that was verified, in whose numbering `nodes` and the rows of `Scored` are.
    """

    tokens: tuple[int, ...]
    nodes: tuple[int, ...]
    hidden: HiddenStates = field(default_factory=HiddenStates)
    tree: DraftTree | None = None


PHASES = ("draft", "score", "verify", "commit")


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One decode step of one sequence. Seconds are those of the whole batch; `batch_size` sequences shared them.

    drafted: nodes without the root. tested: levels at which a draft was tried. accepted: draft tokens that were emitted.
    committed: tokens emitted. emitted: those tokens. sources: by emitted token, the drafter it came from (-1: the target).
    fallbacks: residuals that came out empty by rounding.
    """

    drafted: int
    depth: int
    tested: int
    accepted: int
    committed: int
    emitted: tuple[int, ...]
    sources: tuple[int, ...]
    batch_size: int
    seconds: Mapping[str, float]
    fallbacks: int = 0


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Raw model log-probabilities at one emitted token, before any warping.

    top: the likeliest (token, log-probability), best first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class CertificateStamp:
    """Which certificate the decoder of an answer was loaded with. sha256: the certificate's; verdict: its words.

    tv_at_most: of a token's distribution from the target's. A lossy one holds for the spec's own sampling alone.
    """

    sha256: str
    verdict: str
    lossless: bool
    tv_at_most: float


MAX_SHOWN = 80
"""Characters of an answer that its repr shows."""


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 4]}...{text[-1]}"


@dataclass(frozen=True, slots=True, repr=False)
class Generation:
    """One finished answer.

    tokens exclude the prompt and include a final stop token; text excludes it, and is cut before a stop string.
    finish_reason: 'stop', 'length', or 'cancelled' where it was taken out of its batch.
    stopped_by: the stop id, id sequence or string.
    records: one StepRecord per target forward after prefill. certificate: of a decoder that was loaded with one.
    """

    prompt_tokens: tuple[int, ...]
    tokens: tuple[int, ...]
    text: str | None
    finish_reason: str
    stopped_by: int | str | tuple[int, ...] | None
    seed: int
    sample_index: int
    records: tuple[StepRecord, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
    guarantee: Guarantee
    seconds: float
    prefill_seconds: float
    certificate: CertificateStamp | None = None

    def __repr__(self) -> str:
        """One line: the text (or ids) shortened, how it ended, and what speculation gained."""
        what = f"text={_cut(repr(self.text))}" if self.text is not None else f"tokens={_cut(str(list(self.tokens)))}"
        tau = f", tau={self.tau:.2f}" if self.records else ""
        return (
            f"Generation({what}, num_tokens={len(self.tokens)}, finish_reason={self.finish_reason!r}{tau}, "
            f"seconds={self.seconds:.2f}, guarantee={self.guarantee.value!r})"
        )

    @property
    def tau(self) -> float:
        """Committed tokens per target forward after prefill; NaN without a step. The token of the prefill counts in neither."""
        if not self.records:
            return float("nan")
        return sum(r.committed for r in self.records) / len(self.records)

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted / drafted; NaN when nothing was drafted."""
        drafted = sum(r.drafted for r in self.records)
        return sum(r.accepted for r in self.records) / drafted if drafted else float("nan")

    @property
    def tokens_per_second(self) -> float:
        """Tokens / seconds, prefill included."""
        return len(self.tokens) / self.seconds if self.seconds else float("nan")

    def alpha_at(self) -> list[float]:
        """By depth: accepted / tested positions (n-alpha of arXiv 2401.15077 along a chain)."""
        levels = max((r.depth for r in self.records), default=0)
        tested = [sum(r.tested > d for r in self.records) for d in range(levels)]
        accepted = [sum(r.accepted > d for r in self.records) for d in range(levels)]
        return [a / t for a, t in zip(accepted, tested, strict=True) if t]


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """vocab_size: columns of the logits. max_positions: the context; None: unbounded. stop_ids: of the generation config.

    bitwise: whether a token's logits are the same bits however it is scored. revision: the commit of a hub repository.
    capped_because: why the context ends where it does, where the model itself goes further.
    """

    vocab_size: int
    max_positions: int | None
    stop_ids: frozenset[int]
    hidden_size: int | None
    num_layers: int | None
    device: torch.device
    dtype: torch.dtype
    description: str
    max_tree_nodes: int | None = None
    trees: bool = True
    bitwise: bool = False
    revision: str | None = None
    capped_because: str | None = None

    @property
    def context(self) -> str:
        """The context in words, with what cut it short."""
        return context_in_words(self.max_positions, self.capped_because)
