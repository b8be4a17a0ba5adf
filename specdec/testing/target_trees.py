"""Texts and trees on which a target is checked."""

from collections.abc import Sequence

from specdec.interfaces.results import TargetFacts
from specdec.sampling.keyed_noise import mix
from specdec.trees.draft_tree import DraftTree, TreeSketch

NODES = 7
MANY_NODES, LEVELS = 40, 12
"""Of a large tree, the root not counted, and of the chain that it begins with."""

LONG = (130, 1, 65, 1, 33, 100)
"""Tokens of the prompts of a large batch."""


def target_tree(facts: TargetFacts, prompt: Sequence[int], seed: int, nodes: int = NODES, levels: int = 0) -> TreeSketch:
    """A tree below a root that follows the prompt, its first nodes a chain of `levels`.

    It is a chain altogether where the target scores no other.
    """
    sketch = TreeSketch(mix(seed, 1) % facts.vocab_size, len(prompt))
    for number in range(nodes):
        chain = number < levels or not facts.trees
        parent = len(sketch) - 1 if chain else mix(seed, 2, number) % len(sketch)
        token = mix(seed, 3, number) % facts.vocab_size
        siblings = [sketch.tokens[n] for n in range(1, len(sketch)) if sketch.parents[n] == parent]
        if token not in siblings:
            sketch.add(parent, token)
    return sketch


def most_nodes(facts: TargetFacts) -> int:
    """Of a large tree, the root not counted."""
    return MANY_NODES if facts.max_tree_nodes is None else min(MANY_NODES, facts.max_tree_nodes - 1)


def long_prompts(facts: TargetFacts, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """The prompts one after another, again and again, cut to LONG tokens or to what the context holds."""
    text = [token for prompt in prompts for token in prompt]
    room = max(LONG) if facts.max_positions is None else max(1, facts.max_positions - 2 * most_nodes(facts) - NODES)
    return [[text[(5 * row + place) % len(text)] for place in range(min(size, room))] for row, size in enumerate(LONG)]


def longest_path(tree: DraftTree) -> list[int]:
    """From below the root down to a deepest node."""
    return tree.path(max(range(len(tree)), key=lambda node: tree.depths[node]))


def extended(texts: Sequence[Sequence[int]], trees: Sequence[DraftTree], paths: Sequence[Sequence[int]]) -> list[list[int]]:
    """The texts with each root and the accepted path below it."""
    return [
        [*text, tree.tokens[0], *(tree.tokens[node] for node in path)]
        for text, tree, path in zip(texts, trees, paths, strict=True)
    ]
