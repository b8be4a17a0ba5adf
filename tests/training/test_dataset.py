import pytest
import torch

from specdec.errors import SpecError
from specdec.training.dataset import FeatureSet, coverage, draft_vocabulary
from specdec.training.features import length_batches


def generator(seed):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def data(shard, tmp_path):
    return FeatureSet([shard(tmp_path / f"own-000{i}.safetensors", [9, 30, 12, 17, 8, 25], i) for i in range(2)], layers=False)


def test_every_conversation_occurs_once_an_epoch_in_an_order_of_the_seed(data):
    epochs = [data.batches(60, generator(seed)) for seed in (1, 1, 2)]
    for batches in epochs:
        assert sorted(place for batch in batches for place in batch) == list(range(12))
    assert epochs[0] == epochs[1] != epochs[2]


def test_no_batch_holds_more_slots_than_it_may(data):
    for batch in data.batches(60, generator(3)):
        assert data.load(batch).tokens <= 60


def test_a_batch_holds_each_conversation_with_its_own_features(data):
    loaded = data.load([1, 8])
    assert loaded.token_ids.shape == (2, 30)
    alone = data.load([8])
    assert torch.equal(loaded.features[1, :12], alone.features[0])
    assert torch.equal(loaded.token_ids[1, :12], alone.token_ids[0])
    assert not bool(loaded.judged[1, 11:].any())
    assert bool((loaded.features[1, 12:] == 0).all())


def test_lengths_are_grouped_so_that_padding_is_small():
    batches = list(length_batches([5, 100, 6, 99, 5], 200))
    assert batches == [[0, 4, 2], [3, 1]]


def test_the_vocabulary_is_the_most_frequent_tokens_in_order_of_their_ids():
    counts = torch.tensor([5, 0, 9, 5, 7])
    assert draft_vocabulary(counts, 3).tolist() == [0, 2, 4]
    assert coverage(counts, torch.tensor([0, 2, 4])) == pytest.approx(21 / 26)


def test_answers_of_another_model_are_not_validated_on(shard, tmp_path):
    path = shard(tmp_path / "held-0000.safetensors", [40, 50])
    assert len(FeatureSet([path], layers=False).greedy_only()) == 2
    strange = FeatureSet([path], layers=False)
    columns = dict(strange._columns[0])
    columns["top_ids"] = columns["top_ids"].roll(1, dims=-1)
    strange._columns = [columns]
    with pytest.raises(SpecError, match="temperature 0"):
        strange.greedy_only()


def test_an_empty_folder_is_an_error():
    with pytest.raises(SpecError, match="no conversation"):
        FeatureSet([], layers=False)


def test_only_the_assistants_own_tokens_count_for_whether_an_answer_is_the_targets(shard, tmp_path):
    """The target would have said the user's words otherwise, and the assistant's as they stand."""
    path = shard(tmp_path / "held-0000.safetensors", [40])
    data = FeatureSet([path], layers=False)
    columns = dict(data._columns[0])
    spoken = torch.zeros(len(columns["token_ids"]), dtype=torch.bool)
    spoken[20:30] = True
    top = columns["token_ids"].roll(-1)[:, None].repeat(1, columns["top_ids"].shape[1])
    top[: 20 - 1, 0] += 1
    top[30 - 1 :, 0] += 1
    data._columns = [{**columns, "spoken": spoken, "top_ids": top.to(columns["top_ids"].dtype)}]
    assert data._agreement(0, *data._where[0][1:]) == 1.0
