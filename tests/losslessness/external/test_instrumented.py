"""Callables that hand back their steps: correct decoders of chains are proved at T = 1, wrong ones refuted by name."""

from functools import cache

import numpy as np
import pytest
import torch

from specdec.errors import PluginError
from specdec.interfaces.probability_table import ProbabilityTable, TableOptions
from specdec.losslessness.external.callables import ask
from specdec.losslessness.external.instrumented import AcceptanceRule, DraftedStep, InstrumentedAnswer
from specdec.losslessness.external.level import prove_callable
from specdec.losslessness.levels import Outcome

VOCAB, DRAFTED = 200, 3
P_TABLE = {"vocab": VOCAB, "random": {"order": 1, "seed": 3}}


@cache
def rows_of(seed):
    """[vocab, vocab] of a table: by the last token."""
    table = ProbabilityTable(TableOptions.model_validate({"vocab": VOCAB, "random": {"order": 1, "seed": seed}}))
    return np.stack([table.log_probs([token]).exp().numpy() for token in range(VOCAB)])


def residual(p, q):
    left = np.clip(p - q, 0, None)
    return left / left.sum()


class Chains:
    """A decoder of chains on two tables, with everything that may be wrong in it given by name."""

    def __init__(self, *, rule="rejection", states_rule=True, drafts="drawn", wrong=None, told=True):
        self.rule, self.states_rule, self.drafts, self.wrong, self.told = rule, states_rule, drafts, wrong, told
        self.p, self.q = rows_of(3), 0.5 * rows_of(4) + 0.5 * rows_of(3)

    def __call__(self, ids, n, seed):
        rng, text, steps = np.random.default_rng(seed), list(ids), []
        while len(text) < len(ids) + n:
            step = self.step(text[-1], rng)
            steps.append(step)
            text += step.emitted
        tokens = text[len(ids) : len(ids) + n]
        rule = self.rule if self.states_rule else None
        return InstrumentedAnswer(tokens, steps, rule) if self.told else tokens

    def step(self, token, rng):
        def draw(row):
            return int(rng.choice(VOCAB, p=row / row.sum()))

        drafted, rows, last = [], [], token
        for _ in range(0 if self.drafts == "none" else DRAFTED):
            rows.append(self.q[last])
            last = draw(rows[-1]) if self.drafts == "drawn" else int(rows[-1].argmax())
            drafted.append(last)
        said = None if self.drafts == "deterministic" else np.array(rows)
        for place, draft in enumerate(drafted):
            p = self.p[token]
            q = np.eye(VOCAB)[draft] if said is None else rows[place]
            if self.rule == "match":
                drawn = draw(p)
                accepted, following = drawn == draft, drawn
            else:
                slack = {"lenient": 1.5, "far too lenient": 4.0}.get(self.wrong, 1.0)
                accepted = self.wrong != "rejects all" and rng.random() < slack * p[draft] / q[draft]
                following = draw(p if self.wrong in ("plain p", "rejects all") else residual(p, q)) if not accepted else None
            if not accepted:
                return DraftedStep(drafted, place, following, said)
            token = draft
        return DraftedStep(drafted, len(drafted), draw(self.p[token]), said)


@pytest.fixture
def prove(on_table, planted, no_progress):
    def run(decoder, *, seconds=0.4, temperature=1.0):
        resolved = on_table("plain", f"sampling.temperature={temperature}", drafter=None, target={"use": "tabular", **P_TABLE})
        return prove_callable(decoder, resolved, planted, seconds=seconds, seed=0, progress=no_progress)

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("decoder"),
    [Chains(), Chains(rule="match", states_rule=False), Chains(drafts="deterministic")],
    ids=["rejection", "match, not stated", "deterministic drafts"],
)
def test_a_correct_decoder_that_hands_back_its_steps_is_proved_without_a_cut(prove, decoder):
    result = prove(decoder, seconds=3)
    assert result.outcome is Outcome.PROVED, result.words
    assert result.facts["smallest_adjusted_p"] > 1e-3
    assert result.facts["steps"]["accepted"] > 10


