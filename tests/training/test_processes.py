"""Two processes on gloo against one with both their batches."""

import dataclasses

import pytest
import torch
from torch import multiprocessing

from specdec.training.building import fresh_head
from specdec.training.processes import Processes
from specdec.training.spec import LossSpec
from specdec.training.step import batch_loss


def gradients(head, borrowed, batch, processes):
    loss = batch_loss(
        head,
        borrowed,
        torch.arange(40),
        batch,
        losses=LossSpec(regression=1.0, cross_entropy=0.5),
        steps=2,
        processes=processes,
    )
    loss.total.backward()
    processes.sum_gradients(head.parameters())
    return torch.cat([p.grad.flatten() for p in head.parameters()])


def work(rank, port, config, borrowed, batches, results):
    import os

    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    from specdec.training.processes import processes

    results[rank] = gradients(fresh_head(config, borrowed.lm_head, 1), borrowed, batches[rank], processes())


@pytest.mark.slow
def test_two_processes_give_the_gradient_of_one_with_both_batches(batch, head_sizes, borrowed, tmp_path):
    both = batch(9, 17, seed=3)
    halves = [
        dataclasses.replace(both, **{f.name: getattr(both, f.name)[row : row + 1] for f in dataclasses.fields(both)})
        for row in range(2)
    ]
    alone = gradients(fresh_head(head_sizes(), borrowed.lm_head, 1), borrowed, both, Processes())
    with multiprocessing.Manager() as manager:
        results = manager.dict()
        multiprocessing.spawn(work, (29517, head_sizes(), borrowed, halves, results), nprocs=2)
        for rank in range(2):
            torch.testing.assert_close(results[rank], alone, rtol=1e-4, atol=1e-6)


def test_one_process_sums_nothing():
    one = Processes()
    value = torch.ones(3)
    assert one.sum(value) is value
    assert (one.count, one.rank, one.is_first, one.total(5, torch.device("cpu"))) == (1, 0, True, 5)
