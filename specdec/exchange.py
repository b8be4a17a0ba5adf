"""What a decoder tells its parts, and a target of itself."""

from dataclasses import dataclass, field

import torch

from specdec.records import HiddenStates, StepRecord
from specdec.trees.draft_tree import TreeSketch


@dataclass(frozen=True, slots=True)
class Frontier:
    """Nodes of a growing tree for which the builder asks the drafter. Their ids hold until the next step."""

    tree: TreeSketch
    nodes: tuple[int, ...]


@dataclass(slots=True)
class Memory:
    """What a builder keeps from step to step; the decoder only carries it."""

    kept: object = None


@dataclass(frozen=True, slots=True)
class Budget:
    """What a draft may cost. nodes: drafted nodes, root excluded; depth: levels below the root (limit and context room).

    stop_ids: tokens after which the sequence ends, below which drafting is useless.
    rows: sequences that share the forward, this one included. queue: whether others wait to take the place of one that ends,
    so that one that gets ahead leaves no gap. last: the sequence's last step, None before its first.
    memory: the sequence's own. batch: of all that decode together.
    """

    nodes: int
    depth: int
    stop_ids: frozenset[int] = frozenset()
    rows: int = 1
    queue: bool = False
    last: StepRecord | None = None
    memory: Memory = field(default_factory=Memory)
    batch: Memory = field(default_factory=Memory)


@dataclass(frozen=True, slots=True, eq=False)
class DraftStart:
    """One sequence at the start of drafting: the prompt, the first token, and the prompt's hidden states [prompt, ...].

    `hidden` row i belongs to prompt token i, the node at which token i + 1 was drawn.
    """

    prompt: tuple[int, ...]
    first_token: int
    hidden: HiddenStates


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """vocab_size: columns of the logits. max_positions: the context; None: unbounded. stop_ids: of the generation config.

    bitwise: whether a token's logits are the same bits however it is scored.
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