def test_the_same_decoder_without_its_steps_is_inconclusive(prove):
    assert prove(Chains(told=False)).outcome is Outcome.INCONCLUSIVE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("decoder", "tests"),
    [
        (Chains(drafts="argmax"), {"drafts against q", "acceptance"}),
        (Chains(drafts="argmax", states_rule=False), {"drafted places", "answers"}),
        (Chains(wrong="plain p"), {"after rejection"}),
        (Chains(wrong="lenient"), {"acceptance"}),
        (Chains(wrong="far too lenient", drafts="deterministic"), {"acceptance"}),
    ],
    ids=[
        "argmax",
        "argmax, rule not stated",
        "p after a rejection",
        "accepts too much",
        "accepts too much of deterministic drafts",
    ],
)
def test_a_wrong_decoder_is_refuted_where_it_is_wrong(prove, decoder, tests):
    result = prove(decoder, seconds=20)
    assert result.outcome is Outcome.REFUTED, result.words
    refuting = {test["name"].split(":")[0] for test in result.facts["tests"] if test["adjusted"] < 1e-6}
    assert refuting & tests, refuting


@pytest.mark.parametrize(
    ("decoder", "words"),
    [(Chains(drafts="none"), "nothing was drafted"), (Chains(wrong="rejects all", states_rule=False), "was accepted")],
)
def test_decoders_that_draft_nothing_or_accept_nothing_prove_nothing(prove, decoder, words):
    result = prove(decoder)
    assert result.outcome is Outcome.INCONCLUSIVE
    assert words in result.words


def test_greedy_answers_with_nothing_drafted_prove_nothing_either(prove):
    p = Chains().p

    def greedy(ids, n, seed):
        text = list(ids)
        for _ in range(n):
            text.append(int(p[text[-1]].argmax()))
        steps = [DraftedStep([], 0, token) for token in text[len(ids) :]]
        return InstrumentedAnswer(text[len(ids) :], steps)

    result = prove(greedy, temperature=0.0)
    assert result.outcome is Outcome.INCONCLUSIVE
    assert "nothing was drafted" in result.words


Q = torch.full((2, 5), 0.2)


@pytest.mark.parametrize(
    ("steps", "rule", "words"),
    [
        ([DraftedStep([1, 2], 3, 0)], None, "3 of 2 drafts"),
        ([DraftedStep([], 0, None)], None, "nothing was emitted"),
        ([DraftedStep([1, 7], 1, 3)], None, "token 7 was drafted"),
        ([DraftedStep([1, 2], 1, 3, Q[:1])], None, r"shape \[1, 5\]; expected \[2, 5\]"),
        ([DraftedStep([1, 2], 1, 3, Q * 2)], None, "sums are 2, 2"),
        ([DraftedStep([1, 2], 1, 4, Q)], None, r"emit \[1, 4\], but its ids are \[1, 3\]"),
        ([DraftedStep([1, 2], 1, 3)], "typical", "states rule 'typical'; expected 'rejection' or 'match'"),
        ([([1, 2], 1, 3)], None, "cannot be read"),
    ],
)
def test_steps_that_cannot_be_are_named(steps, rule, words):
    with pytest.raises(PluginError, match=words):
        ask(lambda ids, n, seed: InstrumentedAnswer([1, 3], steps, rule), [0], 2, 0, 5)


def test_steps_are_taken_as_tensors_and_may_go_on_behind_the_answer():
    steps = [DraftedStep(torch.tensor([1, 2]), np.int64(1), torch.tensor(3), Q.half()), DraftedStep([4], 1, None)]
    asked = ask(lambda ids, n, seed: InstrumentedAnswer(torch.tensor([1, 3]), steps, "rejection"), [0], 2, 0, 5)
    assert asked.tokens == (1, 3)
    assert asked.steps.rule is AcceptanceRule.REJECTION
    assert [step.emitted for step, _ in asked.steps] == [(1, 3), (4,)]
