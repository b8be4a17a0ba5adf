"""Lossy: Medusa's typical acceptance, without any random draw but the next token's."""

from collections.abc import Iterator
from math import exp, log
from typing import Annotated, ClassVar

from pydantic import Field

from specdec.interfaces.declarations import ALL_SHAPES, Guarantee, Reads, VerifierDeclaration
from specdec.interfaces.parts import BuildTools, PartOptions, Verifier
from specdec.interfaces.results import Verdict
from specdec.sampling.distribution import TokenDist
from specdec.sampling.logits_warper import TargetProbs
from specdec.sampling.rng import TargetRng
from specdec.trees.draft_tree import DraftTree, Draw
from specdec.verifiers.base import siblings

ACCEPTS = frozenset({Draw.DETERMINISTIC})

TINY = 1e-5
"""Added to p under the logarithm of the entropy, as Medusa does."""


class TypicalOptions(PartOptions):
    """Options of `typical`, with the defaults and the names of Medusa's `medusa_generate`."""

    posterior_threshold: Annotated[float, Field(gt=0, lt=1, description="epsilon: p above this is always enough")] = 0.09
    posterior_alpha: Annotated[float, Field(gt=0, description="delta: what e^-entropy is multiplied by")] = 0.3


class Typical(Verifier[TypicalOptions]):
    """x passes if p(x) > min(epsilon, delta e^-H), H the entropy of p; the longest path of tokens that pass is accepted.

    Of paths of one length it is the likeliest, then the one drafted first. The next token is drawn from p at its end, or at the
    root where no token passes. *Source: arXiv 2401.10774, section 2.3.1, and Medusa's `evaluate_posterior`.*
    """

    name: ClassVar[str] = "typical"
    Options: ClassVar[type[PartOptions]] = TypicalOptions

    def __init__(self, posterior_threshold: float, posterior_alpha: float) -> None:
        self._threshold = posterior_threshold
        self._alpha = posterior_alpha

    @classmethod
    def declares(cls, options: TypicalOptions) -> VerifierDeclaration:
        """Lossy: which tokens pass is not left to chance."""
        return VerifierDeclaration(ACCEPTS, ALL_SHAPES, reads_q=False, guarantee=Guarantee.LOSSY, reads=Reads.TREE)

    @classmethod
    def build(cls, options: TypicalOptions, tools: BuildTools) -> "Typical":
        return cls(options.posterior_threshold, options.posterior_alpha)

    def verify(self, tree: DraftTree, target_probs: TargetProbs, rng: TargetRng) -> Verdict:
        likelihoods = {0: 0.0, **dict(self._passing(tree, target_probs))}
        end = max(likelihoods, key=lambda node: (tree.depths[node], likelihoods[node], -node))
        token = target_probs.row(end).choose(rng, tree.root_position + tree.depths[end] + 1)
        all_accepted = not siblings(tree, end, ACCEPTS, self.name)
        return Verdict(tuple(tree.path(end)), token, all_accepted=all_accepted)

    def _passing(self, tree: DraftTree, target_probs: TargetProbs) -> Iterator[tuple[int, float]]:
        """The nodes whose whole path passes, with its log-likelihood; p is read at these and at the root only."""
        open_nodes = [(0, 0.0)]
        while open_nodes:
            node, likelihood = open_nodes.pop()
            children = siblings(tree, node, ACCEPTS, self.name)
            if not children:
                continue
            dist = target_probs.row(node)
            bar = self._bar(dist)
            for child in children:
                if (prob := dist.prob(tree.tokens[child])) > bar:
                    yield child, likelihood + log(prob)
                    open_nodes.append((child, likelihood + log(prob)))

    def _bar(self, dist: TokenDist) -> float:
        entropy = -float((dist.probs * (dist.probs + TINY).log()).sum())
        return min(self._threshold, self._alpha * exp(-entropy))
