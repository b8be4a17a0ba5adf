"""What the head is fed and what its cache holds, against a twin that recomputes everything from the text."""

import itertools

import pytest
import torch

from specdec.decoding.requests import Request
from specdec.errors import TargetMismatch
from specdec.heads import session
from specdec.heads.config import Inputs
from specdec.heads.fused_head import FusedHead
from specdec.heads.session import HeadSession
from specdec.interfaces.parts import BuildTools
from specdec.interfaces.proposals import Budget, DraftStart, Frontier
from specdec.interfaces.results import Committed, HiddenStates
from specdec.nn import prefill_batches as prompt_batches
from specdec.sampling.keyed_noise import mix
from specdec.sampling.rng import seeded
from specdec.tree_builders.chain import Chain, ChainOptions
from specdec.tree_builders.dynamic import Dynamic, DynamicOptions
from specdec.tree_builders.fixed import Fixed, FixedOptions
from specdec.trees.draft_tree import TreeSketch
from specdec.verifiers.match import Match

CHAIN = Chain(ChainOptions(length=4))
TREE = Fixed.build(FixedOptions(widths=[2, 2, 1]), BuildTools())
GROWN = Dynamic(DynamicOptions(width=3, depth=3, nodes=8))
PROMPTS = [[5, 7, 9], [11, 2], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4]]


def close(first, second):
    torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-5)


class Twin:
    """The head's own modules without a cache, a tree or a batch: the target is asked anew for all features of a text."""

    def __init__(self, target, drafter, declared):
        self.target, self.features = target, declared.features
        self.drafting = drafter._drafting
        self.head, self.inputs = self.drafting.head.module, self.drafting.head.config.inputs

    def hidden(self, text) -> HiddenStates:
        return self.target.prefill([list(text)], self.features).scored[0].hidden

    def run(self, text, path=()):
        """After the pairs of a text whose last token is the root, and of a drafted path: (what came out last, keys, values)."""
        hidden = self.hidden(text)
        states = hidden.layers if self.head.config.layers else hidden.last
        tokens = list(text)
        fed = torch.zeros(len(text) - 1, self.head.config.hidden_size, dtype=torch.float64)
        if states is not None:
            fed = self.head.input_projection(states[None, :-1])[0]
        caught = []
        output = fed[None]

        def update(keys, values):
            caught[:] = keys, values
            return keys, values

        for token in [None, *path]:
            if token is not None:
                fed = torch.cat((fed, output[0, -1:]))
                tokens.append(token)
            read = tokens[:-1] if self.inputs is Inputs.FEATURE_AND_UNSHIFTED_TOKEN else tokens[1:]
            embedded = self.target.embed(torch.tensor(read))
            output = self.head(embedded[None], fed[None], torch.arange(len(fed))[None], update=update)
        return output[0, -1], caught[0][0], caught[1][0]

    def logits(self, text, path):
        return self.drafting.lm_head(self.head.lm_head_states(self.run(text, path)[0][None]))[0]


class Life:
    """Sequences that are drafted for and go on as the test wants it, each answer checked against the twin."""

    def __init__(self, target, made, texts):
        self.twin = Twin(target, *made)
        self.texts = [list(text) for text in texts]
        self.starts = [DraftStart(tuple(t[:-1]), t[-1], self.twin.hidden(t[:-1])) for t in self.texts]
        self.session = made[0].open(self.starts)

    def expand(self, frontiers):
        answers = self.session.expand(frontiers)
        for text, frontier, answer in zip(self.texts, frontiers, answers, strict=True):
            assert (frontier is None) == (answer is None)
            for node, row in zip(frontier.nodes, answer.logits, strict=True) if frontier else ():
                close(row, self.twin.logits(text, frontier.tree.path(node)))
        if any(frontiers):
            self.check_caches()
        return answers

    def check_caches(self):
        """The stable cache is the twin's over the committed text, whatever was drafted behind it."""
        self.session.cache.check_integrity()
        for row, text in enumerate(self.texts):
            assert self.session.cache.lengths[row] == len(text) - 1
            keys, values = self.session.cache.contents(0, row)
            _, true_keys, true_values = self.twin.run(text)
            close(keys, true_keys)
            close(values, true_values)

    def grow(self, builders):
        steps = [
            None if b is None else b.grow(t[-1], len(t) - 1, Budget(50, 50), seeded(0).draft)
            for b, t in zip(builders, self.texts, strict=True)
        ]
        trees, answers = [None] * len(steps), [None] * len(steps)
        while any(step is not None for step in steps):
            frontiers = [None] * len(steps)
            for row, step in enumerate(steps):
                try:
                    frontiers[row] = None if step is None else step.send(answers[row])
                except StopIteration as stop:
                    trees[row], steps[row] = stop.value, None
            if any(frontiers):
                answers = self.expand(frontiers)
        return trees

    def commit(self, news):
        committed = []
        for text, tokens in zip(self.texts, news, strict=True):
            first = len(text) - 1
            text += tokens
            rows = list(range(first, len(text) - 1))
            committed.append(Committed(tuple(tokens), (), self.twin.hidden(text).rows(rows)))
        self.session.observe(committed, [])


