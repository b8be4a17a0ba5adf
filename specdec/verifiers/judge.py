"""Lossy: a token stays if the exact rule takes it, or if a judge that was trained on labelled answers says that it may."""

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from specdec.errors import TargetMismatch
from specdec.files.paths import ModelFolder, expanded
from specdec.heads.judge import Judge as Head
from specdec.heads.judge import read_judge, read_judge_config
from specdec.interfaces.compatibility import size_fault
from specdec.interfaces.declarations import ALL_SHAPES, Beside, Guarantee, Reads, VerifierDeclaration
from specdec.interfaces.parts import BuildTools, PartOptions, Verifier
from specdec.interfaces.results import Verdict
from specdec.sampling.logits_warper import TargetProbs
from specdec.sampling.rng import TargetRng
from specdec.trees.draft_tree import DraftTree, Draw
from specdec.verifiers.base import siblings

ACCEPTS = frozenset({Draw.DETERMINISTIC})


class JudgeOptions(PartOptions):
    """Options of `judge`."""

    head: Annotated[ModelFolder, Field(description="a folder of a judge, as `specdec train` writes it")]
    threshold: Annotated[
        float, Field(ge=0, le=1, description="a token may stay where the judge gives it more; 1: the exact rule alone")
    ] = 0.5


class Judge(Verifier[JudgeOptions]):
    """`match`, or the first child in draw order that the judge lets stay where the target's own draw was not drafted.

    The judge is a linear map of the target's last hidden state at the drafted token itself, so that these are read of children
    that are then left. What the answer follows has no closed form, and no exact price is stated.
    *Source: arXiv 2501.19309, section 4.*
    """

    name: ClassVar[str] = "judge"
    Options: ClassVar[type[PartOptions]] = JudgeOptions

    def __init__(self, head: Head, threshold: float) -> None:
        self._head = head
        self._threshold = threshold

    @classmethod
    def declares(cls, options: JudgeOptions) -> VerifierDeclaration:
        """Lossy, on deterministic drafts. Raises CheckpointError for a folder without a judge."""
        read_judge_config(_folder(options))
        return VerifierDeclaration(
            ACCEPTS,
            ALL_SHAPES,
            reads_q=False,
            guarantee=Guarantee.LOSSY,
            reads=Reads.PATH,
            accepts_impossible=True,
            reads_beside=frozenset({Beside.FEATURES}),
        )

    @classmethod
    def build(cls, options: JudgeOptions, tools: BuildTools) -> "Judge":
        """Raises CheckpointError for the files, TargetMismatch for a judge of another model."""
        head = read_judge(_folder(options))
        if tools.target is not None:
            facts, sizes = tools.target.facts, (head.config.hidden_size, head.config.vocab_size)
            if facts.hidden_size is None:
                raise TargetMismatch(f"verifier 'judge' reads hidden states; {facts.description} has none")
            if (fault := size_fault(sizes, facts.hidden_size, facts.vocab_size, facts.description)) is not None:
                raise TargetMismatch(f"verifier 'judge' {fault}")
        return cls(head, options.threshold)

    def verify(self, tree: DraftTree, target_probs: TargetProbs, rng: TargetRng) -> Verdict:
        path, node = list[int](), 0
        while True:
            children = siblings(tree, node, ACCEPTS, self.name)
            token = target_probs.row(node).choose(rng, tree.root_position + tree.depths[node] + 1)
            taken = next((child for child in children if tree.tokens[child] == token), None)
            if taken is None:
                taken = next((child for child in children if self._may_stay(target_probs, child)), None)
            if taken is None:
                return Verdict(tuple(path), token, all_accepted=not children)
            path.append(taken)
            node = taken

    def _may_stay(self, target_probs: TargetProbs, child: int) -> bool:
        return self._threshold < 1 and self._head.score(target_probs.feature(child)) > self._threshold


def _folder(options: JudgeOptions) -> Path:
    return expanded(options.head)
