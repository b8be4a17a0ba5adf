import json
from dataclasses import replace

import pytest
from marked_letters import MarkedLetters
from typer.testing import CliRunner

from specdec.cli import app
from specdec.errors import NumericsError, SpecError
from specdec.interfaces.target_identity import same_target, target_name
from specdec.training.distill import DistillPlan, distill, questions_of


@pytest.fixture
def decoder(compose, table, watched, chain_of, digits):
    return compose(watched(table(seed=3), digits()), chain_of(2))


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    monkeypatch.setattr("specdec.training.distill.QUEUE", 1)


QUESTIONS = [[{"role": "user", "content": f"{n % 8} {n // 8}"}] for n in range(11)]
PLAN = DistillPlan(max_new_tokens=6, temperature=1.0, batch=4, seed=5)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_question_gets_the_answer_that_the_target_gives_alone(decoder, tmp_path, monkeypatch):
    monkeypatch.setattr("specdec.training.distill.QUEUE", 2)
    path = tmp_path / "own.jsonl"
    assert list(distill(decoder, QUESTIONS, PLAN, path)) == [8, 11]
    for place, line in enumerate(lines(path)):
        alone = decoder.generate([QUESTIONS[place]], max_new_tokens=6, sampling=decoder.sampling, seed=5 + place)
        assert line["messages"][:-1] == QUESTIONS[place]
        assert (line["temperature"], line["max_new_tokens"], line["seed"]) == (1.0, 6, 5 + place)
        assert line["finish"] in ("stop", "length")
        assert len(line["messages"][-1]["content"].split()) == len(alone[0].tokens)


@pytest.mark.parametrize("cut", [0, 9])
def test_a_call_that_was_stopped_goes_on_to_the_same_file(decoder, tmp_path, cut):
    whole, part = tmp_path / "whole.jsonl", tmp_path / "part.jsonl"
    list(distill(decoder, QUESTIONS, PLAN, whole))
    next(distill(decoder, QUESTIONS, PLAN, part))
    if cut:
        part.write_text(part.read_text()[:-cut])
    list(distill(decoder, QUESTIONS, PLAN, part))
    assert part.read_text() == whole.read_text()


@pytest.fixture
def poisoned(watched, table, digits):
    """A target that gives NaN for one question while it is sick."""

    class Poisoned(watched):
        is_sick = True

        def prefill(self, prompts, features):
            prefilled = self.inner.prefill(prompts, features)
            sick = self.codec.chat(QUESTIONS[6])
            scored = [
                replace(one, logits=one.logits * float("nan")) if self.is_sick and list(prompt) == sick else one
                for one, prompt in zip(prefilled.scored, prompts, strict=True)
            ]
            return replace(prefilled, scored=tuple(scored))

    return Poisoned(table(seed=3), digits())


def test_a_question_that_fails_is_recorded_and_asked_again_and_the_others_are_answered(compose, poisoned, chain_of, tmp_path):
    decoder, path, failed = compose(poisoned, chain_of(2)), tmp_path / "own.jsonl", []
    record = tmp_path / "own.failed.jsonl"
    assert list(distill(decoder, QUESTIONS, PLAN, path, on_fail=failed.append)) == [4, 8, 11]
    others = QUESTIONS[:6] + QUESTIONS[7:]
    assert [line["messages"][:-1] for line in lines(path)] == others
    assert [(one.number, one.reason.split(",")[0]) for one in failed] == [(6, "first token: row 0 of the target's logits")]
    (line,) = lines(record)
    assert (line["messages"], line["seed"], line["error"]) == (QUESTIONS[6], 11, failed[0].reason)
    assert list(distill(decoder, QUESTIONS, PLAN, path, on_fail=failed.append)) == [11]
    assert (len(failed), lines(record)) == (2, [line])
    poisoned.is_sick = False
    assert list(distill(decoder, QUESTIONS, PLAN, path, on_fail=failed.append)) == [11]
    assert len(failed) == 2
    assert not record.exists()
    assert [line["messages"][:-1] for line in lines(path)] == [*others, QUESTIONS[6]]
    assert list(distill(decoder, QUESTIONS, PLAN, path)) == []


