"""Warps against transformers' own processors, and the algebra of TokenDist against dense vectors."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specdec.compose import load
from specdec.errors import NumericsError, SpecError
from specdec.sampling import distribution
from specdec.sampling.distribution import TokenDist, draft_probs, from_dense, point_mass, truncate
from specdec.sampling.logits_warper import LogitsWarper
from specdec.sampling.params import LEAST_TEMPERATURE, MOST_BIAS, MOST_PENALTY, SamplingParams, TruncationParams
from specdec.trees.draft_tree import Draw, TreeSketch

PROPERTIES = settings(max_examples=60)


def random_logits(seed, size=40, scale=3.0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, generator=generator, dtype=torch.float64) * scale


seeds = st.integers(0, 10_000)
weights = st.lists(st.integers(0, 9), min_size=2, max_size=8).filter(any)


# --- TokenDist


@PROPERTIES
@given(weights)
def test_a_token_dist_holds_the_normalised_weights(raw):
    dist = from_dense(torch.tensor(raw, dtype=torch.float64))
    expected = [x / sum(raw) for x in raw]
    assert dist.dense(len(raw)).tolist() == pytest.approx(expected)
    assert [dist.prob(token) for token in range(len(raw))] == pytest.approx(expected)
    assert bool((dist.probs > 0).all())
    assert dist.ids.tolist() == sorted(dist.ids.tolist())
    assert (dist.point is not None) == (sum(x > 0 for x in raw) == 1)


@PROPERTIES
@given(weights, st.integers(0, 7))
def test_without_a_token_the_rest_is_renormalised(raw, token):
    dist = from_dense(torch.tensor(raw, dtype=torch.float64)).without(token)
    rest = [0 if index == token else x for index, x in enumerate(raw)]
    if not any(rest):
        assert dist is None
        return
    assert dist.dense(len(raw)).tolist() == pytest.approx([x / sum(rest) for x in rest])


@PROPERTIES
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=8))
def test_the_residual_is_the_positive_part_of_the_difference(pairs):
    p_raw, q_raw = [p for p, _ in pairs], [q for _, q in pairs]
    if not any(p_raw) or not any(q_raw):
        return
    q = torch.tensor(q_raw, dtype=torch.float64) / sum(q_raw)
    found = from_dense(torch.tensor(p_raw, dtype=torch.float64)).residual(q)
    rest = [max(0.0, p / sum(p_raw) - q / sum(q_raw)) for p, q in pairs]
    if sum(rest) < 1e-12:
        assert found is None or sum(rest) > 0
        return
    assert found.dense(len(pairs)).tolist() == pytest.approx([x / sum(rest) for x in rest], abs=1e-12)


def test_operations_leave_their_operands_as_they_were():
    dist, q = from_dense(torch.tensor([0.2, 0.3, 0.5])), torch.tensor([0.5, 0.25, 0.25])
    before = dist.probs.clone(), q.clone()
    dist.residual(q)
    dist.without(1)
    assert torch.equal(dist.probs, before[0])
    assert torch.equal(q, before[1])


def test_a_point_mass_is_certain():
    dist = point_mass(7)
    assert (dist.prob(7), dist.prob(6), dist.prob(8)) == (1.0, 0.0, 0.0)
    assert dist.without(7) is None
    assert dist.without(3) is dist
    assert dist.residual(torch.full((9,), 1 / 9)).point == 7


@pytest.mark.parametrize("bad", [[0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0]])
def test_weights_that_are_no_distribution_are_a_numerics_error(bad):
    with pytest.raises(NumericsError):
        from_dense(torch.tensor(bad))


# --- cuts


def hugging_face(logits, *, temperature=1.0, top_k=None, top_p=None, min_p=None):
    """The distribution that transformers' own warpers give, in their order."""
    warpers = LogitsProcessorList()
    if temperature != 1.0:
        warpers.append(TemperatureLogitsWarper(temperature))
    if top_k is not None:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p is not None:
        warpers.append(TopPLogitsWarper(top_p))
    if min_p is not None:
        warpers.append(MinPLogitsWarper(min_p))
    return warpers(torch.zeros(1, 1, dtype=torch.long), logits[None].clone())[0].softmax(-1)


@PROPERTIES
@given(
    seeds,
    st.sampled_from([0.3, 0.7, 1.0, 1.9]),
    st.none() | st.integers(1, 50),
    st.none() | st.floats(0.01, 0.99),
    st.none() | st.floats(0.01, 0.9),
)
def test_cuts_are_those_of_transformers(seed, temperature, top_k, top_p, min_p):
    logits = random_logits(seed)
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    found = truncate(logits, TruncationParams(**options)).dense(len(logits))
    assert found.tolist() == pytest.approx(hugging_face(logits, **options).tolist(), abs=1e-12)


