import pytest

from specdec.training.card import CardFacts, read_log, write_card
from specdec.training.run import log_to


@pytest.mark.slow
def test_a_card_says_recipe_data_curves_acceptance_and_licence(trainer, tmp_path):
    run = trainer("carded", budget={"steps": 20})
    log = tmp_path / "log.jsonl"
    run.report = log_to(log)
    run.run()
    facts = CardFacts("apache-2.0", "a small target", ("own.jsonl: made up",), (("MT-bench tau", "2.10"),))
    write_card(run.spec.output / "head", run.spec, log, facts)
    card = (run.spec.output / "head" / "README.md").read_text()
    for part in ("license: apache-2.0", "own.jsonl: made up", "MT-bench tau | 2.10", "0-alpha", '"tokens_per_batch": 40'):
        assert part in card
    assert str(tmp_path) not in card
    assert (run.spec.output / "head" / "curves.png").read_bytes()[:4] == b"\x89PNG"


def test_a_log_that_was_cut_short_is_read_up_to_there(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert [record["step"] for record in read_log(path)] == [1, 2]
