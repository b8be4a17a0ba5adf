"""Whatever a head drafts, the output is plain decoding's; and a row of a batch is what it is alone."""

import pytest
import torch

from specdec.decoding.requests import Request
from specdec.interfaces.compatibility import NamedDeclaration, mismatches
from specdec.interfaces.declarations import DrafterDeclaration, Features, Gives
from specdec.interfaces.parts import BuildTools, PartOptions
from specdec.tree_builders.chain import Chain, ChainOptions
from specdec.tree_builders.dynamic import Dynamic, DynamicOptions
from specdec.tree_builders.fixed import Fixed, FixedOptions
from specdec.tree_builders.sampled import Sampled, SampledOptions
from specdec.verifiers.chain import Chain as ChainRule
from specdec.verifiers.match import Match
from specdec.verifiers.multi_round import MultiRound
from specdec.verifiers.point_mass import PointMass

BUILDERS = {
    "chain": (Chain, ChainOptions(length=4)),
    "sampled chain": (Chain, ChainOptions(length=4, draw="sampled")),
    "fixed": (Fixed, FixedOptions(widths=[3, 2, 1])),
    "dynamic": (Dynamic, DynamicOptions(width=3, depth=4, nodes=9)),
    "iid": (Sampled, SampledOptions(widths=[2, 2, 1], replacement=True)),
    "without": (Sampled, SampledOptions(widths=[3, 2])),
}
RULES = [Match, PointMass, ChainRule, MultiRound]
PROMPTS = [[5, 7, 9], [11], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4], [40, 2, 40, 2, 40]]


def allowed(builder, rule) -> bool:
    cls, options = builder
    return not mismatches(
        drafter=NamedDeclaration("eagle", DrafterDeclaration(Gives.DISTRIBUTIONS)),
        builder=NamedDeclaration("tree", cls.declares(options)),
        verifier=NamedDeclaration("rule", rule.declares(PartOptions())),
    )


PAIRS = [(name, rule) for name, builder in BUILDERS.items() for rule in RULES if allowed(builder, rule)]


def ids(decoder, prompts, **options):
    return [answer.tokens for answer in decoder.generate(prompts, **{"max_new_tokens": 24, **options})]


@pytest.fixture(scope="module")
def plain(target_of, decoder_of):
    known = {}

    def of(dtype):
        if dtype not in known:
            known[dtype] = ids(decoder_of(target_of(dtype), None, BUILDERS["chain"], Match), PROMPTS)
        return known[dtype]

    return of


