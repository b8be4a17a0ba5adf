"""Rules of others as functions: correct ones are proved, mistakes that were seen in public are refuted by known amounts."""

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from specdec.cli import app
from specdec.errors import PluginError, SpecError
from specdec.losslessness.external.rules import Drafts, enumerate_rule, verify_rule

A_P, A_Q = np.array([0.5, 0.3, 0.2]), np.array([0.3, 0.2, 0.5])
T_P, T_Q = np.array([1 / 3, 2 / 3]), np.array([2 / 3, 1 / 3])


def on(rule, drafts, count, p, q):
    return enumerate_rule(rule, drafts, count, lambda path: np.asarray(p), lambda path: np.asarray(q))


def residual(p, q):
    left = np.clip(p - q, 0, None)
    return left / left.sum() if left.sum() else p


def leviathan(p, q, drafts, uniforms):
    for place, token in enumerate(drafts):
        if not next(uniforms) < p[place][token] / q[place][token]:
            return place, uniforms.choose(residual(p[place], q[place]))
    return len(drafts), uniforms.choose(p[-1])


def from_the_target_after_a_rejection(p, q, drafts, uniforms):
    for place, token in enumerate(drafts):
        if not next(uniforms) < p[place][token] / q[place][token]:
            return place, uniforms.choose(p[place])
    return len(drafts), uniforms.choose(p[-1])


def by_cumulative_sums(p, q, drafts, uniforms):
    """Numbers by place, a scaled one, and the token by comparing with cumulative sums."""
    for place, token in enumerate(drafts):
        if not uniforms[place] * q[place][token] <= p[place][token]:
            return place, int((np.cumsum(residual(p[place], q[place]))[:-1] <= uniforms[90]).sum())
    return len(drafts), int((np.cumsum(p[-1])[:-1] <= uniforms[91]).sum())


def multi_round(p, q, drafts, uniforms):
    p, q = p[0], q[0]
    for place, token in enumerate(drafts):
        if next(uniforms) < p[token] / q[token]:
            return place, token
        p = residual(p, q)
        q = np.where(np.arange(len(q)) == token, 0, q)
        q = q / q.sum() if q.sum() else q
    return None, uniforms.choose(p)


def a_fresh_sample_for_each_candidate(p, q, drafts, uniforms):
    """Medusa's nucleus mask: a row of the target is sampled for every candidate, and a match is accepted."""
    for place, token in enumerate(drafts):
        if uniforms.choose(p[0]) == token:
            return place, token
    return None, uniforms.choose(p[0])


def block_with_an_uncapped_last_test(p, q, drafts, uniforms):
    """HSD's public code: the capped ratio in the residuals, the uncapped one where the whole draft is tested."""
    capped, ratio = [1.0], 1.0
    for place, token in enumerate(drafts):
        ratio *= p[place][token] / q[place][token]
        capped.append(min(1.0, capped[-1] * p[place][token] / q[place][token]))
    if next(uniforms) < min(1.0, ratio):
        return len(drafts), uniforms.choose(p[-1])
    for place in range(len(drafts) - 1, 0, -1):
        mass = np.clip(capped[place] * p[place] - q[place], 0, None).sum()
        if next(uniforms) < (mass / (mass + (1 - capped[place])) if mass or capped[place] < 1 else 1.0):
            return place, uniforms.choose(residual(capped[place] * p[place], q[place]))
    return 0, uniforms.choose(residual(p[0], q[0]))


def spec_hub(p, q, drafts, uniforms, shortcut=False):
    """Of two draws without replacement where the second is the likeliest token unless that came first."""
    p, q = p[0], q[0]
    top = int(q.argmax())
    pair = [drafts[0], top] if drafts[0] != top else drafts
    if shortcut and p[top] > 1 - 1e-3:
        return None, top
    first = np.where(np.arange(len(q)) == top, 0, q)
    second = first * q[top] / (1 - q[top])
    after = np.clip(p - first, 0, None)
    other = pair[1] if pair[0] == top else pair[0]
    wants, offered = (after, second) if pair[0] == top else (p, first)
    if next(uniforms) < wants[other] / offered[other]:
        return None, other
    left_second, left_first = np.clip(second - after, 0, None).sum(), np.clip(first - p, 0, None).sum()
    later = max(0.0, p[top] - left_second)
    share = p[top] / left_second if pair[0] == top else later / left_first
    if next(uniforms) < share:
        return None, top
    rest = np.clip(after - second, 0, None)
    rest[top] = max(0.0, later - left_first)
    return None, uniforms.choose(rest)


def best_of_several(p, q, drafts, uniforms):
    """GBV of one token: p/q counts as at most 1; the first of equal drafts is taken, and ids order them in the distribution."""
    p, q = p[0], q[0]
    value = np.minimum(p / q, 1)
    best = max(drafts, key=lambda token: value[token])
    order = sorted(range(len(q)), key=lambda token: (value[token], token))
    chosen, below = np.zeros(len(q)), 0.0
    for token in order:
        chosen[token] = (below + q[token]) ** len(drafts) - below ** len(drafts)
        below += q[token]
    if next(uniforms) < p[best] / chosen[best]:
        return drafts.index(best), best
    return None, uniforms.choose(residual(p, chosen))


@pytest.mark.parametrize(
    ("rule", "drafts", "count"),
    [
        (leviathan, Drafts.CHAIN, 2),
        (by_cumulative_sums, Drafts.CHAIN, 2),
        (multi_round, Drafts.WITHOUT_REPLACEMENT, 2),
    ],
)
def test_a_correct_rule_is_proved_on_every_pair(rule, drafts, count):
    assert max(one.proof.tv for one in verify_rule(rule, drafts, count, vocab_size=4)) <= 1e-12