def accepted(tree, salt):
    """Some path of the tree and a token after it."""
    return [*tree.path_tokens(mix(salt, len(tree)) % len(tree)), mix(salt, 7) % 48]


@pytest.mark.parametrize("builder", [CHAIN, TREE, GROWN])
def test_every_logit_and_the_cache_are_those_of_recomputation_whatever_is_accepted(target_of, drafter_of, kind, builder):
    life = Life(target_of(), drafter_of(target_of(), kind), [PROMPTS[0]])
    for step in range(4):
        (tree,) = life.grow([builder])
        life.commit([accepted(tree, step)])


def test_rows_of_a_batch_differ_in_length_in_questions_and_in_acceptance_and_leave(target_of, drafter_of, kind):
    life = Life(target_of(), drafter_of(target_of(), kind), PROMPTS)
    builders = [CHAIN, None, GROWN]
    for step in range(4):
        trees = life.grow(builders)
        life.commit([[step] if tree is None else accepted(tree, mix(step, row)) for row, tree in enumerate(trees)])
        if step in (1, 2):
            kept = [1, 2] if step == 1 else [1]
            life.session.keep(kept)
            life.texts = [life.texts[row] for row in kept]
            builders = [TREE, CHAIN][: len(kept)]


def test_a_long_prompt_beside_short_ones_is_fed_on_its_own(target_of, drafter_of, kind, monkeypatch):
    monkeypatch.setitem(prompt_batches.FORWARD_IN_TOKENS, "cpu", 0)
    prompts = [PROMPTS[0], [*PROMPTS[0], *PROMPTS[2], *PROMPTS[1]], PROMPTS[2], PROMPTS[2]]
    assert len(prompt_batches.prompt_batches([len(prompt) - 2 for prompt in prompts], 512, "cpu")) == 3
    life = Life(target_of(), drafter_of(target_of(), kind), prompts)
    life.grow([CHAIN] * len(prompts))


def test_prompts_longer_than_a_chunk_are_fed_in_parts(target_of, drafter_of, kind):
    life = Life(target_of(), drafter_of(target_of(), kind), PROMPTS)
    life.session = HeadSession(life.twin.drafting, life.starts, chunk=5)
    life.grow([CHAIN, CHAIN, GROWN])


def test_a_node_whose_parent_was_never_asked_about_is_answered_all_the_same(target_of, drafter_of, kind):
    life = Life(target_of(), drafter_of(target_of(), kind), [PROMPTS[0]])
    tree = TreeSketch(PROMPTS[0][-1], len(PROMPTS[0]) - 1)
    first, other = tree.add(0, 4), tree.add(0, 8)
    deep = tree.add(tree.add(first, 6), 2)
    life.expand([Frontier(tree, (deep, other))])
    life.expand([Frontier(tree, (other, 0))])
    life.expand([Frontier(tree, (deep,))])


def test_steps_without_a_question_are_caught_up_with_in_one_forward(target_of, drafter_of, kind):
    life = Life(target_of(), drafter_of(target_of(), kind), [PROMPTS[0]])
    life.commit([[3]])
    life.commit([[4, 9]])
    assert life.session.cache.lengths == [1]
    life.grow([TREE])


def test_without_a_question_for_long_few_pairs_wait_and_the_cache_stays_behind_by_no_more(
    target_of, drafter_of, kind, monkeypatch
):
    monkeypatch.setattr(session, "MOST_PENDING", 8)
    life = Life(target_of(), drafter_of(target_of(), kind), [PROMPTS[0], PROMPTS[1]])
    for step in range(5):
        life.commit([[3 + step, 9, 30 + step], [6]])
        for row, text, cached in zip(life.session.rows, life.texts, life.session.cache.lengths, strict=True):
            assert 1 <= len(row.tokens) <= 8
            assert sum(map(len, row.features)) in (0, len(row.tokens))
            assert cached == len(text) - 1 - len(row.tokens)
    assert life.session.cache.lengths[0] > 3 * 5 - 8
    others = Life(target_of(), drafter_of(target_of(), kind), [PROMPTS[2]])
    life.session.join(others.session)
    life.texts += others.texts
    life.grow([CHAIN, CHAIN, None])
    life.commit([[3], [4, 9], [1]])
    life.grow([CHAIN, None, None])


