"""What a token takes in the caches, counted by hand."""

import math

import pytest

import specdec
from specdec.serving.kv_memory import free_bytes, slots, token_bytes

OWN = 2 * 2 * 2 * 8 * 4
"""Layers x (keys and values) x KV heads x dimensions x bytes of float32."""


@pytest.fixture(scope="module")
def drafting(tiny_chat):
    model = {"use": "huggingface", "model": str(tiny_chat), "dtype": "float32", "device": "cpu"}
    drafter, tree = {"use": "model", "model": model}, {"use": "chain", "length": 2}
    return specdec.load({"name": "t", "target": model, "drafter": drafter, "tree": tree, "verifier": "match"})


def test_the_caches_of_target_and_drafter_are_counted(decoder, drafting):
    assert token_bytes(decoder) == OWN
    assert token_bytes(drafting) == 2 * OWN
    assert slots([decoder, drafting], 100 * OWN) == 50


def test_a_third_of_the_free_memory_is_taken_where_nobody_says(decoder, monkeypatch):
    assert free_bytes(decoder.target.facts.device) > 2**20
    monkeypatch.setattr("specdec.serving.kv_memory.free_bytes", lambda device: 120 * OWN)
    assert slots([decoder], None) == 40


def test_a_containers_limit_is_kept(decoder, monkeypatch, tmp_path):
    device = decoder.target.facts.device
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("2000\n")
    monkeypatch.setattr("specdec.serving.kv_memory.CONTAINER", tmp_path)
    assert free_bytes(device) == 3000
    (tmp_path / "memory.max").write_text("max\n")
    assert free_bytes(device) > 2**20


def test_what_caches_nothing_has_no_limit(compose, table, chain_of):
    assert math.isinf(slots([compose(table(), chain_of(2))], 1))
