"""The searches reproduce every known answer, in exact fractions."""

import json
from fractions import Fraction
from pathlib import Path

import pytest

from specdec.performance.acceptance_profile import Rates
from specdec.performance.cost_model import CostModel, DrafterCost
from specdec.tree_search.brute_force import all_trees, brute_force
from specdec.tree_search.dynamic_programming import optimal_trees
from specdec.tree_search.expected_tokens import expected_tokens
from specdec.tree_search.greedy import best_first
from specdec.tree_search.optimizer import Bounds, best_tree
from specdec.trees.tree_shape import TreeShape

KNOWN = json.loads((Path(__file__).parents[1] / "data" / "verification_known_answers.json").read_text())
VECTORS = [name for name in KNOWN["trees"] if "acceptance_by_rank" in KNOWN["trees"][name]]


def fractions(values):
    return tuple(map(Fraction, values))


def rows(name):
    """Rates by depth and rank; a vector is the same at every depth."""
    entry = KNOWN["trees"][name]
    heads = entry.get("accuracy_by_head_and_rank") or [entry["acceptance_by_rank"]]
    return tuple(map(fractions, heads))


def by_path(table, *, endless=True):
    """Children of a path by its depth; heads end where their table does."""
    return lambda path: table[min(len(path), len(table) - 1)] if endless or len(path) < len(table) else ()


def cases(key):
    return [
        (name, int(size)) for name in KNOWN["trees"] for size, entry in KNOWN["trees"][name]["budget"].items() if key in entry
    ]


def levels(name):
    return len(rows(name)) if len(rows(name)) > 1 else 99


@pytest.mark.parametrize(("name", "nodes"), cases("E_accepted"))
def test_the_dynamic_program_finds_the_known_optimum(name, nodes):
    table, entry = rows(name), KNOWN["trees"][name]["budget"][str(nodes)]
    optima = optimal_trees(table, nodes=8, depth=levels(name))
    assert optima.tokens[nodes + 1] == 1 + Fraction(entry["E_accepted"]["exact"])
    shape = optima.shape(nodes + 1)
    assert shape.num_nodes <= nodes
    children = by_path(table)
    known = TreeShape.of(entry["optimal_tree"])
    assert expected_tokens(shape, children) == expected_tokens(known, children) == optima.tokens[nodes + 1]


@pytest.mark.parametrize(("name", "nodes"), cases("E_accepted_depth_le_2"))
def test_a_bound_on_depth_gives_the_known_optimum(name, nodes):
    entry = KNOWN["trees"][name]["budget"][str(nodes)]
    optima = optimal_trees(rows(name), nodes=nodes, depth=2)
    assert optima.tokens[nodes + 1] == 1 + Fraction(entry["E_accepted_depth_le_2"]["exact"])
    assert optima.shape(nodes + 1).depth <= 2
    assert expected_tokens(optima.shape(nodes + 1), by_path(rows(name))) == optima.tokens[nodes + 1]


@pytest.mark.parametrize(("name", "nodes"), cases("greedy_best_first"))
def test_best_first_has_the_known_value_and_is_optimal_where_it_is_said_to_be(name, nodes):
    entry = KNOWN["trees"][name]["budget"][str(nodes)]
    children = by_path(rows(name))
    value = expected_tokens(best_first(children, nodes=nodes, depth=99), children)
    assert value == 1 + Fraction(entry["greedy_best_first"]["exact"])
    assert (value == 1 + Fraction(entry["E_accepted"]["exact"])) is entry["greedy_is_optimal"]


@pytest.mark.parametrize("nodes", range(1, 9))
def test_best_first_finds_the_known_trees_of_medusa_heads(nodes):
    table = rows("MEDUSA_heads")
    shape = best_first(by_path(table), nodes=nodes, depth=len(table))
    entry = KNOWN["trees"]["MEDUSA_heads"]["budget"][str(nodes)]
    assert expected_tokens(shape, by_path(table)) == 1 + Fraction(entry["E_accepted"]["exact"])


