import pytest

from specdec.errors import SpecError
from specdec.training.reading import read_training_spec

SPEC = """
name: small
target: {use: builtin}
features: features
output: runs/small
data:
  sources:
    own: {path: own.jsonl, repeat: 2}
  validate_on: own
budget: {steps: 10}
"""


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(SPEC)
    return path


def test_paths_are_relative_to_the_file_and_overrides_are_laid_over(spec, tmp_path):
    read = read_training_spec(spec, ("budget.steps=20", "optimizer.use=muon"))
    assert read.data.sources["own"].path == tmp_path / "own.jsonl"
    assert read.output == tmp_path / "runs" / "small"
    assert (read.budget.steps, read.optimizer.use, read.name) == (20, "muon", "small")


def test_all_mistakes_are_told_at_once_with_their_lines(spec):
    spec.write_text(SPEC + "loses: {regression: 1}\nseed: -1\n")
    with pytest.raises(SpecError) as caught:
        read_training_spec(spec, ("budget.seconds=5", "optimizer.use=sgd"))
    message = str(caught.value)
    for part in (
        "small.yaml:11: loses: unknown key; did you mean 'losses'",
        "small.yaml:12: seed",
        "either steps or seconds",
        "muon",
    ):
        assert part in message


def test_a_model_beside_the_file_is_found_and_another_name_is_a_hub_id(spec, tmp_path):
    (tmp_path / "own-model").mkdir()
    beside = read_training_spec(spec, ("target={use: huggingface, model: own-model}",))
    assert beside.target.model == str(tmp_path / "own-model")
    assert read_training_spec(spec, ("target={use: huggingface, model: org/name}",)).target.model == "org/name"
