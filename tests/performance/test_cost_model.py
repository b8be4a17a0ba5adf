import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.errors import SpecError
from specdec.performance.cost_model import CostModel, DrafterCost, read_costs, write_costs

DRAFTER = DrafterCost(name="d", first_seconds=0.004, widths=(1, 4), seconds=(0.002, 0.005))


def costs(**changes) -> CostModel:
    facts = {
        "source": "a table",
        "widths": (1, 2, 4),
        "contexts": (100, 300),
        "forward_seconds": ((0.02, 0.021, 0.03), (0.024, 0.027, 0.036)),
        "overhead_seconds": 0.001,
        "plain_overhead_seconds": 0.0005,
        "drafter": DRAFTER,
    }
    return CostModel(**{**facts, **changes})


def test_what_was_measured_is_given_back_and_between_it_lines_are_straight():
    model = costs()
    assert model.forward(1, 100) == pytest.approx(0.02)
    assert model.forward(4, 300) == pytest.approx(0.036)
    assert model.forward(3, 100) == pytest.approx(0.0255)
    assert model.forward(2, 200) == pytest.approx(0.024)
    assert model.forward(8, 100) == pytest.approx(0.03 + 4 * 0.0045)
    assert model.forward(3, 100) - model.forward(2, 100) == pytest.approx(0.0045)


def test_a_step_is_drafting_the_forward_and_the_overhead():
    model = costs()
    assert model.draft(()) == 0
    assert model.draft((1,)) == pytest.approx(0.004)
    assert model.draft((1, 4, 1)) == pytest.approx(0.004 + 0.005 + 0.002)
    assert model.step(4, (1, 4), 100) == pytest.approx(0.009 + 0.03 + 0.001)
    assert model.plain(100) == pytest.approx(0.0205)
    assert costs(drafter=None).draft((1, 2, 3)) == 0


def test_every_sequence_of_a_batch_costs_a_level_its_nodes_and_a_share():
    drafter = DRAFTER.model_copy(update={"row_seconds": 0.0003})
    assert costs(drafter=drafter).draft((1, 2), rows=1) == pytest.approx(0.004 + drafter.level(2))
    assert costs(drafter=drafter).draft((1, 2), rows=2) == pytest.approx(0.004 + 0.005 + 2 * 0.0003)
    assert costs(drafter=drafter).draft((), rows=8) == 0


@given(
    st.lists(st.lists(st.floats(0.001, 1), min_size=3, max_size=3), min_size=2, max_size=2),
    st.tuples(st.integers(1, 10), st.integers(1, 10)),
    st.tuples(st.integers(1, 900), st.integers(1, 900)),
)
def test_however_noisy_the_measurement_more_tokens_and_more_context_never_cost_less(table, sizes, contexts):
    model = costs(forward_seconds=tuple(map(tuple, table)))
    low = model.forward(min(sizes), min(contexts))
    assert low <= model.forward(max(sizes), min(contexts)) + 1e-9
    assert low <= model.forward(min(sizes), max(contexts)) + 1e-9


def test_a_forward_of_nothing_is_refused():
    with pytest.raises(SpecError, match="at least the root"):
        costs().forward(0, 100)


def test_a_file_gives_the_model_back(tmp_path):
    write_costs(tmp_path / "c.yaml", costs(provenance={"cpu": "x", "versions": {"torch": "2"}}))
    assert read_costs(tmp_path / "c.yaml") == costs(provenance={"cpu": "x", "versions": {"torch": "2"}})
    assert [path.name for path in tmp_path.iterdir()] == ["c.yaml"]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("kind: cost", "kind: acceptance", r"c\.yaml:1: kind: got 'acceptance', expected 'cost'"),
        ("kind: cost\n", "", r"c\.yaml:1: kind: has no kind, expected 'cost'"),
        ("[1, 2, 4]", "[2, 3, 4]", "widths start at 2"),
        ("[1, 2, 4]", "[1, 4, 2]", "widths must rise"),
        ("[1, 2, 4]", "[1, 2]", "a row of forward_seconds has 3 entries for 2 widths"),
        ("0.021", "-1", r"c\.yaml:6: forward_seconds\.0\.1: got -1, expected"),
        ("0.021", "0", "forward_seconds has a 0"),
        ("contexts", "context", r"c\.yaml:4: context: unknown key; did you mean 'contexts'"),
        ("source: a table\n", "", "source: is required"),
    ],
)
def test_a_wrong_file_says_where(tmp_path, before, after, message):
    path = tmp_path / "c.yaml"
    write_costs(path, costs())
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after, 1))
    with pytest.raises(SpecError, match=message):
        read_costs(path)


def test_a_file_that_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path):
    (tmp_path / "c.yaml").mkdir()
    with pytest.raises(SpecError, match="cannot be written"):
        write_costs(tmp_path / "c.yaml", costs())
    assert [path.name for path in tmp_path.iterdir()] == ["c.yaml"]
