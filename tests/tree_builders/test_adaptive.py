"""`adaptive`: which nodes pay, when a level pays, and when looking at the drafter does not."""

import math

import pytest

from specdec.decoding.pruning import trimmed
from specdec.errors import SpecdecError, SpecError
from specdec.interfaces.declarations import Gives, Shape
from specdec.interfaces.parts import BuildTools
from specdec.interfaces.proposals import Budget, Candidates, Memory
from specdec.interfaces.results import StepRecord
from specdec.performance.acceptance_profile import AcceptanceProfile, CalibrationBin, write_acceptance
from specdec.performance.cost_model import CostModel, DrafterCost, write_costs
from specdec.sampling.rng import seeded
from specdec.tree_builders.adaptive import Adaptive, AdaptiveOptions
from specdec.tree_builders.adaptive_state import USUAL_WEIGHT, Learned, Looks
from specdec.trees.draft_tree import Draw

DEEP = 1000


def costs(per_token=0.02, level=0.05, fixed=1.0):
    widths = (1, 2, 128)
    return CostModel(
        source="a straight line",
        widths=widths,
        contexts=(64,),
        forward_seconds=(tuple(fixed + per_token * (width - 1) for width in widths),),
        drafter=DrafterCost(name="d", first_seconds=level, widths=(1, 128), seconds=(level, level)),
    )


class Drafting:
    """A sequence that is decoded with `adaptive`. distribution: drafted path -> {token: chance}."""

    def __init__(self, distribution, model, *, rows=1, batch=None, **options):
        self.distribution = distribution
        self.builder = Adaptive(AdaptiveOptions(**options), model, None)
        self.memory = Memory()
        self.batch = Memory() if batch is None else batch
        self.rows = rows
        self.position = 10
        self.last = None
        self.drafted = 0

    def draft(self, *, nodes=DEEP, depth=DEEP, stop_ids=frozenset()):
        """(tree as it is verified, number of levels asked for)."""
        budget = Budget(nodes, depth, stop_ids, rows=self.rows, last=self.last, memory=self.memory, batch=self.batch)
        steps = self.builder.grow(7, self.position, budget, seeded(0).draft)
        answer, levels = None, 0
        try:
            while True:
                frontier = steps.send(answer)
                levels += 1
                rows = [self.distribution(tuple(frontier.tree.path(node))) for node in frontier.nodes]
                ordered = [sorted(row.items(), key=lambda one: -one[1]) for row in rows]
                answer = Candidates(
                    tuple(tuple(token for token, _ in row) for row in ordered),
                    tuple(tuple(math.log(chance) for _, chance in row) for row in ordered),
                )
        except StopIteration as stop:
            tree = trimmed([stop.value])[0]
            self.drafted = tree.num_drafted
            return tree, levels

    def emit(self, *tokens):
        """The step ends with these tokens."""
        self.last = StepRecord(self.drafted, 0, 0, 0, len(tokens), tokens, (), 1, {})
        self.position += len(tokens)


def sure(path):
    return {len(path) % 5: 0.95, 5: 0.05}


def doubtful(path):
    return dict.fromkeys(range(5), 0.004)


def test_a_sure_drafter_is_followed_deeper_than_a_doubtful_one_and_a_useless_one_not_at_all():
    sizes = [Drafting(lambda path, p=p: {1: p, 2: p / 50}, costs()).draft()[0].num_drafted for p in (0.95, 0.6, 0.3, 0.01)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] >= 5
    assert sizes[-1] == 0


@pytest.mark.parametrize("per_token", [0.002, 0.02, 0.1, 0.3])
def test_the_kept_nodes_are_those_that_give_most_tokens_a_second(per_token):
    """Against every other number of the likeliest nodes of the same pool."""
    drafting = Drafting(lambda path: {1: 0.6, 2: 0.2, 3: 0.1}, costs(per_token))
    tree, levels = drafting.draft()
    gains = sorted((0.6**a * 0.2**b * 0.1**c for a in range(9) for b in range(9) for c in range(9)), reverse=True)
    spent = levels * 0.05
    worth = tree.worth
    expected = sum(worth.gains)
    rate = expected / (1 + per_token * tree.num_drafted + spent)
    for size in range(tree.num_drafted):
        fewer = sum(sorted(worth.gains, reverse=True)[: size + 1])
        assert fewer / (1 + per_token * size + spent) <= rate + 1e-12
    assert len(gains) > tree.num_drafted


