"""What a step looked like from outside, for step callbacks: benchmarks, traces, acceptance profiles."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from specdec.interfaces.results import Generation, StepRecord, TokenLogprobs, Verdict
from specdec.sampling.logits_warper import TargetProbs
from specdec.trees.draft_tree import DraftTree


@dataclass(frozen=True, slots=True, eq=False)
class StepInfo:
    """One step of one sequence. sequence: its number in the batch. texts: what each emitted token added to the answer.

    target_probs: p by node; the verifier has read it at the root and along the path. It holds the logits of the whole tree:
    a callback takes out what it needs and keeps no reference to it.
    """

    sequence: int
    tree: DraftTree
    verdict: Verdict
    target_probs: TargetProbs
    record: StepRecord
    texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """What one step added to an answer.

    sources: by token, the drafter it came from, -1 for the target. record: None for the token of the prefill.
    pieces: `text` in parts, each with the source of the token that it comes from, which may be an earlier event's.
    depths: by piece, how deep in its step's draft that token stood; 0: drawn from the target.
    logprobs: by token, where they were asked for. generation: with the last event, the finished answer.
    """

    tokens: tuple[int, ...]
    sources: tuple[int, ...]
    text: str
    pieces: tuple[tuple[str, int], ...]
    record: StepRecord | None
    generation: Generation | None
    depths: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()


StepCallback: TypeAlias = Callable[[StepInfo], None]


@dataclass(frozen=True, slots=True)
class DraftLevel:
    """A node at which drafts were tried. num_children: how many; rank: of the accepted one in draw order, None: none was."""

    node: int
    num_children: int
    rank: int | None


def draft_levels(info: StepInfo) -> list[DraftLevel]:
    """The levels of the draft that count as tested, root first: as many as the record's `tested`."""
    path = info.verdict.path
    levels = []
    for level in range(info.record.tested):
        node = path[level - 1] if level else 0
        children = ranked_children(info.tree, node)
        accepted = path[level] if level < len(path) else None
        levels.append(DraftLevel(node, len(children), None if accepted is None else children.index(accepted)))
    return levels


def ranked_children(tree: DraftTree, node: int) -> list[int]:
    """The children of `node` that may be verified, in the order in which they were drawn, each once."""
    return [child for child in dict.fromkeys(tree.draw_order.get(node, ())) if child not in tree.scouts]
