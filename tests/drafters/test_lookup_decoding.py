"""Drafters without a model, and the builder that weighs costs, in the decode loop: plain decoding's tokens, faster."""

import pytest

import specdec

TARGET = {"use": "tabular", "vocab": 6, "random": {"order": 2, "seed": 1, "sharpness": 4}, "stop_ids": [5]}
PROMPTS = [[1, 2], [3], [0, 1, 2, 3, 4, 0, 1]]
DRAFTERS = {
    "suffix": {"use": "suffix", "min_confidence": 0.0},
    "recycling": {"use": "recycling", "min_confidence": 0.0},
    "published recycling": {"use": "recycling", "context": 1},
    "model": {"use": "model", "model": {**TARGET, "random": {"order": 2, "seed": 2, "sharpness": 2}}},
    "mixture": {"use": "mixture", "parts": [{"use": "model", "model": "target"}, {"use": "suffix"}, {"use": "recycling"}]},
}
TREES = {
    "chain": {"use": "chain", "length": 3},
    "dynamic": {"use": "dynamic", "width": 3, "depth": 4, "nodes": 8},
    "adaptive": {"use": "adaptive", "draft_level": 0.001},
}
SAMPLINGS = {"greedy": {}, "seeded": {"temperature": 1.0, "top_p": 0.95, "seed": 3}}


def generated(drafter, tree, sampling, prompts=PROMPTS, **options):
    decoder = specdec.load({"target": TARGET, "drafter": drafter, "tree": tree, "sampling": sampling})
    return decoder.generate(prompts, max_new_tokens=60, seed=list(range(len(prompts))), **options)


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
@pytest.mark.parametrize("drafter", DRAFTERS.values(), ids=DRAFTERS)
def test_a_batch_gives_plain_decodings_tokens(drafter, tree, sampling):
    plain = generated({"use": "none"}, {"use": "chain"}, sampling)
    assert [g.tokens for g in generated(drafter, tree, sampling)] == [w.tokens for w in plain]


@pytest.mark.parametrize("tree", ["dynamic", "adaptive"])
@pytest.mark.parametrize("drafter", DRAFTERS.values(), ids=DRAFTERS)
def test_a_queue_drafts_what_each_of_its_prompts_drafts_alone(drafter, tree):
    queued = generated(drafter, TREES[tree], SAMPLINGS["seeded"], prompts=PROMPTS * 2, batch_size=2)
    batch = generated(drafter, TREES[tree], SAMPLINGS["seeded"], prompts=PROMPTS * 2)
    assert [a.tokens for a in queued] == [a.tokens for a in batch]
    if tree == "dynamic":
        assert [[(r.drafted, r.emitted) for r in a.records] for a in queued] == [
            [(r.drafted, r.emitted) for r in a.records] for a in batch
        ]


@pytest.mark.parametrize("name", ["suffix", "recycling", "mixture"])
def test_a_text_that_goes_round_is_drafted_in_several_tokens_a_step(name):
    rows = {f"*,{token}": [float(other == (token + 1) % 5) for other in range(6)] for token in range(6)}
    decoder = specdec.load(
        {"target": {"use": "tabular", "vocab": 6, "rows": rows}, "drafter": DRAFTERS[name], "tree": TREES["dynamic"]}
    )
    (answer,) = decoder.generate([[0, 1, 2]], max_new_tokens=100)
    assert answer.tau > 3


def test_every_token_of_a_mixture_tells_whose_it_is():
    parts = [{"use": "tabular", "mode": "anti"}, {"use": "tabular", "mode": "oracle"}]
    decoder = specdec.load(
        {"target": TARGET, "drafter": {"use": "mixture", "parts": parts}, "tree": TREES["dynamic"]},
    )
    (answer,) = decoder.generate([[1, 2]], max_new_tokens=40, ignore_eos=True)
    sources = [source for record in answer.records for source in record.sources]
    assert set(sources) == {1, -1}
    assert sources.count(1) == sum(record.accepted for record in answer.records)


def test_drafts_of_a_batch_under_adaptive_are_as_wide_as_pays_for_all_rows():
    tree = {"use": "adaptive", "draft_level": 0.001}
    drafter = DRAFTERS["mixture"]
    alone = [generated(drafter, tree, {}, prompts=[prompt])[0] for prompt in PROMPTS]
    together = generated(drafter, tree, {}, prompts=PROMPTS * 6)
    assert [g.tokens for g in together[:3]] == [g.tokens for g in alone]

    def widest(answers):
        return max(record.drafted for answer in answers for record in answer.records)

    assert widest(together) < widest(alone)
