"""A target whose probabilities are a table: tiny, exact, and able to do all that a real one does."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
from pydantic import Field, model_validator
from torch import Tensor

from specdec.errors import NumericsError, SpecError, TargetMismatch
from specdec.interfaces.declarations import Features, TargetDeclaration
from specdec.interfaces.parts import BuildTools, Prefilled, Target, TargetState
from specdec.interfaces.probability_table import ProbabilityTable, TableOptions
from specdec.interfaces.results import Scored, TargetFacts
from specdec.interfaces.text_codec import PLAIN_CHAT, ChatFormat, TextCodec
from specdec.trees.draft_tree import DraftTree, TreeError
from specdec.trees.tree_rules import validate

LETTERS = "abcdefghijklmnopqrstuvwxyz"


class TabularTargetOptions(TableOptions):
    """The target's table and limits."""

    max_positions: Annotated[int | None, Field(ge=1, description="context length; unset: unbounded")] = None
    stop_ids: Annotated[tuple[int, ...], Field(description="tokens that end a text")] = ()

    @model_validator(mode="after")
    def _check_stop_ids(self) -> "TabularTargetOptions":
        strangers = [token for token in self.stop_ids if not 0 <= token < self.vocab]
        if strangers:
            raise ValueError(f"stop_ids {strangers} are no tokens; the vocabulary has 0 to {self.vocab - 1}")
        return self


@dataclass(slots=True)
class _Row:
    """One sequence: its cached tokens, and the tree that was scored since the last commit."""

    cached: list[int]
    tree: DraftTree | None = None


@dataclass(slots=True)
class TabularState(TargetState):
    """Plain token lists in place of a KV cache."""

    vocab_size: int
    rows: list[_Row] = field(default_factory=list)

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(len(row.cached) for row in self.rows)

    def check_integrity(self) -> None:
        for number, row in enumerate(self.rows):
            strangers = [token for token in row.cached if not 0 <= token < self.vocab_size]
            if not row.cached or strangers:
                raise NumericsError(f"row {number} caches no token, or tokens outside the vocabulary: {strangers}")
            if row.tree is not None and row.tree.root_position != len(row.cached):
                raise NumericsError(
                    f"row {number} caches {len(row.cached)} tokens and its tree's root is at {row.tree.root_position}"
                )


