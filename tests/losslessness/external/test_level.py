"""transformers' own assisted generation put to the test on a toy model."""

import pytest
import torch
from transformers import LlamaForCausalLM
from transformers.generation.candidate_generator import CandidateGenerator

from specdec.config.catalog import load_catalog
from specdec.config.resolver import check, read
from specdec.errors import PluginError
from specdec.losslessness.external.level import prove_callable
from specdec.losslessness.external.near_ties import LEAST_TOKENS
from specdec.losslessness.levels import Level, Outcome
from specdec.losslessness.sampled.statistics import FALSE_ALARM

DRAFTED = 3
STOPS = [0, 8]


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
def resolved(tiny_llama):
    def make(temperature):
        target = {"use": "huggingface", "model": str(tiny_llama), "device": "cpu"}
        overrides = {"target": target, "sampling": {"temperature": temperature}}
        return check(read("plain", load_catalog(), overrides=overrides), load_catalog())

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
def test_argmax_drafts_that_claim_to_be_drawn_are_refuted(resolved, assisted, no_progress):
    result = prove_callable(assisted(draws=False), resolved(1.0), load_catalog(), seconds=40, seed=0, progress=no_progress)
    assert result.level is Level.SAMPLED
    assert result.outcome is Outcome.REFUTED
    assert result.facts["smallest_adjusted_p"] < FALSE_ALARM


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_drafts_that_are_drawn_from_q_pass(resolved, assisted, no_progress):
    result = prove_callable(assisted(), resolved(1.0), load_catalog(), seconds=6, seed=0, progress=no_progress)
    assert result.outcome is not Outcome.REFUTED
    assert result.facts["smallest_adjusted_p"] > 1e-3
    assert result.facts["total_variation"]["answers"]["towards_likelier_visible"] < 0.3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_greedy_assisted_generation_is_greedy_up_to_ties(resolved, assisted, no_progress):
    result = prove_callable(assisted(sample=False), resolved(0.0), load_catalog(), seconds=5, seed=0, progress=no_progress)
    assert result.level is Level.RUNTIME
    assert result.outcome is Outcome.PROVED, result.words
    assert result.facts["ledger"]["tokens"] >= LEAST_TOKENS


def test_a_function_that_takes_the_second_best_is_no_near_tie(tiny_llama, resolved, no_progress):
    model = LlamaForCausalLM.from_pretrained(tiny_llama).eval()

    @torch.no_grad()
    def second_best(ids, n, seed):
        tokens = list(ids)
        for place in range(n):
            row = model(torch.tensor([tokens])).logits[0, -1]
            tokens.append(int(row.topk(2).indices[int(place == 5)]))
        return tokens[len(ids) :]

    result = prove_callable(second_best, resolved(0.0), load_catalog(), seconds=0.2, seed=0, progress=no_progress)
    assert result.outcome is Outcome.REFUTED
    assert {d["place"] for d in result.facts["ledger"]["listed"] if not d["near_tie"]} == {5}


@pytest.fixture(scope="module")
def alone(tiny_llama):
    """Plain decoding in a few lines, of `tiny_llama` with these stop tokens: (ids, n, seed) -> ids."""

    def make(*, temperature, stops=()):
        model = LlamaForCausalLM.from_pretrained(tiny_llama).eval()

        @torch.no_grad()
        def answer(ids, n, seed):
            rng, tokens = torch.Generator().manual_seed(seed), list(ids)
            while len(tokens) < len(ids) + n and not (len(tokens) > len(ids) and tokens[-1] in stops):
                row = model(torch.tensor([tokens])).logits[0, -1]
                distribution = (row / temperature).softmax(-1) if temperature else (row == row.max()).float()
                tokens.append(int(torch.multinomial(distribution, 1, generator=rng)))
            return tokens[len(ids) :]

        return answer

    return make


@pytest.fixture(scope="module")
def stopping(tiny_llama, tmp_path_factory):
    """The plan of plain decoding of `tiny_llama`, with stop tokens."""

    def make(temperature):
        folder = tmp_path_factory.mktemp("stopping")
        model = LlamaForCausalLM.from_pretrained(tiny_llama)
        model.generation_config.eos_token_id = STOPS
        model.save_pretrained(folder)
        target = {"use": "huggingface", "model": str(folder), "device": "cpu"}
        overrides = {"target": target, "sampling": {"temperature": temperature}}
        return check(read("plain", load_catalog(), overrides=overrides), load_catalog())

    return make


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_comes_after_a_stop_token_is_not_judged(alone, stopping, no_progress, temperature):
    right = alone(temperature=temperature, stops=STOPS)

    def padded(ids, n, seed):
        made = right(ids, n, seed)
        return made + [1] * (n - len(made))

    result = prove_callable(padded, stopping(temperature), load_catalog(), seconds=1.5, seed=0, progress=no_progress)
    assert result.outcome is not Outcome.REFUTED, result.words


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_stop_token_may_be_left_out_and_is_judged_all_the_same(alone, stopping, no_progress, temperature):
    right = alone(temperature=temperature, stops=STOPS)

    def silent(ids, n, seed):
        made = right(ids, n, seed)
        return made[:-1] if made[-1] in STOPS else made

    result = prove_callable(silent, stopping(temperature), load_catalog(), seconds=1.5, seed=0, progress=no_progress)
    assert result.outcome is not Outcome.REFUTED, result.words

    def early(ids, n, seed):
        return silent(ids, n, seed)[: seed % 2]

    result = prove_callable(early, stopping(temperature), load_catalog(), seconds=1.5, seed=0, progress=no_progress)
    assert result.outcome is Outcome.REFUTED, result.words


def test_a_text_that_ends_where_none_can_end_is_a_fault(alone, resolved, no_progress):
    right = alone(temperature=0.0)
    with pytest.raises(PluginError, match=r"returned 1 of .* no stop token"):
        prove_callable(lambda *ask: right(*ask)[:1], resolved(0.0), load_catalog(), seconds=1, seed=0, progress=no_progress)


def test_a_handful_of_greedy_tokens_proves_nothing(alone, resolved, no_progress):
    result = prove_callable(alone(temperature=0.0), resolved(0.0), load_catalog(), seconds=1e-3, seed=0, progress=no_progress)
    assert result.facts["ledger"]["tokens"] < LEAST_TOKENS
    assert result.outcome is Outcome.INCONCLUSIVE
    assert f"at least {LEAST_TOKENS}" in result.words
