"""`generate`: prompts, streaming, the last line, the comparison; on a tabular model."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specdec.cli import app
from specdec.cli.comparison import first_difference
from specdec.compose import load

SPEC = """\
name: letters
target: {use: tabular, vocab: 3, random: {order: 1, sharpness: 4.0}}
drafter: {use: ngram}
tree: {use: dynamic, width: 2, depth: 3, nodes: 6}
"""


@pytest.fixture
def letters(tmp_path) -> str:
    path = tmp_path / "letters.yaml"
    path.write_text(SPEC)
    return str(path)


def run(*arguments: str, **options):
    return CliRunner().invoke(app, ["generate", *arguments], **options)


def report(*arguments: str) -> dict:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_the_streamed_text_is_the_generated_one_and_the_last_line_sums_up(letters):
    facts = report(letters, "abab", "--max-new-tokens", "20")
    lines = run(letters, "abab", "--max-new-tokens", "20").stdout.splitlines()
    assert lines[0] == facts["text"]
    assert len(facts["tokens"]) == 20
    assert lines[1].startswith(f"letters: tau {facts['tau']:.2f} · 20 tokens")
    assert lines[1].endswith("greedy, up to ties")


def test_accepted_draft_tokens_are_coloured_and_no_others(letters):
    facts = report(letters, "abab", "--max-new-tokens", "20")
    accepted = facts["draft_acceptance_rate"] is not None and round((facts["tau"] - 1) * facts["target_forwards"])
    shown = run(letters, "abab", "--max-new-tokens", "20", color=True).stdout.splitlines()[0]
    assert shown.count("\x1b[32m") == accepted > 0


def test_comparison_prints_both_times_and_says_that_the_ids_are_the_same(letters):
    facts = report(letters, "abab", "--max-new-tokens", "20", "--compare")["compare"]
    assert facts["same_ids"]
    assert facts["speedup"] > 0
    assert len(facts["plain_tokens"]) == 20
    lines = run(letters, "abab", "--max-new-tokens", "20", "--compare").stdout.splitlines()
    assert lines[2].startswith("plain decoding: 20 tokens in")
    assert lines[3].startswith("speed-up ")
    assert lines[3].endswith("the same ids")


def test_a_seeded_run_under_match_emits_plain_decodings_tokens_at_temperature_one(letters):
    options = ["--max-new-tokens", "40", "--set", "sampling.temperature=1", "--seed", "5", "--compare"]
    facts = report(letters, "ab", *options)
    assert facts["compare"]["same_ids"]
    assert facts["guarantee_words"] == "the target's law, up to numerics"
    assert facts["tokens"] != report(letters, "ab", *options[:4], "--seed", "6")["tokens"]


def test_the_first_difference_comes_with_the_gap_of_the_two_logits(letters):
    decoder = load(letters)
    plain = decoder.generate([[0, 1]], max_new_tokens=4)[0].tokens
    other = [*plain[:2], (plain[2] + 1) % 3, plain[3]]
    found = first_difference(decoder, [0, 1], plain, other)
    assert (found.index, found.plain_token, found.other_token) == (2, plain[2], other[2])
    assert found.gap > 0
    assert first_difference(decoder, [0, 1], plain, plain) is None
    assert first_difference(decoder, [0, 1], plain, plain[:3]).gap is None


def test_a_prompt_comes_from_a_file_or_from_stdin(letters, tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_text("abab")
    expected = report(letters, "abab")["tokens"]
    assert report(letters, "--prompt-file", str(file))["tokens"] == expected
    assert json.loads(run(letters, "--json", input="abab").stdout)["tokens"] == expected


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["abab", "--prompt-file", "x"], "the prompt is given twice"),
        (["--prompt-file", "gone.txt"], "--prompt-file gone.txt: cannot be read"),
        (["xyz"], "the text has 'xyz'"),
        (["abab", "--chat"], "no chat template"),
        ([""], "the prompt is empty"),
    ],
)
def test_a_prompt_that_cannot_be_answered_is_a_message_and_exit_two(letters, arguments, words):
    result = run(letters, *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.output


def test_a_lossy_output_would_be_called_lossy(letters):
    assert report(letters, "ab")["guarantee"] == "lossless"


@pytest.mark.slow
def test_an_interrupt_exits_130_with_one_message(tmp_path):
    with endless(tmp_path) as process:
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
        assert process.returncode == 130
        assert error == b"specdec: interrupted\n"


@pytest.mark.slow
def test_a_reader_that_leaves_ends_the_command_quietly(tmp_path):
    with endless(tmp_path) as process:
        assert process.stdout.read(1)
        process.stdout.close()
        assert process.wait(timeout=60) == 141
        assert process.stderr.read() == b""


def endless(folder: Path) -> subprocess.Popen:
    """A run that nobody waits for the end of."""
    path = folder / "endless.yaml"
    path.write_text(SPEC)
    command = [sys.executable, "-m", "specdec", "generate", str(path), "ab", "--max-new-tokens", "1000000"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
