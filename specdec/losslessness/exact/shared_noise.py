"""Drafts that share the target's noise: what is emitted must be the target's own draws, whatever was drafted.

Where drafts are not independent of the verifier's choices, no distribution can be read off an enumeration that draws them
apart. But if for every draft the emitted tokens are what the target draws at their positions, from p at the node that it has
reached, then the draft decides only how many of them a step emits, and the noise may be shared as one likes.
"""

from dataclasses import dataclass

from torch import Tensor

from specdec.decoding.decoder import Decoder
from specdec.errors import SpecdecError
from specdec.interfaces.declarations import Guarantee
from specdec.interfaces.results import Verdict
from specdec.losslessness.exact.distance import TOLERANCE
from specdec.sampling.distribution import TokenDist
from specdec.sampling.logits_warper import TargetProbs
from specdec.sampling.rng import TargetRng
from specdec.trees.draft_tree import DraftTree, Draw


class NotTheTargetsDraws(SpecdecError):
    """A token was emitted that the target did not draw, under drafts that share its noise: names verifier and node."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What was drawn at one position, and the weights that it was drawn with; None for a choice among one token."""

    token: int | None
    ids: tuple[int, ...] = ()
    weights: tuple[float, ...] = ()


class Witness(TargetRng):
    """Target draws that remember what was chosen. choices: by absolute position."""

    def __init__(self, inner: TargetRng) -> None:
        self._inner = inner
        self.choices: dict[int, Choice] = {}

    def choose(self, ids: Tensor, probs: Tensor, position: int) -> int:
        token = self._inner.choose(ids, probs, position)
        self.choices[position] = Choice(token, tuple(ids.tolist()), tuple(probs.tolist()))
        return token

    def flip(self, probability: float) -> bool:
        return self._inner.flip(probability)

    def skip(self, position: int) -> None:
        self._inner.skip(position)
        self.choices[position] = Choice(None)


def shares_noise(decoder: Decoder) -> bool:
    """Whether the decoder's drafts are made with the target's noise."""
    return decoder.builder.declaration.draw is Draw.COUPLED


def owes_the_draws(decoder: Decoder) -> bool:
    """Whether what is emitted must be the target's own draws: the drafts share its noise, and the verifier is lossless."""
    return shares_noise(decoder) and decoder.verifier.declaration.guarantee is Guarantee.LOSSLESS


def check_step(witness: Witness, tree: DraftTree, target_probs: TargetProbs, verdict: Verdict, verifier: str) -> None:
    """Raise NotTheTargetsDraws unless each token of the verdict was drawn at its position from p at its node."""
    nodes = (0, *verdict.path)
    tokens = (*(tree.tokens[node] for node in verdict.path), verdict.next_token)
    for level, (node, token) in enumerate(zip(nodes, tokens, strict=True)):
        position = tree.root_position + 1 + level
        fault = _fault(witness.choices.get(position), token, target_probs.row(node))
        if fault is not None:
            raise NotTheTargetsDraws(
                f"verifier '{verifier}' emits token {token} at node {node} (path {tree.path_tokens(node)}), "
                f"position {position}, and {fault}; drafts that share the target's noise are lossless only if the token is "
                "choose(p at the node)"
            )


def check_run(witness: Witness, tokens: tuple[int, ...], first_position: int, verifier: str) -> None:
    """The same for a run through the decode loop, as far as positions and tokens go."""
    for position, token in enumerate(tokens, first_position):
        choice = witness.choices.get(position)
        if choice is None or choice.token not in (None, token):
            drawn = "nothing" if choice is None else f"token {choice.token}"
            raise NotTheTargetsDraws(
                f"verifier '{verifier}' emits token {token} at position {position}, where {drawn} was drawn"
            )


def _fault(choice: Choice | None, token: int, p: TokenDist) -> str | None:
    if choice is None:
        return "draws nothing there"
    if choice.token is None:
        return None if p.point == token else "calls it the only possible one, which it is not"
    if choice.token != token:
        return f"draws {choice.token} there"
    drawn_from = dict(zip(choice.ids, choice.weights, strict=True))
    total = sum(drawn_from.values())
    wanted = dict(zip(p.ids.tolist(), p.probs.tolist(), strict=True))
    tokens = drawn_from.keys() | wanted.keys()
    if any(abs(drawn_from.get(t, 0.0) / total - wanted.get(t, 0.0)) > TOLERANCE for t in tokens):
        return "draws it from something else than p"
    return None
