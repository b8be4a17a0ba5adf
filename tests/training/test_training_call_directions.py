import pytest
from call_directions import recorded

from specdec.heads.formats.reading import read_head
from specdec.training.borrowed import save_head


@pytest.mark.slow
def test_training_and_reading_a_head_call_nothing_of_a_higher_tier(trainer, tmp_path):
    run = trainer("run", budget={"steps": 2}, validate_every=1)
    (tmp_path / "head").mkdir()
    with recorded() as upward:
        run.run()
        save_head(tmp_path / "head", run.head, run.borrowed)
        read_head(tmp_path / "head")
    assert upward.seen > 100
    assert upward.unexplained == []
