"""`check_drafter`: are its answers sound, its rows kept apart, and is decoding with it lossless?"""

from collections.abc import Callable, Mapping
from typing import Any

from specdec.decoding.contract_checks import ProposalCheck
from specdec.decoding.decoder import Decoder
from specdec.interfaces.declarations import DrafterDeclaration, Gives, Kind
from specdec.interfaces.part_guard import PartGuard
from specdec.interfaces.parts import BuildTools, Drafter, PartOptions, TreeBuilder, Verifier
from specdec.interfaces.proposals import Candidates, Distributions, Proposal
from specdec.losslessness.exact.toy_models import StandIn
from specdec.testing.learning import Learning
from specdec.testing.opening import Opened, opened, part_name
from specdec.testing.proving import HOT, SMALL, WIDE, decoder_of, models_of, prove_loop, prove_steps, target_of
from specdec.testing.report import Checked, CheckFailed
from specdec.testing.sessions import FRONTIER, Sessions
from specdec.tree_builders.chain import Chain, ChainOptions
from specdec.tree_builders.sampled import Sampled, SampledOptions
from specdec.trees.draft_tree import Draw
from specdec.verifiers.chain import Chain as ChainRule
from specdec.verifiers.match import Match
from specdec.verifiers.multi_round import MultiRound

VOCABS = (12, WIDE)
MODELS = 4
PREFIX = 9
"""Tokens of the prefixes that are asked about, root included."""

Pair = tuple[tuple[type[TreeBuilder], PartOptions], type[Verifier]]
RANKING: tuple[Pair, ...] = (((Chain, ChainOptions(length=3)), Match),)
DRAWING: tuple[Pair, ...] = (
    ((Chain, ChainOptions(length=2, draw="sampled")), ChainRule),
    ((Sampled, SampledOptions(widths=(2,))), MultiRound),
)


def check_drafter(
    cls: type[Drafter], options: Mapping[str, Any] | PartOptions | None = None, *, vocab_size: int | None = None
) -> Checked:
    """Run it on tables of a few tokens: its answers, alone and in batches, and the distribution of what is decoded with it.

    vocab_size: of all tables, for a drafter that is made for one vocabulary; 2 to 5 can be enumerated.
    A drafter that reads hidden states or needs models of its own cannot run on a table: `specdec verify --level runtime` and
    `--level sampled` are for those. Raises CheckFailed.
    """
    report = Checked(part_name(Kind.DRAFTER, cls))
    part = opened(Kind.DRAFTER, cls, options, report)
    _must_run_on_tables(part.declares, report)
    if part.declares.drafts:
        for size in VOCABS if vocab_size is None else (vocab_size,):
            for number, model in enumerate(models_of(size, MODELS)):
                _check_answers(part, model, report, steps=number == 0)
    for builder, rule in (*RANKING, *(DRAWING if part.declares.gives is Gives.DISTRIBUTIONS else ())):
        draws = builder[0].declares(builder[1]).draw
        kind = "ranked" if draws is Draw.DETERMINISTIC else "drawn"
        with report.rule(f"decoding with {kind} drafts under '{rule.name}' has the target's distribution"):
            for model in models_of(vocab_size or WIDE, MODELS):
                prove_steps(_decoder(part, model, builder, rule), model, f"tree '{builder[0].name}'", report)
            for model in models_of(vocab_size or SMALL, 2):
                prove_loop(_decoder(part, model, builder, rule), model, f"tree '{builder[0].name}'", report)
    return report


def _must_run_on_tables(declares: DrafterDeclaration, report: Checked) -> None:
    if declares.features or declares.targets or declares.drafters:
        needs = "reads hidden states" if declares.features else "needs models" if declares.targets else "needs other drafters"
        raise CheckFailed(
            f"{report.part} {needs}, and cannot run on a table; `specdec verify STRATEGY --level runtime` and "
            "`--level sampled` check it on its own model"
        )


def _decoder(part: Opened, model: StandIn, builder: tuple[type[TreeBuilder], PartOptions], rule: type[Verifier]) -> Decoder:
    return decoder_of(target_of(model), (part.cls, part.options), builder, (rule, rule.Options()), HOT)


def _check_answers(part: Opened, model: StandIn, report: Checked, *, steps: bool) -> None:
    """steps: whether sessions go through several steps too."""
    target = target_of(model)
    with report.rule("it can be built for a table"), PartGuard("drafter", part.cls):
        drafter: Drafter = part.cls.build(part.options, BuildTools(target=target))
    sessions = Sessions(drafter, target, _texts(model))
    check = ProposalCheck(part.cls.name, target.facts.vocab_size)
    with report.rule("every frontier node is answered as declared"), PartGuard("drafter", part.cls):
        alone = sessions.alone()
        for answer in alone:
            _check_kind(check.check(answer, FRONTIER), part.declares)
    rules: list[tuple[str, Callable[[], None]]] = [
        ("the same question has the same answer", lambda: sessions.same_again(alone)),
        ("a row's answers do not depend on its batch mates", lambda: sessions.same_in_a_batch(alone)),
        ("a row that asks nothing changes no other's answer", lambda: sessions.same_where_others_ask_nothing(alone)),
        ("a node's answer does not depend on what is asked with it", lambda: sessions.same_level_by_level(alone)),
    ]
    learning = Learning(sessions)
    if steps:
        rules += [
            ("`observe` tells a row what was emitted", learning.learns),
            ("after `observe` each row is still itself", learning.same_after_steps),
            ("after `keep` and `observe` each row is still itself", learning.same_after_leaving),
            ("rows that `join` stand behind the others", learning.same_after_joining),
        ]
    for words, rule in rules:
        with report.rule(words), PartGuard("drafter", part.cls):
            rule()


def _texts(model: StandIn) -> list[tuple[int, ...]]:
    """Three of equal length."""
    return [tuple((token + shift) % model.vocab_size for token in (model.prefix * PREFIX)[:PREFIX]) for shift in range(3)]


def _check_kind(answer: Proposal, declares: DrafterDeclaration) -> None:
    wanted = Distributions if declares.gives is Gives.DISTRIBUTIONS else Candidates
    if not isinstance(answer, wanted):
        raise CheckFailed(
            f"it declares {declares.gives}, and answered with {type(answer).__name__}; expected {wanted.__name__}"
        )
    answer.top(1)
    for scores in answer.scores if isinstance(answer, Candidates) else ():
        if list(scores) != sorted(scores, reverse=True):
            raise CheckFailed(
                f"it gives candidates with the scores {[round(one, 4) for one in scores]}; expected the best first"
            )
