"""Drafters in the decoder's own loop, on a tabular target."""

import pytest

from specdec.decoding.decoder import Decoder
from specdec.decoding.requests import Request
from specdec.drafters.model import ModelDrafter, ModelOptions
from specdec.drafters.ngram import NgramDrafter, NgramOptions
from specdec.drafters.none import NoDrafter, NoneOptions
from specdec.interfaces.parts import BuildTools, PartOptions, build_part
from specdec.sampling.params import SamplingParams
from specdec.targets.tabular import Tabular, TabularTargetOptions
from specdec.tree_builders.chain import Chain, ChainOptions
from specdec.tree_builders.dynamic import Dynamic, DynamicOptions
from specdec.tree_builders.fixed import Fixed, FixedOptions
from specdec.tree_builders.sampled import Sampled, SampledOptions
from specdec.verifiers.match import Match
from specdec.verifiers.multi_round import MultiRound

BUILDERS = {
    "chain": (Chain, ChainOptions(length=4)),
    "fixed": (Fixed, FixedOptions(widths=[2, 2, 1])),
    "dynamic": (Dynamic, DynamicOptions(width=3, depth=4, nodes=8)),
}
DRAWN = {
    "chain": (Chain, ChainOptions(length=3, draw="sampled")),
    "iid": (Sampled, SampledOptions(widths=[2, 2], replacement=True)),
    "without": (Sampled, SampledOptions(widths=[3, 1])),
}


def options(seed=1, vocab=6, **rest):
    return TabularTargetOptions(vocab=vocab, random={"order": 3, "seed": seed, "sharpness": 3}, **rest)


def decoder(main, drafter, builder, verifier=Match, *, draft=None, **sampling):
    """drafter: (class, options); draft: options of a draft model."""
    nested = {} if draft is None else {"model": Tabular.build(draft, BuildTools())}
    tools = BuildTools(target=main, targets=nested)
    parts = [build_part(cls, chosen, tools) for cls, chosen in (drafter, builder)]
    return Decoder(main, *parts, build_part(verifier), sampling=SamplingParams(**sampling), name="t")


def plain(main, **sampling):
    return decoder(main, (NoDrafter, NoneOptions()), BUILDERS["chain"], **sampling)


SELF = (ModelDrafter, ModelOptions(model="target"))
MODEL = (ModelDrafter, ModelOptions(model={"use": "tabular"}))
NGRAM = (NgramDrafter, NgramOptions())
PROMPTS = [[1, 2], [3], [0, 1, 2, 3, 4, 5, 0, 1]]


@pytest.mark.parametrize("name", BUILDERS)
def test_self_drafting_accepts_every_token_and_its_cache_is_right_after_every_step(name):
    main = Tabular.build(options(), BuildTools())
    made = decoder(main, SELF, BUILDERS[name])
    run = made.start([Request(prompt=(1, 2), max_new_tokens=200)])
    while run.sequences:
        (record,) = made.step(run)
        assert record.accepted == min(record.depth, record.committed)
        if run.sequences:
            row = run.sequences[0]
            assert run.session.cached_lengths[0] + len(run.session.uncached[0]) == len(row.tokens)
            assert list(row.tokens[run.session.cached_lengths[0] :]) == list(run.session.uncached[0])
            assert len(run.session.uncached[0]) == 2
    assert run.ended[0].emitted.tokens == list(plain(main).generate([[1, 2]], max_new_tokens=200)[0].tokens)


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("drafter", [MODEL, NGRAM], ids=["model", "ngram"])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "top_p": 0.95, "seed": 3}], ids=["greedy", "seeded"])
def test_a_batch_gives_plain_decodings_tokens_with_any_drafter_and_builder(name, drafter, sampling):
    main = Tabular.build(options(stop_ids=(5,)), BuildTools())
    draft = options(seed=2, vocab=4)
    made = decoder(main, drafter, BUILDERS[name], draft=draft if drafter is MODEL else None, **sampling)
    got = made.generate(PROMPTS, max_new_tokens=40)
    want = plain(main, **sampling).generate(PROMPTS, max_new_tokens=40)
    assert [g.tokens for g in got] == [w.tokens for w in want]


@pytest.mark.parametrize("max_positions", [12, 40])
def test_rows_of_a_draft_model_that_wait_draft_what_they_draft_alone_also_where_its_context_has_ended(max_positions):
    main = Tabular.build(options(), BuildTools())
    made = decoder(main, MODEL, BUILDERS["dynamic"], draft=options(seed=2, vocab=8, max_positions=max_positions))
    prompts = [*PROMPTS, [2] * 14, *PROMPTS]

    def records(prompts, **more):
        answers = [a.records for a in made.generate(prompts, max_new_tokens=20, **more)]
        return [[(r.drafted, r.accepted, r.emitted) for r in some] for some in answers]

    for size in (1, 2, 3):
        assert records(prompts, batch_size=size) == [records([prompt])[0] for prompt in prompts]


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("verifier", [Match, MultiRound])
def test_a_draft_context_that_ends_earlier_than_the_targets_only_ends_the_drafting(name, verifier):
    main = Tabular.build(options(), BuildTools())
    made = decoder(main, MODEL, DRAWN[name], verifier, draft=options(seed=2, vocab=8, max_positions=20), temperature=1.0)
    for generation in made.generate(PROMPTS, max_new_tokens=40):
        assert len(generation.tokens) == 40
        assert generation.records[0].drafted > 0
        assert generation.records[-1].drafted == 0


def test_plain_decoding_commits_one_token_a_step():
    main = Tabular.build(options(), BuildTools())
    (generation,) = plain(main).generate([[1]], max_new_tokens=9)
    assert [record.committed for record in generation.records] == [1] * 8


def test_part_options_of_all_parts_refuse_unknown_keys():
    for part in (Chain, Fixed, Dynamic, Sampled, ModelDrafter, NgramDrafter, NoDrafter):
        assert issubclass(part.Options, PartOptions)
        assert part.Options.model_config["extra"] == "forbid"
