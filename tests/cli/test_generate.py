"""`generate`: prompts, streaming, the last line, the comparison; on a tabular model."""

import json
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specdec.cli import app
from specdec.cli.comparison import first_difference
from specdec.compose import load
from specdec.decoding.decoder import Decoder
from specdec.errors import NumericsError
from specdec.interfaces.declarations import Guarantee, Kind
from specdec.plugins.loading import load_registry
from specdec.plugins.registry import Registered
from specdec.verifiers.match import Match

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


def test_the_streamed_text_ends_before_a_stop_token_as_the_generated_one_does(letters):
    ends = ["--set", "target.stop_ids=[2]", "--set", "sampling.temperature=1", "--seed", "1", "--max-new-tokens", "60"]
    facts = report(letters, "abab", *ends)
    assert facts["stopped_by"] == facts["tokens"][-1] == 2
    assert run(letters, "abab", *ends).stdout.splitlines()[0] == facts["text"]
    assert len(facts["text"]) == len(facts["tokens"]) - 1


def test_arguments_of_a_chat_template_need_one(letters):
    result = run(letters, "abab", "--template-arg", "enable_thinking=false")
    assert result.exit_code == 2
    assert "no chat template" in result.stderr
    assert "expected KEY=VALUE" in run(letters, "abab", "--template-arg", "enable_thinking").stderr
    assert "expected allow, refuse, escape" in run(letters, "abab", "--control-tokens", "maybe").stderr


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
    assert facts["guarantee_words"] == "the target's distribution, up to numerics"
    assert facts["tokens"] != report(letters, "ab", *options[:4], "--seed", "6")["tokens"]


def test_the_first_difference_comes_with_the_gap_of_the_two_logits(letters):
    decoder = load(letters)
    plain = decoder.generate([[0, 1]], max_new_tokens=4)[0].tokens
    other = [*plain[:2], (plain[2] + 1) % 3, plain[3]]
    found = first_difference(decoder, [0, 1], plain, other, seed=0)
    assert (found.index, found.plain_token, found.other_token) == (2, plain[2], other[2])
    assert found.gap > 0
    assert found.words().endswith(f"their logits are {found.gap:.2e} apart")
    assert first_difference(decoder, [0, 1], plain, plain, seed=0) is None
    assert first_difference(decoder, [0, 1], plain, plain[:3], seed=0).gap is None


def test_above_temperature_zero_the_gap_is_that_of_the_perturbed_values_and_never_negative(letters):
    decoder = load(letters, set={"sampling.temperature": 2.0})
    plain = decoder.generate([[0, 1]], max_new_tokens=40, seed=3)[0].tokens
    for place, token in enumerate(plain):
        for other in {0, 1, 2} - {token}:
            found = first_difference(decoder, [0, 1], plain, [*plain[:place], other, *plain[place + 1 :]], seed=3)
            assert found.gap > 0
    assert "perturbed log-probabilities are" in found.words()


def test_a_token_that_truncation_left_out_has_no_gap(letters):
    decoder = load(letters, set={"sampling.top_k": 1})
    plain = decoder.generate([[0, 1]], max_new_tokens=4, seed=3)[0].tokens
    found = first_difference(decoder, [0, 1], plain, [(plain[0] + 1) % 3, *plain[1:]], seed=3)
    assert found.gap is None
    assert "no perturbed log-probabilities to compare" in found.words()