def test_the_command_says_how_many_questions_failed_and_exits_with_2(compose, poisoned, chain_of, tmp_path, monkeypatch):
    monkeypatch.setattr("specdec.cli.train.load", lambda *given, **named: compose(poisoned, chain_of(2)))
    asked, own = tmp_path / "q.jsonl", tmp_path / "own.jsonl"
    asked.write_text("".join(json.dumps({"messages": question}) + "\n" for question in QUESTIONS))
    result = CliRunner().invoke(app, ["data", "distill", str(asked), str(own), "--max-new-tokens", "6"])
    assert result.exit_code == 2, result.output
    assert "specdec: question 7 ('6 0') fails: first token: row 0 of the target's logits" in result.stderr
    assert f"1 of 11 questions failed, and the others are answered; {tmp_path / 'own.failed.jsonl'} has" in result.stderr
    assert len(lines(own)) == 10


def test_a_batch_that_breaks_off_keeps_the_answers_before_it(compose, table, watched, chain_of, digits, tmp_path):
    class Broken(watched):
        left = 2

        def prefill(self, prompts, features):
            self.left -= 1
            if not self.left:
                raise NumericsError("nothing works")
            return self.inner.prefill(prompts, features)

    decoder, path = compose(Broken(table(seed=3), digits()), chain_of(2)), tmp_path / "own.jsonl"
    with pytest.raises(NumericsError, match=r"^question 5, up to which answers are kept: nothing works"):
        list(distill(decoder, QUESTIONS, replace(PLAN, max_new_tokens=1), path))
    assert [line["messages"][:-1] for line in lines(path)] == QUESTIONS[:4]
    assert not (tmp_path / "own.failed.jsonl").exists()


