import pytest

from specdec.errors import SpecError
from specdec.performance.acceptance_profile import Rates
from specdec.performance.cost_model import CostModel, DrafterCost
from specdec.tree_search.expected_tokens import expected_tokens
from specdec.tree_search.roofline import Machine, ModelSize, forward_seconds, roofline_costs
from specdec.tree_search.simulation import Task, play
from specdec.trees.tree_shape import TreeShape

RATES = Rates(((0.6, 0.2), (0.5, 0.2), (0.3, 0.1)))
COSTS = CostModel(
    source="by hand",
    widths=(1, 8),
    contexts=(1, 1001),
    forward_seconds=((0.01, 0.012), (0.02, 0.022)),
    overhead_seconds=0.001,
    drafter=DrafterCost(name="d", first_seconds=0.002, widths=(1, 4), seconds=(0.001, 0.002)),
)


@pytest.mark.parametrize("shape", [TreeShape.chain(3), TreeShape.k_ary([2, 2, 1]), TreeShape.of([[0], [1], [0, 0]])])
def test_monte_carlo_and_the_closed_form_agree(shape):
    played = play(shape, RATES, COSTS, Task(100, 400, answers=60), seed=1)
    closed = expected_tokens(shape, RATES.children)
    assert played.tau == pytest.approx(closed, abs=5 * played.tau_error + 0.02)
    assert played.tau_error < 0.03


def test_a_play_takes_the_time_of_its_steps_as_the_context_grows():
    chain = TreeShape.chain(2)
    certain = play(chain, Rates(((1.0,),)), COSTS, Task(100, 7, answers=2), seed=0)
    steps = [COSTS.step(3, (1, 1), 100), COSTS.step(3, (1, 1), 103)]
    plain = sum(COSTS.plain(context) for context in range(100, 106))
    assert certain.tau == 3
    assert certain.seconds == pytest.approx(sum(steps))
    assert certain.plain_seconds == pytest.approx(plain)
    assert certain.speedup == pytest.approx(plain / sum(steps))
    assert certain.tokens_per_second == pytest.approx(6 / sum(steps))


def test_an_answer_that_ends_within_a_step_counts_only_its_tokens():
    assert play(TreeShape.chain(4), Rates(((1.0,),)), COSTS, Task(10, 8, answers=2), seed=0).tau == pytest.approx(7 / 2)


def test_plain_decoding_is_itself():
    played = play(TreeShape(()), RATES, COSTS, Task(10, 20, answers=2), seed=0)
    assert (played.tau, played.speedup) == (1, pytest.approx(1))


def test_the_same_seed_plays_the_same_and_another_does_not():
    one, again, other = (play(TreeShape.chain(3), RATES, COSTS, Task(10, 50, 5), seed=seed) for seed in (1, 1, 2))
    assert one == again != other


def test_a_task_of_nothing_is_refused():
    with pytest.raises(SpecError, match="new_tokens"):
        Task(1, 0, 1)
    with pytest.raises(SpecError, match="at least 2"):
        play(TreeShape.chain(1), RATES, COSTS, Task(1, 1, 1), seed=0)


MACHINE = Machine(bandwidth=1e12, flops=100e12, devices=2, efficiency=0.5, forward_overhead=0.001)
MODEL = ModelSize(parameters=10e9, kv_bytes_per_token=1e5)


def test_the_roofline_reads_weights_and_cache_until_arithmetic_takes_longer():
    reading = (20e9 + 1e8) / 1e12
    assert forward_seconds(MACHINE, MODEL, new_tokens=1, context=1000, devices=2) == pytest.approx(reading + 0.001)
    assert forward_seconds(MACHINE, MODEL, new_tokens=100, context=1000, devices=2) == pytest.approx(reading + 0.001)
    assert forward_seconds(MACHINE, MODEL, new_tokens=200, context=0, devices=2) == pytest.approx(20e9 * 200 / 100e12 + 0.001)


def test_the_costs_of_a_roofline_are_its_seconds_and_the_draft_runs_on_one_device():
    draft = ModelSize(parameters=1e9)
    costs = roofline_costs(MACHINE, MODEL, draft, source="x")
    assert costs.forward(1, 1024) == pytest.approx(forward_seconds(MACHINE, MODEL, new_tokens=1, context=1024, devices=2))
    assert costs.forward(256, 1) == pytest.approx(forward_seconds(MACHINE, MODEL, new_tokens=256, context=1, devices=2))
    assert costs.draft((1, 1)) == pytest.approx(2 * forward_seconds(MACHINE, draft, new_tokens=1, context=0, devices=1))
    assert roofline_costs(MACHINE, MODEL, None, source="x").draft((1, 1)) == 0
