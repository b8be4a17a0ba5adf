from hypothesis import given
from hypothesis import strategies as st

from specdec.nn.prefill_batches import ELSEWHERE, FORWARD_IN_TOKENS, prompt_batches

LENGTHS = st.lists(st.integers(0, 400), min_size=1, max_size=7)


def cost(lengths, batches, chunk, forward):
    return sum(
        max(lengths[row] for row in batch) * len(batch) + forward * -(-max(lengths[row] for row in batch) // chunk)
        for batch in batches
    )


def partitions(size):
    if size == 0:
        yield []
        return
    for last in range(1, size + 1):
        for before in partitions(size - last):
            yield [*before, range(size - last, size)]


@given(LENGTHS, st.sampled_from([16, 100, 512]), st.sampled_from(["cpu", "cuda"]))
def test_no_partition_of_the_prompts_is_cheaper(lengths, chunk, device):
    forward = FORWARD_IN_TOKENS.get(device, ELSEWHERE)
    found = prompt_batches(lengths, chunk, device)
    assert [row for batch in found for row in batch] == list(range(len(lengths)))
    assert cost(lengths, found, chunk, forward) == min(
        cost(lengths, partition, chunk, forward) for partition in partitions(len(lengths))
    )


def test_a_long_prompt_does_not_pad_short_ones_on_a_cpu_and_an_accelerator_takes_all_at_once():
    lengths = [60, 58, 60, 59, 60, 60, 317, 47]
    assert prompt_batches(lengths, 512, "cpu") == [range(6), range(6, 7), range(7, 8)]
    assert prompt_batches(lengths, 512, "cuda") == [range(8)]