def test_a_file_in_the_place_of_the_failures_is_left_as_it_is(decoder, tmp_path):
    (tmp_path / "own.failed.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(SpecError, match=r"own\.failed\.jsonl:1: is there and is no failure"):
        list(distill(decoder, QUESTIONS, PLAN, tmp_path / "own.jsonl"))
    assert (tmp_path / "own.failed.jsonl").read_text() == '{"a": 1}\n'


def test_each_question_is_asked_once_in_order():
    talks = [[{"role": "user", "content": c}, {"role": "assistant", "content": a}] for c, a in ("ax", "bx", "ay")]
    assert questions_of(iter(talks)) == [[{"role": "user", "content": c}] for c in "ab"]


@pytest.mark.parametrize(
    ("questions", "plan", "words"),
    [
        (QUESTIONS[::-1], PLAN, "another question"),
        (QUESTIONS[:3], PLAN, "another question"),
        (QUESTIONS, replace(PLAN, temperature=0.0), "temperature 1.0, not 0.0"),
        (QUESTIONS, replace(PLAN, max_new_tokens=7), "max_new_tokens 6, not 7"),
        (QUESTIONS, replace(PLAN, seed=4), "seed 5, not 4"),
    ],
)
def test_answers_to_other_questions_or_by_another_plan_are_not_gone_on_with(decoder, tmp_path, questions, plan, words):
    path = tmp_path / "own.jsonl"
    next(distill(decoder, QUESTIONS, PLAN, path))
    before = path.read_bytes()
    with pytest.raises(SpecError, match=words):
        list(distill(decoder, questions, plan, path))
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "content",
    [
        "notes of mine",
        "notes of mine\nand more",
        '{"messages": [3]}\n',
        '{"messages": []}\n',
        '{"messages": [{"role": "user", "content": "mine"}, {"role": "assistant", "content": "x"}]}',
        '{"messages": [{"role": "user", "content": "mine"}]} and a word',
        '{"messages": [{"role": "user", "content": "caf\u00e9',
        "[1]",
    ],
)
def test_a_file_that_holds_something_else_is_left_as_it_is(decoder, tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(SpecError, match="give another name"):
        list(distill(decoder, QUESTIONS, PLAN, path))
    assert path.read_text(encoding="utf-8") == content


def test_a_last_line_of_ones_own_that_lacks_only_its_end_is_kept(decoder, tmp_path):
    path = tmp_path / "own.jsonl"
    list(distill(decoder, QUESTIONS, PLAN, path))
    whole = path.read_text()
    path.write_text(whole[:-1])
    assert list(distill(decoder, QUESTIONS, PLAN, path)) == []
    assert path.read_text() == whole


def test_a_line_of_another_command_behind_ones_own_is_not_cut_off(decoder, tmp_path):
    path = tmp_path / "own.jsonl"
    next(distill(decoder, QUESTIONS, PLAN, path))
    answered = path.read_text()
    for line in ("a note", "[" * 100_000, '{"messages": ' + "[" * 100_000):
        path.write_text(answered + line)
        with pytest.raises(SpecError, match=r"own\.jsonl:5: is there and is no line of this command"):
            list(distill(decoder, QUESTIONS, PLAN, path))
        assert path.read_text() == answered + line


def test_a_file_of_another_target_is_not_gone_on_with(decoder, compose, table, watched, chain_of, digits, tmp_path):
    path = tmp_path / "own.jsonl"
    next(distill(decoder, QUESTIONS, PLAN, path))
    assert {line["target"] for line in lines(path)} == {decoder.target.facts.description}
    before = path.read_bytes()
    other = compose(watched(table(9, seed=3), digits()), chain_of(2))
    with pytest.raises(SpecError, match=r"own\.jsonl:1: was written by target 'table over \d+ tokens', not 'table over 9"):
        list(distill(other, QUESTIONS, PLAN, path))
    assert path.read_bytes() == before


def test_lines_of_before_targets_were_kept_are_gone_on_with(decoder, tmp_path):
    path = tmp_path / "own.jsonl"
    next(distill(decoder, QUESTIONS, PLAN, path))
    old = [{name: value for name, value in line.items() if name != "target"} for line in lines(path)]
    path.write_text("".join(json.dumps(line) + "\n" for line in old))
    assert list(distill(decoder, QUESTIONS, PLAN, path)) == [8, 11]


def test_one_folder_by_two_paths_and_a_moved_folder_are_one_target(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("tiny", "tiny2"):
        (tmp_path / name).mkdir()
    assert same_target("./tiny", str(tmp_path / "tiny"))
    assert same_target("/gone/tiny", "tiny")
    assert not same_target("tiny", "tiny2")
    assert not same_target("org/tiny", "org/tiny2")
    assert target_name("tiny, bitwise at width 4") == "tiny"


def test_answers_that_cannot_be_written_are_refused(decoder, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match="cannot be written"):
        list(distill(decoder, QUESTIONS, PLAN, tmp_path / "file" / "own.jsonl"))
    with pytest.raises(SpecError, match="is a folder"):
        list(distill(decoder, QUESTIONS, PLAN, tmp_path))


def test_the_command_refuses_an_endless_temperature_and_a_file_without_questions(tmp_path):
    path = tmp_path / "none.jsonl"
    path.write_text("")
    cases = (["--temperature", "inf"], "expected a finite number"), ([], "no questions in it")
    tiny = ["--temperature", "1e-320"], "--temperature: got 9.99989e-321, expected 0, which is greedy, or at least 1e-06"
    for words, said in (*cases, tiny):
        result = CliRunner().invoke(app, ["data", "distill", str(path), str(tmp_path / "own.jsonl"), *words])
        assert result.exit_code == 2
        assert said in result.stderr


END, THINK = 3, 6


@pytest.fixture
def thinking(compose, counter, watched, chain_of):
    """Counts upwards from the last token; 3 is its end, 6 a special token that is part of what it says."""
    target = counter(stop_ids=(END,), max_positions=6)
    return compose(watched(target, MarkedLetters(12, {END: "<|end|>", THINK: "<think>"})), chain_of(2), "oracle")


def asked(*contents):
    return [[{"role": "user", "content": content}] for content in contents]


def test_an_answer_is_written_with_its_special_tokens_and_without_its_end_so_that_it_encodes_back(thinking, tmp_path):
    path = tmp_path / "own.jsonl"
    list(distill(thinking, asked("e", "a"), replace(PLAN, temperature=0.0), path))
    first, second = (line["messages"][-1]["content"] for line in lines(path))
    assert (first, second) == ("f<think>hij", "bc")
    assert thinking.target.codec.encode(first) == [5, 6, 7, 8, 9]


def test_a_question_that_does_not_fit_is_skipped_and_named_and_the_others_are_answered(thinking, tmp_path):
    path, skipped = tmp_path / "own.jsonl", []
    questions = asked("e", "aaaaaaaaa", "f", "bbbbbb", "g")
    plan = replace(PLAN, temperature=0.0, batch=1)
    list(distill(thinking, questions, plan, path, skipped.append))
    assert [line["messages"][0]["content"] for line in lines(path)] == ["e", "f", "g"]
    assert [line["seed"] for line in lines(path)] == [5, 7, 9]
    assert [one.number for one in skipped] == [1, 3]
    assert skipped[0].reason == "the prompt has 9 tokens; the target's context holds 6 tokens"
    assert skipped[1].reason == "it fills the context of 6 tokens: no room for an answer"
    whole = path.read_text()
    path.write_text("".join(whole.splitlines(keepends=True)[:2]))
    again = []
    list(distill(thinking, questions, plan, path, again.append))
    assert path.read_text() == whole
    assert again == skipped


def test_a_file_that_lacks_an_answer_in_its_midst_is_not_resumed(thinking, tmp_path):
    path = tmp_path / "own.jsonl"
    plan = replace(PLAN, temperature=0.0)
    list(distill(thinking, asked("e", "f", "g"), plan, path))
    first, _, last = path.read_text().splitlines(keepends=True)
    path.write_text(first + last)
    with pytest.raises(SpecError, match="has no answer to question 2, but to later ones"):
        list(distill(thinking, asked("e", "f", "g"), plan, path))


def test_a_target_without_a_tokenizer_answers_nothing(compose, table, chain_of, tmp_path):
    with pytest.raises(SpecError, match="a target without a tokenizer gives no texts"):
        list(distill(compose(table(30), chain_of(2)), asked("e"), PLAN, tmp_path / "own.jsonl"))


def test_arguments_of_the_chat_template_are_used_and_written_down_and_others_do_not_resume(thinking, tmp_path):
    path, silent = tmp_path / "own.jsonl", {"enable_thinking": False}
    plan = replace(PLAN, temperature=0.0, chat_template_kwargs=silent)
    list(distill(thinking, asked("e"), plan, path))
    assert thinking.target.codec.formats[-1].arguments == silent
    assert lines(path)[0]["chat_template_kwargs"] == silent
    for other in (replace(plan, chat_template_kwargs={}), replace(plan, chat_template_kwargs={"enable_thinking": True})):
        with pytest.raises(SpecError, match=r"was answered with chat_template_kwargs \{'enable_thinking': False\}"):
            list(distill(thinking, asked("e"), other, path))


def test_the_command_names_what_it_skips_and_counts_it(thinking, tmp_path, monkeypatch):
    monkeypatch.setattr("specdec.cli.train.load", lambda *given, **named: thinking)
    path = tmp_path / "q.jsonl"
    path.write_text("".join(json.dumps({"question": words}) + "\n" for words in ("e", "aaaaaaaaa", "f")))
    result = CliRunner().invoke(app, ["data", "distill", str(path), str(tmp_path / "own.jsonl"), "--template-arg", "a=false"])
    assert result.exit_code == 0, result.output
    assert "question 2 ('aaaaaaaaa') is skipped: the prompt has 9 tokens; the target's context holds 6 tokens" in result.stderr
    assert "1 of 3 questions were skipped" in result.stdout
    assert thinking.target.codec.formats[-1].arguments == {"a": False}
    result = CliRunner().invoke(app, ["data", "distill", str(path), str(tmp_path / "x.jsonl"), "--template-arg", "a"])
    assert "--template-arg a: expected KEY=VALUE" in result.stderr


def test_one_process_at_a_time_writes_answers(decoder, tmp_path):
    path = tmp_path / "own.jsonl"
    first = distill(decoder, QUESTIONS, PLAN, path)
    next(first)
    before = path.read_bytes()
    with pytest.raises(SpecError, match=r"own\.jsonl: is being written by another process"):
        next(distill(decoder, QUESTIONS, PLAN, path))
    assert path.read_bytes() == before
    first.close()
    assert list(distill(decoder, QUESTIONS, PLAN, path)) == [8, 11]


def test_a_full_disk_is_an_error_that_names_the_answers(decoder, tmp_path, room_for):
    with room_for(10), pytest.raises(SpecError, match=r"own\.jsonl: cannot be written: File too large"):
        list(distill(decoder, QUESTIONS, PLAN, tmp_path / "own.jsonl"))
