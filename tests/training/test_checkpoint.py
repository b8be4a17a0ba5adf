"""What a run may not change midway, and what a checkpoint from elsewhere or of an earlier version is."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from specdec.errors import CheckpointError, SpecError
from specdec.heads.config import TrainedWith
from specdec.training.borrowed import save_head
from specdec.training.checkpoint import check_template, head_as_left, read_checkpoint, restored
from specdec.training.run import check_places, claim_output, forget_later_steps, log_to
from specdec.training.validation import ChainAcceptance

WRITTEN = Path(__file__).parents[1] / "data" / "written_before"
"""See tests/test_files_written_before.py."""

DATA = {"sources": {"own": {"path": "own.jsonl"}}, "validate_on": "own"}


@pytest.fixture
def left(trainer):
    """A run that was stopped, and the same spec with changes."""
    run = trainer("left")
    run.run(stop_after=2)
    run.save()
    return run, lambda **changes: trainer("left", **changes).spec


def test_a_run_without_a_checkpoint_starts_afresh(trainer):
    assert read_checkpoint(trainer("fresh").spec) is None


def test_a_run_that_an_earlier_version_left_is_resumed(trainer, shard, tmp_path, monkeypatch):
    shutil.copytree(WRITTEN / "run", tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "features").mkdir()
    for number in range(2):
        shard(tmp_path / "features" / f"own-000{number}.safetensors", [9, 12, 17, 8, 11], number)
    run = trainer("run")
    state = read_checkpoint(run.spec)
    weights = head_as_left(run.spec, state).state_dict()
    restored(run, state)
    assert (run.step, run.epoch, run.best_tau) == (4, 1, 1.0)
    assert all(torch.equal(weights[name], tensor) for name, tensor in run.head.state_dict().items())
    run.run(stop_after=1)
    assert run.step == 5


def test_what_only_bears_on_the_rest_of_a_run_may_change(left):
    run, spec = left
    changes = {"budget": {"steps": 90}, "losses": {"regression": 0.3}, "optimizer": {"learning_rate": 0.1}, "validate_every": 7}
    moved = {**DATA, "sources": {"own": {"path": "moved.jsonl", "repeat": 2}}, "tokens_per_epoch": 5}
    assert read_checkpoint(spec(**changes, data=moved))["counters"]["step"] == run.step


def test_a_checkpoint_of_before_templates_had_arguments_is_still_read(left):
    path = left[0].spec.output / "checkpoint.pt"
    state = torch.load(path, weights_only=True)
    del state["spec"]["data"]["chat_template_kwargs"]
    del state["config"]["trained_with"]
    del state["counters"]["validated_step"]
    torch.save(state, path)
    assert read_checkpoint(left[1]())["counters"]["step"] == 2
    with pytest.raises(SpecError, match="chat_template_kwargs"):
        read_checkpoint(left[1](data={**DATA, "chat_template_kwargs": {"a": 1}}))


def test_a_run_whose_target_got_another_chat_template_is_refused_and_one_that_does_not_know_is_not(left):
    spec, now = left[1](), TrainedWith(target="t", chat_template="b")
    check_template(spec, None, now)
    check_template(spec, TrainedWith(target="moved", chat_template="b"), now)
    with pytest.raises(SpecError, match="the target's chat template was a, is b; another output folder would work"):
        check_template(spec, TrainedWith(target="t", chat_template="a"), now)


def test_a_resumed_run_logs_each_step_and_each_validation_once(trainer, tmp_path):
    def go(run, **stop):
        run.report = log_to(run.spec.output / "log.jsonl")
        run.run(**stop)

    def records():
        return [json.loads(line) for line in (tmp_path / "twice" / "log.jsonl").read_text().splitlines()]

    options = {"budget": {"steps": 30}, "validate_every": 4, "checkpoint_every": 10}
    first = trainer("twice", **options)
    first.spec.output.mkdir(parents=True)
    go(first, stop_after=17)
    for _ in range(2):
        again = trainer("twice", **options)
        state = read_checkpoint(again.spec)
        restored(again, state)
        forget_later_steps(again.spec.output / "log.jsonl", again.step)
        go(again)
    validated = [record["step"] for record in records() if "tau" in record]
    assert validated == [4, 8, 12, 16, 20, 24, 28, 30]
    assert [record["step"] for record in records() if "loss" in record] == [20]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head": {"draft_vocab_size": 12}}, r"head\.draft_vocab_size was 8192, is 12"),
        ({"head": {"inputs": "token"}}, r"head\.inputs was feature-shifted, is token"),
        ({"seed": 4}, "seed was 0, is 4"),
        ({"tokens_per_batch": 80}, "tokens_per_batch was 40, is 80"),
        ({"optimizer": {"use": "muon"}}, r"optimizer\.use was adamw, is muon"),
        ({"data_seed": 3}, "data_seed was 0, is 3"),
        ({"data": {**DATA, "held_out_share": 0.5}}, r"data\.held_out_share was 0\.06, is 0\.5"),
        ({"data": {**DATA, "tokens_per_shard": 9}}, r"data\.tokens_per_shard was 25000, is 9"),
        ({"data": {**DATA, "chat_template_kwargs": {"a": 1}}}, r"data\.chat_template_kwargs was \{\}, is \{'a': 1\}"),
        ({"data": {**DATA, "sources": {"own": {"path": "own.jsonl", "max_tokens": 64}}}}, r"own\.max_tokens was 512, is 64"),
        ({"data": {**DATA, "sources": {"own": {"path": "own.jsonl", "temperature": 1.0}}}}, r"temperature was None, is 1\.0"),
    ],
)
def test_a_checkpoint_of_another_head_or_order_of_data_is_refused_and_the_change_is_named(left, changes, message):
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
    with pytest.raises(CheckpointError, match=r"checkpoint\.pt cannot be read.*; delete checkpoint\.pt to start anew"):
        read_checkpoint(left[1]())


def test_a_checkpoint_that_is_junk_is_named(left):
    path = left[0].spec.output / "checkpoint.pt"
    for content in (b"junk", b"a\nb\nc", bytes(range(256))):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"checkpoint\.pt cannot be read"):
            read_checkpoint(left[1]())


@pytest.mark.parametrize("content", [{}, [1], {"head": {}, "counters": {}}])
def test_a_file_of_torch_that_is_no_checkpoint_is_named(left, content):
    torch.save(content, left[0].spec.output / "checkpoint.pt")
    with pytest.raises(CheckpointError, match=r"checkpoint\.pt is no checkpoint of a run, it lacks .*another output folder"):
        read_checkpoint(left[1]())


@pytest.mark.parametrize(
    ("part", "content"),
    [("counters", {}), ("counters", 3), ("optimizers", []), ("optimizers", [{}]), ("epoch_shards", 3), ("epoch_shards", [3])],
)
def test_a_checkpoint_whose_parts_are_damaged_is_named(left, trainer, part, content):
    state = torch.load(left[0].spec.output / "checkpoint.pt", weights_only=True)
    with pytest.raises(CheckpointError, match=r"checkpoint\.pt does not fit the run: .*; delete checkpoint\.pt"):
        restored(trainer("left"), {**state, part: content})


@pytest.fixture
def with_config(left):
    """Its state, its spec, and what writes the config.json beside it."""
    run, spec = left
    path = run.spec.output / "config.json"
    path.write_text(run.head.config.model_dump_json())

    def write(**changes):
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return torch.load(run.spec.output / "checkpoint.pt", weights_only=True), spec(), write


def test_the_head_of_a_checkpoint_is_as_it_was_left(left, with_config):
    state, spec, _ = with_config
    found, wanted = head_as_left(spec, state).state_dict(), left[0].head.state_dict()
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("content", [None, "", "{", "[]", "{}", '{"hidden_size": "x"}'])
def test_a_config_beside_a_checkpoint_that_is_gone_or_junk_is_named(with_config, content):
    state, spec, _ = with_config
    path = spec.output / "config.json"
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(
        CheckpointError, match=r"config\.json (cannot be read|does not describe a head).*; delete checkpoint\.pt"
    ):
        head_as_left(spec, state)


@pytest.mark.parametrize("kept", [True, False])
def test_a_config_of_other_sizes_than_the_checkpoints_is_named(with_config, kept):
    state, spec, write = with_config
    write(intermediate_size=28)
    if not kept:
        del state["config"]
    with pytest.raises(CheckpointError, match=r"config\.json is not of the head in checkpoint\.pt: .*(intermediate_size|size)"):
        head_as_left(spec, state)


def test_a_config_that_only_means_something_else_by_the_same_weights_is_named(with_config):
    state, spec, write = with_config
    write(rope_theta=5e5)
    with pytest.raises(CheckpointError, match="rope_theta differ"):
        head_as_left(spec, state)


@pytest.fixture
def with_best(trainer):
    """A run whose best head is on disk, and what goes on from its checkpoint."""
    run = trainer("best", validate_every=1)
    run.run(stop_after=2)
    run.best_tau = max(run.best_tau, 1.0)
    save_head(run.spec.output / "head", run.head, run.borrowed)
    run.save()
    (run.spec.output / "config.json").write_text(run.head.config.model_dump_json())

    def again():
        state = torch.load(run.spec.output / "checkpoint.pt", weights_only=True)
        rest = trainer("best", validate_every=1)
        head_as_left(rest.spec, state)
        restored(rest, state)
        return rest

    return run, again


def test_the_best_head_so_far_stays_the_one_to_beat_unless_it_is_gone(with_best):
    run, again = with_best
    assert again().best_tau == run.best_tau > 0
    shutil.rmtree(run.spec.output / "head")
    rest = again()
    assert rest.best_tau == 0.0
    rest.acceptance = lambda: ChainAcceptance((0.5,), 1.5, 1)
    rest.run(stop_after=1)
    assert (run.spec.output / "head" / "config.json").is_file()


@pytest.mark.parametrize("content", [None, "{", "{}", {"rope_theta": 5e5}, {"intermediate_size": 28}])
def test_a_damaged_best_head_is_named_and_what_would_work(with_best, content):
    run, again = with_best
    path = run.spec.output / "head" / "config.json"
    whole = json.loads(path.read_text())
    path.unlink()
    if content is not None:
        path.write_text(content if isinstance(content, str) else json.dumps({**whole, **content}))
    with pytest.raises(CheckpointError, match=r"/head.*; delete .*head to keep the best head from here on, or give another"):
        again()


@pytest.fixture
def of_target(trainer, tmp_path):
    """Specs of a run with a target of its own, which has left a checkpoint with the target `tiny`."""
    for name in ("tiny", "tiny2"):
        (tmp_path / name).mkdir()

    def spec(**changes):
        target = {"use": "huggingface", "model": str(tmp_path / "tiny"), "dtype": "float32", **changes}
        return trainer("targeted", target=target)

    run = spec()
    run.save()
    return lambda **changes: spec(**changes).spec


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "tiny2"}, r"target\.model was .*tiny, is .*tiny2"),
        ({"model": None, "use": "builtin"}, r"target\.use was huggingface, is builtin"),
        ({"revision": "v2"}, r"target\.revision was None, is v2"),
    ],
)
def test_a_checkpoint_of_another_target_is_refused(of_target, tmp_path, changes, message):
    if changes.get("model"):
        changes = {"model": str(tmp_path / changes["model"])}
    with pytest.raises(SpecError, match=message):
        read_checkpoint(of_target(**changes))


def test_a_targets_dtype_device_and_path_may_change_midway(of_target, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for changes in ({"dtype": "bfloat16"}, {"device": "cpu"}, {"attention": "eager"}, {"model": "./tiny"}):
        assert read_checkpoint(of_target(**changes)) is not None
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "tiny").rename(tmp_path / "elsewhere" / "tiny")
    assert read_checkpoint(of_target(model=str(tmp_path / "elsewhere" / "tiny"))) is not None


@pytest.mark.parametrize("place", ["features", "output", "output/head", "output/log.jsonl", "output/checkpoint.pt"])
def test_a_file_in_place_of_a_folder_and_a_folder_in_place_of_a_file_are_named(trainer, tmp_path, place):
    spec = trainer("x").spec.model_copy(update={"features": tmp_path / "features", "output": tmp_path / "output"})
    check_places(spec)
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True)
    path.mkdir() if path.suffix else path.write_text("mine")
    with pytest.raises(SpecError, match=rf"{place} is a f.* give another name"):
        check_places(spec)
    beneath = spec.model_copy(update={"output": tmp_path / "output" / "deeper"})
    if place == "output":
        with pytest.raises(SpecError, match="output is a file"):
            check_places(beneath)


def test_a_checkpoint_is_whole_or_the_one_before_when_writing_it_is_cut_short(left):
    run, spec = left
    path = run.spec.output / "checkpoint.pt"
    path.with_name(".checkpoint.pt.0123456789ab.partial").write_bytes(path.read_bytes()[:500])
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
    whole = [line for line in path.read_text().splitlines() if line.endswith("}")]
    assert [json.loads(line) for line in whole] == [{"step": 1}, {"step": 2}]


def test_one_process_at_a_time_trains_in_a_folder(left):
    _, spec = left
    with claim_output(spec()), pytest.raises(SpecError, match="is being written by another process"), claim_output(spec()):
        pass


def test_a_full_disk_is_an_error_that_names_the_checkpoint_and_keeps_the_one_before(left, room_for):
    run, spec = left
    before = (run.spec.output / "checkpoint.pt").read_bytes()
    with room_for(1000), pytest.raises(SpecError, match=r"checkpoint\.pt: cannot be written: File too large"):
        run.save()
    assert (run.spec.output / "checkpoint.pt").read_bytes() == before
    assert read_checkpoint(spec())["counters"]["step"] == 2
