import pytest

from specdec.training.optimizer import learning_rate_share


@pytest.mark.parametrize("warmup", [0, 1, 10])
def test_the_learning_rate_rises_to_its_peak_and_falls_and_is_never_above_it(warmup):
    trace = [learning_rate_share(step / 100, warmup / 100, 0.1) for step in range(101)]
    top = trace.index(max(trace))
    assert max(trace) == 1.0
    assert top == warmup
    assert trace[: top + 1] == sorted(trace[: top + 1])
    assert trace[top:] == sorted(trace[top:], reverse=True)
    assert trace[-1] == pytest.approx(0.1)
