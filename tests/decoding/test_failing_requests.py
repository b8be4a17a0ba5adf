"""A request that fails ends alone: the others of its batch go on, and the error brings their answers along."""

import pytest
import torch

from specdec.decoding.requests import Request
from specdec.drafters.none import NoDrafter
from specdec.drafters.tabular import TabularDrafterOptions
from specdec.errors import NumericsError, PluginError, SpecError
from specdec.interfaces.results import Scored
from specdec.sampling.params import SamplingParams
from specdec.tree_builders.chain import Chain, ChainOptions
from specdec.verifiers.match import Match

BAD = 20
"""The token after which a poisoned target's row is unusable."""


@pytest.fixture
def poisoned(watched):
    """A target whose rows after the token BAD hold one value only."""

    class Poisoned(watched):
        poison = float("inf")

        def _spoilt(self, scored, tokens):
            logits = scored.logits.clone()
            logits[[row for row, token in enumerate(tokens) if token == BAD]] = self.poison
            return Scored(logits, scored.hidden, scored.first_node)

        def prefill(self, prompts, features):
            prefilled = self.inner.prefill(prompts, features)
            scored = [self._spoilt(s, prompt[-1:]) for s, prompt in zip(prefilled.scored, prompts, strict=True)]
            return type(prefilled)(prefilled.state, tuple(scored))

        def score(self, state, trees):
            scored = self.inner.score(state, trees)
            return [self._spoilt(s, tree.tokens[s.first_node :]) for s, tree in zip(scored, trees, strict=True)]

    def make(target, poison=float("inf")):
        made = Poisoned(target)
        made.poison = poison
        return made

    return make


def counting(*, wrong_at=()):
    """A drafter that counts on as the target does, but for some tokens."""
    rows = {}
    for token in range(30):
        row = [0.1 / 29] * 30
        row[(token + (2 if token in wrong_at else 1)) % 30] = 0.9
        rows[f"*,{token}"] = row
    return TabularDrafterOptions(vocab=30, rows=rows)


def tokens_of(answers):
    return [None if answer is None else answer.tokens for answer in answers]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("poison", "batch_size"), [("+inf", None), ("NaN", 2), ("-inf", 1)])
def test_an_unusable_row_ends_its_request_by_name_and_no_other(
    compose, counter, shape, poisoned, poison, temperature, batch_size
):
    sampling = SamplingParams(temperature=temperature, top_k=1 if temperature else None)
    prompts = [[21], [3], [15], [22]]
    drafts = counting(wrong_at=(4, 17, 23))
    decoder = compose(poisoned(counter(30), float(poison)), shape, drafts, sampling=sampling)
    with pytest.raises(NumericsError, match=r"^prompts\[2\], step \d: row \d+ of the target's logits") as failure:
        decoder.generate(prompts, max_new_tokens=8, batch_size=batch_size)
    expected = compose(counter(30), shape, drafts, sampling=sampling).generate(prompts, max_new_tokens=8)
    assert tokens_of(failure.value.finished) == [None if n == 2 else answer.tokens for n, answer in enumerate(expected)]


def test_the_step_and_the_row_are_the_ones_that_failed(compose, counter, poisoned, chain_of):
    decoder = compose(poisoned(counter(30)), chain_of(4), counting())
    with pytest.raises(NumericsError, match=r"^prompts\[0\], step 2: row 2 of the target's logits, after 9 tokens: .*\+inf"):
        decoder.generate([[12]], max_new_tokens=20)
    plain = compose(poisoned(counter(30)), chain_of(4), NoDrafter())
    with pytest.raises(NumericsError, match=r"^prompts\[0\], step 8: row 0 of the target's logits"):
        plain.generate([[12]], max_new_tokens=20)
    with pytest.raises(NumericsError, match=r"^prompts\[0\], first token: row 0 of the target's logits"):
        plain.generate([[BAD]], max_new_tokens=20)


def test_a_row_that_is_drafted_and_never_reached_harms_nothing(compose, counter, poisoned, chain_of):
    decoder = compose(poisoned(counter(30)), chain_of(4), counting())
    assert decoder.generate([[12]], max_new_tokens=8)[0].tokens == tuple(range(13, BAD + 1))


@pytest.mark.parametrize("batch_size", [None, 1, 2])
def test_a_processor_that_fails_ends_its_request_alone(compose, table, shape, batch_size):
    calls = []

    def failing(ids, scores):
        calls.append(ids)
        if ids.shape[1] > 5:
            raise ValueError("enough")
        return scores

    requests = [
        Request((1,), max_new_tokens=9, seed=1),
        Request((2, 3), max_new_tokens=9, seed=2, processors=[failing]),
        Request((4, 5), max_new_tokens=12, seed=3),
    ]
    decoder = compose(table(8, seed=1), shape, "mixed")
    with pytest.raises(
        SpecError, match=r"^prompts\[1\], step \d: logits processor .*failing fails: ValueError: enough$"
    ) as failure:
        decoder.generate(requests, batch_size=batch_size)
    alone = [decoder.generate([request])[0].tokens for request in (requests[0], requests[2])]
    assert tokens_of(failure.value.finished) == [alone[0], None, alone[1]]


