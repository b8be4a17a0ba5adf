import json
from fractions import Fraction
from pathlib import Path

import pytest

from specdec.errors import SpecdecError
from specdec.interfaces.declarations import Gives, Shape
from specdec.interfaces.parts import BuildTools
from specdec.tree_builders.dynamic import Dynamic, DynamicOptions
from specdec.trees.draft_tree import Draw

KNOWN = json.loads((Path(__file__).parents[1] / "data" / "verification_known_answers.json").read_text())[
    "dynamic_tree_eagle2_vs_opttree"
]


def dynamic(**options):
    return Dynamic.build(DynamicOptions(**options), BuildTools())


def drafted(tree):
    return {tuple(tree.path_tokens(node)) for node in range(1, len(tree))}


def eagle2(distribution, vocab_size, *, width, depth, nodes, stop_ids=frozenset()):
    """The procedure as published: fill the whole pool by beam search, cut it once."""
    import math

    pool, beam = [], [((), 0.0)]
    for _ in range(depth):
        level = []
        for path, score in beam:
            row = distribution(path)
            order = sorted((t for t in range(vocab_size) if row[t] > 0), key=lambda t: (-row[t], t))[:width]
            level += [((*path, token), score + math.log(row[token])) for token in order]
        pool += level
        beam = sorted((entry for entry in level if entry[0][-1] not in stop_ids), key=lambda entry: -entry[1])[:width]
    return {path for path, _ in sorted(pool, key=lambda entry: -entry[1])[:nodes]}


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("nodes", range(1, 9))
def test_the_known_trees_and_their_values_come_out(growth, width, nodes):
    rows = {
        tuple(map(int, key.split(","))) if key else (): [float(Fraction(p)) for p in row] for key, row in KNOWN["q"].items()
    }
    tree = growth(lambda path: rows[path], 3)(dynamic(width=width, depth=3, nodes=nodes))
    expected = KNOWN["rows"][str(nodes)][f"eagle2_K{width}"]
    assert drafted(tree) == set(map(tuple, expected["nodes"]))
    value = 0.0
    for path in drafted(tree):
        product = 1.0
        for level, token in enumerate(path):
            product *= rows[path[:level]][token]
        value += product
    assert value == pytest.approx(expected["value"]["float"], abs=1e-12)


@pytest.mark.parametrize("seed", range(30))
def test_cutting_early_gives_the_published_tree(growth, random_rows, seed):
    distribution = random_rows(8, seed, zeros=0.1 * (seed % 4))
    options = {"width": 1 + seed % 5, "depth": 1 + seed % 4, "nodes": 1 + 3 * seed % 17}
    stop_ids = frozenset({seed % 8}) if seed % 2 else frozenset()
    tree = growth(distribution, 8)(dynamic(**options), stop_ids=stop_ids)
    assert drafted(tree) == eagle2(distribution, 8, **options, stop_ids=stop_ids)


@pytest.mark.parametrize("answer", ["distributions", "candidates"])
def test_a_certain_child_that_ties_with_its_parent_never_displaces_it(growth, table_rows, answer):
    certain = [0.0, 1.0]
    distribution = table_rows({(1,) * length: certain for length in range(6)})
    for nodes in range(1, 5):
        tree = growth(distribution, 2)(dynamic(width=2, depth=5, nodes=nodes), answer=answer)
        assert drafted(tree) == {(1,) * length for length in range(1, nodes + 1)}


@pytest.mark.parametrize("seed", range(20))
def test_with_many_ties_what_is_kept_is_connected_and_earlier_nodes_win(growth, random_rows, seed):
    distribution = random_rows(5, seed, levels=2)
    options = {"width": 3, "depth": 4, "nodes": 6}
    tree = growth(distribution, 5)(dynamic(**options))
    assert drafted(tree) == {path for path in drafted(tree) if path[:-1] in drafted(tree) | {()}}
    assert tree.num_drafted == len(eagle2(distribution, 5, **options))