@pytest.mark.parametrize("temperature", [0, 2])
def test_a_lossy_strategy_is_not_expected_to_give_the_same_ids_nor_the_same_distribution(letters, monkeypatch, temperature):
    class Wrong(Match):
        name = "wrong"
        Options = Match.Options

        @classmethod
        def declares(cls, options):
            return replace(Match.declares(options), guarantee=Guarantee.LOSSY)

        @classmethod
        def build(cls, options, tools):
            return cls()

        def verify(self, tree, target_probs, rng):
            return replace(super().verify(tree, target_probs, rng), next_token=2)

    ours = load_registry("1")
    verifiers = {**ours.parts[Kind.VERIFIER], "wrong": Registered(Wrong, "test")}
    registry = replace(ours, parts={**ours.parts, Kind.VERIFIER: verifiers})
    monkeypatch.setattr("specdec.config.catalog.load_registry", lambda: registry)
    options = ["--set", "verifier.use=wrong", "--set", "allow_lossy=true", "--set", f"sampling.temperature={temperature}"]
    facts = report(letters, "ab", *options, "--compare")["compare"]
    assert not facts["same_ids"]
    assert not facts["same_ids_expected"]
    shown = run(letters, "ab", *options, "--compare").stdout
    assert "the strategy is lossy, not the target's distribution" in shown
    assert "same distribution" not in shown


def test_decoders_and_answers_print_in_one_telling_line(letters):
    decoder = load(letters, set={"sampling.temperature": 1.0})
    assert repr(decoder).startswith("Decoder('letters', target=")
    assert "drafter='ngram', tree='dynamic', verifier='match', temperature=1, guarantee='lossless')" in repr(decoder)
    answer = decoder.generate([[0, 1]], max_new_tokens=200)[0]
    assert re.fullmatch(
        r"Generation\(text='[abc]{75}\.\.\.', num_tokens=200, finish_reason='length', tau=[\d.]+, seconds=[\d.]+, "
        r"guarantee='lossless'\)",
        repr(answer),
    ), repr(answer)


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
    """A run that nobody waits for the end of. It takes interrupts even where this process was started to ignore them."""
    path = folder / "endless.yaml"
    path.write_text(SPEC)
    command = [sys.executable, "-m", "specdec", "generate", str(path), "ab", "--max-new-tokens", "1000000"]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


# --- the end of the context ---


@pytest.fixture
def short(tmp_path) -> str:
    path = tmp_path / "short.yaml"
    path.write_text(SPEC.replace("vocab: 3", "vocab: 3, max_positions: 12"))
    return str(path)


@pytest.mark.parametrize("compared", [[], ["--compare"]])
def test_a_prompt_that_fills_the_context_leaves_nothing_to_answer_and_says_so(short, compared):
    result = run(short, "ab" * 6, *compared)
    assert result.exit_code == 0, result.output
    assert result.stderr == "specdec: the prompt fills the context of 12 tokens: there is no room for an answer\n"
    assert "nan" not in result.stdout
    facts = report(short, "ab" * 6, *compared)
    assert (facts["tokens"], facts["compare"]) == ([], None)


def test_an_answer_that_the_context_ends_says_so(short):
    result = run(short, "abab", "--compare")
    assert result.stderr == "specdec: the context of 12 tokens ended it after 8 tokens\n"
    assert run(short, "abab", "--max-new-tokens", "8").stderr == ""


# --- the end of an answer ---


def test_a_stop_id_ends_the_answer_and_its_absence_is_hinted_at(letters):
    facts = report(letters, "abab", "--max-new-tokens", "20")
    last = facts["tokens"][7]
    stopped = report(letters, "abab", "--max-new-tokens", "20", "--stop-id", str(last))
    end = facts["tokens"].index(last) + 1
    assert (stopped["tokens"], stopped["stopped_by"]) == (facts["tokens"][:end], last)
    hint = "no token of this model is known to end an answer; --stop-id ID names one"
    assert run(letters, "abab").stdout.splitlines()[-1] == hint
    assert hint not in run(letters, "abab", "--stop-id", str(last)).stdout
    assert "token 99 is outside the target's vocabulary" in run(letters, "abab", "--stop-id", "99").stderr


# --- seeds ---


def test_an_unseeded_run_is_the_first_request_of_a_python_decoder(letters):
    options = ["--set", "sampling.temperature=2", "--set", "sampling.seed=9", "--max-new-tokens", "30"]
    decoder = load(letters, set=["sampling.temperature=2", "sampling.seed=9"])
    first, second = (decoder.generate([[0, 1]], max_new_tokens=30)[0] for _ in range(2))
    facts = report(letters, "ab", *options)
    assert facts["tokens"] == list(first.tokens) != list(second.tokens)
    assert facts["tokens"] == report(letters, "ab", *options, "--compare")["tokens"]
    assert facts["tokens"] == report(letters, "ab", *options, "--seed", str(facts["seed"]))["tokens"]