@pytest.mark.parametrize(("builder", "rule"), PAIRS, ids=[f"{name}, {rule.name}" for name, rule in PAIRS])
def test_every_builder_and_verifier_gives_plain_decodings_tokens(target_of, drafter_of, decoder_of, plain, builder, rule):
    target = target_of()
    eagle3 = {"layers": (1, 2, 3), "draft_vocab_size": 20, "own_lm_head": True}
    for changes in ({}, eagle3, {"kind": "medusa", "num_heads": 3}, {"kind": "hydra", "num_heads": 3}):
        decoder = decoder_of(target, drafter_of(target, changes), BUILDERS[builder], rule)
        assert ids(decoder, PROMPTS[:2]) == plain(torch.float64)[:2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_kind_of_head_gives_plain_decodings_tokens_in_a_batch_and_alone(
    target_of, drafter_of, decoder_of, plain, any_kind, dtype
):
    target = target_of(dtype)
    decoder = decoder_of(target, drafter_of(target, any_kind), BUILDERS["dynamic"], Match)
    assert ids(decoder, PROMPTS) == plain(dtype)
    assert [ids(decoder, [prompt])[0] for prompt in PROMPTS[:2]] == plain(dtype)[:2]


@pytest.mark.parametrize("builder", ["chain", "fixed", "dynamic"])
def test_a_row_of_a_batch_drafts_what_it_drafts_alone(target_of, drafter_of, decoder_of, any_kind, builder):
    target = target_of()
    decoder = decoder_of(target, drafter_of(target, any_kind), BUILDERS[builder], Match)

    def records(prompts):
        answers = [a.records for a in decoder.generate(prompts, max_new_tokens=17)]
        return [[(r.drafted, r.accepted, r.emitted) for r in some] for some in answers]

    assert records(PROMPTS) == [records([prompt])[0] for prompt in PROMPTS]


@pytest.mark.parametrize("builder", ["chain", "dynamic"])
def test_a_row_that_waits_for_a_place_drafts_what_it_drafts_alone(target_of, drafter_of, decoder_of, any_kind, builder):
    target = target_of()
    decoder = decoder_of(target, drafter_of(target, any_kind), BUILDERS[builder], Match)

    def records(prompts, **options):
        requests = [Request(prompt, max_new_tokens=9 + 5 * (len(prompt) % 3)) for prompt in prompts]
        answers = [a.records for a in decoder.generate(requests, **options)]
        return [[(r.drafted, r.accepted, r.emitted) for r in some] for some in answers]

    prompts = PROMPTS + PROMPTS[::-1]
    assert records(prompts, batch_size=3) == [records([prompt])[0] for prompt in prompts]


def test_samples_of_a_prompt_share_its_prefill_and_are_those_of_separate_requests(target_of, drafter_of, decoder_of, any_kind):
    target = target_of()
    decoder = decoder_of(target, drafter_of(target, any_kind), BUILDERS["fixed"], Match, temperature=1.0)
    together = decoder.generate([PROMPTS[2], PROMPTS[0]], n=3, seed=5, max_new_tokens=12)
    plain = decoder_of(target, None, BUILDERS["chain"], Match, temperature=1.0)
    assert len({answer.tokens for answer in together}) > 2
    assert [a.tokens for a in together] == ids(plain, [PROMPTS[2], PROMPTS[0]], n=3, seed=5, max_new_tokens=12)


def test_requests_leave_nothing_behind_in_the_drafter(target_of, drafter_of, decoder_of, any_kind):
    target = target_of()
    used = decoder_of(target, drafter_of(target, any_kind), BUILDERS["dynamic"], Match)
    used.generate([PROMPTS[2]], max_new_tokens=30)

    def trace(decoder):
        (answer,) = decoder.generate([PROMPTS[0]], max_new_tokens=20)
        return [(record.drafted, record.accepted, record.emitted) for record in answer.records]

    fresh = decoder_of(target, drafter_of(target, any_kind), BUILDERS["dynamic"], Match)
    assert trace(used) == trace(used) == trace(fresh)


def test_a_run_ends_where_the_context_does(target_of, drafter_of, decoder_of, any_kind):
    target = target_of(max_position_embeddings=32)
    plain = decoder_of(target, None, BUILDERS["chain"], Match)
    decoder = decoder_of(target, drafter_of(target, any_kind), BUILDERS["dynamic"], Match)
    assert ids(decoder, [PROMPTS[2]], max_new_tokens=50) == ids(plain, [PROMPTS[2]], max_new_tokens=50)


@pytest.mark.slow
def test_a_head_on_the_embedded_model_changes_no_token(decoder_of, head_of):
    from specdec.drafters.eagle import EagleDrafter
    from specdec.heads.loading import ready
    from specdec.targets.builtin import BuiltinOptions, BuiltinTarget

    target = BuiltinTarget.build(BuiltinOptions(dtype="float32"), BuildTools())
    sizes = {"hidden_size": 576, "intermediate_size": 64, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64}
    head = head_of(torch.float32, **sizes, vocab_size=49152, draft_vocab_size=8192, feature_scale=0.5, embedding_scale=7.0)
    drafter = EagleDrafter(ready(head, target, dtype=torch.float32, device=target.facts.device))
    made = drafter, DrafterDeclaration(Gives.DISTRIBUTIONS, Features(last=True))
    prompts = [[{"role": "user", "content": text}] for text in ("Count to twenty.", "Why is the sky blue?")]
    plain = ids(decoder_of(target, None, BUILDERS["chain"], Match), prompts)
    for name in ("chain", "dynamic"):
        assert ids(decoder_of(target, made, BUILDERS[name], Match), prompts) == plain
