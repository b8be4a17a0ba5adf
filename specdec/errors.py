"""Everything that specdec raises on purpose, and help for a mistyped name."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


class SpecdecError(Exception):
    """An error that the user can fix; the command line prints it without a traceback and exits with 2.

    Attributes:
        finished: Answers that were complete when `Decoder.generate` failed, in its order; None in the places of the others.
    """

    finished: tuple[Any, ...] = ()


class SpecError(SpecdecError):
    """A spec, an option or an argument is wrong: says where, what was got and what would work."""


class UnknownPart(SpecError):
    """A name that no registered part, strategy or tree has."""


class IncompatibleParts(SpecError):
    """Parts that are each valid and that do not fit together; every broken rule is listed."""


class TargetMismatch(SpecdecError):
    """A model that cannot do what is asked of it: the reason, and what would work."""


class CheckpointError(SpecdecError):
    """Weights that are missing, superfluous or misshapen, by name."""


class NumericsError(SpecdecError):
    """A probability that is not one: a NaN, a negative value, or a draft that its own q rules out."""


class SpecdecWarning(UserWarning):
    """Something that works, but may not be what was meant."""


class PluginError(SpecdecError):
    """A plug-in that broke its contract, with its package and the rule."""


def did_you_mean(name: str, known: Iterable[str], *, listing: str = "known") -> str:
    """'; did you mean ...' for the nearest of `known`, else '; LISTING: ...' with all of them."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1, cutoff=0.6)
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; {listing}: {', '.join(names) or 'none'}"


SHOWN = 10
"""Problems that a message lists; of the rest only the number is told."""


def listed(problems: Iterable[object]) -> str:
    """The problems one a line, the first few of them."""
    lines = list(map(str, problems))
    more = [f"... and {len(lines) - SHOWN:,} more"] if len(lines) > SHOWN else []
    return "\n".join([*lines[:SHOWN], *more])
