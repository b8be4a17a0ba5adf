"""transformers' own assisted generation put to the test on a toy model."""

import pytest
import torch
from transformers import LlamaForCausalLM
from transformers.generation.candidate_generator import CandidateGenerator

from specdec.compose import check, read, workshop
from specdec.losslessness.callable_proof import prove_callable
from specdec.losslessness.levels import Level, Outcome
from specdec.losslessness.statistics import FALSE_ALARM

DRAFTED = 3


class Drafts(CandidateGenerator):
    """q is a function of the last token. draws: tokens are drawn from q; else they are its argmax, and q is reported still."""

    def __init__(self, draws, vocab_size):
        self.draws = draws
        self.rows = torch.linspace(-1, 1, vocab_size).repeat(vocab_size, 1).cumsum(0).sin() * 1.5

    def get_candidates(self, input_ids, **kwargs):
        logits = []
        for _ in range(DRAFTED):
            row = self.rows[input_ids[0, -1]]
            token = torch.multinomial(row.softmax(-1), 1) if self.draws else row.argmax()[None]
            input_ids = torch.cat([input_ids, token[None]], -1)
            logits.append(row)
        return input_ids, torch.stack(logits)[None]

    def update_candidate_strategy(self, input_ids, scores, num_matches):
        """Always the same number."""


class Toy(LlamaForCausalLM):
    draws = True

    def _get_candidate_generator(self, *args, **kwargs):
        return Drafts(self.draws, self.config.vocab_size)


@pytest.fixture(scope="module")
def plan(tiny_llama):
    def make(temperature):
        target = {"use": "huggingface", "model": str(tiny_llama), "device": "cpu"}
        overrides = {"target": target, "sampling": {"temperature": temperature}}
        return check(read("plain", workshop(), overrides=overrides), workshop())

    return make


@pytest.fixture(scope="module")
def assisted(tiny_llama):
    def make(*, draws=True, sample=True):
        model = Toy.from_pretrained(tiny_llama).eval()
        model.draws = draws

        def answer(ids, n, seed):
            torch.manual_seed(seed)
            inputs = torch.tensor([ids])
            options = {"assistant_model": model, "max_new_tokens": n, "do_sample": sample}
            return model.generate(inputs, attention_mask=torch.ones_like(inputs), **options)[0, len(ids) :]

        return answer

    return make


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_argmax_drafts_that_claim_to_be_drawn_are_refuted(plan, assisted, no_progress):
    result = prove_callable(assisted(draws=False), plan(1.0), workshop(), seconds=40, seed=0, progress=no_progress)
    assert result.level is Level.SAMPLED
    assert result.outcome is Outcome.REFUTED
    assert result.facts["smallest_adjusted_p"] < FALSE_ALARM


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_drafts_that_are_drawn_from_q_pass(plan, assisted, no_progress):
    result = prove_callable(assisted(), plan(1.0), workshop(), seconds=6, seed=0, progress=no_progress)
    assert result.outcome is not Outcome.REFUTED
    assert result.facts["smallest_adjusted_p"] > 1e-3
    assert result.facts["total_variation"]["answers"]["towards_drafter_visible"] < 0.3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_greedy_assisted_generation_is_greedy_up_to_ties(plan, assisted, no_progress):
    result = prove_callable(assisted(sample=False), plan(0.0), workshop(), seconds=2, seed=0, progress=no_progress)
    assert result.level is Level.RUNTIME
    assert result.outcome is Outcome.PROVED, result.words
    assert result.facts["ledger"]["tokens"] >= 32


def test_a_function_that_takes_the_second_best_is_no_near_tie(tiny_llama, plan, no_progress):
    model = LlamaForCausalLM.from_pretrained(tiny_llama).eval()

    @torch.no_grad()
    def second_best(ids, n, seed):
        tokens = list(ids)
        for place in range(n):
            row = model(torch.tensor([tokens])).logits[0, -1]
            tokens.append(int(row.topk(2).indices[int(place == 5)]))
        return tokens[len(ids) :]

    result = prove_callable(second_best, plan(0.0), workshop(), seconds=0.2, seed=0, progress=no_progress)
    assert result.outcome is Outcome.REFUTED
    assert {d["place"] for d in result.facts["ledger"]["listed"] if not d["near_tie"]} == {5}
