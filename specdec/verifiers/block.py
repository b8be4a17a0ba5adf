"""Block verification: a drafted chain judged as a whole."""

from typing import ClassVar

from specdec.interfaces.declarations import Reads, Shape, VerifierDeclaration
from specdec.interfaces.parts import BuildTools, PartOptions, Verifier
from specdec.interfaces.results import Verdict
from specdec.sampling.logits_warper import TargetProbs
from specdec.sampling.rng import TargetRng
from specdec.trees.draft_tree import DraftTree, Draw
from specdec.verifiers.base import block_length, check_drafted, check_single, siblings

ACCEPTS = frozenset({Draw.IID, Draw.WITHOUT_REPLACEMENT})


class Block(Verifier[PartOptions]):
    """The longest beginning of the chain that passes: no rule accepts more of one chain.

    The weight of a beginning is w_i = min(1, w_(i-1) p(x_i) / q(x_i)), and that is the probability that at least i tokens are
    accepted. With S_i = sum (w_i p - q)+ of the row after it, it passes with S_i / (S_i + 1 - w_i), and the whole chain with
    its weight; the next token is a draw from norm((w_i p - q)+), past the whole chain from p. Only the last that passes
    counts, so that the beginnings are tried from the longest on; nothing is read below one of weight 0.
    *Source: arXiv 2403.10444, algorithm 2.*
    """

    name: ClassVar[str] = "block"
    Options: ClassVar[type[PartOptions]] = PartOptions

    @classmethod
    def declares(cls, options: PartOptions) -> VerifierDeclaration:
        return VerifierDeclaration(accepts=ACCEPTS, shapes=frozenset({Shape.CHAIN}), reads_q=True, reads=Reads.TREE)

    @classmethod
    def build(cls, options: PartOptions, tools: BuildTools) -> "Block":
        return cls()

    def verify(self, tree: DraftTree, target_probs: TargetProbs, rng: TargetRng) -> Verdict:
        chain, ratios, weight = [0], list[float](), 1.0
        while weight > 0 and (drawn := siblings(tree, chain[-1], ACCEPTS, self.name)):
            check_single(drawn, chain[-1], self.name)
            token = tree.tokens[drawn[0]]
            draft_prob = check_drafted(float(tree.q_of(chain[-1])[token]), drawn[0], token)
            ratios.append(target_probs.row(chain[-1]).prob(token) / draft_prob)
            weight = min(1.0, weight * ratios[-1])
            chain.append(drawn[0])
        rows = [target_probs.row(node) for node in chain[:-1]]
        length, weight = block_length(rows, [tree.q_of(node) for node in chain[:-1]], ratios, rng)
        whole, dist = length == len(ratios), target_probs.row(chain[length])
        left = dist if whole else dist.residual(tree.q_of(chain[length]), weight)
        token = (left or target_probs.fall_back(dist)).choose(rng, tree.root_position + length + 1)
        return Verdict(tuple(chain[1 : length + 1]), token, all_accepted=whole)