def test_top_k_keeps_what_is_tied_with_the_last():
    assert truncate(torch.tensor([2.0, 1.0, 1.0, 0.0]), TruncationParams(temperature=1.0, top_k=2)).ids.tolist() == [0, 1, 2]


def test_top_p_takes_the_lower_ids_of_a_tie_at_its_edge():
    assert truncate(torch.zeros(8), TruncationParams(temperature=1.0, top_p=0.3)).ids.tolist() == [0, 1, 2]


def test_top_p_always_keeps_the_likeliest():
    assert truncate(torch.tensor([0.0, 3.0]), TruncationParams(temperature=1.0, top_p=1e-9)).point == 1


@pytest.mark.parametrize("top_p", [0.2, 0.9, 0.999, 0.9999999])
@pytest.mark.parametrize("scale", [0.01, 2.0, 20.0])
def test_the_nucleus_is_that_of_a_full_sort(top_p, scale):
    """Wide distributions run past the partial top-k; the plain twin sorts everything."""
    for seed in range(3):
        probs = random_logits(seed, size=3000, scale=scale).softmax(-1)
        ordered, order = probs.sort(descending=True, stable=True)
        kept = order[: int((ordered.cumsum(0) - ordered < top_p).sum())]
        assert distribution._nucleus(probs, top_p).tolist() == sorted(kept.tolist())


def test_temperature_zero_is_the_lowest_id_argmax_in_every_type():
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        logits = torch.zeros(50_000, dtype=dtype)
        logits[[31_000, 40_000, 700]] = 2.0
        assert truncate(logits, TruncationParams(temperature=0.0)).point == 700


@pytest.mark.parametrize(
    "cuts",
    [
        TruncationParams(temperature=0.0),
        TruncationParams(temperature=1.0),
        TruncationParams(top_k=2),
        TruncationParams(top_p=0.5),
        TruncationParams(min_p=0.5),
    ],
    ids=lambda cuts: str(cuts.model_dump(exclude_none=True)),
)
@pytest.mark.parametrize("bad", [[math.nan, 0.0, 1.0], [-math.inf] * 3])
def test_logits_that_are_no_distribution_are_a_numerics_error(cuts, bad):
    with pytest.raises(NumericsError):
        truncate(torch.tensor(bad), cuts)


@pytest.mark.parametrize(
    ("given_options", "temperature"),
    [
        ({}, 0.0),
        ({"top_k": 50}, 1.0),
        ({"top_p": 0.9}, 1.0),
        ({"min_p": 0.1}, 1.0),
        ({"top_k": 50, "temperature": 0.0}, 0.0),
        ({"temperature": 1e-6}, 1e-6),
    ],
)
def test_an_unset_temperature_is_greedy_only_when_nothing_is_cut(given_options, temperature):
    assert SamplingParams(**given_options).temperature == temperature


@pytest.mark.parametrize("temperature", [1e-320, 5e-324, 1e-300, 9e-7])
def test_a_temperature_that_is_all_but_zero_is_refused_and_zero_named(temperature):
    with pytest.raises(ValidationError, match="expected 0, which is greedy, or at least 1e-06"):
        SamplingParams(temperature=temperature)
    with pytest.raises(ValidationError, match="which is greedy"):
        TruncationParams(temperature=temperature, top_k=3)


def test_drafts_are_drawn_with_the_target_s_cuts_and_temperature_one_for_zero():
    assert SamplingParams().draft_truncation == TruncationParams(temperature=1.0)
    assert SamplingParams(temperature=0.4, top_p=0.9).draft_truncation == TruncationParams(temperature=0.4, top_p=0.9)
    assert SamplingParams(draft=TruncationParams(temperature=2.0)).draft_truncation == TruncationParams(temperature=2.0)


# --- drafts


@PROPERTIES
@given(
    seeds,
    st.sampled_from(
        [
            TruncationParams(temperature=1.0),
            TruncationParams(temperature=0.5, top_k=3),
            TruncationParams(top_p=0.7),
            TruncationParams(temperature=0.0),
        ]
    ),
)
def test_q_is_the_cut_distribution_in_target_ids_and_zero_elsewhere(seed, cuts):
    logits = torch.stack([random_logits(seed, size=5), random_logits(seed + 1, size=5)])
    target_ids = torch.tensor([8, 2, 0, 5, 11])
    q = draft_probs(logits, target_ids, 12, cuts)
    assert q.shape == (2, 12)
    assert q.sum(-1).tolist() == pytest.approx([1, 1])
    for row, whole in zip(logits, q, strict=True):
        dist = truncate(row, cuts)
        assert [whole[token].item() for token in target_ids.tolist()] == pytest.approx(dist.dense(5).tolist())
    assert torch.equal(draft_probs(logits, None, 5, cuts), q[:, target_ids])
    assert draft_probs(logits, None, 9, cuts)[:, 5:].sum() == 0


