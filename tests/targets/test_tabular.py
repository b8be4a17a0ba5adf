import pytest
import torch
from pydantic import ValidationError

from specdec.errors import NumericsError, SpecError, TargetMismatch
from specdec.interfaces.declarations import Features
from specdec.interfaces.parts import BuildTools
from specdec.interfaces.probability_table import ProbabilityTable, RandomRows, TableOptions
from specdec.targets.tabular import Tabular, TabularTargetOptions
from specdec.trees.draft_tree import Draw, TreeError, TreeSketch

NO_FEATURES = Features()
RANDOM = RandomRows(order=3, seed=4)


def target(**options) -> Tabular:
    return Tabular.build(TabularTargetOptions(**{"vocab": 5, "random": RANDOM, **options}), BuildTools())


def small_tree(root, position):
    sketch = TreeSketch(root, position)
    first = sketch.add(0, 1)
    sketch.add(0, 2)
    sketch.add(first, 4)
    return sketch.freeze(Draw.DETERMINISTIC)


def test_tree_logits_are_those_of_plain_prefill():
    model = target()
    state = model.prefill([[3, 1, 2]], NO_FEATURES).state
    tree = small_tree(0, 3)
    logits = model.score(state, [tree])[0].logits
    for node in range(len(tree)):
        alone = model.prefill([[3, 1, 2, 0, *tree.path_tokens(node)]], NO_FEATURES).scored[0].logits[0]
        assert torch.equal(logits[node], alone)


def test_committing_a_path_keeps_the_root_and_the_path_and_nothing_else():
    model = target()
    state = model.prefill([[3, 1, 2], [4]], NO_FEATURES).state
    model.score(state, [small_tree(0, 3), small_tree(2, 1)])
    model.commit(state, [(1, 3), None])
    assert state.lengths == (6, 1)
    state.check_integrity()
    again = model.score(state, [small_tree(0, 6), small_tree(2, 1)])
    assert torch.equal(again[0].logits[0], model.prefill([[3, 1, 2, 0, 1, 4, 0]], NO_FEATURES).scored[0].logits[0])


def test_a_growing_tree_is_scored_only_where_it_is_new():
    model = target()
    state = model.prefill([[3]], NO_FEATURES).state
    sketch = TreeSketch(0, 1)
    first = sketch.add(0, 1)
    assert len(model.score(state, [sketch.freeze(Draw.DETERMINISTIC)])[0].logits) == 2
    sketch.add(first, 2)
    whole = sketch.freeze(Draw.DETERMINISTIC)
    news = model.score(state, [whole])[0]
    assert (news.first_node, len(news.logits)) == (2, 1)
    assert len(model.score(state, [whole])[0].logits) == 0
    with pytest.raises(TreeError, match="same nodes first"):
        model.score(state, [small_tree(0, 1)])


def test_rows_are_dropped_and_forked_apart():
    model = target()
    state = model.prefill([[3], [1, 2], [4]], NO_FEATURES).state
    model.keep(state, [0, 2])
    assert state.lengths == (1, 1)
    forked = model.fork(state, [2, 1])
    assert forked.lengths == (1, 1, 1)
    model.score(forked, [small_tree(0, 1)] * 3)
    model.commit(forked, [(1,), (), None])
    assert forked.lengths == (3, 2, 1)
    assert state.lengths == (1, 1)


def test_misuse_is_an_error_that_says_what_is_wrong():
    model = target(max_positions=5)
    state = model.prefill([[3, 1]], NO_FEATURES).state
    with pytest.raises(NumericsError, match="root is at 5"):
        model.score(state, [small_tree(0, 5)])
    with pytest.raises(NumericsError, match="nothing was scored"):
        model.commit(state, [()])
    with pytest.raises(TargetMismatch, match="context of 5"):
        model.score(model.prefill([[3, 1, 1]], NO_FEATURES).state, [small_tree(0, 3)])
    with pytest.raises(TargetMismatch, match="context of 5"):
        model.prefill([[1] * 6], NO_FEATURES)
    with pytest.raises(TargetMismatch, match="no hidden states"):
        model.prefill([[1]], Features(last=True))
    with pytest.raises(NumericsError, match="outside the vocabulary"):
        model.prefill([[7]], NO_FEATURES)
    model.score(state, [small_tree(0, 2)])
    with pytest.raises(TreeError, match="no path"):
        model.commit(state, [(3,)])
    for act in (lambda: model.embed(torch.zeros(1, dtype=torch.long)), lambda: model.head(torch.zeros(1, 1))):
        with pytest.raises(TargetMismatch):
            act()


