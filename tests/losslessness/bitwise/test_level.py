import pytest

from specdec.compose import build
from specdec.config.catalog import load_catalog
from specdec.config.resolver import check, read
from specdec.losslessness.bitwise.level import Compared, _enter, prove_bitwise
from specdec.losslessness.levels import Outcome


def test_a_target_without_the_mode_is_inconclusive_and_says_so(on_table, planted, no_progress):
    result = prove_bitwise(on_table("self-sampled-chain"), planted, seconds=1, seed=0, progress=no_progress)
    assert result.outcome is Outcome.INCONCLUSIVE
    assert "target 'tabular' has no bitwise mode" in result.words


def test_the_first_different_id_is_named(on_table, planted):
    decoder = build(on_table("self-sampled-chain", "sampling.temperature=1.0"), planted)
    one, other = (decoder.generate([[1, 2]], max_new_tokens=12, seed=seed) for seed in (1, 2))
    compared = Compared()
    _enter(compared, 4, 1, 1.0, one, one)
    assert not compared.differences
    _enter(compared, 4, 1, 1.0, one, other)
    found = compared.differences[0]
    assert one[0].tokens[: found.place] == other[0].tokens[: found.place]
    assert (found.plain, found.here) == (one[0].tokens[found.place], other[0].tokens[found.place])
    assert found.prompt == 4


@pytest.mark.slow
def test_a_real_architecture_is_proved_or_refuses_the_mode_with_its_reason(tiny_llama, no_progress):
    target = {"use": "huggingface", "model": str(tiny_llama), "device": "cpu"}
    settings = ["tree={use: dynamic, width: 2, depth: 3, nodes: 6}", "drafter={use: ngram}"]
    resolved = check(read("plain", load_catalog(), settings=settings, overrides={"target": target}), load_catalog())
    result = prove_bitwise(resolved, load_catalog(), seconds=1, seed=0, progress=no_progress)
    if result.outcome is Outcome.INCONCLUSIVE:
        assert "refused" in result.words
        return
    assert result.outcome is Outcome.PROVED, result.words
    assert {(m["temperature"], m["batch"]) for m in result.facts["modes"]} == {(0.0, 1), (0.0, 3), (1.0, 1), (1.0, 3)}
