"""A batch answers as its requests alone: whatever their lengths, drafts and ends."""

import pytest

from specdec.decoding.requests import Request
from specdec.drafters.model import ModelDrafter, ModelOptions
from specdec.drafters.ngram import NgramDrafter, NgramOptions
from specdec.interfaces.declarations import DrafterDeclaration, Gives
from specdec.interfaces.parts import BuildTools, Drafter, DraftSession, PartOptions
from specdec.interfaces.proposals import Candidates
from specdec.sampling.params import SamplingParams


def told(generation):
    steps = [(r.drafted, r.depth, r.tested, r.accepted, r.emitted, r.sources) for r in generation.records]
    return generation.tokens, generation.finish_reason, generation.seed, steps


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_batch_answers_as_its_requests_alone(compose, table, strategy, size, temperature):
    decoder = compose(table(8, seed=4), strategy, "mixed", sampling=SamplingParams(temperature=temperature))
    requests = [Request(tuple(range(1 + n)), max_new_tokens=6 + 3 * n, seed=n) for n in range(size)]
    assert [told(a) for a in decoder.generate(requests)] == [told(decoder.generate([r])[0]) for r in requests]


def test_an_ngram_drafter_in_a_batch_drafts_from_each_rows_own_text(compose, table, ranking):
    decoder = compose(table(8, seed=4), ranking, NgramDrafter(NgramOptions(min_confidence=0.0)))
    requests = [Request((a, b, 7) * 4, max_new_tokens=12, seed=a) for a, b in ((0, 1), (2, 3), (4, 5))]
    together = decoder.generate(requests)
    assert [told(a) for a in together] == [told(decoder.generate([r])[0]) for r in requests]
    assert all(any(record.drafted for record in a.records) for a in together)


def test_a_batch_of_a_transformer_answers_as_its_requests_alone(compose, tiny, kind, shape):
    decoder = compose(tiny(kind)[0], shape, "mixed")
    requests = [Request(tuple(range(5, 6 + 4 * n)), max_new_tokens=4 + 2 * n, seed=n) for n in range(3)]
    assert [told(a) for a in decoder.generate(requests)] == [told(decoder.generate([r])[0]) for r in requests]


@pytest.mark.parametrize("model", ["table", "tiny"])
def test_rows_that_end_early_equal_their_solo_runs_and_leave_the_batch(compose, counter, tiny, shape, watched, model):
    inner = counter(12) if model == "table" else tiny()[0]
    target = watched(inner)
    decoder = compose(target, shape, "mixed")
    free = compose(inner, shape, "mixed").generate([[0], [1], [2]], max_new_tokens=14, ignore_eos=True)
    ends = [free[0].tokens[0], None, None]
    requests = [
        Request((0,), max_new_tokens=14, stop_ids=[ends[0]]),
        Request((1,), max_new_tokens=3),
        Request((2,), max_new_tokens=14),
    ]
    run = decoder.start(requests)
    assert [row.number for row in run.sequences] == [1, 2]
    while run.sequences:
        live = len(run.sequences)
        records = decoder.step(run)
        assert len(records) == live == len(target.trees[-1])
        assert all(record.batch_size == live for record in records)
        if run.state is not None and run.sequences:
            assert len(run.state.lengths) == len(run.sequences)
    answers = decoder.generate(requests)
    assert [a.tokens for a in answers] == [free[0].tokens[:1], free[1].tokens[:3], free[2].tokens]
    assert answers[0].records == ()
    for request, answer in zip(requests, answers, strict=True):
        assert answer.tokens == decoder.generate([request])[0].tokens


class RaggedOptions(PartOptions):
    """Nothing to choose."""


class Ragged(Drafter):
    """Row r drafts the count upwards for (4, 1, 0)[r % 3] levels, by the row's first prompt token."""

    name = "ragged"
    Options = RaggedOptions

    def __init__(self, vocab):
        self.vocab = vocab

    @classmethod
    def declares(cls, options):
        return DrafterDeclaration(gives=Gives.CANDIDATES)

    @classmethod
    def build(cls, options, tools):
        return cls(tools.target.facts.vocab_size)

    def open(self, starts):
        return RaggedSession(self.vocab, [(4, 1, 0)[start.prompt[0] % 3] for start in starts])


class RaggedSession(DraftSession):
    def __init__(self, vocab, lengths):
        self.vocab, self.lengths = vocab, lengths

    def expand(self, frontiers):
        return [None if f is None else self.answer(f, n) for f, n in zip(frontiers, self.lengths, strict=True)]

    def answer(self, frontier, length):
        tree = frontier.tree
        rows = [((tree.tokens[n] + 1) % self.vocab,) if tree.depths[n] < length else () for n in frontier.nodes]
        return Candidates(tuple(rows), tuple((-0.1,) * len(row) for row in rows))

    def observe(self, committed, scored):
        """Nothing to learn."""

    def keep(self, rows):
        self.lengths = [self.lengths[row] for row in rows]

    def join(self, other):
        self.lengths += other.lengths


@pytest.mark.parametrize("model", ["counter", "tiny"])
def test_ragged_drafts_beside_each_other_are_those_of_each_row_alone(compose, counter, tiny, chain_of, model):
    target = counter(12, stop_ids=(0,)) if model == "counter" else tiny()[0]
    decoder = compose(target, chain_of(4), Ragged(target.facts.vocab_size))
    requests = [Request((first, 2), max_new_tokens=12, seed=first) for first in (3, 4, 5)]
    together = decoder.generate(requests)
    assert [told(a) for a in together] == [told(decoder.generate([r])[0]) for r in requests]
    assert [max(r.drafted for r in a.records) for a in together] == [4, 1, 0]


@pytest.mark.parametrize("pad", [0, 11])
def test_the_id_that_pads_is_no_token_even_where_it_is_the_end(compose, counter, chain_of, pad):
    target = counter(12, stop_ids=(pad,))
    decoder = compose(target, chain_of(4), Ragged(12))
    answers = decoder.generate([[3, 2], [4, 2], [5, 2]], max_new_tokens=30)
    expected = tuple(range(3, 12 if pad == 11 else 13))
    assert [a.tokens for a in answers] == [tuple(token % 12 for token in expected)] * 3


def test_the_cache_of_a_ragged_batch_holds_each_rows_own_tokens(compose, tiny, kind, chain_of):
    target, _ = tiny(kind)
    decoder = compose(target, chain_of(4), NgramDrafter(NgramOptions(min_confidence=0.0)))
    run = decoder.start([Request(p, max_new_tokens=10) for p in ((5, 6, 5, 6, 5), (7,), (9, 9))])
    while run.sequences:
        assert run.state.lengths == tuple(len(row.tokens) - 1 for row in run.sequences)
        run.state.check_integrity()
        decoder.step(run)


def test_a_draft_model_in_a_batch_whose_rows_end_apart_answers_as_alone(compose, tiny, kind, shape):
    target = tiny(kind)[0]
    drafter = ModelDrafter.build(ModelOptions(model="target"), BuildTools(target))
    decoder = compose(target, shape, drafter)
    requests = [Request(tuple(range(5, 6 + 4 * n)), max_new_tokens=(9, 4, 13)[n], seed=n) for n in range(3)]
    assert [told(a) for a in decoder.generate(requests)] == [told(decoder.generate([r])[0]) for r in requests]
