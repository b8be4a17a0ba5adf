import pytest

from specdec.errors import SpecdecError
from specdec.interfaces.declarations import Gives, Shape
from specdec.interfaces.parts import BuildTools
from specdec.sampling.enumeration import outcomes
from specdec.tree_builders.chain import Chain, ChainOptions
from specdec.trees.draft_tree import Draw


def chain(length, draw="deterministic"):
    return Chain.build(ChainOptions(length=length, draw=draw), BuildTools())


def test_a_deterministic_chain_is_the_drafters_best_token_at_every_level(growth, random_rows):
    distribution = random_rows(9, 1)
    tree = growth(distribution, 9)(chain(4))
    path = []
    for _ in range(4):
        row = distribution(tuple(path))
        path.append(row.index(max(row)))
    assert tree.tokens[1:] == tuple(path)
    assert tree.parents == (-1, 0, 1, 2, 3)
    assert set(tree.draw_kind.values()) == {Draw.DETERMINISTIC}
    assert tree.q is None


@pytest.mark.parametrize("draw", ["deterministic", "sampled"])
@pytest.mark.parametrize(("nodes", "depth", "drafted"), [(0, 9, 0), (9, 0, 0), (2, 9, 2), (9, 3, 3), (9, 9, 4)])
def test_a_chain_stays_within_its_budget(growth, random_rows, draw, nodes, depth, drafted):
    grow = growth(random_rows(5, 2), 5)
    tree = grow(chain(4, draw), nodes=nodes, depth=depth, answer="probs" if draw == "sampled" else "distributions")
    assert tree.num_drafted == drafted == len(grow.asked)


@pytest.mark.parametrize("draw", ["deterministic", "sampled"])
def test_nothing_follows_a_stop_token_which_is_itself_kept(growth, table_rows, draw):
    distribution = table_rows({(): [0, 1, 0], (1,): [0, 0, 1], (1, 2): [1, 0, 0]})
    tree = growth(distribution, 3)(
        chain(5, draw), stop_ids=frozenset({2}), answer="probs" if draw == "sampled" else "distributions"
    )
    assert tree.tokens[1:] == (1, 2)


def test_a_chain_ends_where_there_is_no_candidate(growth, table_rows):
    distribution = table_rows({(): [0, 0, 1], (2,): [0, 0, 0]})
    assert growth(distribution, 3)(chain(5), answer="candidates").tokens[1:] == (2,)
    assert growth(distribution, 3)(chain(5)).tokens[1:] == (2,)
    drawn = growth(distribution, 3)(chain(5, "sampled"), answer="probs")
    assert drawn.tokens[1:] == (2,)
    assert drawn.q_row == (0, -1)


def test_sampled_tokens_follow_q_and_q_is_kept_bit_by_bit(growth, random_rows):
    distribution = random_rows(3, 5, zeros=0.2)

    def run(rng):
        tree = growth(distribution, 3)(chain(2, "sampled"), answer="probs", rng=rng.draft)
        for node in range(tree.num_drafted):
            assert tree.q_of(node).tolist() == distribution(tuple(tree.path_tokens(node)))
            assert tree.draw_kind[node] is Draw.IID
        return tree.tokens[1:]

    for path, weight in outcomes(run).items():
        assert weight == pytest.approx(distribution(())[path[0]] * distribution(path[:1])[path[1]], abs=1e-15)


def test_declarations_follow_the_options():
    greedy, drawn = Chain.declares(ChainOptions()), Chain.declares(ChainOptions(length=7, draw="sampled"))
    assert (greedy.draw, greedy.shape, greedy.needs) == (Draw.DETERMINISTIC, Shape.CHAIN, frozenset(Gives))
    assert (drawn.draw, drawn.shape, drawn.needs) == (Draw.IID, Shape.CHAIN, frozenset({Gives.DISTRIBUTIONS}))
    assert (drawn.max_nodes, drawn.max_depth, drawn.prunes_on_draws) == (7, 7, False)


def test_the_wrong_kind_of_answer_is_refused(growth, random_rows):
    with pytest.raises(SpecdecError, match="received a warped q"):
        growth(random_rows(3, 0), 3)(chain(1), answer="probs")
    with pytest.raises(SpecdecError, match="received logits"):
        growth(random_rows(3, 0), 3)(chain(1, "sampled"))
