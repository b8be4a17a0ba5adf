"""A sequence fills its context to the last position, and never goes beyond."""

import pytest

from specdec.errors import SpecError

CONTEXT = 32


@pytest.mark.parametrize("length", [29, 31, 32])
def test_a_transformer_decodes_to_the_end_of_its_context_and_no_further(
    compose, tiny, plain_loop, watched, finished, kind, shape, length
):
    inner, logits_of = tiny(kind, positions=CONTEXT)
    target = watched(inner)
    prompt = [5 + n % 50 for n in range(length)]
    answer = compose(target, shape, "oracle").generate([prompt], max_new_tokens=100, logprobs=0)[0]
    assert finished(answer) == plain_loop(logits_of, prompt, limit=100, context=CONTEXT)
    assert (len(answer.tokens), answer.finish_reason) == (CONTEXT - length, "length")
    deepest = [tree.root_position + tree.max_depth for trees in target.trees for tree in trees]
    assert max(deepest, default=0) < CONTEXT


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(compose, tiny, chain_of):
    decoder = compose(tiny("llama", positions=CONTEXT)[0], chain_of(8), "oracle")
    with pytest.raises(SpecError, match=r"33 tokens.*holds 32"):
        decoder.generate([[5] * 33], max_new_tokens=100)


@pytest.mark.parametrize("length", range(1, 13))
def test_every_prompt_length_fills_the_context_exactly(compose, counter, plain_loop, next_logits, finished, strategy, length):
    target = counter(max_positions=12)
    prompt = [n % 12 for n in range(length)]
    answer = compose(target, strategy, "oracle").generate([prompt], max_new_tokens=None, logprobs=0)[0]
    expected = plain_loop(next_logits(target), prompt, limit=100, context=12, decode=target.codec.decode)
    assert finished(answer) == expected
    assert len(prompt) + len(answer.tokens) == 12


def test_rows_of_one_batch_end_at_their_own_limits(compose, tiny, plain_loop, kind, shape):
    target, logits_of = tiny(kind, positions=CONTEXT)
    prompts = [[5] * 30, [6] * 4, [7] * 32, [8] * 27]
    answers = compose(target, shape, "mixed").generate(prompts, max_new_tokens=8)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.tokens == plain_loop(logits_of, prompt, limit=8, context=CONTEXT).ids


def test_without_a_limit_a_prompt_one_short_of_the_context_gets_one_token_and_the_next_request_is_served(
    compose, tiny, plain_loop, kind, shape
):
    target, logits_of = tiny(kind, positions=CONTEXT)
    decoder = compose(target, shape, "oracle")
    full, short = [5] * 31, [6, 7]
    assert decoder.generate([full], max_new_tokens=None)[0].tokens == plain_loop(logits_of, full, limit=1).ids
    assert decoder.generate([short], max_new_tokens=6)[0].tokens == plain_loop(logits_of, short, limit=6).ids


def test_without_a_limit_an_unbounded_target_asks_for_one(compose, table, strategy):
    with pytest.raises(SpecError, match=r"max_new_tokens.*unbounded"):
        compose(table(), strategy).generate([[1]], max_new_tokens=None)


def test_a_tree_deeper_than_the_positions_that_remain_is_cut_to_fit(compose, counter, watched, strategy):
    target = watched(counter(max_positions=12))
    answer = compose(target, strategy, "oracle").generate([list(range(9))], max_new_tokens=None)[0]
    assert answer.tokens == (9, 10, 11)
    assert [tree.root_position + tree.max_depth for [tree] in target.trees] == [10]


def test_the_target_reports_the_maximum_that_it_enforces(tiny, kind):
    for cap, expected in ((None, CONTEXT), (20, 20), (100, CONTEXT)):
        assert tiny(kind, positions=CONTEXT, max_context=cap)[0].facts.max_positions == expected
