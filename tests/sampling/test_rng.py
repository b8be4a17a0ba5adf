import math
from fractions import Fraction
from itertools import permutations, product

import pytest
import torch
from scipy.stats import chi2

from specdec.errors import NumericsError, SpecdecError
from specdec.sampling.enumeration import outcomes
from specdec.sampling.keyed_noise import gumbels, mix, request_key, uniforms
from specdec.sampling.rng import SeededDraftRng, SeededTargetRng, seeded

FALSE_ALARM = 1e-6
"""Of every chi-square test here, if its seed were drawn anew."""


def check_frequencies(counts, probs):
    """Chi-square of independent draws against their distribution."""
    total = sum(counts)
    statistic = sum((count - total * p) ** 2 / (total * p) for count, p in zip(counts, probs, strict=True))
    assert statistic < chi2.isf(FALSE_ALARM, len(probs) - 1)


def naive_uniform(key, token):
    """The same hash in python's own integers."""
    mask = (1 << 64) - 1
    word = (token * 0x9E3779B97F4A7C15 + key) & mask
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & mask
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & mask
    word ^= word >> 31
    return ((word >> 12) + 0.5) / 2**52


@pytest.mark.parametrize("key", [0, 1, 2**63, 2**64 - 1, 123456789123456789])
def test_uniforms_are_those_of_python_integers(key):
    ids = [0, 1, 2, 77, 49151, 2**31]
    assert uniforms(key, torch.tensor(ids)).tolist() == [naive_uniform(key, token) for token in ids]


def test_uniforms_stay_strictly_inside_the_unit_interval():
    assert ((2**52 - 1) + 0.5) * 2.0**-52 < 1
    values = uniforms(5, torch.arange(200_000))
    assert 0 < float(values.min()) < float(values.max()) < 1
    assert bool(gumbels(1, 2, torch.arange(200_000)).isfinite().all())


def test_uniforms_are_uniform_over_ids_and_over_keys():
    by_id = (uniforms(3, torch.arange(100_000)) * 50).long().bincount(minlength=50).tolist()
    check_frequencies(by_id, [1 / 50] * 50)
    values = [float(uniforms(mix(9, position), torch.tensor([4]))) for position in range(5000)]
    check_frequencies(torch.tensor(values).mul(20).long().bincount(minlength=20).tolist(), [1 / 20] * 20)


def test_mix_depends_on_every_word_and_on_their_order():
    keys = {mix(*words) for words in product(range(6), repeat=3)} | {mix(*words) for words in product(range(6), repeat=2)}
    assert len(keys) == 216 + 36


def test_the_same_seed_and_position_give_the_same_token_whatever_else_was_cut_away():
    """While the winner stays in the support, no cut of the others changes it."""
    probs = torch.tensor([0.1, 0.2, 0.3, 0.25, 0.15], dtype=torch.float64)
    ids = torch.tensor([3, 10, 11, 500, 49151])
    for seed in range(50):
        winner = SeededTargetRng(seed).choose(ids, probs, 12)
        for keep in range(5):
            kept = (torch.arange(5) <= keep) | (ids == winner)
            assert SeededTargetRng(seed).choose(ids[kept], probs[kept] * 7, 12) == winner


def test_choices_do_not_depend_on_earlier_choices_or_flips():
    ids, probs = torch.arange(50), torch.ones(50)
    busy = SeededTargetRng(4)
    busy.choose(ids, probs, 3)
    busy.flip(0.5)
    assert busy.choose(ids, probs, 9) == SeededTargetRng(4).choose(ids, probs, 9)


def test_choices_follow_their_probabilities_over_seeds_and_over_positions():
    probs = torch.tensor([0.05, 0.15, 0.3, 0.5], dtype=torch.float64)
    ids = torch.tensor([2, 5, 7, 90])
    by_seed = [SeededTargetRng(seed).choose(ids, probs, 17) for seed in range(3000)]
    check_frequencies([by_seed.count(token) for token in ids.tolist()], probs.tolist())
    rng = SeededTargetRng(1)
    by_position = [rng.choose(ids, probs, position) for position in range(3000)]
    check_frequencies([by_position.count(token) for token in ids.tolist()], probs.tolist())


def test_choices_at_neighbouring_positions_are_independent():
    probs, ids = torch.tensor([0.5, 0.5]), torch.arange(2)
    rng = SeededTargetRng(8)
    chosen = [rng.choose(ids, probs, position) for position in range(4001)]
    pairs = [2 * a + b for a, b in zip(chosen[::2], chosen[1::2], strict=False)]
    check_frequencies([pairs.count(pair) for pair in range(4)], [0.25] * 4)


@pytest.mark.parametrize("kind", ["target", "draft"])
def test_flips_pass_with_their_probability_and_never_at_zero(kind):
    rng = getattr(seeded(3), kind)
    passed = sum(rng.flip(0.3) for _ in range(10_000))
    check_frequencies([passed, 10_000 - passed], [0.3, 0.7])
    assert not any(rng.flip(0.0) for _ in range(1000))
    assert all(rng.flip(1.0) for _ in range(1000))