def test_two_histories_of_one_text_give_the_same_draft(target_of, drafter_of, kind):
    text = [5, 7, 9, 3, 8, 1, 4]
    trees = []
    for cuts in ([7], [3, 7], [2, 4, 5, 7], [2, 3, 4, 5, 6, 7]):
        life = Life(target_of(), drafter_of(target_of(), kind), [text[: cuts[0]]])
        for begin, end in itertools.pairwise(cuts):
            life.grow([GROWN])
            life.commit([text[begin:end]])
        (tree,) = life.grow([GROWN])
        trees.append((tree.tokens, tree.parents))
    assert len(set(trees)) == 1


class Recorder:
    """(feature, token, position) of everything that the head is fed, by place in the text; predicted features as -1 - place."""

    def __init__(self, life, monkeypatch):
        self.life, self.triples, self.outputs = life, [], []
        self.table = life.twin.target.embed(torch.arange(48))
        called = FusedHead.__call__

        def watched(head, embeddings, hidden, positions, **kwargs):
            self.before(embeddings, hidden, positions)
            output = called(head, embeddings, hidden, positions, **kwargs)
            self.outputs += zip(positions[0].tolist(), output[0], strict=True)
            return output

        monkeypatch.setattr(FusedHead, "__call__", watched)

    def before(self, embeddings, hidden, positions):
        text = [*self.life.texts[0], 0]
        states = self.life.twin.hidden(text)
        if states.last is None and states.layers is None:
            features = torch.zeros(len(text), hidden.shape[-1], dtype=hidden.dtype)
            self.outputs = [(place, torch.zeros_like(state)) for place, state in self.outputs] or [(0, features[0])]
        else:
            features = states.last if states.last is not None else self.life.twin.head.input_projection(states.layers[None])[0]
        for embedding, feature, position in zip(embeddings[0], hidden[0], positions[0].tolist(), strict=True):
            token = int((self.table - embedding).abs().sum(-1).argmin())
            distances = (features - feature).abs().sum(-1)
            index = int(distances.argmin())
            if distances[index] > 1e-4:
                matches = (-1 - place for place, output in self.outputs if torch.allclose(output, feature, atol=1e-9))
                index = next(matches, None)
            self.triples.append((index, token, position))

    def take(self):
        found, self.triples = self.triples, []
        return found


@pytest.mark.parametrize("layers", [(), (1, 2, 3)])
def test_pairs_in_prefill_first_and_later_drafts_are_those_of_training(target_of, drafter_of, layers, monkeypatch):
    changes = {"layers": layers, "own_lm_head": bool(layers)}
    target, text = target_of(), [5, 7, 9, 3, 8]
    made = drafter_of(target, changes)
    life = Life(target, made, [text[:2]])
    recorder = Recorder(life, monkeypatch)
    life.texts = [list(text)]
    life.session = made[0].open([DraftStart(tuple(text[:-1]), text[-1], life.twin.hidden(text[:-1]))])
    assert recorder.take() == [(0, 7, 0), (1, 9, 1), (2, 3, 2)]
    tree = TreeSketch(8, 4)
    life.session.expand([Frontier(tree, (0,))])
    assert recorder.take() == [(3, 8, 3)]
    one, two = tree.add(0, 30), tree.add(0, 31)
    life.session.expand([Frontier(tree, (one, two))])
    assert recorder.take() == [(-1 - 3, 30, 4), (-1 - 3, 31, 4)]
    recorder.outputs = recorder.outputs[:-1]
    life.session.expand([Frontier(tree, (tree.add(one, 32),))])
    assert recorder.take() == [(-1 - 4, 32, 5)]
    life.commit([[30, 32, 6]])
    recorder.outputs = []
    life.session.expand([Frontier(TreeSketch(6, 7), (0,))])
    assert recorder.take() == [(4, 30, 4), (5, 32, 5), (6, 6, 6)]


SHIFTED, UNSHIFTED = [(0, 7, 0), (1, 9, 1), (2, 3, 2)], [(0, 5, 0), (1, 7, 1), (2, 9, 2)]


