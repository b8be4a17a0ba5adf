"""Two processes on gloo against one with both their batches."""

import dataclasses

import pytest
import torch
from torch import multiprocessing

from specdec.training.dataset import FeatureSet
from specdec.training.distributed import Processes
from specdec.training.initialization import fresh_head
from specdec.training.loop import Trainer
from specdec.training.spec import LossSpec, TrainingSpec
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


def joined(rank, port):
    import os

    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    from specdec.training.distributed import processes

    return processes()


def trained(plan, config, borrowed, path, together):
    """Weights, counters and log of a run over one shard."""
    log = []
    data = FeatureSet([path], layers=False)
    head = fresh_head(config, borrowed.lm_head, 1)
    run = Trainer(TrainingSpec(**plan), head, borrowed, lambda epoch: [path], data, log.append, together)
    run.run()
    weights = torch.cat([p.detach().flatten() for p in head.parameters()])
    return weights, (run.step, run.epoch, run.tokens), len(log)


def work(rank, port, config, borrowed, batches, plan, path, results):
    together = joined(rank, port)
    mine = gradients(fresh_head(config, borrowed.lm_head, 1), borrowed, batches[rank], together)
    time = together.mean(float(rank), torch.device("cpu"))
    results[rank] = (mine, time, trained(plan, config, borrowed, path, together))


@pytest.mark.slow
def test_two_processes_do_what_one_does_with_both_batches(batch, shard, head_sizes, borrowed, tmp_path):
    """Gradients, and whole runs: of two conversations, each process gets one where one process alone gets both.

    They differ in length, so that to weigh the processes alike would be another gradient.
    """
    both = batch(9, 17, seed=3)
    halves = [
        dataclasses.replace(both, **{f.name: getattr(both, f.name)[row : row + 1] for f in dataclasses.fields(both)})
        for row in range(2)
    ]
    config = head_sizes()
    path = shard(tmp_path / "own-0000.safetensors", [14, 9])
    plan = {
        "name": "two",
        "target": {"use": "builtin"},
        "features": tmp_path,
        "output": tmp_path / "two",
        "data": {"sources": {"own": {"path": tmp_path / "own.jsonl"}}, "validate_on": "own"},
        "budget": {"steps": 5},
        "tokens_per_batch": 14,
        "autocast": False,
        "steps": {"start": 2, "end": 2},
    }
    alone = gradients(fresh_head(config, borrowed.lm_head, 1), borrowed, both, Processes())
    one = trained({**plan, "tokens_per_batch": 28, "output": tmp_path / "one"}, config, borrowed, path, Processes())
    with multiprocessing.Manager() as manager:
        results = manager.dict()
        multiprocessing.spawn(work, (29517, config, borrowed, halves, plan, path, results), nprocs=2)
        for rank in range(2):
            mine, time, (weights, counters, logged) = results[rank]
            torch.testing.assert_close(mine, alone, rtol=1e-4, atol=1e-6)
            torch.testing.assert_close(weights, one[0], rtol=1e-4, atol=1e-6)
            assert time == 0.5
            assert counters == (5, 5, 5 * (14 + 9))
            assert one[1] == (5, 5, 5 * 28)
            assert (logged > 0) is (rank == 0)


def test_one_process_sums_nothing():
    one = Processes()
    value = torch.ones(3)
    assert one.sum(value) is value
    assert (one.count, one.rank, one.is_first, one.total(5, torch.device("cpu"))) == (1, 0, True, 5)
