"""`check_drafter`: are its answers sound, its rows kept apart, and is decoding with it lossless?"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from specdec.decoding.contract_checks import ProposalCheck
from specdec.decoding.decoder import Decoder
from specdec.interfaces.declarations import DrafterDeclaration, Features, Gives
from specdec.interfaces.part_guard import PartGuard
from specdec.interfaces.parts import BuildTools, Drafter, DraftSession, PartOptions, Target, TreeBuilder, Verifier
from specdec.interfaces.proposals import Candidates, Distributions, DraftStart, Frontier, Proposal
from specdec.interfaces.results import Committed, HiddenStates, Scored
from specdec.losslessness.exact.toy_models import StandIn
from specdec.plugins.registry import Kind
from specdec.testing.opening import Opened, opened, part_name
from specdec.testing.proving import HOT, SMALL, WIDE, decoder_of, models_of, prove_loop, prove_steps, target_of
from specdec.testing.report import Checked, CheckFailed
from specdec.tree_builders.chain import Chain, ChainOptions
from specdec.tree_builders.sampled import Sampled, SampledOptions
from specdec.trees.draft_tree import Draw, TreeSketch
from specdec.verifiers.chain import Chain as ChainRule
from specdec.verifiers.match import Match
from specdec.verifiers.multi_round import MultiRound

VOCABS = (12, WIDE)
MODELS = 4
PREFIX = 9
"""Tokens of the prefixes that are asked about, root included."""

CLOSE = 1e-4
"""Largest difference of scores that rounding may make between batches."""

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
            for model in models_of(size, MODELS):
                _check_answers(part, model, report)
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


def _check_answers(part: Opened, model: StandIn, report: Checked) -> None:
    target = target_of(model)
    with report.rule("it can be built for a table"), PartGuard("drafter", part.cls):
        drafter: Drafter = part.cls.build(part.options, BuildTools(target=target))
    prefixes = _prefixes(model)
    check = ProposalCheck(part.cls.name, target.facts.vocab_size)
    with report.rule("every frontier node is answered as declared"), PartGuard("drafter", part.cls):
        alone = [_ask(drafter, [prefix])[0] for prefix in prefixes]
        for answer in alone:
            _check_kind(check.check(answer, len(_frontier(prefixes[0]).nodes)), part.declares)
    with report.rule("the same question has the same answer"), PartGuard("drafter", part.cls):
        _same(alone, [_ask(drafter, [prefix])[0] for prefix in prefixes], "asked again by another session")
    with report.rule("a row's answers do not depend on its batch mates"), PartGuard("drafter", part.cls):
        _same(alone, _ask(drafter, prefixes), "asked in one batch")
    with report.rule("after `keep` and `observe` each row is still itself"), PartGuard("drafter", part.cls):
        _check_rows(drafter, target, prefixes)
    with report.rule("rows that `join` stand behind the others"), PartGuard("drafter", part.cls):
        _check_join(drafter, target, prefixes)


def _prefixes(model: StandIn) -> list[tuple[int, ...]]:
    return [tuple((token + shift) % model.vocab_size for token in (model.prefix * PREFIX)[:PREFIX]) for shift in range(3)]


def _frontier(prefix: Sequence[int]) -> Frontier:
    """The root, a child of it, and the child's child."""
    sketch = TreeSketch(prefix[-1], len(prefix) - 1)
    child = sketch.add(0, prefix[0])
    sketch.add(child, prefix[-1])
    return Frontier(sketch, (0, child, child + 1))


def _open(drafter: Drafter, prefixes: Sequence[Sequence[int]]) -> DraftSession:
    session: Any = drafter.open([DraftStart(tuple(p[:-1]), p[-1], HiddenStates()) for p in prefixes])
    if not isinstance(session, DraftSession):
        raise CheckFailed(f"open returned {type(session).__name__}; expected a DraftSession")
    return session


def _ask(drafter: Drafter, prefixes: Sequence[Sequence[int]]) -> list[Proposal | None]:
    return _expand(_open(drafter, prefixes), prefixes)


def _expand(session: DraftSession, prefixes: Sequence[Sequence[int]]) -> list[Proposal | None]:
    answers: Any = session.expand([_frontier(prefix) for prefix in prefixes])
    if not isinstance(answers, list | tuple) or len(answers) != len(prefixes):
        got = len(answers) if isinstance(answers, list | tuple) else type(answers).__name__
        raise CheckFailed(f"expand answered {got}; expected a list with one answer for each of {len(prefixes)} rows")
    return list(answers)


def _check_kind(answer: Proposal, declares: DrafterDeclaration) -> None:
    wanted = Distributions if declares.gives is Gives.DISTRIBUTIONS else Candidates
    if not isinstance(answer, wanted):
        raise CheckFailed(
            f"it declares {declares.gives}, and answered with {type(answer).__name__}; expected {wanted.__name__}"
        )
    answer.top(1)


