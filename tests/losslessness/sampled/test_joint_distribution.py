import pytest

from specdec.compose import build
from specdec.losslessness.reference_model import reference_for
from specdec.losslessness.sampled.joint_distribution import LENGTH, WIDTH, joint_runs, real_contexts


@pytest.fixture
def made(on_table, planted):
    resolved = on_table("self-sampled-chain")
    decoder = build(resolved, planted)
    return resolved, decoder, reference_for(resolved, decoder.target)


def test_each_context_has_the_likeliest_tokens_of_target_and_drafter(made):
    _, decoder, reference = made
    prefix = (1, 2, 3)
    rows = real_contexts(decoder, reference, prefix)
    assert len(rows) == sum(WIDTH**level for level in range(LENGTH))
    p = reference.rows([((*prefix, 0), 3)])[0][0].double().softmax(-1)
    q = decoder.drafter.logits(list(prefix)).softmax(-1)
    ids = (p + q).topk(WIDTH).indices
    assert rows[()].p == pytest.approx((p[ids] / p[ids].sum()).numpy())
    assert rows[()].q == pytest.approx((q[ids] / q[ids].sum()).numpy())
    deeper = [*prefix, int(ids[1])]
    p = reference.rows([((*deeper, 0), 4)])[0][0].double().softmax(-1)
    q = decoder.drafter.logits(deeper).softmax(-1)
    ids = (p + q).topk(WIDTH).indices
    assert rows[(1,)].q == pytest.approx((q[ids] / q[ids].sum()).numpy())


def test_the_joint_distribution_is_the_product_of_the_rows(made):
    resolved, decoder, reference = made
    runs = joint_runs(resolved, decoder, reference, (1, 2, 3), seed=0)
    rows = real_contexts(decoder, reference, (1, 2, 3))
    assert runs.distribution.sum() == pytest.approx(1.0)
    expected = rows[()].p[2] * rows[(2,)].p[0] * rows[(2, 0)].p[3]
    assert runs.distribution[2 * 16 + 0 * 4 + 3] == pytest.approx(float(expected))


@pytest.mark.slow
def test_a_right_verifier_passes_and_a_planted_one_is_refuted(made, on_table):
    resolved, decoder, reference = made
    right = joint_runs(resolved, decoder, reference, (1, 2, 3), seed=0)
    wrong = joint_runs(on_table("self-sampled-chain", "verifier.use=resampling"), decoder, reference, (1, 2, 3), seed=0)
    right.run(300)
    wrong.run(300)
    assert right.counts.sum() == 300
    assert right.chi.p_value > 1e-3
    assert wrong.chi.p_value < 1e-6
