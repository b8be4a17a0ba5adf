"""A seed fixes an answer, whatever stands beside it; without one, answers differ."""

from dataclasses import replace

from specdec.decoding.requests import Request
from specdec.sampling.params import SamplingParams


def test_a_seeded_request_answers_alike_alone_and_beside_any_neighbours(compose, table, strategy):
    decoder = compose(table(8, seed=5), strategy, "mixed", sampling=SamplingParams(temperature=2.0))
    request = Request((1, 2), max_new_tokens=16, seed=42)
    alone = decoder.generate([request])[0].tokens
    for neighbours in range(5):
        others = [Request((3,) * (n + 1), max_new_tokens=4 + 7 * n, seed=n) for n in range(neighbours)]
        assert decoder.generate([*others[:2], request, *others[2:]])[min(2, neighbours)].tokens == alone
    assert decoder.generate([replace(request, seed=43)])[0].tokens != alone


def test_the_seed_that_an_answer_reports_gives_it_again(compose, table, strategy):
    decoder = compose(table(8, seed=5), strategy, "mixed", sampling=SamplingParams(temperature=2.0))
    for answer in decoder.generate([[1], [2]], max_new_tokens=12, n=2):
        again = decoder.generate([list(answer.prompt_tokens)], max_new_tokens=12, seed=answer.seed)[0]
        assert again.tokens == answer.tokens


def test_unseeded_requests_one_after_another_differ(compose, table, strategy):
    decoder = compose(table(8, rows={"*": [1 / 8] * 8}), strategy, "mixed", sampling=SamplingParams(temperature=1.0))
    answers = {decoder.generate([[1]], max_new_tokens=4)[0].tokens for _ in range(20)}
    assert len(answers) >= 15
    assert len({answer.tokens for answer in decoder.generate([[1]], max_new_tokens=4, n=8)}) > 1
