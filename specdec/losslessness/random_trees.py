"""Draft trees of any shape, to be scored by a target: which tokens and parents, follows from a key."""

from specdec.sampling.keyed_noise import mix
from specdec.trees.draft_tree import DraftTree, Draw, TreeSketch


def random_tree(key: int, *, nodes: int, root: int, position: int, vocab_size: int, chain: bool = False) -> DraftTree:
    """A tree of at most so many nodes, root included: half of them go on from the last one, the others branch anywhere."""
    sketch = TreeSketch(root, position)
    taken: set[tuple[int, int]] = set()
    for number in range(nodes - 1):
        deeper = chain or mix(key, number, 1) % 2 == 0
        parent = len(sketch) - 1 if deeper else mix(key, number, 2) % len(sketch)
        token = mix(key, number, 3) % vocab_size
        if (parent, token) not in taken:
            taken.add((parent, token))
            sketch.add(parent, token)
    return sketch.freeze(Draw.DETERMINISTIC)


def chain_of(tokens: list[int], position: int) -> DraftTree:
    """A chain of known tokens, the root first."""
    sketch = TreeSketch(tokens[0], position)
    for node, token in enumerate(tokens[1:]):
        sketch.add(node, token)
    return sketch.freeze(Draw.DETERMINISTIC)
