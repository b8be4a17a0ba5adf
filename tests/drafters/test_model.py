"""The draft model is a shipped tabular target: exact, and strict about what it is given."""

from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError

from specdec.drafters.model import ModelDrafter, ModelOptions
from specdec.drafters.model_session import MOST_UNCACHED
from specdec.errors import SpecdecWarning, TargetMismatch
from specdec.interfaces.declarations import Gives
from specdec.interfaces.parts import BuildTools
from specdec.interfaces.probability_table import ProbabilityTable
from specdec.interfaces.proposals import Budget, DraftStart, Frontier
from specdec.interfaces.results import Committed, HiddenStates
from specdec.sampling.keyed_noise import mix
from specdec.sampling.rng import seeded
from specdec.targets.tabular import Tabular as TabularTarget
from specdec.targets.tabular import TabularTargetOptions
from specdec.tree_builders.chain import Chain, ChainOptions
from specdec.tree_builders.dynamic import Dynamic, DynamicOptions
from specdec.tree_builders.fixed import Fixed, FixedOptions
from specdec.trees.draft_tree import TreeSketch

VOCAB = 7


def table(vocab=VOCAB, seed=1, **options):
    return TabularTargetOptions(vocab=vocab, random={"order": 3, "seed": seed}, **options)


def target(**options):
    return TabularTarget.build(table(**options), BuildTools())


def drafter_of(draft_options, main=None):
    tools = BuildTools(target=main or target(seed=2), targets={"model": TabularTarget.build(draft_options, BuildTools())})
    return ModelDrafter.build(ModelOptions(model={"use": "tabular"}), tools)


def start(prompt, first):
    return DraftStart(tuple(prompt), first, HiddenStates())


class Life:
    """Sequences that are drafted for and extended with arbitrary tokens, beside what the table says directly."""

    def __init__(self, options, prompts, main=None):
        self.table = ProbabilityTable(options)
        self.vocab_size = min(options.vocab, (main or target()).facts.vocab_size)
        self.texts = [list(prompt) for prompt in prompts]
        self.session = drafter_of(options, main).open([start(prompt[:-1], prompt[-1]) for prompt in prompts])
        self.scored = [None] * len(prompts)

    def expand(self, frontiers):
        answers = self.session.expand(frontiers)
        for text, frontier, answer in zip(self.texts, frontiers, answers, strict=True):
            assert (frontier is None) == (answer is None)
            for node, row in zip(frontier.nodes, answer.logits, strict=True) if frontier else ():
                expected = self.table.log_probs([*text, *frontier.tree.path(node)])[: self.vocab_size]
                assert torch.equal(row, expected)
        return answers

    def grow(self, builders):
        """Drive one builder per row in lock step; the finished trees."""
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
        self.session.observe([Committed(tuple(tokens), tuple(range(len(tokens)))) for tokens in news], [])
        for text, tokens in zip(self.texts, news, strict=True):
            text += tokens
        for text, cached, tail in zip(self.texts, self.session.cached_lengths, self.session.uncached, strict=True):
            assert tail
            if cached is not None:
                assert cached + len(tail) == len(text)
                assert text[cached:] == list(tail)
        if self.session._state is not None:
            self.session._state.check_integrity()


CHAIN = Chain(ChainOptions(length=3))
TREE = Fixed.build(FixedOptions(widths=[2, 2, 1]), BuildTools())
GROWN = Dynamic(DynamicOptions(width=3, depth=3, nodes=6))


@pytest.mark.parametrize("builder", [CHAIN, TREE, GROWN])
@pytest.mark.parametrize("prompt", [[1, 2], [3, 1, 4, 1, 5]])
def test_logits_are_those_of_the_draft_model_at_every_step_whatever_is_accepted(builder, prompt):
    life = Life(table(), [prompt])
    for step in range(12):
        (tree,) = life.grow([builder])
        node = mix(step, len(prompt)) % len(tree)
        life.commit([[*tree.path_tokens(node), mix(step, 7) % VOCAB]])