def test_samples_are_named_and_failures_are_counted(compose, counter, poisoned, chain_of):
    decoder = compose(poisoned(counter(30)), chain_of(2), counting())
    requests = [Request((21,), max_new_tokens=4), Request((17,), max_new_tokens=8, n=2), Request((BAD,), max_new_tokens=3)]
    with pytest.raises(NumericsError, match=r"^prompts\[1\], sample 0, step 1: .*; 2 more of 4 answers failed$") as failure:
        decoder.generate(requests)
    assert tokens_of(failure.value.finished) == [(22, 23, 24, 25), None, None, None]


def test_what_fails_for_all_brings_along_what_was_finished(compose, counter, chain_of, watched):
    class Breaking(watched):
        def score(self, state, trees):
            if len(self.trees) == 6:
                raise RuntimeError("broken")
            return super().score(state, trees)

    decoder = compose(Breaking(counter(30)), chain_of(1), NoDrafter())
    requests = [Request((1,), max_new_tokens=4), Request((2,), max_new_tokens=20), Request((3,), max_new_tokens=2)]
    with pytest.raises(PluginError, match=r"target 'watched'.* fails: RuntimeError: broken") as failure:
        decoder.generate(requests)
    assert tokens_of(failure.value.finished) == [(2, 3, 4, 5), None, (4, 5)]


def test_a_prefill_that_fails_brings_along_what_was_finished(compose, counter, chain_of, watched):
    class Breaking(watched):
        def prefill(self, prompts, features):
            if len(self.prefills) == 2:
                raise RuntimeError("broken")
            return super().prefill(prompts, features)

    decoder = compose(Breaking(counter(30)), chain_of(1), NoDrafter())
    with pytest.raises(PluginError, match="broken") as failure:
        decoder.generate([[1], [2], [3], [4]], max_new_tokens=1, batch_size=1)
    assert tokens_of(failure.value.finished) == [(2,), (3,), None, None]


def test_errors_before_anything_runs_have_no_answers(compose, counter, chain_of):
    with pytest.raises(SpecError) as failure:
        compose(counter(30), chain_of(1), NoDrafter()).generate([[1], [99]])
    assert failure.value.finished == ()


def test_whoever_steps_a_batch_by_hand_gets_the_error_at_once(compose, counter, poisoned, chain_of):
    decoder = compose(poisoned(counter(30)), chain_of(1), NoDrafter())
    batch = decoder.start([Request((18,), max_new_tokens=9), Request((1,), max_new_tokens=9)])
    decoder.step(batch)
    with pytest.raises(NumericsError, match=r"^prompts\[0\], step 2: row 0"):
        decoder.step(batch)
    with pytest.raises(NumericsError, match=r"^prompts\[0\], step 2: row 0"):
        list(decoder.stream([18], max_new_tokens=9))


@pytest.mark.parametrize("logits", [[float("inf")] * 4, [0.0, float("inf"), 1.0, 2.0]])
@pytest.mark.parametrize("processors", [(), (lambda ids, scores: scores,)])
def test_an_infinite_logit_is_unusable_at_any_temperature(logits, processors):
    from specdec.sampling.logits_warper import LogitsWarper
    from specdec.trees.draft_tree import root_only

    for temperature in (0.0, 1.0):
        warper = LogitsWarper(
            SamplingParams(temperature=temperature), prompt_length=1, stop_ids=frozenset(), processors=processors
        )
        with pytest.raises(NumericsError, match=r"row 0 of the target's logits"):
            warper.target_probs(torch.tensor([logits]), [1], root_only(1, 0)).row(0)


class StumblingChain(Chain):
    """A chain that fails behind one token: before it asks, after it has been answered, or with the tree that it returns."""

    name = "stumbling"
    when = "before"

    def grow(self, root_token, root_position, budget, rng):
        bad = root_token == BAD
        if bad and self.when == "before":
            raise ValueError("stumbles")
        growing = super().grow(root_token, root_position, budget, rng)
        answer = None
        while True:
            try:
                asked = next(growing) if answer is None else growing.send(answer)
            except StopIteration as end:
                return "no tree" if bad else end.value
            answer = yield asked
            if bad and self.when == "answered":
                raise ValueError("stumbles")


@pytest.mark.parametrize("when", ["before", "answered", "returned"])
def test_a_draft_that_fails_ends_its_own_sequence_only(compose, counter, parts_of, monkeypatch, when):
    monkeypatch.setattr(StumblingChain, "when", when)
    sound = compose(counter(30), parts_of(Chain, ChainOptions(length=3), Match), counting())
    decoder = compose(counter(30), parts_of(StumblingChain, ChainOptions(length=3), Match), counting())
    prompts, options = [[1], [BAD - 1], [2], [7]], {"max_new_tokens": 9}
    alone = [sound.generate([prompt], **options)[0].tokens for prompt in prompts]
    with pytest.raises(PluginError, match=r"prompts\[1\], step 1: tree builder 'stumbling'") as failed:
        decoder.generate(prompts, **options)
    assert tokens_of(failed.value.finished) == [alone[0], None, alone[2], alone[3]]
