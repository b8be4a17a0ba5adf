import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.losslessness.sampled.evidence import ALTERNATIVES, Evidence, bets, decide
from specdec.losslessness.sampled.statistics import FALSE_ALARM

rows = st.lists(st.floats(0.001, 1.0), min_size=2, max_size=9)


def normal(row):
    return np.array(row) / sum(row)


@given(rows, st.data())
def test_every_bet_is_fair_under_p(row, data):
    p = normal(row)
    q = normal(data.draw(st.lists(st.floats(0.001, 1.0), min_size=len(p), max_size=len(p))))
    for offered in (q, None, p, 0.5 * q):
        bet = bets(p, offered)
        assert (p @ bet.ratios <= 1 + 1e-9).all()
        assert bet.mass == pytest.approx(float(p[bet.favoured].sum()))
        assert bet.ratios.shape == (len(p), len(ALTERNATIVES))
        assert (bet.ratios >= 0).all()


def gather(distribution, tokens, contexts=4):
    """Evidence of `tokens` drawn from `distribution`, held against P; tokens of a known q."""
    rng = np.random.default_rng(7)
    p, q = normal([5, 3, 2]), normal([3, 2, 5])
    bet = bets(p, q)
    evidence = Evidence("run")
    drawn = rng.choice(3, tokens, p=distribution(p, q))
    evidence.add(bet.favoured[drawn].astype(float), np.full(tokens, bet.mass), rng.random(tokens), bet.ratios[drawn])
    halves = [np.stack([np.bincount(drawn[h::2][c::contexts], minlength=3) for c in range(contexts)]) for h in (0, 1)]
    evidence.distributions, evidence.counts = np.tile(p, (contexts, 1)), tuple(half.astype(float) for half in halves)
    return evidence


def test_tokens_of_p_are_not_refuted_and_their_distances_are_small():
    evidence = gather(lambda p, q: p, 20000)
    decision = decide([evidence])
    assert not decision.refuted_by
    distances = evidence.distances(len(decision.tests))
    assert distances["towards_drafter_at_most"] < 0.02
    assert distances["anywhere_at_most"] < 0.02
    assert distances["counted_together"] == 0
    assert distances["towards_drafter_visible"] == pytest.approx(6.6 * (0.2 * 0.8 / 20000) ** 0.5, rel=0.05)


@pytest.mark.parametrize("leak", [0.2, 0.3])
def test_a_leak_towards_the_drafter_is_refuted_by_every_kind_of_test(leak):
    evidence = gather(lambda p, q: (1 - leak) * p + leak * q, 20000)
    names = {test.name.partition(": ")[2] for test in decide([evidence]).refuted_by}
    assert {"focused, towards the drafter", "e-process", "chi-square, all contexts", "learned direction"} <= names
    assert evidence.distances(6)["estimated_at_least"] == pytest.approx(leak * 0.3, abs=0.02)


def test_one_impossible_token_refutes_whatever_else_is_there():
    evidence = gather(lambda p, q: p, 1000)
    evidence.impossible = 1
    assert [test.name for test in decide([evidence]).refuted_by] == ["run: impossible tokens"]


def test_without_tokens_there_is_no_test_and_no_distance():
    assert decide([Evidence("nothing")]).smallest == 1.0
    assert Evidence("nothing").distances(3) == {}
    assert FALSE_ALARM == 1e-6


def test_right_runs_have_p_values_as_small_as_they_should_be_and_no_smaller():
    """40 runs on 6 contexts: about 2 of them below 0.05 after Holm, none below 0.0005."""
    rng = np.random.default_rng(11)
    smallest = []
    for _ in range(40):
        distributions = rng.dirichlet(np.full(8, 0.4), size=6) * 0.999 + 0.001 / 8
        sides = [bets(p, q) for p, q in zip(distributions, rng.dirichlet(np.full(8, 0.4), size=6), strict=True)]
        rows = rng.integers(6, size=600)
        drawn = (distributions[rows].cumsum(1) < rng.random((600, 1))).sum(1).clip(max=7)
        evidence = Evidence(
            "run", distributions=distributions, counts=(np.zeros_like(distributions), np.zeros_like(distributions))
        )
        for place, (row, token) in enumerate(zip(rows, drawn, strict=True)):
            evidence.counts[place % 2][row, token] += 1
        hits = np.array([float(sides[r].favoured[t]) for r, t in zip(rows, drawn, strict=True)])
        ratios = np.stack([sides[r].ratios[t] for r, t in zip(rows, drawn, strict=True)])
        evidence.add(hits, np.array([sides[r].mass for r in rows]), rng.random(600), ratios)
        smallest.append(decide([evidence]).smallest)
    assert min(smallest) > 5e-4
    assert np.mean(np.array(smallest) < 0.05) <= 0.15
