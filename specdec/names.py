"""Help for a mistyped name."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str], *, listing: str = "known") -> str:
    """'; did you mean ...' for the nearest of `known`, else '; LISTING: ...' with all of them."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1, cutoff=0.6)
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; {listing}: {', '.join(names) or 'none'}"
