"""A request's way from logits to the target's distribution at every node of a tree.

The order and meaning are those of `transformers.generate`: bias and penalties, minimum length, user processors, temperature,
top-k, top-p, min-p. Presence and frequency penalties have OpenAI's meaning: they look at generated tokens only.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from specdec.errors import NumericsError, SpecdecError, SpecError
from specdec.sampling.distribution import UNUSABLE_ROW, TokenDist, point_mass, truncate
from specdec.sampling.params import SamplingParams
from specdec.trees.draft_tree import DraftTree

LogitsProcessor: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(input_ids [1, length], scores [1, vocab]) -> scores [1, vocab]: the protocol of transformers' LogitsProcessor."""


class LogitsWarper:
    """One request's way from logits to p.

    stop_ids end the sequence: below one of them the distribution is that token for ever, so that nothing is computed (and no
    processor is called) after the end.
    """

    def __init__(
        self,
        sampling: SamplingParams,
        *,
        prompt_length: int,
        stop_ids: frozenset[int],
        processors: Sequence[LogitsProcessor] = (),
    ) -> None:
        self.sampling = sampling
        self.prompt_length = prompt_length
        self.stop_ids = stop_ids
        self._processors = tuple(processors)
        self._penalised = (
            sampling.repetition_penalty != 1.0 or bool(sampling.presence_penalty) or bool(sampling.frequency_penalty)
        )

    @property
    def depends_on_path(self) -> bool:
        """Whether the raw logits of a node are changed before temperature."""
        return self._penalised or bool(self._processors or self.sampling.logit_bias or self.sampling.min_new_tokens)

    def target_probs(
        self,
        logits: Tensor,
        prefix: Sequence[int],
        tree: DraftTree,
        *,
        by_branch: bool = False,
        features: Tensor | None = None,
    ) -> "TargetProbs":
        """The target's distribution at the nodes of `tree`.

        logits: [nodes, vocab], left as they are. prefix: prompt and emitted tokens, root included. by_branch: for a verifier
        that reads rows off the path that it takes: each node calls forks of the processors as its parent left them.
        features: [nodes, hidden] for a verifier that reads them.
        """
        return TargetProbs(self, logits, prefix, tree, self._processors if by_branch and self._processors else None, features)

    def row(self, logits: Tensor, tokens: Sequence[int], processors: Sequence[LogitsProcessor] | None = None) -> TokenDist:
        """P after `tokens` (prompt included) for one row of logits [vocab]. processors: in place of its own."""
        if not self.depends_on_path:
            return truncate(logits, self.sampling)
        return truncate(self.processed(logits, tokens, processors), self.sampling)

    def resume(self, processors: Sequence[LogitsProcessor]) -> None:
        """Call these from now on: those of the branch that was taken."""
        self._processors = tuple(processors)

    def processed(self, logits: Tensor, tokens: Sequence[int], processors: Sequence[LogitsProcessor] | None = None) -> Tensor:
        """Bias, penalties, minimum length and user processors, on a copy in at least float32."""
        options = self.sampling
        scores = logits.to(torch.float64 if logits.dtype == torch.float64 else torch.float32, copy=True)
        for token, bias in options.logit_bias.items():
            scores[token] += bias
        if options.repetition_penalty != 1.0:
            seen = torch.tensor(sorted(set(tokens)), device=scores.device)
            values = scores[seen]
            penalty = options.repetition_penalty
            scores[seen] = torch.where(values < 0, values * penalty, values / penalty)
        generated = tokens[self.prompt_length :]
        if generated and (options.presence_penalty or options.frequency_penalty):
            counts = Counter(generated)
            penalties = [options.presence_penalty + options.frequency_penalty * n for n in counts.values()]
            scores[torch.tensor(list(counts), device=scores.device)] -= torch.tensor(
                penalties, dtype=scores.dtype, device=scores.device
            )
        if len(generated) < options.min_new_tokens and self.stop_ids:
            scores[torch.tensor(sorted(self.stop_ids), device=scores.device)] = float("-inf")
        if called := self._processors if processors is None else processors:
            input_ids = torch.tensor([list(tokens)], device=scores.device)
            for processor in called:
                scores = _applied(processor, input_ids, scores)
        return scores


def forked(processor: LogitsProcessor) -> LogitsProcessor:
    """A processor that goes on from the same state by itself; one without `fork` is taken to have no state."""
    fork = getattr(processor, "fork", None)
    return fork() if callable(fork) else processor


