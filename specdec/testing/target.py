"""`check_target`: does scoring a tree give what reading each path gives, whatever was committed, kept and forked before?"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from specdec.interfaces.declarations import Kind
from specdec.interfaces.part_guard import PartGuard
from specdec.interfaces.parts import BuildTools, PartOptions, Target
from specdec.sampling.keyed_noise import mix
from specdec.testing.opening import opened, part_name
from specdec.testing.report import Checked, CheckFailed
from specdec.testing.target_probe import TargetProbe
from specdec.testing.target_trees import LONG, long_prompts, most_nodes

TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-3}
"""Largest difference of log-probabilities between a tree and a path."""

LENGTHS = (5, 2, 7)


def check_target(
    target: Target | type[Target],
    options: Mapping[str, Any] | PartOptions | None = None,
    *,
    prompts: Sequence[Sequence[int]] | None = None,
    tolerance: float | None = None,
) -> Checked:
    """Score trees on three prompts together, against prefills of each path alone. Raises CheckFailed.

    target: a loaded one, or a class that is built from `options`. prompts: ids, for a model that is meaningful only on text.
    tolerance: of log-probabilities; None: 1e-9 for float64, 1e-3 for float32, and for float16 and bfloat16 20 rounding widths
    of a row's spread. Of a model with hidden states, every node is looked at before the first commit, and then some of them.
    """
    cls = target if isinstance(target, type) else type(target)
    report = Checked(part_name(Kind.TARGET, cls))
    if isinstance(target, type):
        part = opened(Kind.TARGET, target, options, report)
        with report.rule("it can be built"), PartGuard("target", cls):
            target = cls.build(part.options, BuildTools())
    facts = target.facts
    with report.rule("its facts are sound"):
        _check_facts(target)
    limit = TOLERANCES.get(facts.dtype) if tolerance is None else tolerance
    used = [list(prompt) for prompt in prompts] if prompts is not None else _prompts(facts.vocab_size)
    for words, check in _rules(TargetProbe(target, used, limit, everywhere=facts.hidden_size is None)):
        with report.rule(words), PartGuard("target", cls):
            check()
    return report


def _rules(probe: TargetProbe) -> list[tuple[str, Callable[[], None]]]:
    facts = probe.target.facts
    longest = max(map(len, long_prompts(facts, probe.prompts)))
    large = f"prompts of 1 to {longest} tokens, trees of up to {most_nodes(facts)} nodes, and {len(LONG)} rows"
    return [
        ("a prompt's logits do not depend on its batch mates", probe.prefills),
        ("a node's logits are those of its path", probe.trees),
        ("a tree that is scored again in a larger one gives its new nodes only", probe.growing),
        ("after a commit it continues from the accepted path", probe.commits),
        ("a draft that is rolled back leaves nothing behind", probe.rollback),
        ("`keep` and `fork` take the rows that they name", probe.rows),
        ("what was scored before `keep` can still be committed", probe.leaving),
        ("copies of a row that `fork` made go their own ways", probe.samples),
        ("rows that `join` continue behind the others", probe.joins),
        (f"the same holds for {large}", probe.large),
        *([] if facts.hidden_size is None else [("hidden states are those that the LM head reads", probe.hidden)]),
    ]


def _check_facts(target: Target) -> None:
    facts = target.facts
    if facts.vocab_size < 2:
        raise CheckFailed(f"vocab_size is {facts.vocab_size}; expected the number of columns of its logits")
    if strangers := [token for token in facts.stop_ids if not 0 <= token < facts.vocab_size]:
        raise CheckFailed(f"stop_ids {strangers} are no tokens of a vocabulary of {facts.vocab_size}")


def _prompts(vocab_size: int) -> list[list[int]]:
    return [[mix(row, place) % vocab_size for place in range(length)] for row, length in enumerate(LENGTHS)]
