"""At temperature 0 the ids are the plain loop's, whatever is drafted."""

import pytest
import torch

from specdec.drafters.tabular import TabularDrafterOptions
from specdec.sampling.params import SamplingParams
from specdec.tree_builders.fixed import Fixed, FixedOptions
from specdec.verifiers.match import Match
from specdec.verifiers.point_mass import PointMass

MODES = ("oracle", "anti", "mixed")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("length", range(1, 9))
def test_greedy_ids_are_the_plain_loops_for_every_draft_length(compose, chain_of, table, next_logits, plain_loop, length, mode):
    target = table(12, seed=3)
    prompts = [[1], [2, 3], [4, 5, 6, 7, 8, 9, 0]]
    answers = compose(target, chain_of(length), mode).generate(prompts, max_new_tokens=24)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.tokens == plain_loop(next_logits(target), prompt, limit=24).ids


@pytest.mark.parametrize("mode", MODES)
def test_greedy_ids_are_the_plain_loops_for_every_tree(compose, table, next_logits, plain_loop, strategy, mode):
    target = table(12, seed=4)
    prompts = [[1], [2, 3], [4, 5, 6, 7, 8, 9, 0]]
    answers = compose(target, strategy, mode).generate(prompts, max_new_tokens=24)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.tokens == plain_loop(next_logits(target), prompt, limit=24).ids


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("length", [1, 2, 5, 8])
def test_greedy_ids_of_a_transformer_are_the_bare_models(compose, chain_of, tiny, plain_loop, kind, length, mode):
    target, logits_of = tiny(kind)
    prompts = [[5], [6, 7], [8, 9, 10, 11, 12, 13, 14]]
    answers = compose(target, chain_of(length), mode).generate(prompts, max_new_tokens=8)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.tokens == plain_loop(logits_of, prompt, limit=8).ids


def test_greedy_ids_of_a_transformer_are_the_bare_models_for_every_tree(compose, tiny, plain_loop, kind, strategy):
    target, logits_of = tiny(kind)
    prompts = [[5], [8, 9, 10, 11, 12, 13, 14]]
    answers = compose(target, strategy, "mixed").generate(prompts, max_new_tokens=8)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.tokens == plain_loop(logits_of, prompt, limit=8).ids


def test_every_verified_token_stands_at_its_index_in_the_sequence(compose, table, watched, strategy):
    target = watched(table(12, seed=5))
    for prompt in ([1], [2, 3], [4, 5, 6, 7, 8, 9, 0]):
        target.trees.clear()
        answer = compose(target, strategy, "mixed").generate([prompt], max_new_tokens=20)[0]
        sequence = [*prompt, *answer.tokens]
        ends = [len(prompt)]
        for record in answer.records:
            ends.append(ends[-1] + record.committed)
        assert [tree.root_position for [tree] in target.trees] == ends[:-1]
        assert all(sequence[tree.root_position] == tree.tokens[0] for [tree] in target.trees)


@pytest.mark.parametrize("verifier", [Match, PointMass])
def test_at_temperature_0_the_child_that_is_the_argmax_is_taken_even_if_it_comes_second(compose, table, parts_of, verifier):
    target = table(4, rows={"*": [0.29, 0.3, 0.31, 0.1]})
    drafter = TabularDrafterOptions(vocab=4, rows={"*": [0.1, 0.5, 0.3, 0.1]})
    parts = parts_of(Fixed, FixedOptions(widths=[2]), verifier)
    answer = compose(target, parts, drafter).generate([[0]], max_new_tokens=5)[0]
    assert answer.tokens == (2,) * 5
    assert [record.accepted for record in answer.records] == [1, 1]


@pytest.mark.parametrize("verifier", [Match, PointMass])
def test_at_temperature_0_nothing_is_accepted_where_no_child_is_the_argmax(compose, table, parts_of, verifier):
    target = table(4, rows={"*": [0.33, 0.32, 0.35, 0.0]})
    drafter = TabularDrafterOptions(vocab=4, rows={"*": [0.45, 0.45, 0.05, 0.05]})
    parts = parts_of(Fixed, FixedOptions(widths=[2, 1]), verifier)
    answer = compose(target, parts, drafter).generate([[0]], max_new_tokens=5)[0]
    assert answer.tokens == (2,) * 5
    assert [record.accepted for record in answer.records] == [0, 0, 0, 0]


@pytest.mark.parametrize("chunk", [1, 3, 512])
def test_the_first_tokens_logits_are_the_bare_models_however_the_prompt_is_split(compose, chain_of, tiny, kind, chunk):
    target, logits_of = tiny(kind, chunk=chunk)
    prompt = list(range(5, 18))
    answer = compose(target, chain_of(3), "mixed").generate([prompt], max_new_tokens=2, logprobs=64)[0]
    expected = logits_of(prompt).log_softmax(-1)
    found = torch.tensor([logprob for _, logprob in sorted(answer.logprobs[0].top)])
    assert (found - expected).abs().max() <= 1e-6


@pytest.mark.parametrize("seed", range(3))
def test_a_seeded_run_above_temperature_0_emits_plain_decodings_tokens_for_every_draft(
    compose, chain_of, table, matching, seed
):
    target, sampling = table(8, seed=6), SamplingParams(temperature=1.0)
    plain = compose(target, chain_of(1), "anti", sampling=sampling).generate([[1], [2, 3]], max_new_tokens=20, seed=seed)
    for mode in MODES:
        answers = compose(target, matching, mode, sampling=sampling).generate([[1], [2, 3]], max_new_tokens=20, seed=seed)
        assert [a.tokens for a in answers] == [p.tokens for p in plain]
