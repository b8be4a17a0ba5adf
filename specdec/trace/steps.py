"""One step of a generation as it is written down."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, TypeAlias

from pydantic import Field

from specdec.decoding.callbacks import StepInfo
from specdec.sampling.logits_warper import TargetProbs
from specdec.trees.draft_tree import DraftTree

Count: TypeAlias = Annotated[int, Field(ge=0)]
"""Ranges are for reading files: what is recorded here is in them."""

Amount: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Probability: TypeAlias = Annotated[float, Field(ge=0, le=1.001, allow_inf_nan=False)]
"""With room for the rounding of a sum of many."""


class Ending(StrEnum):
    """Why the accepted path of a step is as long as it is."""

    NOTHING_DRAFTED = "nothing drafted"
    ALL_ACCEPTED = "all accepted"
    REJECTED = "rejected"
    CUT = "cut by a stop or the limit"


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One step; lists go by node, the root first.

    root_position: absolute. source: the drafter of each node, empty where there is only one.
    draw: how children were picked, by parent, in the order in which they were drawn.
    p: target probability of the node's token, after warping, where the verifier looked at its parent.
    q: draft probability that the token was drawn with, where it was drawn.
    path: accepted nodes. next_token: drawn at the path's last node, with its p; emitted: tokens that came out, path first.
    emitted_texts: what each of them added to the text. seconds: of the batch, by phase.
    """

    root_position: Count
    tokens: tuple[Count, ...]
    texts: tuple[str, ...]
    parents: tuple[int, ...]
    source: tuple[int, ...]
    draws: Mapping[int, tuple[int, ...]]
    draw: Mapping[int, str]
    p: tuple[Probability | None, ...]
    q: tuple[Probability | None, ...]
    path: tuple[int, ...]
    next_token: Count
    next_text: str
    next_p: Probability
    ending: Ending
    emitted: tuple[Count, ...]
    emitted_texts: tuple[str, ...]
    seconds: Mapping[str, Amount]
    fallbacks: Count = 0


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """What was run. drafters: names, by the numbers in `source`. prompt_text: None without a tokenizer."""

    strategy: str
    drafters: tuple[str, ...]
    verifier: str
    target: str
    guarantee: str
    seed: Count
    prompt_tokens: tuple[Count, ...]
    spec: Mapping[str, Any]
    prompt_text: str | None = None


@dataclass(frozen=True, slots=True)
class TraceEnd:
    """How it came out; missing where the run was broken off. text: None without a tokenizer. tau: None without a step."""

    tokens: tuple[Count, ...]
    text: str | None
    finish_reason: str
    tau: Amount | None
    seconds: Amount
    prefill_seconds: Amount


@dataclass(frozen=True, slots=True)
class Trace:
    """A whole file."""

    header: TraceHeader
    steps: tuple[TraceStep, ...]
    end: TraceEnd | None


def visited_p(tree: DraftTree, path: tuple[int, ...], target_probs: TargetProbs) -> list[float | None]:
    """By node, p of its token at its parent, for the children of the root and of the accepted nodes."""
    visited = {0, *path}
    parents = enumerate(tree.parents)
    return [target_probs.row(parent).prob(tree.tokens[node]) if parent in visited else None for node, parent in parents]


def drawn_q(tree: DraftTree) -> list[float | None]:
    """By node, the probability that its token was drawn with, where it was drawn."""
    found: list[float | None] = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        has_row = parent >= 0 and tree.q is not None and bool(tree.q_row) and tree.q_row[parent] >= 0
        found.append(float(tree.q_of(parent)[token]) if has_row else None)
    return found


def ending_of(info: StepInfo) -> Ending:
    """Why the path ended."""
    if len(info.record.emitted) < len(info.verdict.path) + 1:
        return Ending.CUT
    if not info.tree.num_drafted:
        return Ending.NOTHING_DRAFTED
    return Ending.ALL_ACCEPTED if info.verdict.all_accepted else Ending.REJECTED
