"""A judge from labelled answers: which tokens of an answer may stay, by the target's own hidden states.

JSON lines with `messages` and, where the last answer has any, `mistakes`: texts in it that are wrong. All else in it is right.
Fitted by logistic regression; right and wrong tokens count alike in sum. *Source: arXiv 2501.19309, section 4.*
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from specdec.errors import SpecError
from specdec.files.atomic import write_whole
from specdec.files.jsonl import parse_json, text_lines
from specdec.heads.judge import Judge, JudgeConfig, write_judge
from specdec.targets.model_call import ModelCall
from specdec.training.conversations import Conversation, encode, is_held_out, messages_of
from specdec.training.features import hidden_states
from specdec.training.head_spec import Section
from specdec.training.loss_mask import LossMask
from specdec.training.spec import TargetSpec

TOKENS_PER_FORWARD = 4096


class LabelledData(Section):
    """Answers whose mistakes are marked."""

    path: Annotated[Path, Field(description="JSON lines: messages, and mistakes in the last of them")]
    max_tokens: Annotated[int, Field(ge=8, description="longer conversations are cut")] = 1024
    held_out_share: Annotated[float, Field(gt=0, lt=1, description="of the questions, by a hash of their words")] = 0.2


class JudgeHead(Section):
    """What is trained."""

    kind: Literal["judge"]


class JudgeSpec(Section):
    """A training run of a judge."""

    name: Annotated[str, Field(min_length=1)]
    target: TargetSpec
    output: Annotated[Path, Field(description="folder of the judge, as head, and of its validation")]
    data: LabelledData
    head: JudgeHead
    weight_decay: Annotated[float, Field(ge=0, description="of the weights, on features of spread 1")] = 0.01
    iterations: Annotated[int, Field(ge=1, description="of L-BFGS, at most")] = 200


@dataclass(frozen=True, slots=True)
class Validation:
    """On held-out answers, at a threshold of one half. right_kept, wrong_kept: shares of these tokens that may stay.

    area: under the ROC curve; 1/2 tells nothing apart.
    """

    right: int
    wrong: int
    right_kept: float
    wrong_kept: float
    area: float


def labelled(
    path: Path, mask: LossMask, decode: Callable[[Sequence[int]], str], max_tokens: int
) -> list[tuple[Conversation, Tensor]]:
    """Each conversation with [tokens] bool: whether the token is right. Raises SpecError by line, as for a text not found."""
    found = []
    for where, line in text_lines(path):
        try:
            record = parse_json(line)
        except ValueError as error:
            raise SpecError(f"{where}: the line is no JSON: {error}") from error
        if not isinstance(record, dict):
            raise SpecError(f"{where}: got a {type(record).__name__}; expected 'messages' and 'mistakes'")
        conversation = encode(messages_of(record, where), mask, max_tokens)
        found.append((conversation, _right(conversation, _mistakes(record, where), decode, where)))
    if not found:
        raise SpecError(f"{path}: has no answers")
    return found


def _mistakes(record: dict[str, Any], where: str) -> list[str]:
    mistakes = record.get("mistakes", [])
    if not isinstance(mistakes, list) or not all(isinstance(text, str) and text for text in mistakes):
        raise SpecError(f"{where}: mistakes: got {mistakes!r}; expected a list of texts that stand in the answer")
    return mistakes


def _right(conversation: Conversation, mistakes: Sequence[str], decode: Callable[[Sequence[int]], str], where: str) -> Tensor:
    right = torch.ones(len(conversation.token_ids), dtype=torch.bool)
    spoken = [place for place, said in enumerate(conversation.spoken) if said]
    begin = next((place for place in reversed(spoken) if place - 1 not in spoken), 0)
    turn = [place for place in spoken if place >= begin]
    ends = [len(decode(conversation.token_ids[begin : place + 1])) for place in turn]
    answer = decode([conversation.token_ids[place] for place in turn])
    for text in mistakes:
        first = answer.find(text)
        if first < 0:
            raise SpecError(f"{where}: mistakes: {text!r} does not stand in the last answer")
        while first >= 0:
            for place, start, end in zip(turn, [0, *ends], ends, strict=False):
                right[place] &= not (start < first + len(text) and end > first)
            first = answer.find(text, first + 1)
    return right


def train_judge(
    spec: JudgeSpec, call: ModelCall, answers: Sequence[tuple[Conversation, Tensor]], trained_with: Any
) -> Validation:
    """Fit, validate, and write `head` and validation.json into the output folder. Raises SpecError for answers of one kind."""
    learnt, held = _parts(spec, call, answers)
    center, scale = learnt[0].mean(0), learnt[0].std(0).clamp_min(1e-6)
    weight, bias = _fitted((learnt[0] - center) / scale, learnt[1], spec)
    weight = weight / scale
    config = JudgeConfig(hidden_size=len(weight), vocab_size=call.vocab_size, trained_with=trained_with)
    judge = Judge(config, weight, bias - weight @ center)
    found = validated_on(judge, *held)
    spec.output.mkdir(parents=True, exist_ok=True)
    write_whole(spec.output / "validation.json", json.dumps(asdict(found), indent=2) + "\n")
    write_judge(spec.output / "head", judge)
    return found


def _parts(
    spec: JudgeSpec, call: ModelCall, answers: Sequence[tuple[Conversation, Tensor]]
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """(features [tokens, hidden], right [tokens]) to learn from, and held out."""
    parts: dict[bool, list[tuple[Tensor, Tensor]]] = {False: [], True: []}
    for (conversation, right), states in zip(
        answers, hidden_states(call, [one for one, _ in answers], TOKENS_PER_FORWARD), strict=True
    ):
        said = torch.tensor(conversation.spoken)
        parts[is_held_out(conversation.key, spec.data.held_out_share)].append((states[said].float(), right[said]))
    for held, name in ((False, "to learn from"), (True, "held out")):
        labels = torch.cat([right for _, right in parts[held]] or [torch.zeros(0, dtype=torch.bool)])
        if not len(labels) or bool(labels.all()) or not bool(labels.any()):
            kind = "no" if not len(labels) else "only right" if bool(labels.all()) else "only wrong"
            raise SpecError(f"data: {kind} tokens are {name}; more answers, some with mistakes, would work")
    learnt, held_out = (tuple(torch.cat(column) for column in zip(*parts[held], strict=True)) for held in (False, True))
    return (learnt[0], learnt[1]), (held_out[0], held_out[1])


def _fitted(features: Tensor, right: Tensor, spec: JudgeSpec) -> tuple[Tensor, Tensor]:
    weight, bias = torch.zeros(features.shape[1], requires_grad=True), torch.zeros((), requires_grad=True)
    labels = right.float()
    shares = torch.where(right, 0.5 / labels.sum(), 0.5 / (1 - labels).sum())
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=spec.iterations, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = binary_cross_entropy_with_logits(features @ weight + bias, labels, weight=shares, reduction="sum")
        loss = loss + spec.weight_decay / 2 * weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return weight.detach(), bias.detach()


def validated_on(judge: Judge, features: Tensor, right: Tensor) -> Validation:
    """features: [tokens, hidden]. right: [tokens], some true and some false."""
    scores = features @ judge.weight + judge.bias
    order = scores.argsort().argsort().float()
    count, others = int(right.sum()), int((~right).sum())
    area = (float(order[right].sum()) - count * (count - 1) / 2) / (count * others)
    kept = scores > 0
    return Validation(count, others, float(kept[right].float().mean()), float(kept[~right].float().mean()), area)