@pytest.mark.parametrize(("name", "nodes"), [case for case in cases("trees_enumerated") if case[1] <= 6])
def test_brute_force_sees_as_many_trees_and_finds_the_optimum(name, nodes):
    entry = KNOWN["trees"][name]["budget"][str(nodes)]
    width = len(rows(name)[0])
    assert sum(1 for _ in all_trees(nodes=nodes, depth=nodes, width=width)) == entry["trees_enumerated"]
    best = brute_force(by_path(rows(name)), nodes=nodes, depth=nodes, width=width)
    assert expected_tokens(best, by_path(rows(name))) == 1 + Fraction(entry["E_accepted"]["exact"])


OPT = KNOWN["dynamic_tree_eagle2_vs_opttree"]


def draft_probabilities(path):
    """Children of a context by rank; in these tables rank r is token r."""
    return fractions(OPT["q"].get(",".join(map(str, path)), []))


@pytest.mark.parametrize("nodes", sorted(map(int, OPT["rows"])))
def test_best_first_over_draft_probabilities_is_the_known_tree_of_one_context(nodes):
    row = OPT["rows"][str(nodes)]
    shape = best_first(draft_probabilities, nodes=nodes, depth=3)
    assert expected_tokens(shape, draft_probabilities) - 1 == Fraction(row["opt_tree_value"]["exact"])
    known = expected_tokens(TreeShape.of(row["opt_tree"]), draft_probabilities)
    assert known - 1 == Fraction(row["opt_tree_value"]["exact"])
    if nodes <= 5:
        brute = brute_force(draft_probabilities, nodes=nodes, depth=3, width=3)
        assert expected_tokens(brute, draft_probabilities) == known
    for width in (1, 2, 3):
        beam = row[f"eagle2_K{width}"]
        value = expected_tokens(TreeShape.of(beam["nodes"]), draft_probabilities) - 1
        assert value == Fraction(beam["value"]["exact"]) <= Fraction(row["opt_tree_value"]["exact"])


HARDWARE = KNOWN["hardware_aware"]


@pytest.mark.parametrize("step_cost", HARDWARE["draft_step_cost_c"])
def test_the_known_size_and_depth_are_best_for_the_machine(step_cost):
    times = {int(n): float(Fraction(t)) for n, t in HARDWARE["t_verify_relative"].items()}
    level = float(Fraction(step_cost))
    costs = CostModel(
        source="known answer",
        widths=tuple(times),
        contexts=(1,),
        forward_seconds=(tuple(times.values()),),
        drafter=DrafterCost(name="c", first_seconds=level, widths=(1,), seconds=(level,)),
    )
    rates = Rates((fractions(HARDWARE["acceptance_by_rank"]),))
    entry = HARDWARE["draft_step_cost_c"][step_cost]
    best = best_tree(rates, costs, Bounds(tuple(times), depth=8), context=1).best
    assert (best.size, best.shape.depth) == (entry["best_n_incl_root"], entry["best_depth"])
    assert best.tokens == pytest.approx(entry["E_tokens"]["float"], rel=1e-12)
    assert best.speedup == pytest.approx(entry["speedup"]["float"], rel=1e-12)


def test_the_chain_of_known_acceptance_has_the_known_speedup():
    known = HARDWARE["leviathan_chain"]
    alpha, length, level = known["alpha"], known["gamma"], known["c"]
    tokens = expected_tokens(TreeShape.chain(length), lambda path: (alpha,))
    assert tokens == pytest.approx(known["E_tokens"], rel=1e-12)
    costs = CostModel(
        source="free width",
        widths=(1, 6),
        contexts=(1,),
        forward_seconds=((1.0, 1.0),),
        drafter=DrafterCost(name="c", first_seconds=level, widths=(1,), seconds=(level,)),
    )
    assert tokens * costs.plain(1) / costs.step(6, (1,) * length, 1) == pytest.approx(known["speedup"], rel=1e-9)
