"""A trace says what happened: every token, every probability, and why a path ended."""

import pytest

from specdec.sampling.logits_warper import LogitsWarper
from specdec.sampling.params import SamplingParams
from specdec.trace.recorder import drafter_names
from specdec.trace.steps import Ending

HOT = {"sampling": {"temperature": 1.0}}


def test_the_steps_give_the_answer_token_by_token_and_text_by_text(traced, strategy):
    trace, generation = traced(strategy, **HOT)
    first = trace.steps[0].tokens[0]
    assert (first, *(t for step in trace.steps for t in step.emitted)) == generation.tokens == trace.end.tokens
    texts = [trace.steps[0].texts[0], *(text for step in trace.steps for text in step.emitted_texts)]
    assert "".join(texts) == generation.text == trace.end.text
    assert trace.end.tau == generation.tau
    assert [dict(step.seconds) for step in trace.steps] == [dict(record.seconds) for record in generation.records]


def test_a_path_is_the_emitted_tokens_and_the_next_one(traced, strategy):
    trace, generation = traced(strategy, **HOT)
    for step, record in zip(trace.steps, generation.records, strict=True):
        came = (*(step.tokens[node] for node in step.path), step.next_token)
        assert came[: len(step.emitted)] == step.emitted == record.emitted
        assert len(step.tokens) - 1 == record.drafted


def test_p_is_the_targets_where_the_verifier_looked_and_missing_elsewhere(traced, strategy, table, next_logits):
    target = table(8)
    trace, _ = traced(strategy, target=target, **HOT)
    warper, told = LogitsWarper(SamplingParams(temperature=1.0), prompt_length=2, stop_ids=frozenset()), next_logits(target)
    sequence = [1, 2, trace.steps[0].tokens[0]]
    for step in trace.steps[:6]:
        for node in range(1, len(step.tokens)):
            parent = step.parents[node]
            if parent not in (0, *step.path):
                assert step.p[node] is None
                continue
            above = step.path[: step.path.index(parent) + 1] if parent else ()
            tokens = [*sequence, *(step.tokens[n] for n in above)]
            assert step.p[node] == pytest.approx(warper.row(told(tokens), tokens).prob(step.tokens[node]), abs=1e-12)
        tokens = [*sequence, *(step.tokens[n] for n in step.path)]
        assert step.next_p == pytest.approx(warper.row(told(tokens), tokens).prob(step.next_token), abs=1e-12)
        sequence += step.emitted


def test_q_is_there_for_drawn_nodes_and_for_no_others(traced, strategy):
    trace, _ = traced(strategy, **HOT)
    for step in trace.steps:
        for node in range(1, len(step.tokens)):
            drawn = step.draw[step.parents[node]] != "deterministic"
            assert (step.q[node] is not None) == drawn
            assert not drawn or 0 < step.q[node] <= 1
        assert step.q[0] is None
        assert step.p[0] is None


def test_the_ending_says_why(traced, chain_of, counter):
    trace, generation = traced(chain_of(3), target=counter(12), max_new_tokens=40, **HOT)
    for step, record in zip(trace.steps, generation.records, strict=True):
        if step.ending is Ending.ALL_ACCEPTED:
            assert len(step.path) == 3 or len(step.path) == len(step.tokens) - 1
        if step.ending is Ending.REJECTED:
            assert len(step.path) < len(step.tokens) - 1
            assert record.tested == len(step.path) + 1
        if step.ending is Ending.NOTHING_DRAFTED:
            assert len(step.tokens) == 1
    assert {Ending.ALL_ACCEPTED, Ending.REJECTED} <= {step.ending for step in trace.steps}


def test_a_path_that_a_stop_token_ends_is_cut(traced, chain_of, counter):
    trace, generation = traced(chain_of(6), target=counter(12, stop_ids=(5,)))
    assert generation.finish_reason == "stop"
    assert trace.steps[-1].ending is Ending.CUT
    assert len(trace.steps[-1].emitted) < len(trace.steps[-1].path) + 1


def test_a_trace_changes_nothing(traced, strategy, compose, table):
    _, generation = traced(strategy, **HOT)
    alone = compose(table(8), strategy).generate([[1, 2]], max_new_tokens=40, seed=5, **HOT)[0]
    assert alone.tokens == generation.tokens


def test_an_answer_of_one_token_has_no_step(traced, strategy):
    trace, generation = traced(strategy, max_new_tokens=1)
    assert trace.steps == ()
    assert (trace.end.tokens, trace.end.tau) == (generation.tokens, None)


@pytest.mark.parametrize(
    ("part", "names"),
    [
        ({"use": "eagle", "head": "builtin"}, ("eagle",)),
        ({"use": "mixture", "parts": [{"use": "eagle"}, {"use": "suffix"}]}, ("eagle", "suffix")),
        ({}, ("drafter",)),
    ],
)
def test_drafters_are_named_as_the_spec_names_them(part, names):
    assert drafter_names(part) == names