@pytest.mark.parametrize(
    ("inputs", "prefill", "first", "later", "again"),
    [
        (Inputs.FEATURE_AND_SHIFTED_TOKEN, SHIFTED, (3, 8, 3), [(-4, 30, 4), (-5, 31, 5)], [(4, 30, 4), (5, 32, 5), (6, 6, 6)]),
        (
            Inputs.FEATURE_AND_UNSHIFTED_TOKEN,
            UNSHIFTED,
            (3, 3, 3),
            [(-4, 8, 4), (-5, 30, 5)],
            [(4, 8, 4), (5, 30, 5), (6, 32, 6)],
        ),
        (Inputs.FEATURE, SHIFTED, (3, None, 3), [(-4, None, 4), (-5, None, 5)], [(4, None, 4), (5, None, 5), (6, None, 6)]),
        (Inputs.TOKEN, SHIFTED, (None, 8, 3), [(None, 30, 4), (None, 31, 5)], [(None, 30, 4), (None, 32, 5), (None, 6, 6)]),
    ],
)
def test_each_of_the_papers_inputs_is_fed_its_own_pairs_in_prefill_first_and_later_drafts(
    target_of, drafter_of, inputs, prefill, first, later, again, monkeypatch
):
    """(feature, token, position), None for what does not enter; negative: the feature that the head predicted at that place."""
    target, text = target_of(), [5, 7, 9, 3, 8]
    made = drafter_of(target, {"inputs": inputs})
    life = Life(target, made, [text[:2]])
    recorder = Recorder(life, monkeypatch)
    life.texts = [list(text)]
    life.session = made[0].open([DraftStart(tuple(text[:-1]), text[-1], life.twin.hidden(text[:-1]))])

    def seen():
        drop = (not inputs.has_feature, not inputs.has_token)
        return [(None if drop[0] else f, None if drop[1] else t, p) for f, t, p in recorder.take()]

    def expected(triples):
        return [(f if inputs.has_feature else None, t if inputs.has_token else None, p) for f, t, p in triples]

    assert seen() == expected(prefill)
    tree = TreeSketch(8, 4)
    life.session.expand([Frontier(tree, (0,))])
    assert seen() == [first]
    life.session.expand([Frontier(tree, (tree.add(tree.add(0, 30), 31),))])
    assert seen() == later
    life.commit([[30, 32, 6]])
    recorder.outputs = []
    life.session.expand([Frontier(TreeSketch(6, 7), (0,))])
    assert seen() == again


def test_rows_of_one_token_leave_and_join_before_the_head_is_asked(target_of, drafter_of, kind):
    target, made = target_of(), drafter_of(target_of(), kind)
    life, others = (Life(target, made, [[5, 7], [9, 3]][:count]) for count in (2, 1))
    life.session.keep([1])
    life.session.join(others.session)
    life.texts = [[9, 3], [5, 7]]
    life.grow([TREE, CHAIN])
    life.commit([[30, 32], [6]])
    life.grow([CHAIN, TREE])


def test_a_reduced_vocabulary_offers_its_own_tokens_only(target_of, drafter_of):
    life = Life(target_of(), drafter_of(target_of(), {"draft_vocab_size": 20}), [PROMPTS[0]])
    (answer,) = life.expand([Frontier(TreeSketch(9, 2), (0,))])
    assert answer.target_ids.tolist() == list(range(1, 41, 2))
    assert set(answer.top(20)[0][0]) == set(range(1, 41, 2))


def test_a_target_that_gives_no_features_is_named(target_of, drafter_of):
    drafter, _ = drafter_of(target_of(), {})
    with pytest.raises(TargetMismatch, match="no last hidden state"):
        drafter.open([DraftStart((1, 2), 3, HiddenStates())])
    fused, _ = drafter_of(target_of(), {"layers": (0, 1), "own_lm_head": True})
    with pytest.raises(TargetMismatch, match="no layer inputs"):
        fused.open([DraftStart((1, 2), 3, HiddenStates())])


def test_a_row_that_ends_with_its_first_token_takes_its_hidden_states_along(target_of, drafter_of, decoder_of):
    """The first of two requests has room for one token only: the other one's drafts are those that it has alone."""
    target = target_of()
    decoder = decoder_of(target, drafter_of(target, {}), (Chain, ChainOptions(length=3)), Match)
    starts = []
    opened = decoder.drafter.open
    decoder.drafter.open = lambda given: (starts.extend(given), opened(given))[1]
    decoder.generate([Request(prompt=[5, 6, 7], max_new_tokens=1), Request(prompt=[9, 8], max_new_tokens=6)])
    together = starts.pop()
    starts.clear()
    decoder.generate([Request(prompt=[9, 8], max_new_tokens=6)])
    (alone,) = starts
    assert together.prompt == alone.prompt == (9, 8)
    assert together.hidden.last.shape == alone.hidden.last.shape
    assert torch.allclose(together.hidden.last, alone.hidden.last, atol=1e-4)
