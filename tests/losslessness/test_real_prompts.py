"""Prompts of the proofs: chat templates and their arguments."""

import json

import pytest
from marked_letters import MarkedLetters
from typer.testing import CliRunner

from specdec.bench.prompts import Question
from specdec.cli import app
from specdec.errors import SpecError
from specdec.interfaces.text_codec import ChatFormat
from specdec.losslessness.real_prompts import prompts_for
from specdec.tree_search.acceptance_run import first_turns

QUIET = ChatFormat({"enable_thinking": False})

LETTERS = """\
name: letters
target: {use: tabular, vocab: 3, random: {order: 1, sharpness: 4.0}}
drafter: {use: ngram}
tree: {use: dynamic, width: 2, depth: 3, nodes: 6}
"""


def test_arguments_of_a_chat_template_reach_the_prompts_of_proofs_and_profiles(watched, table):
    codec = MarkedLetters(12, {})
    prompts_for(watched(table(12), codec), 1, chat_format=QUIET)
    assert codec.formats == [QUIET]
    assert first_turns([Question("q/1", "all", ("abc",))], codec, chat_format=QUIET) == [[0, 1, 2]]
    assert set(map(id, codec.formats)) == {id(QUIET)}


def test_arguments_of_a_chat_template_need_a_tokenizer(table):
    with pytest.raises(SpecError, match="chat_template_kwargs: this target has no tokenizer, and so no chat template"):
        prompts_for(table(30), 1, chat_format=QUIET)


@pytest.mark.parametrize(
    "words",
    [
        ["verify", "letters.yaml", "--level", "runtime", "--budget", "1"],
        ["verify", "letters.yaml", "--level", "sampled", "--budget", "1"],
        ["verify", "--callable", "builtins:print"],
        ["acceptance", "letters.yaml", "--prompts", "q.jsonl", "-o", "a.yaml"],
        ["compare-rules", "letters.yaml", "--set", "sampling.temperature=1"],
        ["compare-rules", "letters.yaml", "--set", "sampling.temperature=1", "--prompts", "q.jsonl"],
    ],
)
def test_every_command_that_asks_the_model_takes_arguments_of_its_chat_template(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "letters.yaml").write_text(LETTERS)
    (tmp_path / "q.jsonl").write_text(json.dumps({"prompt": "abcabc"}) + "\n")
    if "--callable" in words:
        words = [*words, "--set", "target={use: tabular, vocab: 3, random: {order: 1}}"]
    result = CliRunner().invoke(app, [*words, "--template-arg", "enable_thinking=false"])
    assert result.exit_code == 2, result.output
    assert "no chat template" in result.stderr
    result = CliRunner().invoke(app, [*words, "--template-arg", "enable_thinking"])
    assert "--template-arg enable_thinking: expected KEY=VALUE" in result.stderr


def test_the_exact_level_has_no_chat_template(tmp_path):
    (tmp_path / "letters.yaml").write_text(LETTERS)
    result = CliRunner().invoke(app, ["verify", str(tmp_path / "letters.yaml"), "--template-arg", "a=1"])
    assert (result.exit_code, "stand-in models of level exact have no chat template" in result.stderr) == (2, True)