GALLERY = {
    "a resample from p": (from_the_target_after_a_rejection, Drafts.CHAIN, 1, A_P, A_Q, 3 / 50),
    "argmax drafts with a soft q": (leviathan, Drafts.ARGMAX_CHAIN, 1, A_P, A_Q, 1 / 5),
    "a fresh sample for each candidate": (a_fresh_sample_for_each_candidate, Drafts.TOP, 2, A_P, A_Q, 9 / 50),
    "an uncapped last test": (block_with_an_uncapped_last_test, Drafts.CHAIN, 2, T_P, T_Q, 1 / 9),
    "ties broken in two ways": (best_of_several, Drafts.IID, 2, A_P, A_Q, 1 / 20),
    "ties of three chains": (best_of_several, Drafts.IID, 3, A_P, A_Q, 207 / 1952),
}


@pytest.mark.parametrize("name", GALLERY)
def test_a_public_mistake_is_refuted_by_the_known_amount_and_its_direction_is_named(name):
    rule, drafts, count, p, q, known = GALLERY[name]
    found = on(rule, drafts, count, p, q)
    assert found.proof.tv == pytest.approx(known, abs=1e-9)
    towards = {"ties broken in two ways": "drafter does not favour", "a resample from p": "towards the drafter"}
    assert towards.get(name, "drafter") in found.direction


def test_a_q_that_was_not_renormalised_is_refuted_by_the_known_amount():
    """Tokens that the target lacks were dropped from the draft row, and the rest was verified as it stood."""
    p, kept = [0.25] * 4, np.array([0.4, 0.3, 0.2, 0.0])

    def rule(rows, q, drafts, uniforms):
        return leviathan(rows, [kept], drafts, uniforms)

    found = on(rule, Drafts.CHAIN, 1, p, kept / kept.sum())
    assert found.proof.tv == pytest.approx(7 / 108, abs=1e-9)
    assert found.proof.expected_accepted == pytest.approx(7 / 9, abs=1e-9)
    assert on(leviathan, Drafts.CHAIN, 1, p, kept / kept.sum()).proof.tv <= 1e-12


def test_a_shortcut_where_one_token_is_nearly_certain_is_refuted():
    p, q = np.array([0.9994, 0.0004, 0.0002]), np.array([0.6, 0.3, 0.1])
    right = on(spec_hub, Drafts.WITHOUT_REPLACEMENT, 2, p, q)
    wrong = on(lambda *given: spec_hub(*given, shortcut=True), Drafts.WITHOUT_REPLACEMENT, 2, p, q)
    assert right.proof.tv <= 1e-12
    assert wrong.proof.tv == pytest.approx(0.0006, abs=1e-9)


def test_a_q_of_bfloat16_that_is_verified_in_float32_is_refuted():
    logits = torch.tensor([9.03, 8.01, 7.37])
    exact = torch.softmax(logits.double(), -1).numpy()
    rounded = torch.softmax(logits.bfloat16(), -1).double()
    drawn = (rounded / rounded.sum()).numpy()

    def rule(rows, q, drafts, uniforms):
        return leviathan(rows, [exact], drafts, uniforms)

    found = on(rule, Drafts.CHAIN, 1, [0.2, 0.3, 0.5], drawn)
    assert 1e-4 < found.proof.tv < 1e-2


@pytest.mark.parametrize("wrong", [GALLERY[name] for name in ("a resample from p", "an uncapped last test")])
def test_the_shipped_pairs_of_models_find_a_mistake_without_its_known_case(wrong):
    rule, drafts, count, *_ = wrong
    assert max(one.proof.tv for one in verify_rule(rule, drafts, max(count, 2))) > 1e-3


def test_a_number_that_becomes_a_float_is_refused_with_what_would_do():
    def rule(p, q, drafts, uniforms):
        return 0, int(np.searchsorted(np.cumsum(p[0]), float(next(uniforms))))

    with pytest.raises(SpecError, match="compare it with thresholds"):
        verify_rule(rule, Drafts.CHAIN, 1)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (lambda p, q, drafts, uniforms: (7, 0), "accepted 7 of 1"),
        (lambda p, q, drafts, uniforms: 1 / 0, "ZeroDivisionError"),
        (lambda p, q, drafts, uniforms: 3, "TypeError"),
    ],
)
def test_a_rule_that_fails_or_answers_anything_else_is_named_with_its_drafts(rule, message):
    with pytest.raises(PluginError, match=message):
        verify_rule(rule, Drafts.CHAIN, 1)


def test_the_command_exits_with_1_for_a_refuted_rule_and_0_for_a_proved_one(tmp_path, monkeypatch):
    (tmp_path / "mine_to_verify.py").write_text(
        "import numpy as np\n"
        "def wrong(p, q, drafts, uniforms):\n"
        "    if next(uniforms) < p[0][drafts[0]] / q[0][drafts[0]]:\n"
        "        return 1, uniforms.choose(p[1])\n"
        "    return 0, uniforms.choose(p[0])\n"
        "def right(p, q, drafts, uniforms):\n"
        "    return 0, uniforms.choose(p[0])\n"
    )
    monkeypatch.chdir(tmp_path)
    refuted = CliRunner().invoke(app, ["verify-rule", "mine_to_verify:wrong", "--count", "1"])
    assert refuted.exit_code == 1
    assert "refuted, total variation" in refuted.stdout
    assert "the drafter" in refuted.stdout
    assert CliRunner().invoke(app, ["verify-rule", "mine_to_verify:right", "--count", "1"]).exit_code == 0
    assert CliRunner().invoke(app, ["verify-rule", "mine_to_verify:absent"]).exit_code == 2