# --- what depends on the path


def tree_and_logits(seed):
    sketch = TreeSketch(2, 3)
    child = sketch.add(0, 5)
    sketch.add(0, 6)
    sketch.add(sketch.add(child, 5), 2)
    tree = sketch.freeze(Draw.DETERMINISTIC)
    return tree, torch.stack([random_logits(seed + node, size=10) for node in range(len(tree))])


PREFIX = [1, 9, 9, 2]


def test_penalties_see_each_node_s_own_path():
    tree, logits = tree_and_logits(0)
    sampling = SamplingParams(temperature=1.0, repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=0.25)
    p = LogitsWarper(sampling, prompt_length=3, stop_ids=frozenset()).target_probs(logits, PREFIX, tree)
    for node in range(len(tree)):
        tokens = PREFIX + tree.path_tokens(node)
        scores = RepetitionPenaltyLogitsProcessor(1.5)(torch.tensor([tokens]), logits[node][None].clone())[0]
        generated = tokens[3:]
        for token in set(generated):
            scores[token] -= 0.5 + 0.25 * generated.count(token)
        assert p.row(node).dense(10).tolist() == pytest.approx(scores.softmax(-1).tolist(), abs=1e-12)


def test_a_tree_s_rows_are_those_of_one_token_at_a_time():
    tree, logits = tree_and_logits(4)
    sampling = SamplingParams(temperature=0.8, top_p=0.9, repetition_penalty=1.3, logit_bias={3: 2.0}, min_new_tokens=3)
    warper = LogitsWarper(sampling, prompt_length=3, stop_ids=frozenset({7}))
    p = warper.target_probs(logits, PREFIX, tree)
    for node in range(len(tree)):
        alone = warper.row(logits[node], PREFIX + tree.path_tokens(node))
        assert torch.equal(p.row(node).ids, alone.ids)
        assert torch.equal(p.row(node).probs, alone.probs)
        assert p.row(node) is p.row(node)


def test_no_stop_before_the_least_number_of_new_tokens():
    tree, logits = tree_and_logits(1)
    warper = LogitsWarper(SamplingParams(temperature=1.0, min_new_tokens=3), prompt_length=3, stop_ids=frozenset({7}))
    p = warper.target_probs(logits, PREFIX, tree)
    generated = [1 + depth for depth in tree.depths]
    assert [p.row(node).prob(7) > 0 for node in range(len(tree))] == [count >= 3 for count in generated]


def test_below_a_stop_token_nothing_is_computed():
    tree, logits = tree_and_logits(1)
    logits[1] = float("nan")
    for sampling in (SamplingParams(temperature=1.0), SamplingParams(temperature=1.0, repetition_penalty=2.0)):
        p = LogitsWarper(sampling, prompt_length=3, stop_ids=frozenset({5})).target_probs(logits, PREFIX, tree)
        assert p.row(1).point == 5
        assert p.row(0).point is None


def test_processors_run_before_temperature_and_raw_logits_stay_as_they_were():
    tree, logits = tree_and_logits(2)
    before = logits.clone()

    def double(input_ids, scores):
        scores *= 2
        return scores

    p = LogitsWarper(SamplingParams(temperature=0.5), prompt_length=3, stop_ids=frozenset(), processors=[double]).target_probs(
        logits, PREFIX, tree
    )
    assert p.row(1).dense(10).tolist() == pytest.approx((logits[1] * 4).softmax(-1).tolist(), abs=1e-12)
    assert torch.equal(logits, before)


def test_processors_get_the_ids_of_plain_decoding():
    tree, logits = tree_and_logits(2)
    calls = []

    def note(input_ids, scores):
        calls.append(input_ids.tolist())
        return scores

    p = LogitsWarper(SamplingParams(temperature=1.0), prompt_length=3, stop_ids=frozenset(), processors=[note]).target_probs(
        logits, PREFIX, tree
    )
    for node in (0, 1, 1, 3):
        p.row(node)
    assert calls == [[PREFIX], [[*PREFIX, 5]], [[*PREFIX, 5, 5]]]


def test_greedy_rows_are_those_of_the_cut():
    tree, logits = tree_and_logits(3)
    p = LogitsWarper(SamplingParams(), prompt_length=3, stop_ids=frozenset()).target_probs(logits, PREFIX, tree)
    assert [p.row(node).point for node in range(len(tree))] == [truncate(row, TruncationParams()).point for row in logits]


