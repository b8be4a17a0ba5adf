"""From a decoder and some questions to an acceptance profile."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from specdec.bench.chat_prompts import Prompter, has_room
from specdec.bench.prompts import Question
from specdec.compose import load
from specdec.decoding.decoder import Decoder
from specdec.errors import SpecError
from specdec.interfaces.declarations import BuilderDeclaration, DrafterDeclaration
from specdec.interfaces.results import TargetFacts
from specdec.interfaces.text_codec import PLAIN_CHAT, ChatFormat, TextCodec
from specdec.performance.acceptance_profile import DIGITS, AcceptanceProfile, counts, encoded
from specdec.sampling.keyed_noise import request_key
from specdec.tree_search.acceptance_probe import Listener, Offers, Probe, StepCounts, Trials
from specdec.trees.draft_tree import Draw
from specdec.trees.tree_shape import RankPath

PROBED = (
    "every token of the answers as a root, and below it a full tree along the answer, whatever the strategy's own tree: "
    "deterministic drafts, the target's own choices"
)
OWN_STEPS = (
    "the strategy's own steps: nodes that its tree gave children, and roots where its own steps began; a rank that was not "
    "offered counts as not accepted"
)


@dataclass(frozen=True, slots=True)
class AcceptancePlan:
    """How to measure. width, depth: of the tree that is looked at; own_steps: the strategy's tree and verifier as they are."""

    max_new_tokens: int = 128
    width: int = 8
    depth: int = 8
    own_steps: bool = False
    seed: int = 0


def check_measurable(drafter: DrafterDeclaration, builder: BuilderDeclaration, *, own_steps: bool) -> None:
    """Raise SpecError for a drafter that drafts nothing, and a builder that draws from q unless its own steps are wanted."""
    if not drafter.drafts:
        raise SpecError("this strategy drafts nothing, so nothing is accepted")
    if not own_steps and builder.draw is not Draw.DETERMINISTIC:
        raise SpecError(
            f"the tree makes {builder.draw} draws, and whether such a draw is accepted depends on the rule: "
            "measure the strategy's own steps (--own-steps)"
        )


def measure_acceptance(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    plan: AcceptancePlan,
    *,
    source: str,
    provenance: dict[str, Any],
    on_answer: Callable[[], None] = lambda: None,
) -> AcceptanceProfile:
    """The profile of a decoder's drafter on these prompts. `on_answer` is called after each.

    Raises SpecError where `check_measurable` does, and where there is nothing to count.
    """
    check_measurable(decoder.drafter.declaration, decoder.builder.declaration, own_steps=plan.own_steps)
    for name, value, most in (("width", plan.width, len(DIGITS)), ("depth", plan.depth, len(DIGITS) - 1)):
        if not 1 <= value <= most:
            raise SpecError(f"{name}: got {value}; expected 1 to {most}")
    run = _own_steps if plan.own_steps else _probed
    return run(decoder, prompts, plan, source, provenance, on_answer)


def first_turns(
    questions: Sequence[Question],
    codec: TextCodec | None,
    facts: TargetFacts | None = None,
    *,
    room: int = 1,
    chat_format: ChatFormat = PLAIN_CHAT,
) -> list[list[int]]:
    """The ids of each question's first turn; by the chat template, where there is one.

    With `facts` a question that leaves no room for `room` tokens of an answer is left out, with a SpecdecWarning.

    Raises:
        SpecError: Where no question fits, and for one that cannot be read.
    """
    prompter = Prompter(codec, chat=None, chat_format=chat_format)
    prompts = [(question, list(prompter.ids(question, ()))) for question in questions]
    fitting = [ids for question, ids in prompts if facts is None or has_room(question, len(ids), room, facts)]
    if not fitting:
        raise SpecError("no question fits into the target's context: shorter ones would work")
    return fitting


def _probed(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    plan: AcceptancePlan,
    source: str,
    provenance: dict[str, Any],
    on_answer: Callable[[], None],
) -> AcceptanceProfile:
    plain = load("plain", target=decoder.target)
    trials, offers, trails, lengths, strayed = Trials(), Offers(), [], [], 0
    for number, prompt in enumerate(prompts):
        options: dict[str, Any] = {"max_new_tokens": plan.max_new_tokens, "seed": request_key(plan.seed, number)}
        answer = plain.generate([list(prompt)], sampling=decoder.sampling, **options)[0]
        own = Trials()
        probe = Probe([*prompt, *answer.tokens], width=plan.width, depth=plan.depth, trials=own, offers=offers)
        probe.declaration = Probe.declares(Probe.Options())
        again = decoder.replace(builder=probe).generate([list(prompt)], **options)[0]
        if again.tokens == answer.tokens and len(answer.tokens) > 1:
            missing: list[RankPath] = [()] * (len(answer.tokens) - 1 - len(probe.paths))
            trails.append((*probe.paths, *missing))
            lengths.append("".join(DIGITS[count] for count in [*probe.lengths, *[0] * len(missing)]))
            trials.merge(own)
        strayed += again.tokens != answer.tokens
        on_answer()
    reached, accepted = counts(trails, plan.depth, plan.width)
    _check_counted(reached)
    depth = next((level for level, count in enumerate(reached) if not count), plan.depth)
    return AcceptanceProfile(
        source=source,
        conditioned_on=PROBED,
        provenance={**provenance, "answers": len(trails), "answers_left_out": strayed, "width": plan.width},
        reached=tuple(reached[:depth]),
        accepted=tuple(map(tuple, accepted[:depth])),
        calibration=trials.bins(),
        asked=tuple(offers.asked),
        offered=tuple(map(tuple, offers.offered)),
        lengths=tuple(lengths) if offers.asked else (),
        paths=tuple(map(encoded, trails)),
        path_depth=plan.depth,
    )


def _check_counted(reached: Sequence[int]) -> None:
    if not sum(reached):
        raise SpecError("nothing was drafted in these answers: more questions or longer answers would work")


def _own_steps(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    plan: AcceptancePlan,
    source: str,
    provenance: dict[str, Any],
    on_answer: Callable[[], None],
) -> AcceptanceProfile:
    listener = Listener(decoder.builder)
    tally = StepCounts(listener, Trials())
    listener.declaration = decoder.builder.declaration
    listening = decoder.replace(builder=listener)
    for number, prompt in enumerate(prompts):
        options: dict[str, Any] = {"max_new_tokens": plan.max_new_tokens, "seed": request_key(plan.seed, number)}
        for _ in listening.stream(list(prompt), step_callback=tally.step_callback, **options):
            pass
        on_answer()
    _check_counted(tally.reached)
    return AcceptanceProfile(
        source=source,
        conditioned_on=OWN_STEPS,
        provenance={**provenance, "answers": len(prompts), "draw": decoder.builder.declaration.draw.value},
        reached=tuple(tally.reached),
        accepted=tuple(map(tuple, tally.accepted)),
        calibration=tally.trials.bins(),
    )
