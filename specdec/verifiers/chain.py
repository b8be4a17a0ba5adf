"""Rejection sampling along a chain: the original rule of speculative decoding."""

from typing import ClassVar

from specdec.errors import PluginError
from specdec.interfaces.declarations import Shape, VerifierDeclaration
from specdec.interfaces.parts import BuildTools, PartOptions, Verifier
from specdec.interfaces.results import Verdict
from specdec.sampling.logits_warper import TargetProbs
from specdec.sampling.rng import TargetRng
from specdec.trees.draft_tree import DraftTree, Draw
from specdec.verifiers.base import check_drafted, siblings

ACCEPTS = frozenset({Draw.IID, Draw.WITHOUT_REPLACEMENT})


class Chain(Verifier[PartOptions]):
    """Accept x with min(1, p(x) / q(x)); at the first rejection draw from norm((p - q)+), past the end from p.

    *Source: arXiv 2211.17192, algorithm 1; arXiv 2302.01318, algorithm 2.* Deviation: `u < p/q` with u in [0, 1), so that a
    token with p = 0 never passes.
    """

    name: ClassVar[str] = "chain"
    Options: ClassVar[type[PartOptions]] = PartOptions

    @classmethod
    def declares(cls, options: PartOptions) -> VerifierDeclaration:
        return VerifierDeclaration(accepts=ACCEPTS, shapes=frozenset({Shape.CHAIN}), reads_q=True)

    @classmethod
    def build(cls, options: PartOptions, tools: BuildTools) -> "Chain":
        return cls()

    def verify(self, tree: DraftTree, target_probs: TargetProbs, rng: TargetRng) -> Verdict:
        path: list[int] = []
        node = 0
        while drawn := siblings(tree, node, ACCEPTS, self.name):
            if len(drawn) > 1:
                raise PluginError(f"node {node}: {len(drawn)} children were drawn; verifier 'chain' verifies one per node")
            child, token, q = drawn[0], tree.tokens[drawn[0]], tree.q_of(node)
            dist = target_probs.row(node)
            draft_prob = check_drafted(float(q[token]), child, token)
            if not rng.flip(min(1.0, dist.prob(token) / draft_prob)):
                left = dist.residual(q) or target_probs.fall_back(dist)
                return Verdict(tuple(path), left.choose(rng, tree.root_position + tree.depths[child]), all_accepted=False)
            path.append(child)
            node = child
        token = target_probs.row(node).choose(rng, tree.root_position + tree.depths[node] + 1)
        return Verdict(tuple(path), token, all_accepted=True)