def test_choosing_needs_no_coin_for_a_point_mass():
    class NoCoins:
        def skip(self, position):
            self.skipped = position

    rng = NoCoins()
    assert point_mass(4).choose(rng, 12) == 4
    assert rng.skipped == 12
    assert isinstance(point_mass(4), TokenDist)


@pytest.mark.parametrize("answer", [None, torch.zeros(5), torch.zeros(1, 4), torch.zeros(1, 5).to_sparse()])
def test_a_processor_that_returns_no_scores_is_named(answer):
    warper = LogitsWarper(SamplingParams(), prompt_length=1, stop_ids=frozenset(), processors=[lambda ids, scores: answer])
    with pytest.raises(SpecError, match=r"logits processor .* expected the scores, a tensor \(1, 5\)"):
        warper.row(torch.zeros(5), [0, 1])


WRONG_SCORES = {
    "truth": (lambda ids, scores: scores > 0, "of bool on cpu"),
    "whole numbers": (lambda ids, scores: scores.long(), "of int64 on cpu"),
    "complex numbers": (lambda ids, scores: scores.to(torch.complex64), "of complex64"),
    "nowhere": (lambda ids, scores: scores.to("meta"), "on meta"),
    "nothing": (lambda ids, scores: None, "returned NoneType"),
    "an exception": (lambda ids, scores: scores[9, 9], "fails: IndexError"),
}


@pytest.mark.parametrize(("processor", "message"), WRONG_SCORES.values(), ids=WRONG_SCORES.keys())
def test_a_processor_that_answers_wrongly_is_named(processor, message):
    warper = LogitsWarper(SamplingParams(), prompt_length=1, stop_ids=frozenset(), processors=[processor])
    with pytest.raises(SpecError, match=f"logits processor <lambda> .*{message}"):
        warper.row(torch.zeros(5), [1])


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.1}], ids=str)
@pytest.mark.parametrize("value", [math.nan, -math.inf, math.inf])
def test_a_row_that_is_no_distribution_is_refused_in_the_same_words_at_any_temperature(options, value):
    warper = LogitsWarper(SamplingParams(**options), prompt_length=1, stop_ids=frozenset())
    tree = TreeSketch(1, 0).freeze(Draw.DETERMINISTIC)
    for row in (
        lambda: warper.row(torch.full((5,), value), [1]),
        lambda: warper.target_probs(torch.full((1, 5), value), [1], tree).row(0),
    ):
        with pytest.raises(NumericsError, match=r"NaN, \+inf or no finite value in a row of logits: every token is forbidden$"):
            row()


def test_each_truncation_alone_cuts_q():
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]], dtype=torch.float64).log()
    for options, kept in (({"top_k": 2}, 2), ({"top_p": 0.9}, 3), ({"min_p": 0.5}, 2), ({}, 4)):
        q = draft_probs(logits, None, 4, TruncationParams(temperature=1.0, **options))
        assert int((q > 0).sum()) == kept
        assert float(q.sum()) == pytest.approx(1)


@pytest.mark.parametrize("temperature", [0.0, LEAST_TEMPERATURE, 1.0, 1e300])
@pytest.mark.parametrize("penalty", [1 / MOST_PENALTY, 1.0, MOST_PENALTY])
@pytest.mark.parametrize("bias", [{0: MOST_BIAS, 1: MOST_BIAS}, dict.fromkeys(range(4), -MOST_BIAS)])
def test_the_greatest_bias_and_penalty_leave_a_distribution(temperature, penalty, bias):
    options = {"temperature": temperature, "repetition_penalty": penalty, "logit_bias": bias, "presence_penalty": 10.0}
    decoder = load({"name": "letters", "target": {"use": "tabular", "vocab": 4, "random": {}}, "drafter": "none"})
    tokens = decoder.generate([[0, 1, 2]], max_new_tokens=6, **options)[0].tokens
    assert len(tokens) == 6
    assert temperature == 1e300 or len(bias) == 4 or set(tokens) <= {0, 1}


@pytest.mark.parametrize(
    "options", [{"logit_bias": {0: 2 * MOST_BIAS}}, {"repetition_penalty": 2 * MOST_PENALTY}, {"repetition_penalty": 1e-300}]
)
def test_a_bias_or_penalty_beyond_what_a_float32_holds_is_refused_by_its_name(options):
    with pytest.raises(ValidationError) as caught:
        SamplingParams(**options)
    assert caught.value.errors()[0]["loc"][0] == next(iter(options))