def _applied(processor: LogitsProcessor, input_ids: Tensor, scores: Tensor) -> Tensor:
    """[vocab] what one processor makes of the scores [vocab]. Raises SpecError naming it."""
    name = getattr(processor, "__qualname__", type(processor).__qualname__)
    try:
        answer: Any = processor(input_ids, scores[None])
    except SpecdecError:
        raise
    except Exception as error:
        raise SpecError(f"logits processor {name} fails: {type(error).__name__}: {error}") from error
    if not isinstance(answer, Tensor):
        got = type(answer).__name__
    elif answer.layout != torch.strided:
        got = f"a tensor of layout {str(answer.layout).removeprefix('torch.')}"
    elif answer.shape == (1, len(scores)) and answer.is_floating_point() and answer.device.type == scores.device.type:
        return answer[0].detach()
    else:
        got = f"a tensor {tuple(answer.shape)} of {str(answer.dtype).removeprefix('torch.')} on {answer.device.type}"
    raise SpecError(
        f"logits processor {name} returned {got}; expected the scores, a tensor (1, {len(scores)}) of "
        f"{str(scores.dtype).removeprefix('torch.')} on {scores.device.type}"
    )


class TargetProbs:
    """p by node, each computed once and only when it is asked for."""

    __slots__ = ("_best", "_features", "_greedy", "_left_by", "_logits", "_prefix", "_rows", "_tree", "_warper", "fallbacks")

    def __init__(
        self,
        warper: LogitsWarper,
        logits: Tensor,
        prefix: Sequence[int],
        tree: DraftTree,
        processors: Sequence[LogitsProcessor] | None = None,
        features: Tensor | None = None,
    ) -> None:
        self._warper = warper
        self._features = features
        self._logits = logits
        self._prefix = prefix
        self._tree = tree
        self._rows: dict[int, TokenDist] = {}
        self._left_by: dict[int, tuple[LogitsProcessor, ...]] | None = None if processors is None else {-1: tuple(processors)}
        """By node, the processors after its call; -1: before the root's."""
        self._greedy: list[int] | None = None
        self._best: list[float] = []
        self.fallbacks = 0

    def row(self, node: int) -> TokenDist:
        """P at `node`. Raises NumericsError for a row that allows no token, naming it."""
        if node not in self._rows:
            try:
                self._rows[node] = self._compute(node)
            except NumericsError as error:
                length = len(self._prefix) + len(self._tree.path(node))
                raise NumericsError(f"row {node} of the target's logits, after {length} tokens: {error}") from error
        return self._rows[node]

    def unwarped(self, node: int) -> Tensor:
        """[vocab] the target's logits at `node` as it gave them; a rule that reads them declares Beside.UNWARPED_LOGITS."""
        return self._logits[node]

    def feature(self, node: int) -> Tensor:
        """[hidden] the target's hidden state after its final norm at `node`, for a rule that declares Beside.FEATURES.

        Raises SpecdecError where the target gave none.
        """
        if self._features is None:
            raise SpecdecError("the target gives no hidden states here: a verifier that reads them declares Beside.FEATURES")
        return self._features[node]

    def fall_back(self, dist: TokenDist) -> TokenDist:
        """`dist` itself, where a residual came out empty: an event of probability zero up to rounding, which is counted."""
        self.fallbacks += 1
        return dist

    def _compute(self, node: int) -> TokenDist:
        if node > 0 and self._tree.tokens[node] in self._warper.stop_ids:
            return point_mass(self._tree.tokens[node])
        if self._warper.depends_on_path:
            return self._warper.row(
                self._logits[node], [*self._prefix, *self._tree.path_tokens(node)], self._processors_at(node)
            )
        if not self._warper.sampling.temperature:
            return self._greedy_row(node)
        return truncate(self._logits[node], self._warper.sampling)

    def _processors_at(self, node: int) -> tuple[LogitsProcessor, ...] | None:
        """Forks of what the parent left; None where all nodes call the warper's own."""
        if self._left_by is None:
            return None
        parent = self._tree.parents[node]
        if parent >= 0:
            self.row(parent)
        self._left_by[node] = tuple(map(forked, self._left_by[parent]))
        return self._left_by[node]

    def settle(self, path: Sequence[int]) -> None:
        """Go on with the processors of the last node that was accepted. path: nodes below the root."""
        if self._left_by is not None:
            last = next((node for node in (*reversed(path), 0) if node in self._left_by), -1)
            self._warper.resume(self._left_by[last])

    def _greedy_row(self, node: int) -> TokenDist:
        if self._greedy is None:
            best, tokens = self._logits.max(-1)
            self._best, self._greedy = best.tolist(), tokens.tolist()
        if not float("-inf") < self._best[node] < float("inf"):
            raise NumericsError(UNUSABLE_ROW)
        return point_mass(self._greedy[node])
