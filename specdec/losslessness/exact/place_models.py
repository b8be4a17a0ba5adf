"""Small models that lead a draft to the children of one of its nodes, and are undecided there."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from specdec.losslessness.exact.toy_models import LENGTHS, StandIn
from specdec.sampling.keyed_noise import mix, uniforms
from specdec.trees.tree_shape import RankPath

LEAST_TOKENS = 3
"""Two would do for a chain; with a third the target can leave the draft in more than one way."""

UNEVEN, LEVEL = 1.0, 0.2
"""How far the weights of a row are spread around 1."""

STEEP = 4.0
"""How many times as likely a token of the stairs is drafted as the next one."""

SURE, SURER = 4.0, 40.0
"""How many times as likely as another the target takes the token that leads on, in model 0 and in others of drawn drafts.

A rule that verifies from the leaves to the root weighs a node by the whole path: after five uncertain tokens hardly anything is
left for a second sibling.
"""


@dataclass(frozen=True, slots=True, order=True)
class Siblings:
    """The children of one node of a draft: its path of ranks below the root, and how many children it has."""

    parent: RankPath
    count: int

    @property
    def depth(self) -> int:
        """Of the children."""
        return len(self.parent) + 1

    @property
    def least_tokens(self) -> int:
        """Of a vocabulary in which the last draw is still free."""
        return max(2, self.count + 1, *(rank + 1 for rank in self.parent))


def place_model(
    siblings: Siblings,
    number: int,
    prefix: tuple[int, ...],
    *,
    vocab_size: int | None = None,
    emitted: tuple[int, ...] = (),
    agree: bool = False,
    ranked: bool = False,
    undecided: bool = False,
) -> StandIn:
    """Model `number` of an endless list, at whose node the siblings are reached and every draw among them is free.

    Above the node q has no more tokens than lead to its rank: one, where it is a first child. At the node q has one more than
    it has children. Below it q is certain, and p is but for the first token, so that little more is enumerated. The target
    may leave at every level.

    Model 0 has any p and q. In model s, of as many as there are siblings, the first s are drafted as tokens that the target
    hardly ever takes, so that the next one is reached, and what is then left of p and q is undecided.
    ranked: for drafts that are picked by their probability. No token that leads on is then much likelier than another, so that
    the siblings are drafted before what comes below them, and the models differ in nothing else.
    undecided: for i.i.d. draws, whose q stays whole, so that after the first rejection what is left of p is as a rule all above
    q or nothing: p and q such that each sibling is accepted with a probability between 0 and 1 when those before it were not.
    vocab_size: of more tokens than the node needs; which of them are in use depends on `number`.
    emitted: what the decoder emits after the prefix before it gets to the root of this draft. agree: whether p and q are the
    same where they are certain.
    """
    used = max(siblings.least_tokens, LEAST_TOKENS if vocab_size is None else min(vocab_size, LEAST_TOKENS))
    size = used if vocab_size is None else vocab_size
    p_rows, q_rows = _rows_to(siblings, number, used, size, emitted, ranked=ranked)
    if undecided:
        *_, node = q_rows
        ids = [token for token, weight in enumerate(q_rows[node]) if weight]
        p_rows[node], q_rows[node] = _undecided_rows(ids, size)
    elsewhere = certain_model(number, size, prefix, agree=agree, ranked=ranked)
    target, drafter = {**elsewhere.target, "rows": p_rows}, {**elsewhere.drafter, "rows": q_rows}
    return StandIn(f"at {list(siblings.parent)}", size, target, drafter, prefix)


def _rows_to(
    siblings: Siblings, number: int, used: int, size: int, emitted: tuple[int, ...], *, ranked: bool
) -> tuple[dict[str, tuple[float, ...]], dict[str, tuple[float, ...]]]:
    """Rows of p and of q by history: on the way to the node, at the node, and of p right below it."""
    counts = [*(rank + 1 for rank in siblings.parent), siblings.count + 1]
    p_rows, q_rows = dict[str, tuple[float, ...]](), dict[str, tuple[float, ...]]()
    for history in _histories(counts[:-1], used, number, size):
        level = len(history)
        at_node = level == len(counts) - 1
        ids, possible = (_ids(count, used, number, level, size) for count in (counts[level], used))
        stairs = 0 if ranked else number % siblings.count if at_node else counts[level] - 1
        key = ",".join(map(str, (*emitted, *history)))
        noise = mix(number, 51, *history)
        rise = 1.0 if at_node else SURER if number and not ranked else SURE
        p_rows[key] = _weights(possible, ids, size, mix(noise, 1), stairs=stairs, rise=rise)
        spread = LEVEL if ranked else UNEVEN
        q_rows[key] = _weights(ids, ids, size, mix(noise, 2), stairs=stairs, falling=True, spread=spread)
        for token in ids if at_node else ():
            deeper = ",".join(map(str, (*emitted, *history, token)))
            p_rows[deeper] = _weights(possible, (), size, mix(noise, 3, token), stairs=0)
    return p_rows, q_rows


def _undecided_rows(ids: Sequence[int], size: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """A level q over `ids`, and a p that has a token between 0 and q after each of as many rejections as leave two tokens.

    Built from the end: p before a rejection is what is left after it, on top of q, beside one token more that has half of q.
    """
    level = 1 / len(ids)
    left = [level / 2, 1 - level / 2]
    while len(left) < len(ids):
        scale = 1 - level * len(left) - level / 2
        left = [level / 2, *(level + scale * prob for prob in left)]
    p, q = [0.0] * size, [0.0] * size
    for token, prob in zip(ids, left, strict=True):
        p[token], q[token] = prob, level
    return tuple(p), tuple(q)


def certain_model(number: int, vocab_size: int, prefix: tuple[int, ...], *, agree: bool, ranked: bool) -> StandIn:
    """The same, without a node at which anything is open to the target."""
    part: dict[str, Any] = {"use": "tabular", "vocab": vocab_size, "start": len(prefix)}
    q_rows = open_rows(number) if ranked and not agree else _certain_rows(2 * number + (not agree))
    target, drafter = {**part, "random": _certain_rows(2 * number)}, {**part, "random": q_rows}
    return StandIn("certain", vocab_size, target, drafter, prefix)


def open_rows(seed: int) -> dict[str, float]:
    """Of a table: every token is almost as likely as any other."""
    return {"order": 8, "seed": seed, "sharpness": 0.05}


def _certain_rows(seed: int) -> dict[str, float]:
    """Of a table: one token is certain everywhere."""
    return {"order": 8, "seed": seed, "zeros": 1.0}


def place_prefix(number: int, vocab_size: int, length: int | None = None) -> tuple[int, ...]:
    """Any tokens, the root last. length: None: one of a few, by `number`."""
    size = LENGTHS[number % len(LENGTHS)] if length is None else length
    return tuple(mix(number, 53, place) % vocab_size for place in range(size))


def _ids(count: int, used: int, number: int, level: int, size: int) -> list[int]:
    """Tokens in use at a level: neighbours. Models with room for more walk through the vocabulary."""
    first = number * used + 5 * level if size > used else number + 5 * level
    return [(first + step) % size for step in range(count)]


def _histories(counts: Sequence[int], used: int, number: int, size: int) -> Iterator[tuple[int, ...]]:
    """The way to the node: at every level the token that is drawn last as a rule."""
    way = [_ids(count, used, number, level, size)[-1] for level, count in enumerate(counts)]
    for depth in range(len(counts) + 1):
        yield tuple(way[:depth])


def _weights(
    possible: Sequence[int],
    ids: Sequence[int],
    size: int,
    key: int,
    *,
    stairs: int,
    rise: float = 1.0,
    falling: bool = False,
    spread: float = 1.0,
) -> tuple[float, ...]:
    """A row over `possible`. The first `stairs` of `ids` are steps: falling ones are drawn first, others are rarely taken.

    rise: how many times as likely is what comes after the stairs. spread: of the weights around 1, before that.
    """
    noise = (1 - spread / 2 + spread * uniforms(key, torch.arange(size))).tolist()
    row = [noise[token] if token in possible else 0.0 for token in range(size)]
    for place, token in enumerate(ids):
        if place < stairs:
            row[token] *= STEEP ** (stairs - place) if falling else 0.2
        else:
            row[token] *= rise
    return tuple(weight / sum(row) for weight in row)
