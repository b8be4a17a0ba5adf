"""Chain acceptance against a decoder that is written out."""

import pytest
import torch

from specdec.heads.config import Inputs
from specdec.training.initialization import fresh_head
from specdec.training.validation import DEPTH, chain_acceptance


def drafts(head, borrowed, ids, features, start, depth):
    """A greedy chain after row `start` and the token drawn there, fed with its own tokens, and nothing cached."""
    hidden = features[None, : start + 1]
    tokens, found = ids[: start + 2].tolist(), []
    for _ in range(depth):
        read = tokens[:-1] if head.config.inputs is Inputs.FEATURE_AND_UNSHIFTED_TOKEN else tokens[1:]
        embeddings = borrowed.embedding[torch.tensor(read)][None]
        last = head(embeddings, hidden, torch.arange(len(read))[None])[:, -1:]
        lm_head = borrowed.lm_head if head.lm_head is None else head.lm_head.weight
        found.append(int((last[0, 0] @ lm_head.T).argmax()))
        hidden, tokens = torch.cat((hidden, last), 1), [*tokens, found[-1]]
    return found


@pytest.mark.parametrize(("inputs", "own"), [*((inputs, False) for inputs in Inputs), (Inputs.TOKEN, True)])
def test_it_is_what_a_chain_decoder_does_on_the_same_answers(batch, borrowed, trainer, inputs, own):
    run = trainer(
        "some",
        inputs=inputs,
        own_lm_head=own,
        optimizer={"use": "muon", "muon_learning_rate": 0.05, "learning_rate": 1e-2},
        budget={"steps": 60},
        validate_every=1000,
    )
    run.run()
    batched = batch(21, 16, seed=4)
    found = chain_acceptance(run.head, borrowed, [batched])
    tested, accepted, cycles, committed = [0] * DEPTH, [0] * DEPTH, 0, 0
    for row, length in enumerate((21, 16)):
        ids = batched.token_ids[row, :length]
        here = 1
        while here < length - 2:
            depth = min(DEPTH, length - 2 - here)
            chain = drafts(run.head, borrowed, ids, batched.features[row, :length], here, depth)
            good = 0
            for step, token in enumerate(chain):
                tested[step] += 1
                if token != int(ids[here + 2 + step]):
                    break
                accepted[step] += 1
                good += 1
            cycles, committed = cycles + 1, committed + min(good + 1, length - 2 - here)
            here += good + 1
    assert found.positions == sum(tested)
    assert found.alpha == tuple(a / t if t else 0.0 for a, t in zip(accepted, tested, strict=True))
    assert found.tau == committed / cycles
    assert 1.0 < found.tau <= DEPTH + 1
    assert found.cycles == cycles
    assert (found.tested, found.accepted, found.committed) == (tuple(tested), tuple(accepted), committed)


def test_a_head_that_repeats_the_feature_is_right_where_the_text_repeats(batch, head_sizes, borrowed):
    head = fresh_head(head_sizes(), borrowed.lm_head, 0)
    assert chain_acceptance(head, borrowed, [batch(20)]).tau == 1.0