def test_after_full_acceptance_only_the_last_draft_token_and_the_new_root_are_uncached():
    life = Life(table(), [[1, 2]])
    (tree,) = life.grow([CHAIN])
    life.commit([[*tree.path_tokens(3), 0]])
    assert life.session.cached_lengths == (4,)
    assert life.session.uncached == ((tree.tokens[3], 0),)


def test_after_a_refusal_the_cache_holds_the_committed_tokens_without_the_root():
    life = Life(table(), [[1, 2]])
    (tree,) = life.grow([CHAIN])
    life.commit([[tree.tokens[1], (tree.tokens[2] + 1) % VOCAB]])
    assert life.session.cached_lengths == (3,)
    assert life.session.uncached == (((tree.tokens[2] + 1) % VOCAB,),)


def test_the_next_token_is_left_uncached_even_where_it_was_scored_as_a_draft():
    life = Life(table(), [[1, 2]])
    (tree,) = life.grow([CHAIN])
    life.commit([[tree.tokens[1], tree.tokens[2]]])
    assert life.session.cached_lengths == (3,)
    assert life.session.uncached == ((tree.tokens[2],),)


def test_a_step_without_a_question_costs_no_forward_and_is_caught_up_with_later():
    life = Life(table(), [[1, 2]])
    life.commit([[3]])
    life.commit([[4]])
    assert life.session.cached_lengths == (1,)
    assert life.session.uncached == ((2, 3, 4),)
    life.grow([TREE])
    life.commit([[0, 0]])


@pytest.mark.parametrize("limit", [None, 9])
def test_without_a_question_for_long_few_tokens_wait_and_the_rest_is_cached(limit, monkeypatch):
    if limit is not None:
        facts = TabularTarget.facts.fget
        monkeypatch.setattr(TabularTarget, "facts", property(lambda self: replace(facts(self), max_tree_nodes=limit)))
    life = Life(table(), [[1, 2], [3, 4, 5]])
    for step in range(30):
        life.commit([[step % VOCAB, 2, 3, 4, 5], [6]])
        assert all(1 <= len(tail) <= (limit or MOST_UNCACHED) for tail in life.session.uncached)
    life.grow([TREE, CHAIN])
    life.commit([[1], [2, 3]])
    life.grow([None, TREE])


def test_rows_of_a_batch_differ_in_length_questions_and_acceptance_and_leave():
    prompts = [[1, 2], [3, 4, 5, 6], [2, 2, 2]]
    life = Life(table(), prompts)
    builders = [CHAIN, None, GROWN]
    for step in range(15):
        trees = life.grow(builders)
        news = []
        for row, tree in enumerate(trees):
            path = [] if tree is None else tree.path_tokens(mix(step, row) % len(tree))
            news.append([*path, mix(step, row, 1) % VOCAB])
        if step in (5, 9):
            kept = [row for row in range(len(news)) if row != 1 or step == 9][-2:] if step == 5 else [0]
            life.session.keep(kept)
            life.texts = [life.texts[row] for row in kept]
            news = [news[row] for row in kept]
            builders = [builders[row] for row in kept]
        life.commit(news)
        builders = builders[1:] + builders[:1]


def test_asking_level_by_level_or_for_a_deep_node_at_once_is_the_same():
    life = Life(table(), [[1, 2]])
    sketch = TreeSketch(2, 1)
    a, b = sketch.add(0, 3), sketch.add(0, 4)
    c = sketch.add(b, 5)
    life.expand([Frontier(sketch, (c, 0))])
    life.expand([Frontier(sketch, (a, c, b))])
    life.commit([[4, 5, 6]])
    assert life.session.cached_lengths == (4,)


def test_a_frontier_that_is_already_scored_costs_no_forward():
    life = Life(table(), [[1, 2]])
    frontier = Frontier(TreeSketch(2, 1), (0,))
    life.expand([frontier])
    before = life.session._state.rows[0].tree
    life.expand([frontier])
    assert life.session._state.rows[0].tree is before