def test_the_dearer_a_node_the_smaller_the_draft():
    sizes = [Drafting(sure, costs(per_token)).draft()[0].num_drafted for per_token in (0.001, 0.05, 0.2, 2.0)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[2] > sizes[3] == 0


def test_the_dearer_a_level_the_fewer_are_asked_for():
    levels = [Drafting(sure, costs(level=level)).draft()[1] for level in (0.001, 0.3, 0.8, 3.0)]
    assert levels == sorted(levels, reverse=True)
    assert levels[0] > levels[-1]


def test_more_rows_make_drafts_smaller_as_their_nodes_add_up():
    sizes = [Drafting(sure, costs(0.05), rows=rows).draft()[0].num_drafted for rows in (1, 4, 16)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1]


@pytest.mark.parametrize(("nodes", "depth"), [(0, 5), (5, 0), (3, 5), (50, 2), (1, 1)])
def test_the_budget_limits_nodes_and_levels(nodes, depth):
    tree, levels = Drafting(sure, costs(0.001)).draft(nodes=nodes, depth=depth)
    assert tree.num_drafted <= nodes
    assert tree.max_depth <= depth
    assert levels <= depth


def test_nothing_is_drafted_behind_a_stop_token():
    tree, _ = Drafting(lambda path: {1: 0.99}, costs(0.001)).draft(stop_ids=frozenset({1}))
    assert tree.tokens[1:] == (1,)


def test_a_drafter_without_candidates_gives_the_root_alone():
    assert Drafting(lambda path: {}, costs()).draft()[0].num_drafted == 0


def test_a_drafter_that_is_never_worth_it_is_looked_at_ever_less_often():
    drafting = Drafting(doubtful, costs(level=0.1))
    looked = []
    for _ in range(200):
        looked.append(drafting.draft()[1] > 0)
        drafting.emit(9)
    assert all(looked[:3])
    assert sum(looked[100:]) <= 100 / 15 + 1


@pytest.mark.parametrize("distributions", [[doubtful] * 4, [sure, doubtful, doubtful, doubtful, doubtful]])
def test_sequences_of_a_batch_look_together_or_rest_together(distributions):
    batch = Memory()
    rows = [Drafting(distribution, costs(level=0.1), rows=len(distributions), batch=batch) for distribution in distributions]
    looked = []
    for _ in range(200):
        looked.append([row.draft()[1] > 0 for row in rows])
        for row in rows:
            row.emit(9)
    assert all(len(set(step)) == 1 for step in looked)
    assert sum(step[0] for step in looked[100:]) <= 100 / 15 + 1


@pytest.mark.parametrize("queue", [False, True])
def test_where_others_wait_a_sequence_that_gets_ahead_leaves_no_gap(queue):
    """A look that saves a tenth of a step pays there, and does not where the last sequences go on by themselves."""
    looks, rows = Looks(4), [Learned(None) for _ in range(4)]
    rested = []
    for _ in range(100):
        rested.append([looks.rests(row, 4, queue=queue) for row in rows])
        if not rested[-1][0]:
            for _ in rows:
                looks.report(0.1)
    assert any(map(any, rested)) is not queue


@pytest.mark.parametrize("replaced", [False, True])
def test_rests_grow_alike_where_all_sequences_make_way_for_others_at_once(replaced):
    looks, rows = Looks(2), [Learned(None) for _ in range(2)]
    looked = []
    for step in range(60):
        if replaced and step % 3 == 0:
            rows = [Learned(None) for _ in range(2)]
        rests = [looks.rests(row, 2, queue=True) for row in rows]
        looked.append(not rests[0])
        if looked[-1]:
            for _ in rows:
                looks.report(-0.5)
    assert sum(looked) == 8


def test_a_sequence_that_is_left_alone_decides_for_itself_again():
    batch = Memory()
    rows = [Drafting(doubtful, costs(level=0.1), rows=2, batch=batch) for _ in range(2)]
    for _ in range(60):
        for row in rows:
            row.draft()
            row.emit(9)
    last = rows[1]
    last.rows = 1
    assert last.draft()[1] > 0


def test_a_drafter_that_lies_is_found_out():
    """It is sure of tokens that never come: what was emitted counts."""
    drafting = Drafting(sure, costs(level=0.1))
    drafted = []
    for _ in range(120):
        drafted.append(drafting.draft()[0].num_drafted)
        drafting.emit(9)
    assert drafted[0] > 0
    assert sum(drafted[60:]) <= 10


def test_a_drafter_that_becomes_good_is_found_again():
    drafting = Drafting(doubtful, costs(level=0.1))
    for _ in range(60):
        drafting.draft()
        drafting.emit(9)
    drafting.distribution = sure
    drafted = []
    for _ in range(60):
        tree, _ = drafting.draft()
        drafted.append(tree.num_drafted)
        path = [sorted(sure(tuple(range(n))), key=lambda t: -sure(tuple(range(n)))[t])[0] for n in range(4)]
        drafting.emit(*path)
    assert any(drafted[:20])
    assert all(drafted[-20:])


def test_a_modest_drafter_that_is_always_right_is_believed_more_and_more():
    drafting = Drafting(lambda path: {len(path): 0.4}, costs(0.05))
    before = drafting.draft()[0].num_drafted
    for _ in range(100):
        drafting.emit(0, 1, 2, 3, 4)
        tree, _ = drafting.draft()
    assert tree.num_drafted > before


def test_a_look_that_costs_next_to_nothing_is_never_given_up():
    drafting = Drafting(doubtful, costs(), draft_level=0.001)
    for _ in range(100):
        assert drafting.draft()[1] > 0
        drafting.emit(9)


def test_the_same_steps_give_the_same_drafts():
    def run():
        drafting, trees = Drafting(sure, costs()), []
        for _ in range(20):
            tree, _ = drafting.draft()
            trees.append((tree.tokens, tree.parents))
            drafting.emit(0, 1)
        return trees

    assert run() == run()


def test_the_tree_of_a_grower_is_valid_and_its_draws_deterministic(growth, random_rows):
    for seed in range(20):
        tree = growth(random_rows(6, seed), 6)(Adaptive(AdaptiveOptions(width=3, depth=4, nodes=9), costs(0.01), None))
        assert set(tree.draw_kind.values()) <= {Draw.DETERMINISTIC}
        assert tree.num_drafted <= 9
        assert tree.max_depth <= 4


def test_costs_and_calibration_are_read_from_files(tmp_path):
    write_costs(tmp_path / "cost.yaml", costs(per_token=5.0))
    profile = AcceptanceProfile(
        source="x",
        given=((0.6, 0.2),),
        calibration=(
            CalibrationBin(probability=0.1, tested=100, accepted=1),
            CalibrationBin(probability=0.9, tested=100, accepted=2),
        ),
    )
    write_acceptance(tmp_path / "acceptance.yaml", profile)

    def first_size(**files):
        drafting = Drafting(sure, costs(0.01))
        options = AdaptiveOptions(**{key: str(path) for key, path in files.items()})
        drafting.builder = Adaptive.build(options, BuildTools())
        return drafting.draft()[0].num_drafted

    assert first_size() > 0
    assert first_size(cost=tmp_path / "cost.yaml") == 0
    assert first_size(calibration=tmp_path / "acceptance.yaml") < first_size()


def test_a_profile_without_calibration_is_refused(tmp_path):
    write_acceptance(tmp_path / "a.yaml", AcceptanceProfile(source="x", given=((0.6,),)))
    with pytest.raises(SpecError, match="has no calibration"):
        Adaptive.build(AdaptiveOptions(calibration=str(tmp_path / "a.yaml")), BuildTools())


def test_declarations_follow_the_options():
    made = Adaptive.declares(AdaptiveOptions(nodes=5))
    assert (made.draw, made.shape, made.needs) == (Draw.DETERMINISTIC, Shape.TREE, frozenset(Gives))
    assert (made.max_nodes, made.max_depth) == (5, 5)
    assert Adaptive.declares(AdaptiveOptions(width=1)).shape is Shape.CHAIN


def test_a_warped_q_is_refused(growth, random_rows):
    with pytest.raises(SpecdecError, match="received a warped q"):
        growth(random_rows(3, 0), 3)(Adaptive(AdaptiveOptions(), costs(), None), answer="probs")


def test_each_node_is_worth_its_own_chance_wherever_it_stands():
    """A grandchild that is likelier than its uncle comes after it in the tree and before it in the pool."""
    chances = {(): {1: 0.8, 2: 0.1}, (1,): {3: 0.9, 4: 0.05}, (1, 3): {5: 0.8}}
    drafting = Drafting(lambda path: chances.get(path, {6: 0.01}), costs(per_token=0.0001, level=0.0001), nodes=5, width=2)
    tree, _ = drafting.draft()
    known = {(): 1.0}
    for node in range(1, len(tree)):
        *above, token = tree.path_tokens(node)
        known[(*above, token)] = known[tuple(above)] * chances.get(tuple(above), {6: 0.01})[token]
        assert tree.worth.gains[node] == pytest.approx(known[(*above, token)], abs=1e-9)
    assert len(tree) > 4
    order = [tree.worth.gains[node] for node in range(1, len(tree))]
    assert order != sorted(order, reverse=True)


def test_what_is_usual_is_weighed_by_how_likely_a_node_is_reached():
    learned = Learned(None)
    before = learned.outlook(1)[0]
    for node, (chance, reached) in enumerate([(0.9, 1.0), (0.1, 0.001)], 1):
        learned.chances(node, [5], [chance], reached)
    weight = USUAL_WEIGHT
    assert learned.outlook(1)[0] == pytest.approx((weight * before + 0.9 + 0.001 * 0.1) / (weight + 1.001))