def test_integrity_is_really_checked():
    state = target().prefill([[3, 1]], NO_FEATURES).state
    state.rows[0].cached.append(99)
    with pytest.raises(NumericsError, match="99"):
        state.check_integrity()


def test_letters_stand_for_tokens():
    codec = target().codec
    assert codec.decode(codec.encode("badcab")) == "badcab"
    with pytest.raises(SpecError, match="'xz'"):
        codec.encode("axz")
    with pytest.raises(TargetMismatch, match="chat template"):
        codec.chat([])
    assert target(vocab=40).codec is None


@pytest.mark.parametrize("stop_ids", [[-1], [5], [0, 99]])
def test_stop_ids_outside_the_vocabulary_are_refused(stop_ids):
    with pytest.raises(ValidationError, match="the vocabulary has 0 to 4"):
        target(stop_ids=stop_ids)
    assert target(stop_ids=[0, 4]).facts.stop_ids == {0, 4}


# --- the table


def log_probs(tokens, **options):
    return ProbabilityTable(TableOptions(**options)).log_probs(tokens).exp().tolist()


def test_a_whole_history_wins_over_the_longest_ending():
    rows = {"": [1, 0], "0,1": ["1/3", "2/3"], "*,1": [0.5, 0.5], "*,1,1": [0, 1], "*": [0.25, 0.75]}
    found = {tokens: log_probs(tokens, vocab=2, rows=rows) for tokens in [(), (0, 1), (1, 0, 1), (0, 1, 1), (0,)]}
    expected = {(): [1, 0], (0, 1): [1 / 3, 2 / 3], (1, 0, 1): [0.5, 0.5], (0, 1, 1): [0, 1], (0,): [0.25, 0.75]}
    assert all(found[tokens] == pytest.approx(row) for tokens, row in expected.items())


def test_the_prompt_can_be_left_out_of_the_history():
    assert log_probs((1, 1, 0), vocab=2, rows={"0": [0, 1], "*": [1, 0]}, start=2) == [0, 1]


def test_a_yaml_key_that_is_a_number_is_a_history():
    assert log_probs((0,), vocab=2, rows={0: [0, 1], "*": [1, 0]}) == [0, 1]


def test_a_history_without_a_row_is_named():
    with pytest.raises(SpecError, match="'1,0'"):
        log_probs((1, 0), vocab=2, rows={"0": [0, 1]})


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"": [0.5, 0.6]}, "sums to"),
        ({"": [1.0]}, "has 1 probabilities"),
        ({"a": [0, 1]}, "is not a history"),
        ({"0,*": [0, 1]}, "is not a history"),
        ({"": [-1, 2]}, "greater than or equal to 0"),
        ({"": ["1/0", 1]}, "valid number"),
    ],
)
def test_a_row_that_is_no_distribution_is_refused(rows, message):
    with pytest.raises(ValidationError, match=message):
        TableOptions(vocab=2, rows=rows)


def test_a_vocabulary_that_no_memory_holds_is_refused():
    with pytest.raises(ValidationError, match="less than or equal to 1048576"):
        TableOptions(vocab=99999999999999, random=RANDOM)


def test_random_rows_depend_on_the_last_tokens_and_on_the_seed_alone():
    options = {"vocab": 4, "random": RandomRows(order=2, seed=1)}
    assert log_probs((0, 1, 2), **options) == log_probs((3, 1, 2), **options)
    assert log_probs((0, 1, 2), **options) != log_probs((0, 2, 2), **options)
    assert log_probs((0, 1, 2), **options) != log_probs((0, 1, 2), vocab=4, random=RandomRows(order=2, seed=2))
    assert sum(log_probs((0, 1, 2), **options)) == pytest.approx(1)


def test_random_rows_have_the_zeros_that_were_asked_for_and_never_only_zeros():
    rows = [log_probs((a, b), vocab=20, random=RandomRows(order=2, zeros=0.5)) for a in range(5) for b in range(5)]
    zeros = sum(x == 0 for row in rows for x in row) / 500
    assert 0.4 < zeros < 0.6
    assert max(log_probs((1,), vocab=3, random=RandomRows(zeros=1.0))) == 1
