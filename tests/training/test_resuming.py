"""What a run may not change midway, and what a checkpoint from elsewhere or of an earlier version is."""

import pytest
import torch

from specdec.errors import CheckpointError, SpecError
from specdec.training.curves import read_log
from specdec.training.resuming import read_checkpoint
from specdec.training.run import log_to


@pytest.fixture
def left(trainer):
    """A run that was stopped, and the same spec with changes."""
    run = trainer("left")
    run.run(stop_after=2)
    run.save()
    return run, lambda **changes: trainer("left", **changes).spec


def test_a_run_without_a_checkpoint_starts_afresh(trainer):
    assert read_checkpoint(trainer("fresh").spec) is None


def test_what_only_bears_on_the_rest_of_a_run_may_change(left):
    run, spec = left
    changes = {"budget": {"steps": 90}, "losses": {"regression": 0.3}, "optimizer": {"learning_rate": 0.1}, "validate_every": 7}
    assert read_checkpoint(spec(**changes))["counters"]["step"] == run.step


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head": {"draft_vocab_size": 12}}, r"head\.draft_vocab_size was 8192, is 12"),
        ({"head": {"inputs": "token"}}, r"head\.inputs was feature-shifted, is token"),
        ({"seed": 4}, "seed was 0, is 4"),
        ({"tokens_per_batch": 80}, "tokens_per_batch was 40, is 80"),
        ({"optimizer": {"use": "muon"}}, r"optimizer\.use was adamw, is muon"),
    ],
)
def test_b65_b98_a_checkpoint_of_another_head_or_order_of_data_is_refused_and_the_change_is_named(left, changes, message):
    with pytest.raises(SpecError, match=message):
        read_checkpoint(left[1](**changes))


def test_a_checkpoint_of_before_specs_were_kept_is_still_read(left):
    path = left[0].spec.output / "checkpoint.pt"
    state = torch.load(path, weights_only=True)
    del state["spec"]
    torch.save(state, path)
    assert read_checkpoint(left[1](seed=4))["counters"]["step"] == 2


@pytest.mark.parametrize("kept", [0, 100])
def test_a_checkpoint_that_is_no_file_of_torch_is_named(left, kept):
    path = left[0].spec.output / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match=r"checkpoint\.pt cannot be read"):
        read_checkpoint(left[1]())


def test_a_checkpoint_is_whole_or_the_one_before_when_writing_it_is_cut_short(left):
    run, spec = left
    path = run.spec.output / "checkpoint.pt"
    path.with_suffix(".partial").write_bytes(path.read_bytes()[:500])
    assert read_checkpoint(spec())["counters"]["step"] == 2
    run.run(stop_after=1)
    run.save()
    assert read_checkpoint(spec())["counters"]["step"] == 3


def test_features_that_were_moved_are_found_in_the_specs_folder(left, trainer, tmp_path):
    run, _ = left
    state = torch.load(run.spec.output / "checkpoint.pt", weights_only=True)
    state["epoch_shards"] = [path.replace(str(tmp_path), "/gone") for path in state["epoch_shards"]]
    again = trainer("left")
    again.restore(state)
    assert again.epoch_shards == run.epoch_shards


def test_a_log_that_was_cut_short_is_gone_on_with_on_a_line_of_its_own(tmp_path):
    path = tmp_path / "log.jsonl"
    log_to(path)({"step": 1})
    with path.open("a") as file:
        file.write('{"step": 2, "lo')
    log_to(path)({"step": 2})
    assert read_log(path) == [{"step": 1}, {"step": 2}]