def test_the_drafter_is_asked_only_for_nodes_that_may_still_be_kept(growth, table_rows):
    flat, sure = [0.5, 0.3, 0.2], [1.0, 0.0, 0.0]
    grow = growth(lambda path: flat if len(path) == 0 else sure, 3)
    assert drafted(grow(dynamic(width=3, depth=9, nodes=2))) == {(0,), (0, 0)}
    assert grow.asked == [[()], [(0,), (1,)], [(0, 0)]]


@pytest.mark.parametrize(("nodes", "depth"), [(0, 5), (5, 0), (3, 5), (50, 2), (1, 1)])
def test_the_budget_limits_nodes_and_levels(growth, random_rows, nodes, depth):
    distribution = random_rows(6, 8)
    tree = growth(distribution, 6)(dynamic(width=4, depth=5, nodes=12), nodes=nodes, depth=depth)
    assert drafted(tree) == eagle2(distribution, 6, width=4, depth=min(5, depth), nodes=min(12, nodes))


def test_nodes_are_in_pool_order_and_stamped_deterministic(growth, random_rows):
    tree = growth(random_rows(6, 9), 6)(dynamic(width=3, depth=3, nodes=9))
    assert list(tree.depths) == sorted(tree.depths)
    assert set(tree.draw_kind.values()) == {Draw.DETERMINISTIC}


def test_no_candidate_gives_the_root_alone(growth):
    assert growth(lambda path: [0.0, 0.0], 2)(dynamic()).num_drafted == 0
    assert growth(lambda path: [0.0, 0.0], 2)(dynamic(), answer="candidates").num_drafted == 0


def test_declarations_follow_the_options():
    made = Dynamic.declares(DynamicOptions(width=4, depth=6, nodes=3))
    assert (made.draw, made.shape, made.needs) == (Draw.DETERMINISTIC, Shape.TREE, frozenset(Gives))
    assert (made.max_nodes, made.max_depth) == (3, 3)
    assert Dynamic.declares(DynamicOptions(width=1)).shape is Shape.CHAIN


def test_a_warped_q_is_refused(growth, random_rows):
    with pytest.raises(SpecdecError, match="received a warped q"):
        growth(random_rows(3, 0), 3)(dynamic(), answer="probs")


def best_first(rows, nodes):
    """The likeliest paths under a product of rows, by a heap, as published for trees over one-pass rows (arXiv 2604.12989)."""
    import heapq

    order = [sorted(range(len(row)), key=lambda token, row=row: -row[token]) for row in rows]
    heap, taken = [(-rows[0][order[0][0]], (0,))], []
    while heap and len(taken) < nodes:
        value, ranks = heapq.heappop(heap)
        taken.append(tuple(order[depth][rank] for depth, rank in enumerate(ranks)))
        depth, last = len(ranks) - 1, ranks[-1]
        if last + 1 < len(rows[depth]):
            sibling = value / rows[depth][order[depth][last]] * rows[depth][order[depth][last + 1]]
            heapq.heappush(heap, (sibling, (*ranks[:-1], last + 1)))
        if depth + 1 < len(rows):
            heapq.heappush(heap, (value * rows[depth + 1][order[depth + 1][0]], (*ranks, 0)))
    return taken


def test_the_known_tree_over_rows_that_all_parents_share_comes_out(growth):
    rows = [[0.6, 0.3, 0.1], [0.7, 0.2, 0.1]]
    tree = growth(lambda path: rows[len(path)], 3)(dynamic(width=3, depth=2, nodes=4))
    assert drafted(tree) == {(0,), (0, 0), (1,), (1, 0)} == set(best_first(rows, 4))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("nodes", [1, 3, 7, 12])
def test_with_width_to_spare_the_tree_over_shared_rows_holds_the_likeliest_paths(growth, seed, nodes):
    import random

    draw = random.Random(seed)
    weights = [[draw.random() for _ in range(5)] for _ in range(4)]
    rows = [[weight / sum(row) for weight in row] for row in weights]
    tree = growth(lambda path: rows[len(path)], 5)(dynamic(width=nodes, depth=4, nodes=nodes))
    assert drafted(tree) == set(best_first(rows, nodes))
