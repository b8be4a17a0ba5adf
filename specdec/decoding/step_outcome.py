"""What one step came to for one sequence: the tokens that its answer takes, and the figures of the step's record."""

from typing import TypeAlias

from specdec.decoding.sequence import Sequence
from specdec.interfaces.results import Committed, Scored, StepRecord, Verdict
from specdec.sampling.logits_warper import TargetProbs
from specdec.trees.draft_tree import DraftTree

Outcome: TypeAlias = tuple[Verdict, TargetProbs]
"""What the verifier said of a tree, and the probabilities that it read."""


def commit(sequence: Sequence, tree: DraftTree, verdict: Verdict, scored: Scored) -> Committed:
    """Let the sequence emit what the verdict accepted and drew; what of it the answer took."""
    nodes = (0, *verdict.path)
    tokens = [*(tree.tokens[n] for n in verdict.path), verdict.next_token]
    taken = sequence.emit(tokens, [scored.logits[n] for n in nodes] if sequence.wants_logprobs else [])
    return Committed(tuple(tokens[:taken]), nodes[:taken], scored.hidden.rows(list(nodes[:taken])), tree)


def step_record(tree: DraftTree, outcome: Outcome, done: Committed, batch_size: int, seconds: dict[str, float]) -> StepRecord:
    """The figures of one step of one sequence. seconds: by phase, of the whole batch."""
    emitted, (verdict, p) = len(done.tokens), outcome
    accepted = min(len(verdict.path), emitted)
    tested = len(verdict.path) + (not verdict.all_accepted)
    origins = [tree.source[n] if tree.source else 0 for n in verdict.path]
    return StepRecord(
        drafted=tree.num_drafted,
        depth=tree.max_depth,
        tested=min(tested, emitted),
        accepted=accepted,
        committed=emitted,
        emitted=done.tokens,
        sources=tuple([*origins, -1][:emitted]),
        batch_size=batch_size,
        seconds=seconds,
        fallbacks=p.fallbacks,
    )
