"""`check_target`: does scoring a tree give what reading each path gives, whatever was committed, kept and forked before?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specdec.interfaces.declarations import Features, Kind
from specdec.interfaces.part_guard import PartGuard
from specdec.interfaces.parts import BuildTools, PartOptions, Target, TargetState
from specdec.interfaces.results import Scored
from specdec.sampling.keyed_noise import mix
from specdec.testing.opening import opened, part_name
from specdec.testing.report import Checked, CheckFailed
from specdec.trees.draft_tree import DraftTree, Draw, TreeSketch

TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 1.0}
"""Largest difference of log-probabilities between a tree and a path."""

LENGTHS = (5, 2, 7)
NODES = 7
IMPOSSIBLE = -30.0
"""Log-probabilities below are as good as minus infinity."""


def check_target(
    target: Target | type[Target],
    options: Mapping[str, Any] | PartOptions | None = None,
    *,
    prompts: Sequence[Sequence[int]] | None = None,
    tolerance: float | None = None,
) -> Checked:
    """Score trees on three prompts together, against prefills of each path alone. Raises CheckFailed.

    target: a loaded one, or a class that is built from `options`. prompts: ids, for a model that is meaningful only on text.
    tolerance: of log-probabilities; None: 1e-9 for float64, 1e-3 for float32, 0.1 and 1 for float16 and bfloat16.
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
    limit = TOLERANCES.get(facts.dtype, 1.0) if tolerance is None else tolerance
    used = [list(prompt) for prompt in prompts] if prompts is not None else _prompts(facts.vocab_size)
    probe = _Probe(target, used, limit)
    for words, check in (
        ("a prompt's logits do not depend on its batch mates", probe.prefills),
        ("a node's logits are those of its path", probe.trees),
        ("a tree that is scored again in a larger one gives its new nodes only", probe.growing),
        ("after a commit it continues from the accepted path", probe.commits),
        ("a draft that is rolled back leaves nothing behind", probe.rollback),
        ("`keep` and `fork` take the rows that they name", probe.rows),
        ("rows that `join` continue behind the others", probe.joins),
        *([] if facts.hidden_size is None else [("hidden states are those that the LM head reads", probe.hidden)]),
    ):
        with report.rule(words), PartGuard("target", cls):
            check()
    return report


def _check_facts(target: Target) -> None:
    facts = target.facts
    if facts.vocab_size < 2:
        raise CheckFailed(f"vocab_size is {facts.vocab_size}; expected the number of columns of its logits")
    if strangers := [token for token in facts.stop_ids if not 0 <= token < facts.vocab_size]:
        raise CheckFailed(f"stop_ids {strangers} are no tokens of a vocabulary of {facts.vocab_size}")


def _prompts(vocab_size: int) -> list[list[int]]:
    return [[mix(row, place) % vocab_size for place in range(length)] for row, length in enumerate(LENGTHS)]


