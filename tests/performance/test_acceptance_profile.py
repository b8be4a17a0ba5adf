import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.errors import SpecError
from specdec.performance.acceptance_profile import (
    AcceptanceProfile,
    CalibrationBin,
    Drafted,
    Rates,
    counts,
    encoded,
    rates_of,
    read_acceptance,
    replay,
    write_acceptance,
)
from specdec.trees.tree_shape import TreeShape

paths = st.lists(st.integers(0, 11), max_size=4).map(tuple)
trails = st.lists(st.lists(paths, min_size=1, max_size=9).map(tuple), min_size=1, max_size=3)


def profile(**changes) -> AcceptanceProfile:
    facts = {
        "source": "by hand",
        "reached": (10, 5),
        "accepted": ((4, 1), (1, 2)),
        "calibration": (
            CalibrationBin(probability=0.1, tested=10, accepted=1),
            CalibrationBin(probability=0.5, tested=10, accepted=6),
            CalibrationBin(probability=0.9, tested=30, accepted=15),
        ),
        "paths": ("01 - 0", "-"),
        "path_depth": 2,
    }
    return AcceptanceProfile(**{**facts, **changes})


def test_rates_are_unconditional_on_siblings_and_deeper_nodes_take_the_last_depth():
    rates = profile().rates()
    assert rates.children(()) == (0.4, 0.1)
    assert rates.children((1,)) == rates.children((0, 0, 0)) == (0.2, 0.4)
    assert profile().by_rank() == pytest.approx((5 / 15, 3 / 15))


def test_calibration_rises_weighs_by_count_and_stays_a_chance():
    measured = profile()
    assert measured.calibrated(0.1) == measured.calibrated(0.0) == pytest.approx(0.1)
    assert measured.calibrated(0.9) == measured.calibrated(0.5) == pytest.approx(21 / 40)
    assert measured.calibrated(1.0) <= 1
    with pytest.raises(SpecError, match="no calibration"):
        profile(calibration=()).calibrated(0.5)


@given(trails)
def test_trails_survive_their_writing(answers):
    line = AcceptanceProfile(source="x", given=((0.5,),), paths=tuple(map(encoded, answers)), path_depth=4)
    assert line.trails == tuple(answers)


@given(trails, st.lists(paths.filter(bool), max_size=5))
def test_a_replay_makes_every_token_once_and_never_more_a_step_than_the_tree_is_deep(answers, some):
    shape = TreeShape.of({(*p[:n], r) for p in some for n in range(len(p)) for r in range(p[n] + 1)})
    tokens, starts = replay(answers, shape)
    assert tokens == sum(map(len, answers))
    assert len(set(starts)) == len(starts)
    assert tokens <= len(starts) * (shape.depth + 1)
    assert replay(answers, TreeShape(()))[1] == tuple((a, p) for a, trail in enumerate(answers) for p in range(len(trail)))


def test_a_replay_follows_the_tree_as_far_as_it_goes():
    trail = ((0, 1, 0), (), (0,), (1,), ())
    assert replay([trail], TreeShape.of([[0]]))[1] == ((0, 0), (0, 2), (0, 4))
    assert replay([trail], TreeShape.of([[0], [0, 0], [0, 1]]))[1] == ((0, 0), (0, 3), (0, 4))


def test_counts_leave_out_what_the_end_of_an_answer_hides():
    reached, accepted = counts([((0, 1), (1,), ())], depth=2, width=2)
    assert reached == [2, 2]
    assert accepted == [[1, 1], [0, 1]]
    assert counts([((0, 1), (1,), ())], 2, 2, starts=[(0, 0)])[0] == [1, 1]
    assert rates_of([4, 0], [[1, 2], [0, 0]]).by_depth == ((0.25, 0.5),)


def test_of_a_shape_as_much_is_drafted_as_the_drafter_offers():
    offers = profile(asked=(10, 4), offered=((5, 1), (4, 2)), paths=())
    chain = offers.drafted(TreeShape.chain(2))
    assert (chain.chance, chain.nodes) == (0.5, 2.0)
    wide = offers.drafted(TreeShape.of([[0], [1], [2], [0, 0], [0, 1]]))
    assert wide.chance * wide.nodes == pytest.approx(0.5 + 0.1 + 0 + 0.5 + 0.25)
    assert profile().drafted(TreeShape.chain(3)) == Drafted(1.0, 3.0)
    counted = profile(asked=(9,), offered=((9, 3),), paths=("0 - -", "- -"), lengths=("120", "20"), path_depth=2)
    chain = counted.drafted(TreeShape.chain(2))
    assert (chain.chance, chain.nodes) == (0.5, 1.5)
    assert profile(asked=(3,), offered=((0, 0),), paths=()).drafted(TreeShape.chain(3)) == Drafted(0.0, 0.0)


def test_a_file_gives_the_profile_back(tmp_path):
    write_acceptance(tmp_path / "a.yaml", profile())
    assert read_acceptance(tmp_path / "a.yaml") == profile()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"accepted": ((9, 9), (1, 2))}, "more children were accepted"),
        ({"accepted": ((4, 1),)}, "reached has 2 depths, accepted 1"),
        ({"given": ((0.5,),)}, "either `reached`"),
        ({"lengths": ("1", "1")}, "a digit for every path"),
        ({"asked": (3,)}, "asked has 1 depths, offered 0"),
        ({"paths": ("0 !",)}, "paths hold"),
        ({"calibration": (CalibrationBin(probability=0.1, tested=1, accepted=2),)}, "2 accepted of 1 tested"),
    ],
)
def test_counts_that_contradict_each_other_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        profile(**changes)


def test_rates_that_are_none_are_refused(tmp_path):
    with pytest.raises(SpecError, match="between 0 and 1"):
        Rates(((1.5,),))
    with pytest.raises(SpecError, match="sum to at most 1"):
        Rates(((0.7, 0.6),))
    with pytest.raises(SpecError, match="no depth"):
        Rates(())
    (tmp_path / "a.yaml").write_text("kind: acceptance\nsource: x\ngiven: [[0.7, 0.6]]\n")
    with pytest.raises(SpecError, match=r"a\.yaml: acceptance at depth 0 sums to 1\.3"):
        read_acceptance(tmp_path / "a.yaml")


@pytest.mark.parametrize("changes", [{"reached": (10**400, 5)}, {"accepted": ((10**400, 1), (1, 2))}])
def test_counts_that_no_number_of_a_computer_holds_are_refused(changes):
    with pytest.raises(ValueError, match="less than or equal to"):
        profile(**changes)
    with pytest.raises(ValueError, match="less than or equal to"):
        CalibrationBin(probability=0.5, tested=10**400, accepted=1)
