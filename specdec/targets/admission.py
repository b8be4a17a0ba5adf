"""What every runtime checks before a forward: prompts, trees and paths."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from specdec.errors import SpecdecError, TargetMismatch
from specdec.interfaces.declarations import Features
from specdec.interfaces.parts import TargetState
from specdec.nn.tree_mask import RowNodes
from specdec.targets.capability import Limits
from specdec.targets.model_call import ModelCall
from specdec.trees.draft_tree import DraftTree

S = TypeVar("S", bound=TargetState)


@dataclass(frozen=True, slots=True)
class Draft:
    """The nodes of one row that have been scored since the last commit."""

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()


def check_prompts(prompts: Sequence[Sequence[int]], limits: Limits, vocab_size: int) -> None:
    """Raise SpecdecError for an empty prompt, TargetMismatch for one that the model cannot read."""
    limit = limits.max_positions
    for row, prompt in enumerate(prompts):
        if not prompt:
            raise SpecdecError(f"prompt {row} is empty; a prompt has at least one token")
        if limit is not None and len(prompt) > limit:
            raise TargetMismatch(f"prompt {row} has {len(prompt)} tokens; the context holds at most {limits.context}")
        if not (min(prompt) >= 0 and max(prompt) < vocab_size):
            raise TargetMismatch(f"prompt {row} has a token outside the vocabulary of {vocab_size}")


def check_features(features: Features, call: ModelCall) -> None:
    """Raise TargetMismatch for a last hidden state of a model that shows none."""
    if features.last and call.hidden_size is None:
        name = type(call.model).__name__
        raise TargetMismatch(f"no last hidden state was found in {name}; a drafter that needs none would work")


def own_state(state: TargetState, kind: type[S]) -> S:
    """The state as one of the runtime's own. Raises SpecdecError for another target's."""
    if not isinstance(state, kind):
        raise SpecdecError(f"a {type(state).__name__} is no state of this target; its prefill gives one")
    return state


class _Featured(Protocol):
    @property
    def features(self) -> Features: ...


def check_joined(state: _Featured, other: _Featured) -> None:
    """Raise SpecdecError for a state that cannot lend its rows to the other."""
    if other is state or other.features != state.features:
        raise SpecdecError("only another state with the same features can be joined; prefill gives one")


def new_nodes(limits: Limits, row: int, length: int, draft: Draft, tree: DraftTree) -> RowNodes:
    """The nodes of a row with `length` cached tokens that `draft` has not. Raises for a tree that cannot be scored there."""
    first, limit = len(draft.tokens), limits.max_positions
    if tree.root_position != length:
        raise SpecdecError(f"row {row}: the tree's root stands at {tree.root_position}; the cache holds {length} tokens")
    if tree.tokens[:first] != draft.tokens or tree.parents[:first] != draft.parents:
        raise SpecdecError(f"row {row}: the tree does not extend the {first} nodes that have been scored")
    if limit is not None and length + max(tree.depths) >= limit:
        raise TargetMismatch(
            f"row {row}: a node at position {length + max(tree.depths)} lies beyond the context of {limits.context}"
        )
    if limits.no_trees_because is not None and not tree.is_chain:
        raise TargetMismatch(f"this model scores chains only ({limits.no_trees_because}); tree 'chain' would work")
    return RowNodes(length, tree.parents, tree.depths, first)


def kept_nodes(drafts: Sequence[Draft], paths: Sequence[Sequence[int] | None]) -> list[tuple[int, ...]]:
    """By row, root and path, or nothing. Raises SpecdecError for a path that was not scored."""
    kept = [() if path is None else (0, *path) for path in paths]
    for row, (path, draft) in enumerate(zip(kept, drafts, strict=True)):
        parents = [draft.parents[node] if node < len(draft.parents) else None for node in path]
        if parents != list((-1, *path)[: len(path)]):
            raise SpecdecError(f"row {row}: {list(path)} is no path of scored nodes; {len(draft.tokens)} were scored")
    return kept