class Tabular(Target[TabularTargetOptions]):
    """Float64 log-probabilities from a table of histories."""

    name: ClassVar[str] = "tabular"
    Options: ClassVar[type[TabularTargetOptions]] = TabularTargetOptions

    def __init__(self, options: TabularTargetOptions) -> None:
        self._options = options
        self._table = ProbabilityTable(options)

    @classmethod
    def declares(cls, options: TabularTargetOptions) -> TargetDeclaration:
        return TargetDeclaration(vocab_size=options.vocab, num_layers=0, max_positions=options.max_positions)

    @classmethod
    def build(cls, options: TabularTargetOptions, tools: BuildTools) -> "Tabular":
        return cls(options)

    @property
    def facts(self) -> TargetFacts:
        return TargetFacts(
            vocab_size=self._options.vocab,
            max_positions=self._options.max_positions,
            stop_ids=frozenset(self._options.stop_ids),
            hidden_size=None,
            num_layers=0,
            device=torch.device("cpu"),
            dtype=torch.float64,
            description=f"table over {self._options.vocab} tokens",
        )

    @property
    def codec(self) -> TextCodec | None:
        return LetterCodec(self._options.vocab) if self._options.vocab <= len(LETTERS) else None

    def prefill(self, prompts: Sequence[Sequence[int]], features: Features) -> Prefilled:
        if features:
            raise TargetMismatch("target 'tabular' has no hidden states: use a drafter that needs no features")
        for prompt in prompts:
            self._check_position(len(prompt) - 1)
        state = TabularState(self._options.vocab, [_Row(list(prompt)) for prompt in prompts])
        state.check_integrity()
        return Prefilled(state, tuple(Scored(self._table.log_probs(prompt)[None]) for prompt in prompts))

    def score(self, state: TargetState, trees: Sequence[DraftTree]) -> list[Scored]:
        return [self._score_row(row, tree) for row, tree in zip(_own(state).rows, trees, strict=True)]

    def _score_row(self, row: _Row, tree: DraftTree) -> Scored:
        validate(tree, vocab_size=self._options.vocab)
        first_node = 0
        if row.tree is not None:
            first_node = len(row.tree)
            if (tree.tokens[:first_node], tree.parents[:first_node]) != (row.tree.tokens, row.tree.parents):
                raise TreeError("a tree that is scored again must extend the earlier one: same nodes first")
        if tree.root_position != len(row.cached):
            raise NumericsError(f"the tree's root is at {tree.root_position}; {len(row.cached)} tokens are cached")
        self._check_position(tree.root_position + tree.max_depth)
        row.tree = tree
        contexts = [[*row.cached, tree.tokens[0], *tree.path_tokens(node)] for node in range(first_node, len(tree))]
        rows = [self._table.log_probs(context) for context in contexts]
        empty = torch.empty(0, self._options.vocab, dtype=torch.float64)
        return Scored(torch.stack(rows) if rows else empty, first_node=first_node)

    def _check_position(self, position: int) -> None:
        limit = self._options.max_positions
        if limit is not None and position >= limit:
            raise TargetMismatch(f"position {position} is beyond the context of {limit} tokens")

    def commit(self, state: TargetState, paths: Sequence[Sequence[int] | None]) -> None:
        for row, path in zip(_own(state).rows, paths, strict=True):
            if path is not None:
                if row.tree is None:
                    raise NumericsError("nothing was scored since the last commit: there is no path to keep")
                if list(path) != (row.tree.path(path[-1]) if path else []):
                    raise TreeError(f"nodes {list(path)} are no path from the root")
                row.cached += [row.tree.tokens[node] for node in (0, *path)]
            row.tree = None

    def keep(self, state: TargetState, rows: Sequence[int]) -> None:
        own = _own(state)
        own.rows = [own.rows[row] for row in rows]

    def fork(self, state: TargetState, copies: Sequence[int]) -> TargetState:
        own = _own(state)
        pairs = zip(own.rows, copies, strict=True)
        return TabularState(own.vocab_size, [_Row(list(row.cached), row.tree) for row, count in pairs for _ in range(count)])

    def join(self, state: TargetState, other: TargetState) -> None:
        _own(state).rows.extend(_Row(list(row.cached)) for row in _own(other).rows)

    def embed(self, ids: Tensor) -> Tensor:
        raise TargetMismatch("target 'tabular' has no embeddings: use a drafter that borrows none")

    def head(self, hidden: Tensor) -> Tensor:
        raise TargetMismatch("target 'tabular' has no LM head: use a drafter that borrows none")


def _own(state: TargetState) -> TabularState:
    if not isinstance(state, TabularState):
        raise TargetMismatch(f"a state of another target was passed to 'tabular': {type(state).__name__}")
    return state


class LetterCodec(TextCodec):
    """Token 0 is 'a', token 1 is 'b' and so on."""

    def __init__(self, vocab_size: int) -> None:
        self._ids = {LETTERS[token]: token for token in range(vocab_size)}

    def encode(self, text: str, *, opens: bool = True, escape_control_tokens: bool = False) -> list[int]:
        unknown = sorted(set(text) - set(self._ids))
        if unknown:
            raise SpecError(f"this model writes {''.join(self._ids)}; the text has {''.join(unknown)!r}")
        return [self._ids[letter] for letter in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(LETTERS[token] for token in ids)

    @property
    def special_tokens(self) -> Mapping[int, str]:
        return {}

    @property
    def control_tokens(self) -> Collection[str]:
        return ()

    @property
    def chat_template(self) -> str | None:
        return None

    def chat(self, messages: Sequence[Mapping[str, str]], chat_format: ChatFormat = PLAIN_CHAT) -> list[int]:
        raise TargetMismatch("target 'tabular' has no chat template: pass a plain text or ids")

    def vocabulary(self) -> Mapping[str, int]:
        return dict(self._ids)

    def tokenizer_json(self) -> str | None:
        by_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        model = {"type": "BPE", "vocab": self._ids, "merges": []}
        end = {
            "id": len(self._ids),
            "content": "<end>",
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
        }
        return json.dumps(
            {"added_tokens": [{**end, "normalized": False}], "pre_tokenizer": by_bytes, "decoder": by_bytes, "model": model}
        )
