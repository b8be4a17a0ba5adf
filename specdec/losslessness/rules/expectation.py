"""What a rule accepts of a given draft, its own random draws integrated out exactly."""

from collections.abc import Mapping
from dataclasses import dataclass

from specdec.interfaces.parts import Verifier
from specdec.sampling.enumeration import outcomes
from specdec.sampling.logits_warper import TargetProbs
from specdec.sampling.rng import RequestRng
from specdec.trees.draft_tree import DraftTree

LEAVES = 20_000
"""Outcomes of one verification; a rule has about as many as the tree has nodes."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Of one rule on one draft. paths: accepted path -> its probability.

    reached, left: by node of the draft that has children, the probability that the rule accepts that node (1 at the root), and
    that it accepts no child of it after that.
    """

    paths: Mapping[tuple[int, ...], float]
    reached: Mapping[int, float]
    left: Mapping[int, float]

    @property
    def expected(self) -> float:
        """Of accepted tokens."""
        return sum(mass * len(path) for path, mass in self.paths.items())


def acceptance(verifier: Verifier, tree: DraftTree, target_probs: TargetProbs) -> Acceptance:
    """Every outcome of `verify` on this draft.

    Tokens of a choice that the draft does not have at that depth are one outcome: which of them is drawn accepts nothing.

    Raises:
        SpecdecError: Where the rule has more than LEAVES outcomes.
    """
    drafted: dict[int, set[int]] = {}
    for token, depth in zip(tree.tokens[1:], tree.depths[1:], strict=True):
        drafted.setdefault(tree.root_position + depth, set()).add(token)

    def run(rng: RequestRng) -> tuple[int, ...]:
        return verifier.verify(tree, target_probs, rng.target).path

    paths = outcomes(run, limit=LEAVES, apart=lambda position: drafted.get(position, set()))
    inner = [node for node in range(len(tree)) if any(child not in tree.scouts for child in tree.draw_order.get(node, ()))]
    ends = {node: sum(mass for path, mass in paths.items() if (path[-1] if path else 0) == node) for node in inner}
    reached = {node: sum(mass for path, mass in paths.items() if node == 0 or node in path) for node in inner}
    return Acceptance(paths, reached, ends)
