"""What every verifier asks of a tree before it trusts it."""

from specdec.contracts import Draw
from specdec.errors import NumericsError, PluginError
from specdec.tree import DraftTree

SINGLE_DRAWS = frozenset({Draw.IID, Draw.WITHOUT_REPLACEMENT})


def siblings(tree: DraftTree, node: int, accepts: frozenset[Draw], verifier: str) -> tuple[int, ...]:
    """The children of `node` to verify, in draw order, i.i.d. repeats kept; empty at a leaf. Scouts are left out.

    A single draw is both i.i.d. and without replacement. Raises PluginError for a kind of draw that is not accepted.
    """
    drawn = tuple(child for child in tree.draws.get(node, ()) if child not in tree.scouts)
    if not drawn:
        return ()
    kind = tree.draw.get(node)
    alike = SINGLE_DRAWS if kind in SINGLE_DRAWS and len(drawn) == 1 else {kind}
    if not alike & accepts:
        wanted = " or ".join(sorted(accepts))
        raise PluginError(
            f"node {node}: its children are stamped as {kind or 'no'} draws; "
            f"verifier '{verifier}' is lossless for {wanted} draws only"
        )
    return drawn


def check_drafted(draft_prob: float, node: int, token: int) -> float:
    """The q of a drafted token. Raises NumericsError unless it is positive: the token was not drawn from the stated q."""
    if not draft_prob > 0:
        raise NumericsError(f"node {node}: token {token} was drafted although its own q gives it probability {draft_prob}")
    return draft_prob
