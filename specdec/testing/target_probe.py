"""A target's answers to trees after prompts, commits, forks and joins, held against prefills of each path alone."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from specdec.interfaces.declarations import Features
from specdec.interfaces.parts import Target, TargetState
from specdec.interfaces.results import Scored
from specdec.testing.report import CheckFailed
from specdec.testing.row_distance import check_log_probs, check_spread
from specdec.testing.target_trees import LEVELS, NODES, extended, long_prompts, longest_path, most_nodes, target_tree
from specdec.trees.draft_tree import DraftTree, Draw


@dataclass(slots=True)
class TargetProbe:
    """The distributions, on the same prompts.

    limit: largest difference of log-probabilities; None: what `check_spread` allows. everywhere:
    whether all nodes of a tree are looked at after each commit, or its first, deepest and last one.
    """

    target: Target
    prompts: list[list[int]]
    limit: float | None
    everywhere: bool = True
    _known: dict[tuple[int, ...], Tensor] = field(default_factory=dict)

    def _open(self, features: Features = Features()) -> tuple[TargetState, tuple[Scored, ...]]:  # noqa: B008
        made = self.target.prefill(self.prompts, features)
        return made.state, made.scored

    def _expected(self, tokens: Sequence[int]) -> Tensor:
        """[vocab] what a prefill of `tokens` alone says: no tree, no cache, no batch."""
        key = tuple(tokens)
        if key not in self._known:
            self._known[key] = self.target.prefill([list(key)], Features()).scored[0].logits[0].clone()
        return self._known[key]

    def _trees(self, seed: int, texts: Sequence[Sequence[int]] | None = None) -> list[DraftTree]:
        return [
            target_tree(self.target.facts, text, seed + row).freeze(Draw.DETERMINISTIC)
            for row, text in enumerate(self.prompts if texts is None else texts)
        ]

    def _score(self, state: TargetState, trees: Sequence[DraftTree]) -> list[Scored]:
        scored: Any = self.target.score(state, trees)
        if not isinstance(scored, list | tuple) or len(scored) != len(trees):
            raise CheckFailed(f"score of {len(trees)} trees returned another number of answers; expected one each")
        return list(scored)

    def _compare(
        self, scored: Sequence[Scored], trees: Sequence[DraftTree], texts: Sequence[Sequence[int]], *, whole: bool = False
    ) -> None:
        for row, (answer, tree, text) in enumerate(zip(scored, trees, texts, strict=True)):
            if answer.logits.shape != (len(tree) - answer.first_node, self.target.facts.vocab_size):
                raise CheckFailed(
                    f"row {row}: logits are {list(answer.logits.shape)} for nodes {answer.first_node} to {len(tree) - 1}; "
                    f"expected [{len(tree) - answer.first_node}, {self.target.facts.vocab_size}]"
                )
            for node in self._looked_at(tree, answer.first_node, whole=whole):
                logits = answer.logits[node - answer.first_node]
                path = [tree.tokens[0], *tree.path_tokens(node)]
                self._close(logits, self._expected([*text, *path]), f"row {row}, node {node} (path {path})")

    def _looked_at(self, tree: DraftTree, first: int, *, whole: bool) -> list[int]:
        """Nodes from `first` on: all; or every fourth of a large tree, and the first, a deepest and the last one."""
        nodes = range(first, len(tree))
        if self.everywhere or (whole and len(tree) <= NODES + 1) or not nodes:
            return list(nodes)
        deepest = max(nodes, key=lambda node: tree.depths[node])
        return sorted({*nodes[:: 4 if whole else len(nodes)], deepest, nodes[-1]})

    def _close(self, got: Tensor, wanted: Tensor, where: str) -> None:
        if self.limit is None:
            check_spread(got, wanted, where)
        else:
            check_log_probs(got, wanted, self.limit, where)

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
        self._compare(self._score(state, trees), trees, self.prompts, whole=True)

    def growing(self) -> None:
        state, _ = self._open()
        before = [0] * len(self.prompts)
        for nodes in (2, 4, NODES):
            sketches = [target_tree(self.target.facts, prompt, 20 + row, nodes) for row, prompt in enumerate(self.prompts)]
            trees = [sketch.freeze(Draw.DETERMINISTIC) for sketch in sketches]
            scored = self._score(state, trees)
            for row, (answer, size) in enumerate(zip(scored, before, strict=True)):
                if answer.first_node != size:
                    raise CheckFailed(f"row {row}: {size} nodes were scored before; first_node is {answer.first_node}")
            self._compare(scored, trees, self.prompts, whole=True)
            before = [len(tree) for tree in trees]

    def _committed(
        self, state: TargetState, seed: int, texts: Sequence[Sequence[int]] | None = None, *, cut: int = 0
    ) -> list[list[int]]:
        """Score trees, accept a path of each, and return the texts that are then cached.

        texts: by row; None: the prompts. cut: levels of a longest path that are rejected, one more from row to row.
        """
        rows = self.prompts if texts is None else texts
        trees = self._trees(seed, rows)
        self._compare(self._score(state, trees), trees, rows)
        paths = [longest_path(tree) for tree in trees]
        if cut:
            paths = [path[: max(0, len(path) - cut - row)] for row, path in enumerate(paths)]
        self.target.commit(state, paths)
        return extended(rows, trees, paths)

    def commits(self) -> None:
        state, _ = self._open()
        texts: Sequence[Sequence[int]] = self.prompts
        for cut in (0, 0, 1, NODES):  # the same tokens again and again: nothing may come from an earlier step
            texts = self._committed(state, 30, texts, cut=cut)
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

    def leaving(self) -> None:
        state, _ = self._open()
        trees = self._trees(130)
        self._score(state, trees)
        left = [row for row in range(len(trees)) if row != 1 or len(trees) == 1]
        self.target.keep(state, left)
        paths = [longest_path(trees[row]) for row in left]
        self.target.commit(state, paths)
        texts = extended([self.prompts[row] for row in left], [trees[row] for row in left], paths)
        self._lengths(state, [len(text) for text in texts])
        self._committed(state, 140, texts)

    def samples(self) -> None:
        state, _ = self._open()
        texts = self._committed(state, 150)
        copies = self.target.fork(state, [2] * len(texts))
        forked = [text for text in texts for _ in range(2)]
        for seed in (160, 170):
            forked = self._committed(copies, seed, forked)
            self._lengths(copies, [len(text) for text in forked])

    def large(self) -> None:
        prompts = long_prompts(self.target.facts, self.prompts)
        state = self.target.prefill(prompts, Features()).state
        sketches = [
            target_tree(
                self.target.facts, prompt, 180 + row, *((most_nodes(self.target.facts), LEVELS) if row % 3 == 0 else (NODES,))
            )
            for row, prompt in enumerate(prompts)
        ]
        trees = [sketch.freeze(Draw.DETERMINISTIC) for sketch in sketches]
        self._compare(self._score(state, trees), trees, prompts, whole=True)
        paths = [longest_path(tree) for tree in trees]
        self.target.commit(state, paths)
        texts = extended(prompts, trees, paths)
        self._lengths(state, [len(text) for text in texts])
        few = [
            tree.freeze(Draw.DETERMINISTIC)
            for tree in (target_tree(self.target.facts, text, 190 + row, 2) for row, text in enumerate(texts))
        ]
        self._compare(self._score(state, few), few, texts)

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