@pytest.mark.parametrize("prompt_length", range(2, 12))
def test_near_the_end_of_its_context_it_proposes_less_and_then_nothing(prompt_length):
    options = table(max_positions=8)
    drafter = drafter_of(options)
    prompt = [n % VOCAB for n in range(prompt_length)]
    session = drafter.open([start(prompt[:-1], prompt[-1]), start([1], 2)])
    for _ in range(10):
        sketch, node, drafted = TreeSketch(prompt[-1], len(prompt) - 1), 0, 0
        for _ in range(3):
            answer = session.expand([Frontier(sketch, (node,)), Frontier(TreeSketch(2, 1), (0,))])[0]
            (tokens,), _ = answer.top(1)
            if not tokens:
                break
            node = sketch.add(node, tokens[0])
            drafted += 1
        assert drafted == min(3, max(0, 8 - len(prompt) + 1))
        session.observe([Committed((1,), (0,)), Committed((2,), (0,))], [])
        prompt = [*prompt, 1]
    assert session.cached_lengths[0] is None
    session.keep([1])
    assert session.cached_lengths[0] is None or session.cached_lengths[0] <= 8


def test_rows_without_room_from_the_start_are_answered_without_a_prefill():
    session = drafter_of(table(max_positions=2)).open([start([1, 2, 3], 4)])
    answer = session.expand([Frontier(TreeSketch(4, 3), (0,))])[0]
    assert answer.top(3) == ([[]], [[]])
    assert answer.logits.shape == (1, VOCAB)
    session.observe([Committed((1,), (0,))], [])
    session.keep([0])


def test_a_smaller_draft_vocabulary_gives_narrower_logits_and_survives_tokens_that_it_lacks():
    main = target(vocab=10, seed=2)
    session = drafter_of(table(vocab=6), main).open([start([9, 1], 8)])
    sketch = TreeSketch(8, 2)
    assert session.expand([Frontier(sketch, (0,))])[0].logits.shape == (1, 6)
    session.observe([Committed((9, 7, 3), (0, 1, 2))], [])
    assert session.expand([Frontier(TreeSketch(3, 5), (0,))])[0].logits.shape == (1, 6)
    assert session.cached_lengths == (3,)


def test_a_larger_draft_vocabulary_is_cut_to_the_targets():
    main = target(vocab=5, seed=2)
    life = Life(table(vocab=9), [[1, 2]], main)
    (tree,) = life.grow([Fixed.build(FixedOptions(widths=[9]), BuildTools())])
    assert sorted(tree.tokens[1:]) == [0, 1, 2, 3, 4]


def test_self_drafting_uses_the_target_and_needs_no_further_model():
    main = target()
    options = ModelOptions(model="target")
    assert ModelDrafter.declares(options).targets == ()
    assert ModelDrafter.build(options, BuildTools(target=main))._model is main


def test_a_nested_model_is_declared_so_that_it_gets_loaded():
    part = {"use": "tabular", "vocab": 3}
    declared = ModelDrafter.declares(ModelOptions(model=part))
    assert (declared.gives, declared.targets) == (Gives.DISTRIBUTIONS, (("model", part),))
    assert ModelDrafter.declares(ModelOptions(model="folder/model")).targets == (("model", "folder/model"),)


def test_the_model_must_be_named():
    with pytest.raises(ValidationError, match="Field required"):
        ModelOptions()
    with pytest.raises(TargetMismatch, match="there is none"):
        ModelDrafter.build(ModelOptions(model="target"), BuildTools())


def test_a_draft_model_with_fewer_positions_than_the_target_is_reported_with_both_numbers():
    with pytest.warns(SpecdecWarning, match="the draft model has 5 positions and the target 9"):
        drafter_of(table(max_positions=5), target(max_positions=9))