def _same(wanted: Sequence[Proposal | None], got: Sequence[Proposal | None], when: str) -> None:
    for row, (one, other) in enumerate(zip(wanted, got, strict=True)):
        if not _alike(one, other):
            raise CheckFailed(f"row {row} gets another answer {when}: {_shown(other)}; alone it was {_shown(one)}")


def _alike(one: Proposal | None, other: Proposal | None) -> bool:
    if isinstance(one, Distributions) and isinstance(other, Distributions):
        return _same_ids(one.target_ids, other.target_ids) and _close(one.logits, other.logits)
    if isinstance(one, Candidates) and isinstance(other, Candidates):
        return one.tokens == other.tokens and _close(_flat(one), _flat(other))
    return one is None and other is None


def _same_ids(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other or (one is not None and other is not None and torch.equal(one, other))


def _close(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one.double(), other.double(), atol=CLOSE, rtol=CLOSE)


def _flat(answer: Candidates) -> Tensor:
    return torch.tensor([score for row in answer.scores for score in row], dtype=torch.float64)


def _shown(answer: Proposal | None) -> str:
    if answer is None:
        return "none"
    tokens, scores = answer.top(2)
    return "; ".join(
        f"{row_tokens} at {[round(score, 4) for score in row_scores]}"
        for row_tokens, row_scores in zip(tokens, scores, strict=True)
    )


def _check_rows(drafter: Drafter, target: Target, prefixes: Sequence[Sequence[int]]) -> None:
    """All rows learn other tokens; the middle one then leaves, and the others answer as if they had been alone."""
    news = [(prefix[0], prefix[-1])[: 1 + row % 2] for row, prefix in enumerate(prefixes)]
    together = _open(drafter, prefixes)
    _expand(together, prefixes)
    together.keep([0, 2])
    kept = [0, 2]
    _learn(together, target, [prefixes[row] for row in kept], [news[row] for row in kept])
    longer = [(*prefixes[row], *news[row]) for row in kept]
    answers = _expand(together, longer)
    for place, row in enumerate(kept):
        single = _open(drafter, [prefixes[row]])
        _expand(single, [prefixes[row]])
        _learn(single, target, [prefixes[row]], [news[row]])
        alone = _expand(single, [longer[place]])[0]
        if not _alike(alone, answers[place]):
            raise CheckFailed(
                f"after row 1 of 3 has left, and each has learned its tokens, row {row} answers {_shown(answers[place])}; "
                f"alone it answers {_shown(alone)}: `keep` must drop rows by their place, and `observe` reports "
                "the rows that are left"
            )


def _check_join(drafter: Drafter, target: Target, prefixes: Sequence[Sequence[int]]) -> None:
    """Of three rows the first leaves, the others learn a token, and it begins again: all answer as if they were alone."""
    order = [*prefixes[1:], prefixes[0]]
    old = order[:-1]
    together = _open(drafter, prefixes)
    _expand(together, prefixes)
    together.keep(range(1, len(prefixes)))
    texts = [tuple(prefix) for prefix in old]
    for rows, begin in ((old, order[-1:]), (order, [])):
        news = [(prefix[0],) for prefix in rows]
        _learn(together, target, texts, news)
        texts = [(*text, *tokens) for text, tokens in zip(texts, news, strict=True)]
        if begin:
            together.join(_open(drafter, begin))
            texts += [tuple(prefix) for prefix in begin]
        for row, (answer, text) in enumerate(zip(_expand(together, texts), texts, strict=True)):
            alone = _follow(drafter, target, order[row], text)
            if not _alike(alone, answer):
                raise CheckFailed(
                    f"after a row has joined two others, row {row} answers {_shown(answer)}; alone it answers {_shown(alone)}: "
                    "`join` must append the other session's rows behind its own"
                )


def _follow(drafter: Drafter, target: Target, prefix: Sequence[int], text: Sequence[int]) -> Proposal | None:
    """What a session of its own answers that has learned the text after the prefix token by token."""
    single = _open(drafter, [prefix])
    for end in range(len(prefix), len(text)):
        _expand(single, [text[:end]])
        _learn(single, target, [text[:end]], [tuple(text[end : end + 1])])
    return _expand(single, [text])[0]


def _learn(session: DraftSession, target: Target, prefixes: Sequence[Sequence[int]], news: Sequence[tuple[int, ...]]) -> None:
    scored, committed = [], []
    for prefix, tokens in zip(prefixes, news, strict=True):
        sketch = TreeSketch(prefix[-1], len(prefix) - 1)
        for token in tokens[:-1]:
            sketch.add(len(sketch) - 1, token)
        state = target.prefill([list(prefix[:-1])], Features()).state
        scored.append(Scored(target.score(state, [sketch.freeze(Draw.DETERMINISTIC)])[0].logits))
        committed.append(Committed(tokens, tuple(range(len(tokens)))))
    session.observe(committed, scored)
