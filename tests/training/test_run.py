"""What is looked at before features are computed, and what a run that has come to its end says."""

import pytest
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from specdec.cli import app
from specdec.errors import SpecError
from specdec.training.distributed import Processes
from specdec.training.feature_store import Cost
from specdec.training.run import _prepare


class Written:
    """A store whose held-out shard is there; says in which order it is asked for what."""

    def __init__(self, held):
        self.held, self.asked = held, []

    def present(self, part):
        return [self.held]

    def cost(self, parts):
        return Cost(10, 0.1, None)

    def write(self, parts):
        self.asked.append("held out")

    def grow(self, epoch):
        self.asked.append("all")


@pytest.fixture
def spec(trainer):
    return trainer("run").spec


@pytest.mark.parametrize("own", [True, False])
def test_held_out_answers_of_another_model_are_told_before_the_other_features_are_computed(shard, spec, tmp_path, own):
    path = shard(tmp_path / "own-held-0000.safetensors", [14, 15], 9)
    if not own:
        tensors = load_file(path)
        save_file({**tensors, "top_ids": tensors["top_ids"] + 1}, path)
    store, said = Written(path), []
    if own:
        assert len(_prepare(store, spec, said.append, Processes())) == 2
        assert (store.asked, said) == (
            ["held out", "all"],
            [{"features_missing": {"tokens": 10, "gigabytes": 0.1, "seconds": None}}],
        )
        return
    with pytest.raises(SpecError, match="no held-out conversation is the target's own answer"):
        _prepare(store, spec, said.append, Processes())
    assert (store.asked, said) == (["held out"], [])


def test_a_run_that_has_come_to_its_end_says_that_nothing_is_left_to_do(trainer, small_yaml, monkeypatch):
    done = trainer("run", budget={"steps": 2})
    monkeypatch.setattr("specdec.training.run.trainer", lambda plan, report: done)
    first, again = (CliRunner().invoke(app, ["train", str(small_yaml)]) for _ in range(2))
    assert (first.exit_code, again.exit_code) == (0, 0)
    assert "nothing is left" not in first.output
    assert (
        "nothing is left to do: the run has made 2 steps, of budget.steps: 2; a larger budget would resume it" in again.output
    )


def test_time_that_is_spent_is_said_in_seconds(trainer):
    run = trainer("timed", budget={"seconds": 0.5})
    run.seconds = 0.7
    assert run.spent == "the run has trained for 1 seconds, of budget.seconds: 0.5"