def test_draws_with_replacement_follow_q():
    rng = SeededDraftRng(11)
    drawn = rng.draw(torch.tensor([0.0, 0.2, 0.3, 0.5]), 10_000, replacement=True)
    assert 0 not in drawn
    check_frequencies([drawn.count(token) for token in (1, 2, 3)], [0.2, 0.3, 0.5])


def test_draws_without_replacement_follow_the_sequential_distribution():
    q = (0.2, 0.3, 0.5)
    rng = SeededDraftRng(12)
    drawn = [tuple(rng.draw(torch.tensor(q), 2, replacement=False)) for _ in range(6000)]
    pairs = list(permutations(range(3), 2))
    check_frequencies([drawn.count(pair) for pair in pairs], [q[a] * q[b] / (1 - q[a]) for a, b in pairs])


def test_draws_without_replacement_stop_at_the_end_of_the_support():
    for rng in (SeededDraftRng(1),):
        assert sorted(rng.draw(torch.tensor([0.0, 0.5, 0.0, 0.5]), 4, replacement=False)) == [1, 3]
    distribution = outcomes(lambda rng: tuple(rng.draft.draw(torch.tensor([0.0, 0.25, 0.75]), 3, replacement=False)))
    assert distribution == {(1, 2): 0.25, (2, 1): 0.75}


def test_drawing_leaves_q_as_it_was():
    q = torch.tensor([0.1, 0.2, 0.7])
    before = q.clone()
    SeededDraftRng(1).draw(q, 3, replacement=False)
    SeededDraftRng(1).draw(q, 3, replacement=True)
    assert torch.equal(q, before)


def test_the_two_streams_of_a_request_share_no_coin():
    rng = seeded(5)
    drafts = [rng.draft.flip(0.5) for _ in range(2000)]
    targets = [rng.target.flip(0.5) for _ in range(2000)]
    agreed = sum(a == b for a, b in zip(drafts, targets, strict=True))
    check_frequencies([agreed, 2000 - agreed], [0.5, 0.5])


def test_request_keys_differ_by_spec_seed_and_by_request():
    keys = {request_key(seed, index) for seed in range(30) for index in range(30)}
    assert len(keys) == 900


def test_a_second_choice_at_one_position_is_refused_when_seeded():
    rng = SeededTargetRng(1)
    rng.choose(torch.arange(2), torch.ones(2), 4)
    for act in (lambda: rng.choose(torch.arange(2), torch.ones(2), 4), lambda: rng.skip(3)):
        with pytest.raises(SpecdecError, match="the random draw"):
            act()


def test_a_second_choice_at_one_position_is_refused_in_replay():
    def twice(rng):
        rng.target.skip(4)
        return rng.target.choose(torch.arange(2), torch.ones(2), 4)

    with pytest.raises(SpecdecError, match="the random draw"):
        outcomes(twice)


def test_outcomes_is_the_exact_distribution_of_mixed_coins():
    def run(rng):
        first = rng.draft.draw(torch.tensor([0.25, 0.75]), 2, replacement=True)
        second = rng.target.choose(torch.tensor([4, 9]), torch.tensor([1.0, 3.0]), 0) if rng.target.flip(0.5) else -1
        return sum(first), second

    expected = {}
    for (a, pa), (b, pb) in product(((0, Fraction(1, 4)), (1, Fraction(3, 4))), repeat=2):
        for second, mass in ((4, Fraction(1, 8)), (9, Fraction(3, 8)), (-1, Fraction(1, 2))):
            key = (a + b, second)
            expected[key] = expected.get(key, 0) + pa * pb * mass
    assert outcomes(run) == pytest.approx({key: float(mass) for key, mass in expected.items()}, abs=1e-15)


def test_outcomes_never_enters_an_impossible_branch():
    assert outcomes(lambda rng: rng.target.flip(0.0)) == {False: 1.0}
    assert outcomes(lambda rng: rng.draft.flip(1.0)) == {True: 1.0}
    assert outcomes(lambda rng: rng.target.choose(torch.arange(3), torch.tensor([0.0, 2.0, 0.0]), 0)) == {1: 1.0}


@pytest.mark.parametrize("weights", [[0.5, math.nan], [0.5, -0.1], [0.0, 0.0], [math.inf, 1.0]])
def test_a_choice_that_is_no_distribution_is_a_numerics_error(weights):
    with pytest.raises(NumericsError):
        outcomes(lambda rng: rng.target.choose(torch.arange(2), torch.tensor(weights), 0))


def test_a_flip_of_nan_is_a_numerics_error():
    with pytest.raises(NumericsError):
        outcomes(lambda rng: rng.target.flip(math.nan))
