"""How much of a strategy can be enumerated in a given time: groups of stand-in models, and how far their drafts are cut."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from specdec.decoding.decoder import Decoder
from specdec.losslessness.exact.enumeration import step_size
from specdec.losslessness.exact.guards import with_smaller_drafts
from specdec.losslessness.exact.runs import run_leaves
from specdec.losslessness.exact.toy_models import StandIn

OUTCOMES_PER_SECOND = 3000
"""Outcomes of a step by parts, a draft counting as two more; a nominal rate, so that a proof is the same on every machine."""

RUNS_PER_SECOND = 300
"""Outcomes of two steps through the decode loop."""

RUN_TOKENS = 8
"""Token limit of the runs through the loop: high enough for two steps, low enough to be reached."""

RUN_PROMPT = 6
"""Tokens of their prompts."""

CUTS: tuple[tuple[int | None, int | None], ...] = (
    (None, None),
    *((depth, None) for depth in (6, 5, 4, 3)),
    (3, 8),
    (2, None),
    *((2, nodes) for nodes in (8, 7, 6, 5, 4)),
    (1, None),
    *((1, nodes) for nodes in (3, 2, 1)),
)
"""Levels and nodes to which drafts are cut, the most telling first."""

RUN_CUTS: tuple[tuple[int | None, int | None], ...] = ((None, None), (None, 4), (None, 3), (None, 2), (None, 1))


@dataclass(frozen=True, slots=True)
class Group:
    """Models of one size. share: of the time; own: whether the strategy's own drafter runs; steps: 2 go through the loop.

    depth, nodes: to what drafts are cut. levels, drafted: the largest draft of one model that was met.
    """

    vocab_size: int
    models: int
    share: float
    own: bool
    steps: int = 1
    depth: int | None = None
    nodes: int | None = None
    levels: int = 0
    drafted: int = 0

    @property
    def fewest_tokens(self) -> int:
        """The vocabulary to which its models may shrink where theirs is too large to enumerate."""
        return min(3, self.vocab_size) if self.steps == 1 and not self.own and self.vocab_size <= 4 else self.vocab_size

    @property
    def words(self) -> str:
        """What it covers."""
        cut = self.depth is not None and (self.steps > 1 or self.levels >= self.depth)
        limits = [_count(self.depth, "level")] if self.depth is not None and cut else []
        limits += [_count(self.nodes, "node")] if self.nodes is not None else []
        if limits:
            drafts = f"drafts CUT to {' and '.join(limits)}"
        else:
            drafts = "whole drafts" if self.steps == 1 else f"drafts up to the limit of {RUN_TOKENS} tokens"
        size = f" (at most {self.levels} deep, {_count(self.drafted, 'node')})" if self.steps == 1 else ""
        return f"{self.kind}: {drafts}{size}"

    @property
    def kind(self) -> str:
        """Its models, its drafter and its steps."""
        loop = "one step" if self.steps == 1 else "two steps of the decode loop"
        drafter = "own drafter" if self.own else "table drafting"
        return f"{_count(self.models, 'model')} of {_count(self.vocab_size, 'token')}, {drafter}, {loop}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def groups_for(
    *, own_only: bool, own_vocab: int | None, own_loop_vocab: int | None, vocab: int | None, models: int | None
) -> tuple[Group, ...]:
    """The groups of a proof, before they are cut.

    own_only: the drafter gives candidates, so that it always runs itself. own_vocab: size at which a drafter that gives
    distributions runs itself, None: never. own_loop_vocab: that in the decode loop. vocab, models: the user's, None: ours.
    """
    wide, deep, many = (4, 2, 12) if vocab is None else (vocab, vocab, vocab)

    def count(usual: int) -> int:
        return usual if models is None else min(models, usual) if usual < 8 else models

    with_tables = own_vocab is not None and not own_only
    groups = [
        Group(wide, count(8), 0.35 if with_tables else 0.45, own_only),
        Group(deep, count(6), 0.2, own_only),
        Group(many, count(2), 0.1, own_only),
    ]
    if own_vocab is not None and own_loop_vocab is not None and with_tables:
        groups.append(Group(own_vocab, count(4), 0.1, own=True))
        groups.append(Group(own_loop_vocab, count(2), 0.1, own=True, steps=2))
    groups.append(Group(deep, count(3), 0.15, own_only, steps=2))
    distinct = {(g.vocab_size, g.own, g.steps): g for g in reversed(groups)}
    return tuple(reversed(distinct.values()))


def fitted(
    group: Group,
    decoder: Decoder,
    model: StandIn,
    *,
    seconds: float,
    depth: int | None,
) -> Group | None:
    """The group with the largest drafts of which one model takes at most `seconds`; None where none is small enough."""
    measure: Callable[[Group, Decoder, StandIn], tuple[float, Group]] = _step_seconds if group.steps == 1 else _run_seconds
    whole = None
    for levels, nodes in _cuts(group, depth):
        if whole is not None and levels is not None and nodes is None and levels >= whole:
            continue
        candidate = replace(group, depth=levels, nodes=nodes)
        needed, met = measure(candidate, decoder, model)
        if needed <= seconds:
            return met
        whole = met.levels if (levels, nodes) == (None, None) and group.steps == 1 else whole
    return None


def _cuts(group: Group, depth: int | None) -> Iterator[tuple[int | None, int | None]]:
    cuts: Sequence[tuple[int | None, int | None]] = CUTS if group.steps == 1 else RUN_CUTS
    if depth is None:
        yield from cuts
        return
    yield from ((depth, nodes) for levels, nodes in cuts if levels is None)
    yield from ((levels, nodes) for levels, nodes in cuts if levels is not None and (levels < depth or nodes is not None))


def _step_seconds(group: Group, decoder: Decoder, model: StandIn) -> tuple[float, Group]:
    size = step_size(with_smaller_drafts(decoder, depth=group.depth, nodes=group.nodes), model.prefix, depth=None)
    seconds = (size.leaves + 2 * size.drafts) / OUTCOMES_PER_SECOND
    return seconds, replace(group, levels=size.depth, drafted=size.nodes)


def _run_seconds(group: Group, decoder: Decoder, model: StandIn) -> tuple[float, Group]:
    smaller = with_smaller_drafts(decoder, depth=group.depth, nodes=group.nodes)
    leaves = run_leaves(smaller, model.prefix[-RUN_PROMPT:], steps=2, max_new_tokens=RUN_TOKENS)
    return leaves / RUNS_PER_SECOND, group
