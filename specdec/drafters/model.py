"""`model`: a draft language model, with its own cache and tree attention."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field

from specdec.drafters.model_session import ModelSession, open_session
from specdec.drafters.vocabulary import check_vocabularies
from specdec.errors import TargetMismatch
from specdec.interfaces.compatibility import warn_of_few_positions
from specdec.interfaces.declarations import DrafterDeclaration, Gives
from specdec.interfaces.parts import BuildTools, Drafter, PartOptions, Target
from specdec.interfaces.proposals import DraftStart


class ModelOptions(PartOptions):
    """Options of `model`."""

    model: Annotated[
        str | dict[str, Any],
        Field(description="'target' (the target drafts for itself), a model's path or hub id, or a part: {use: NAME, ...}"),
    ]


class ModelDrafter(Drafter[ModelOptions]):
    """A causal language model that proposes its own next-token logits.

    *Source: arXiv 2211.17192, 2302.01318; as a tree 2305.09781.*
    """

    name: ClassVar[str] = "model"
    Options: ClassVar[type[PartOptions]] = ModelOptions

    def __init__(self, model: Target, vocab_size: int) -> None:
        self._model = model
        self._vocab_size = vocab_size

    @classmethod
    def declares(cls, options: ModelOptions) -> DrafterDeclaration:
        """Distributions; the draft model is a further target, unless it is the target itself."""
        nested = () if options.model == "target" else (("model", options.model),)
        return DrafterDeclaration(gives=Gives.DISTRIBUTIONS, targets=nested)

    @classmethod
    def build(cls, options: ModelOptions, tools: BuildTools) -> "ModelDrafter":
        """Raises TargetMismatch when the two models do not share their token ids."""
        if tools.target is None:
            raise TargetMismatch("drafter 'model' is built after its target, and there is none")
        model = tools.target if options.model == "target" else tools.targets["model"]
        if model is not tools.target:
            check_vocabularies(model, tools.target)
            warn_of_few_positions(
                "the draft model", model.facts.max_positions, tools.target.facts.max_positions, "drafts nothing there"
            )
        return cls(model, tools.target.facts.vocab_size)

    def open(self, starts: Sequence[DraftStart]) -> "ModelSession":
        """Prefill the draft model with the prompts."""
        return open_session(self._model, self._vocab_size, starts)