@dataclass(slots=True)
class _Probe:
    """The distributions, on the same prompts. limit: largest difference of log-probabilities."""

    target: Target
    prompts: list[list[int]]
    limit: float

    def _open(self, features: Features = Features()) -> tuple[TargetState, tuple[Scored, ...]]:  # noqa: B008
        made = self.target.prefill(self.prompts, features)
        return made.state, made.scored

    def _expected(self, tokens: Sequence[int]) -> Tensor:
        """[vocab] what a prefill of `tokens` alone says: no tree, no cache, no batch."""
        return self.target.prefill([list(tokens)], Features()).scored[0].logits[0]

    def _tree(self, prompt: Sequence[int], seed: int, nodes: int = NODES) -> TreeSketch:
        """A tree below a root that follows the prompt; a chain where the target scores no other."""
        vocab_size = self.target.facts.vocab_size
        sketch = TreeSketch(mix(seed, 1) % vocab_size, len(prompt))
        for number in range(nodes):
            parent = mix(seed, 2, number) % len(sketch) if self.target.facts.trees else len(sketch) - 1
            token = mix(seed, 3, number) % vocab_size
            siblings = [sketch.tokens[n] for n in range(1, len(sketch)) if sketch.parents[n] == parent]
            if token not in siblings:
                sketch.add(parent, token)
        return sketch

    def _trees(self, seed: int, texts: Sequence[Sequence[int]] | None = None) -> list[DraftTree]:
        return [
            self._tree(text, seed + row).freeze(Draw.DETERMINISTIC)
            for row, text in enumerate(self.prompts if texts is None else texts)
        ]

    def _score(self, state: TargetState, trees: Sequence[DraftTree]) -> list[Scored]:
        scored: Any = self.target.score(state, trees)
        if not isinstance(scored, list | tuple) or len(scored) != len(trees):
            raise CheckFailed(f"score of {len(trees)} trees returned another number of answers; expected one each")
        return list(scored)

    def _compare(self, scored: Sequence[Scored], trees: Sequence[DraftTree], texts: Sequence[Sequence[int]]) -> None:
        for row, (answer, tree, text) in enumerate(zip(scored, trees, texts, strict=True)):
            if answer.logits.shape != (len(tree) - answer.first_node, self.target.facts.vocab_size):
                raise CheckFailed(
                    f"row {row}: logits are {list(answer.logits.shape)} for nodes {answer.first_node} to {len(tree) - 1}; "
                    f"expected [{len(tree) - answer.first_node}, {self.target.facts.vocab_size}]"
                )
            for place, logits in enumerate(answer.logits):
                node = answer.first_node + place
                path = [tree.tokens[0], *tree.path_tokens(node)]
                self._close(logits, self._expected([*text, *path]), f"row {row}, node {node} (path {path})")

    def _close(self, got: Tensor, wanted: Tensor, where: str) -> None:
        one, other = (row.double().log_softmax(-1).clamp_min(IMPOSSIBLE) for row in (got, wanted))
        difference = (one - other).abs()
        token = int(difference.argmax())
        if not float(difference[token]) <= self.limit:
            raise CheckFailed(
                f"{where}: token {token} has log-probability {float(one[token]):.6g}; reading that path alone gives "
                f"{float(other[token]):.6g} (limit {self.limit:g}): look at positions, mask, and what the cache holds"
            )

    def prefills(self) -> None:
        state, scored = self._open()
        self._lengths(state, [len(prompt) for prompt in self.prompts])
        for row, (answer, prompt) in enumerate(zip(scored, self.prompts, strict=True)):
            self._close(answer.logits[0], self._expected(prompt), f"row {row} of the prefill")

    def _lengths(self, state: TargetState, wanted: Sequence[int]) -> None:
        state.check_integrity()
        if list(state.lengths) != list(wanted):
            raise CheckFailed(f"the state says that it caches {list(state.lengths)} tokens by row; expected {list(wanted)}")

    def trees(self) -> None:
        state, _ = self._open()
        trees = self._trees(10)
        self._compare(self._score(state, trees), trees, self.prompts)

    def growing(self) -> None:
        state, _ = self._open()
        whole = [self._tree(prompt, 20 + row) for row, prompt in enumerate(self.prompts)]
        early = [self._tree(prompt, 20 + row, nodes=2).freeze(Draw.DETERMINISTIC) for row, prompt in enumerate(self.prompts)]
        self._score(state, early)
        later = [sketch.freeze(Draw.DETERMINISTIC) for sketch in whole]
        scored = self._score(state, later)
        for row, (answer, tree) in enumerate(zip(scored, early, strict=True)):
            if answer.first_node != len(tree):
                raise CheckFailed(f"row {row}: {len(tree)} nodes were scored before; first_node is {answer.first_node}")
        self._compare(scored, later, self.prompts)

    def _committed(self, state: TargetState, seed: int, texts: Sequence[Sequence[int]] | None = None) -> list[list[int]]:
        """Score trees, accept a longest path of each, and return the texts that are then cached. texts: by row; the prompts."""
        rows = self.prompts if texts is None else texts
        trees = self._trees(seed, rows)
        self._compare(self._score(state, trees), trees, rows)
        deepest = [max(range(len(tree)), key=lambda node, tree=tree: tree.depths[node]) for tree in trees]  # type: ignore[misc]
        self.target.commit(state, [tree.path(node) for tree, node in zip(trees, deepest, strict=True)])
        return [[*row, tree.tokens[0], *tree.path_tokens(node)] for row, tree, node in zip(rows, trees, deepest, strict=True)]

    def commits(self) -> None:
        state, _ = self._open()
        texts = self._committed(state, 30)
        self._lengths(state, [len(text) for text in texts])
        trees = self._trees(40, texts)
        self._compare(self._score(state, trees), trees, texts)

    def rollback(self) -> None:
        state, _ = self._open()
        self._score(state, self._trees(50))
        self.target.commit(state, [None] * len(self.prompts))
        self._lengths(state, [len(prompt) for prompt in self.prompts])
        trees = self._trees(60)
        self._compare(self._score(state, trees), trees, self.prompts)

    def rows(self) -> None:
        state, _ = self._open()
        texts = self._committed(state, 70)
        copies = self.target.fork(state, [1, 0, 2] if len(texts) == 3 else [1] * len(texts))
        forked = [texts[0], texts[2], texts[2]] if len(texts) == 3 else texts
        trees = self._trees(80, forked)
        self._compare(self._score(copies, trees), trees, forked)
        self.target.commit(copies, [None] * len(forked))
        last = len(forked) - 1
        self.target.keep(copies, [last])
        trees = self._trees(90, [forked[last]])
        self._compare(self._score(copies, trees), trees, [forked[last]])

    def joins(self) -> None:
        state, _ = self._open()
        texts = self._committed(state, 100)
        self.target.keep(state, [len(texts) - 1])
        others, _ = self._open()
        self.target.join(state, others)
        joined: list[Sequence[int]] = [texts[-1], *self.prompts]
        self._lengths(state, [len(text) for text in joined])
        later = self._committed(state, 110, joined)
        self._lengths(state, [len(text) for text in later])
        self.target.keep(state, range(1, len(later)))
        self.target.join(state, self._open()[0])
        rows = [*later[1:], *self.prompts]
        trees = self._trees(120, rows)
        self._compare(self._score(state, trees), trees, rows)

    def hidden(self) -> None:
        state, _ = self._open(Features(last=True))
        trees = self._trees(10)
        for row, answer in enumerate(self._score(state, trees)):
            last = answer.hidden.last
            if last is None or last.shape != (len(trees[row]), self.target.facts.hidden_size):
                got = None if last is None else list(last.shape)
                wanted = [len(trees[row]), self.target.facts.hidden_size]
                raise CheckFailed(f"row {row}: hidden.last is {got}; expected {wanted}")
            for node, logits in enumerate(self.target.head(last)):
                self._close(logits, answer.logits[node], f"row {row}, node {node}: head(hidden.last)")