@pytest.mark.parametrize("seed", ["-1", str(2**63)])
def test_a_seed_that_is_none_exits_two(letters, seed):
    result = run(letters, "ab", "--seed", seed)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_the_comparison_expects_other_ids_of_a_verifier_that_draws_otherwise(letters):
    options = ["--set", "sampling.temperature=2", "--set", "verifier.use=point_mass", "--max-new-tokens", "40", "--compare"]
    facts = report(letters, "ab", *options)["compare"]
    assert not facts["same_ids"]
    assert not facts["same_ids_expected"]
    shown = run(letters, "ab", *options).stdout
    assert shown.rstrip().endswith("other draws of the same distribution, as this verifier makes them above temperature 0")
    assert "ids differ" not in shown


# --- output ---


def test_no_color_is_respected(letters, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in run(letters, "abab", color=True).stdout


def test_a_prompt_that_is_no_unicode_exits_two(letters):
    result = run(letters, "a\udc80")
    assert result.exit_code == 2
    assert "is half a pair" in result.stderr


CHATTY = """\
import sys
from specdec.interfaces.declarations import DrafterDeclaration, Gives
from specdec.drafters.none import NoDrafter
from specdec.plugins.hookspecs import hookimpl
from specdec.interfaces.parts import Drafter, PartOptions

class Chatty(Drafter):
    name = "chatty"
    Options = PartOptions

    @classmethod
    def declares(cls, options):
        return DrafterDeclaration(Gives.CANDIDATES, drafts=False)

    @classmethod
    def build(cls, options, tools):
        sys.stdout.write("building")
        return cls()

    def open(self, starts):
        sys.stdout.write("opening")
        return NoDrafter.build(PartOptions(), None).open(starts)

@hookimpl
def specdec_drafters():
    sys.stdout.write("loading")
    return [Chatty]

@hookimpl
def specdec_step(record):
    sys.stdout.write("stepping")
"""


def test_what_plugins_print_does_not_break_json(letters, tmp_path, monkeypatch):
    (tmp_path / "specdec_chatty_module.py").write_text(CHATTY)
    info = tmp_path / "specdec_chatty-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: specdec-chatty\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[specdec]\nchatty = specdec_chatty_module\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    result = run(letters, "abab", "--set", "drafter={use: chatty}", "--compare", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["strategy"] == "letters"
    assert all(word in result.stderr for word in ("loading", "building", "opening", "stepping"))


def test_a_fault_shows_its_traceback_when_it_is_asked_for(letters, monkeypatch):
    monkeypatch.setenv("SPECDEC_DEBUG", "1")
    result = run(letters, "xyz")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr


def test_a_fault_in_the_middle_of_an_answer_is_told_on_a_line_of_its_own(letters, monkeypatch):
    whole = Decoder.stream

    def broken(decoder, *arguments, **options):
        yield next(whole(decoder, *arguments, **options))
        raise NumericsError("no such luck")

    monkeypatch.setattr(Decoder, "stream", broken)
    result = run(letters, "abab")
    assert result.exit_code == 2
    assert result.stdout.endswith("\n")
    assert result.stderr == "specdec: no such luck\n"


def test_a_prompt_on_stdin_that_is_no_text_exits_two(letters):
    result = run(letters, input=b"ab\xff")
    assert result.exit_code == 2
    assert "stdin: not UTF-8 text (byte 2)" in result.stderr


def test_a_token_id_of_endless_digits_exits_two(tmp_path):
    path = tmp_path / "many.yaml"
    path.write_text(SPEC.replace("vocab: 3", "vocab: 40"))
    result = run(str(path), "1" * 5000)
    assert result.exit_code == 2
    assert "give the prompt as token ids" in result.stderr


def test_an_answer_without_a_step_has_no_tau(letters):
    shown = run(letters, "abab", "--max-new-tokens", "1").stdout
    assert "letters: no step · 1 tokens" in shown
    assert "nan" not in shown


def test_what_the_model_writes_does_not_command_the_terminal(letters, monkeypatch):
    whole = Decoder.stream

    def hostile(decoder, *arguments, **options):
        for event in whole(decoder, *arguments, **options):
            yield replace(event, pieces=(("\x1b[2J\x07", -1),))

    monkeypatch.setattr(Decoder, "stream", hostile)
    shown = run(letters, "abab", "--max-new-tokens", "2", color=True).stdout
    assert "\\x1b[2J\\x07" in shown
    assert "\x1b[2J" not in shown


def test_sampling_has_flags_of_its_own(letters):
    by_flag = report(letters, "ab", "--temperature", "2", "--top-k", "2", "--top-p", "0.9", "--seed", "3")
    settings = ["sampling.temperature=2", "sampling.top_k=2", "sampling.top_p=0.9"]
    by_key = report(letters, "ab", *(word for setting in settings for word in ("--set", setting)), "--seed", "3")
    assert by_flag["tokens"] == by_key["tokens"]
    assert by_flag["spec"]["sampling"] == by_key["spec"]["sampling"]
    assert run(letters, "ab", "--temperature", "-1").exit_code == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--trace", "."], ".: is a folder; expected the name of a file to write"),
        (["--trace", "gone/trace.jsonl"], "gone/trace.jsonl: cannot be written: there is no folder gone"),
        (["--control-tokens", "maybe"], "control_tokens: got 'maybe'; expected allow, refuse, escape"),
    ],
)
def test_what_is_wrong_whatever_the_model_is_refused_before_it_is_loaded(letters, words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("specdec.cli.generate.build", lambda *given, **named: pytest.fail("the model is loaded"))
    result = run(letters, "abab", *words)
    assert (result.exit_code, result.stderr) == (2, f"specdec: {message}\n")


def test_a_target_that_is_not_there_is_named_as_it_was_given(letters):
    assert run(letters, "a", "--target", "nowhere").stderr.startswith("specdec: argument target='nowhere': target: no folder")
    long = run(letters, "a", "--target", "a" * 5000).stderr
    assert long.startswith(f"specdec: argument target='{'a' * 63} ...: target: ")


ENDED = ("--set", "target.stop_ids=[2]")


def test_a_pattern_holds_for_the_whole_answer(letters):
    facts = report(letters, "abab", *ENDED, "--regex", "b(ab)*", "--max-new-tokens", "40", "--set", "sampling.temperature=1")
    assert re.fullmatch("b(ab)*a?", facts["text"])
    assert facts["finish_reason"] == "length" or facts["text"].endswith("b")


FORMATS = {
    "two formats": (["--regex", "a", "--json-schema", "schema.json"], "given twice: by --json-schema and by --regex"),
    "no file": (["--json-schema", "absent.json"], "--json-schema absent.json: there is no such file"),
    "no JSON": (["--json-schema", "letters.yaml"], "--json-schema letters.yaml: is no JSON"),
    "a keyword that is not kept": (["--json-schema", "schema.json"], 'schema: cannot be compiled: Unimplemented keys: ["not"]'),
    "an open group": (["--regex", "("], "response_format.regex: cannot be compiled: unclosed group"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_that_cannot_be_kept_to_exits_with_2_naming_what_is_wrong(letters, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    Path("schema.json").write_text('{"not": {"type": "string"}}')
    options, message = FORMATS[name]
    result = run(letters, "abab", *ENDED, *options)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


def test_without_the_library_of_grammars_the_extra_is_named(letters, monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    result = run(letters, "abab", *ENDED, "--regex", "a")
    assert result.exit_code == 2
    assert "pip install 'specdec[structured]'" in result.stderr
