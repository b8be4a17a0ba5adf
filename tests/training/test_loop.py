import json

import pytest
import torch

from specdec.errors import NumericsError
from specdec.training.validation import ChainAcceptance


def weights(run):
    return torch.cat([p.detach().flatten() for p in run.head.parameters()])


def restored(make, output, path, **changes):
    run = make(output, **changes)
    run.restore(torch.load(path, weights_only=True))
    return run


@pytest.mark.parametrize("stop", [1, 4, 5, 13])
def test_a_run_that_was_stopped_gives_the_same_weights_as_one_that_was_not(trainer, stop):
    whole = trainer("whole")
    whole.run(stop_after=16)
    part = trainer("part")
    part.run(stop_after=stop)
    part.save()
    rest = restored(trainer, "part", part.spec.output / "checkpoint.pt")
    rest.run(stop_after=16 - stop)
    assert torch.equal(weights(rest), weights(whole))
    assert (rest.step, rest.epoch, rest.place, rest.tokens) == (whole.step, whole.epoch, whole.place, whole.tokens)


def test_a_run_with_muon_resumes_exactly(trainer):
    options = {"optimizer": {"use": "muon"}, "steps": {"start": 1, "end": 2, "switch_at": 0.2}}
    whole = trainer("whole", **options)
    whole.run(stop_after=12)
    part = trainer("part", **options)
    part.run(stop_after=7)
    part.save()
    rest = restored(trainer, "part", part.spec.output / "checkpoint.pt", **options)
    rest.run(stop_after=5)
    assert torch.equal(weights(rest), weights(whole))


def test_a_loss_that_is_not_finite_leaves_the_weights_alone_and_is_counted(trainer):
    run = trainer("nan")
    run.run(stop_after=1)
    before = weights(run)
    poisoned = (run.head.fc.weight * float("nan")).sum()
    assert run._update(poisoned) is None
    assert torch.equal(weights(run), before)
    assert run.skipped == 1


def test_a_batch_without_a_word_of_the_assistant_leaves_the_weights_alone(trainer, batch):
    run = trainer("silent")
    run.run(stop_after=1)
    before = weights(run)
    run._one(batch(9, 7).silent())
    assert torch.equal(weights(run), before)
    assert (run.step, run.skipped) == (2, 0)


def test_a_run_that_is_not_finite_any_more_stops(trainer):
    run = trainer("nan")

    def many():
        for _ in range(50):
            run._update((run.head.fc.weight * float("nan")).sum())

    with pytest.raises(NumericsError, match="not finite"):
        many()


def test_the_best_head_is_the_one_whose_drafts_were_accepted_most(trainer):
    """Scripted: acceptance rises and falls again, while the loss goes on falling."""
    taus = iter([1.2, 1.9, 1.6])

    class Scripted(type(trainer("x"))):
        def acceptance(self):
            return ChainAcceptance((0.5,), next(taus), 10)

    run = trainer("best")
    run.__class__ = Scripted
    for step in (1, 2, 3):
        run.step = step
        run._validate()
    assert json.loads((run.spec.output / "head" / "validation.json").read_text())["step"] == 2


def test_training_learns_a_simple_text(trainer):
    run = trainer("learns", optimizer={"learning_rate": 1e-2, "warmup": 0.1}, budget={"steps": 200}, validate_every=1000)
    start = run.acceptance().tau
    run.run()
    assert run.acceptance().tau > start + 1
