"""What a drafter and a verifier answer, checked before it is used: a wrong answer must not become a wrong output."""

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec.errors import PluginError
from specdec.interfaces.proposals import Candidates, Distributions, Proposal
from specdec.interfaces.results import Verdict
from specdec.trees.draft_tree import DraftTree

ID_TYPES = frozenset({torch.int32, torch.int64})
"""Integers that torch takes as indices; others it refuses, or takes as masks."""


class ProposalCheck:
    """Looks at the answers of one drafter. Column ids are looked at once for each tensor: that costs a sort."""

    def __init__(self, drafter: str, vocab_size: int) -> None:
        self._drafter = drafter
        self._vocab_size = vocab_size
        self._known: tuple[Tensor, int] | None = None

    def check(self, proposal: object, num_nodes: int) -> Proposal:
        """The answer itself. Raises PluginError, naming the drafter, unless it is one to a frontier of so many nodes.

        NaN is found where the numbers are read anyway: in `Distributions.top` and `draft_probs`.
        """
        if proposal is None:
            raise self._error(f"left a frontier of {num_nodes} nodes unanswered")
        if not isinstance(proposal, Distributions | Candidates):
            raise self._error(f"answered with {type(proposal).__name__}, not with a Proposal")
        if isinstance(proposal, Candidates):
            self._size(len(proposal.tokens), num_nodes)
            self._candidates(proposal)
        else:
            self._distributions(proposal, num_nodes)
        return proposal

    def _error(self, message: str) -> PluginError:
        return PluginError(f"drafter '{self._drafter}' {message}")

    def _size(self, size: int, num_nodes: int) -> None:
        if size != num_nodes:
            raise self._error(f"answered {size} nodes; the frontier has {num_nodes}")

    def _candidates(self, proposal: Candidates) -> None:
        for tokens, scores in zip(proposal.tokens, proposal.scores, strict=True):
            for token in tokens:
                if type(token) is not int or not 0 <= token < self._vocab_size:
                    raise self._error(f"proposed {token!r}; expected an id in the target's vocabulary of {self._vocab_size}")
            if len(set(tokens)) < len(tokens):
                raise self._error(f"proposed {list(tokens)} after one node; expected each token once, with its best score")
            for score in scores:
                if not isinstance(score, float | int) or not score <= 0:
                    raise self._error(f"gave a score of {score!r}; expected a log-probability, at most 0")

    def _distributions(self, proposal: Distributions, num_nodes: int) -> None:
        logits, ids = proposal.logits, proposal.target_ids
        if not isinstance(logits, Tensor) or logits.ndim != 2 or not logits.is_floating_point():
            raise self._error(f"answered with logits that are {_described(logits)}; expected floats [nodes, vocab]")
        self._size(len(logits), num_nodes)
        if not 0 < logits.shape[1] <= self._vocab_size:
            raise self._error(f"gave {logits.shape[1]} columns of logits; the target's vocabulary has {self._vocab_size}")
        if ids is not None:
            self._column_ids(ids, logits.shape[1])

    def _column_ids(self, ids: Tensor, columns: int) -> None:
        if not isinstance(ids, Tensor) or ids.ndim != 1 or ids.dtype not in ID_TYPES:
            raise self._error(f"gave target_ids that are {_described(ids)}; expected whole numbers [columns]")
        if len(ids) != columns:
            raise self._error(f"gave {len(ids)} target_ids for {columns} columns of logits")
        if self._known is not None and self._known[0] is ids and self._known[1] == ids._version:
            return
        ordered = ids.sort().values
        lowest, highest = int(ordered[0]), int(ordered[-1])
        if lowest < 0 or highest >= self._vocab_size:
            wrong = lowest if lowest < 0 else highest
            raise self._error(f"maps a column to {wrong}, outside the target's vocabulary of {self._vocab_size}")
        if bool((ordered[1:] == ordered[:-1]).any()):
            raise self._error("maps two columns of logits to the same target id")
        self._known = (ids, ids._version)


def _described(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return type(value).__name__


def checked_verdict(verdict: object, tree: DraftTree, vocab_size: int, verifier: str) -> Verdict:
    """The verdict itself. Raises PluginError, naming the verifier, unless it is a path of `tree` and a token."""
    if not isinstance(verdict, Verdict):
        raise PluginError(f"verifier '{verifier}' returned {type(verdict).__name__}, not a Verdict")
    if (fault := _fault(verdict, tree, vocab_size)) is not None:
        raise PluginError(f"verifier '{verifier}' {fault}")
    return verdict


def _fault(verdict: Verdict, tree: DraftTree, vocab_size: int) -> str | None:
    path, token = verdict.path, verdict.next_token
    if not isinstance(path, tuple) or not _is_path(path, tree):
        return f"accepted {path!r}, which is no tuple of nodes from below the root down"
    if type(token) is not int or not 0 <= token < vocab_size:
        return f"drew {token!r}; expected an id in the target's vocabulary of {vocab_size}"
    last = path[-1] if path else 0
    is_leaf = all(child in tree.scouts for child in tree.draw_order.get(last, ()))
    if verdict.all_accepted is not is_leaf:
        return f"says all_accepted={verdict.all_accepted!r}; the path ends {'at' if is_leaf else 'above'} a leaf"
    return None


def _is_path(path: Sequence[object], tree: DraftTree) -> bool:
    above = 0
    for node in path:
        if type(node) is not int or not 0 < node < len(tree) or tree.parents[node] != above or node in tree.scouts:
            return False
        above = node
    return True
