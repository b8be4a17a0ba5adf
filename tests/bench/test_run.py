"""A benchmark: fair, interleaved, and gone on with where it was broken off."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from specdec.bench.compare import compare_results
from specdec.bench.contender import Task, run_task
from specdec.bench.contenders import Choice, Lineup
from specdec.bench.measurements import Header
from specdec.bench.prompts import Selection, read_questions
from specdec.bench.results import ResultsFile, read_results
from specdec.bench.run import Bench
from specdec.bench.settings import BenchSettings
from specdec.compose import load
from specdec.config.catalog import load_catalog
from specdec.errors import NumericsError, SpecdecWarning, SpecError
from specdec.sampling.params import SamplingParams


def test_plain_decoding_is_always_there_and_all_have_the_same_prompts_and_caps(measure):
    results = measure("tree", "chain")
    assert list(results.header.contenders) == ["plain", "tree", "chain"]
    assert Counter(m.contender for m in results.measurements) == {"plain": 5, "tree": 5, "chain": 5}
    for place in {(m.group, m.turn) for m in results.measurements}:
        asked = [m for m in results.measurements if (m.group, m.turn) == place]
        assert len({tuple((a.question, a.prompt_tokens) for a in m.answers) for m in asked}) == 1
    assert {len(a.tokens) for m in results.measurements for a in m.answers} == {12}


def test_contenders_take_turns_and_the_order_rotates(measure):
    order = [m.contender for m in measure("tree", "chain").measurements]
    tasks = [tuple(order[begin : begin + 3]) for begin in range(0, len(order), 3)]
    assert tasks[:4] == [
        ("plain", "tree", "chain"),
        ("tree", "chain", "plain"),
        ("chain", "plain", "tree"),
        ("plain", "tree", "chain"),
    ]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("size", [1, 2])
def test_match_gives_plain_decodings_ids_in_every_setting(measure, temperature, size):
    results = measure("tree", "chain", temperatures=(temperature,), batch_sizes=(size,))
    ids = {}
    for m in results.measurements:
        ids.setdefault(m.contender, []).append(((m.group, m.turn), [a.tokens for a in m.answers]))
    assert sorted(ids["plain"]) == sorted(ids["tree"]) == sorted(ids["chain"])


def test_later_turns_follow_plain_decodings_answers(measure, folder):
    results = measure("tree")
    first, second = (
        next(m.answers[0] for m in results.measurements if (m.contender, m.group, m.turn) == ("plain", 0, turn))
        for turn in (0, 1)
    )
    assert second.prompt_tokens == len("abc") + len(first.text) + len("de")
    decoder = load("tree.yaml")
    assert decoder.generate([f"abc{first.text}de"], max_new_tokens=12)[0].tokens == second.tokens


def test_batches_hold_so_many_questions_and_every_setting_is_measured(measure):
    results = measure("tree", temperatures=(0.0, 1.0), batch_sizes=(1, 2))
    assert [cell.words for cell in results.cells] == ["T = 0, batch 1", "T = 0, batch 2", "T = 1, batch 1", "T = 1, batch 2"]
    sizes = [len(m.answers) for m in results.measurements if m.cell == results.cells[1] and m.contender == "plain"]
    assert sizes == [2, 1, 1, 1]


def test_in_a_queue_the_places_of_a_batch_go_to_the_next_questions(measure):
    results = measure("tree", batch_sizes=(1, 2), queue=2)
    sizes = [len(m.answers) for m in results.measurements if m.cell == results.cells[0] and m.contender == "plain"]
    assert sizes[0] == 2
    for m in results.measurements:
        assert sum(m.phases.values()) == pytest.approx(m.seconds, rel=1e-6)
        assert m.phases["prefill"] >= m.first_token_seconds
    alone = {(a.question, a.turn): a.tokens for m in measure("tree", output="alone.jsonl").measurements for a in m.answers}
    assert {(a.question, a.turn): a.tokens for m in results.measurements for a in m.answers} == alone


def test_a_queue_is_a_setting_of_its_own_and_a_file_without_one_is_gone_on_with(measure, folder):
    queued = measure("tree", batch_sizes=(2,), queue=3)
    assert [cell.words for cell in queued.cells] == ["T = 0, batch 2 and a queue of 3"]
    closed = measure("tree", batch_sizes=(2,), output="closed.jsonl")
    assert "queue" not in closed.header.plan["settings"]
    with pytest.raises(SpecError, match=r"no contender in a common setting .*queue"):
        compare_results(closed, queued)
    lines = (folder / "closed.jsonl").read_text()
    (folder / "closed.jsonl").write_text(lines.replace(', "queue": 1', "")[: len(lines) // 2].rsplit("\n", 1)[0] + "\n")
    again = measure("tree", batch_sizes=(2,), output="closed.jsonl")
    assert len(again.measurements) == len(closed.measurements)
    assert again.cells == closed.cells


def test_phases_add_up_to_the_seconds_and_counts_to_the_tokens(measure):
    for m in measure("tree", "chain").measurements:
        assert list(m.phases) == ["prefill", "draft", "score", "verify", "commit", "rest"]
        assert sum(m.phases.values()) == pytest.approx(m.seconds, rel=1e-6)
        assert 0 < m.first_token_seconds <= m.seconds
        assert m.peak_bytes is None or m.peak_bytes > 1 << 20
        (answer,) = m.answers
        assert answer.counts.committed == sum(answer.counts.steps) == len(answer.tokens) - 1


def test_the_counts_are_those_of_the_generation(folder):
    decoder = load("chain.yaml")
    sampling = SamplingParams(temperature=1.0)
    timed = run_task(decoder, Task(((1, 2), (3,)), (5, 6), 40, sampling))
    generations = decoder.generate([[1, 2], [3]], seed=[5, 6], max_new_tokens=40, sampling=sampling)
    for outcome, generation in zip(timed.outcomes, generations, strict=True):
        counts = outcome.counts
        assert outcome.tokens == generation.tokens
        assert counts.committed / counts.forwards == generation.tau
        assert counts.accepted / counts.drafted == generation.draft_acceptance_rate
        assert [a / t for a, t in zip(counts.accepted_at, counts.tested_at, strict=True)] == generation.alpha_at()
        assert sum(counts.accepted_at_rank) == counts.accepted
        assert counts.offered_at_rank[0] == sum(counts.tested_at)


# --- files ---


def test_a_file_that_was_cut_is_gone_on_with_and_nothing_is_measured_twice(measure, folder):
    whole = measure("tree")
    path = folder / "results.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:5]) + lines[5][:40])
    again = measure("tree")
    assert [m.key for m in again.measurements] == [m.key for m in whole.measurements]
    assert path.read_text().splitlines(keepends=True)[:5] == lines[:5]
    assert len(again.resumed) == 1
    assert len(measure("tree").measurements) == len(whole.measurements)


def test_a_file_with_only_the_start_of_a_header_is_begun_afresh(measure, folder):
    (folder / "results.jsonl").write_text('{"header": {"for')
    assert len(measure("tree").measurements) == 10


def test_a_file_in_which_nothing_was_measured_gives_way_to_another_set_up(measure, folder):
    path = folder / "results.jsonl"
    whole = measure("tree")
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    other = measure("tree", max_new_tokens=13)
    assert other.header.plan != whole.header.plan
    assert not other.resumed
    assert len(other.measurements) == len(whole.measurements)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"max_new_tokens": 13}, "plan.settings.max_new_tokens: 12 there, 13 here"),
        ({"strategy": "chain"}, "contenders.tree"),
        ({"nodes": 5}, "contenders.tree.spec.tree.nodes: 6 there, 5 here"),
    ],
)
def test_another_set_up_does_not_go_into_the_same_file(measure, folder, change, words):
    measure("tree")
    before = (folder / "results.jsonl").read_bytes()
    if "nodes" in change:
        spec = folder / "tree.yaml"
        spec.write_text(spec.read_text().replace("nodes: 6", "nodes: 5"))
    settings = {k: v for k, v in change.items() if k not in ("strategy", "nodes")}
    with pytest.raises(SpecError, match="another set-up") as error:
        measure(change.get("strategy", "tree"), **settings)
    assert words in str(error.value)
    assert (folder / "results.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no whole line"),
        ("{}\n", "the first line is no header"),
        ('{"header": 1, "more": 2}\n', ":1: expected an object with one key"),
        ('{"turns": ["a"]}\n', "the first line is no header"),
        ('{"header": {"format": 99}}\n', "format 99"),
        ('{"header": {"format": 1, "plan": {}, "contenders": {}}}\n', ":1: provenance"),
    ],
)
def test_what_is_no_results_file_is_said_so(tmp_path, text, words):
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    with pytest.raises(SpecError) as error:
        read_results(path)
    assert words in str(error.value)


@pytest.mark.parametrize("content", ["name: x\nno line break", "{", "[1]"])
def test_a_file_of_another_kind_is_left_as_it_is(tmp_path, content):
    path = tmp_path / "x"
    path.write_text(content)
    if content == "{":
        ResultsFile(path, Header({}, {}, {}))
        return
    with pytest.raises(SpecError, match="holds no results"):
        ResultsFile(path, Header({}, {}, {}))
    assert path.read_text() == content


def test_a_damaged_line_is_named(measure, folder):
    measure("tree")
    path = folder / "results.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    lines[2] = json.dumps({"measurement": {**json.loads(lines[2])["measurement"], "seconds": "soon"}}) + "\n"
    path.write_text("".join(lines))
    with pytest.raises(SpecError, match=r"results.jsonl:3: seconds"):
        read_results(path)


def test_a_change_of_machine_is_known_to_the_file(tmp_path):
    path = tmp_path / "x.jsonl"
    ResultsFile(path, Header({}, {}, {"cpu": "one", "cores": 2})).close()
    with ResultsFile(path, Header({}, {}, {"cpu": "two", "cores": 2})) as file:
        assert file.changed == ["cpu: one there, two here"]


def test_one_process_at_a_time_writes_a_results_file(tmp_path):
    header = Header({}, {}, {})
    with ResultsFile(tmp_path / "x.jsonl", header):
        before = (tmp_path / "x.jsonl").read_bytes()
        with pytest.raises(SpecError, match=r"x\.jsonl: is being written by another process"):
            ResultsFile(tmp_path / "x.jsonl", header)
        assert (tmp_path / "x.jsonl").read_bytes() == before
    ResultsFile(tmp_path / "x.jsonl", header).close()


def test_a_full_disk_is_an_error_that_names_the_results(tmp_path, room_for):
    with (
        room_for(10),
        pytest.raises(SpecError, match=r"x\.jsonl: cannot be written: File too large"),
    ):
        ResultsFile(tmp_path / "x.jsonl", Header({"a": "b" * 100}, {}, {}))


# --- who may take part ---


def lineup(*names, **choice):
    return Lineup(Choice([f"{name}.yaml" for name in names], **choice), load_catalog())


def test_strategies_of_other_targets_are_refused(folder):
    with pytest.raises(SpecError, match="different targets"):
        lineup("tree", "other")


def test_a_spec_that_decodes_another_distribution_is_refused(folder):
    with pytest.raises(SpecError, match=r"sampling.repetition_penalty is set"):
        lineup("tree", settings=("sampling.repetition_penalty=1.3",))


def test_a_target_that_is_no_transformers_model_has_no_peers(folder):
    assert lineup("tree").names == ["plain", "tree"]
    with pytest.raises(SpecError, match="no transformers model"):
        lineup("tree", peers=["transformers"])


def test_the_same_name_twice_is_told_apart(folder):
    assert lineup("tree", "tree").names == ["plain", "tree", "tree#2"]


def test_a_peer_that_there_is_not_is_refused_with_those_that_are(folder):
    with pytest.raises(SpecError, match=r"there are transformers, transformers-lookup"):
        lineup("tree", peers=["vllm"])


def test_models_are_loaded_once(folder):
    loaded = lineup("tree", "chain", "lossless").load(None)
    assert len({id(c.answer.__self__.decoder.target) for c in loaded.contenders}) == 1


def test_a_question_that_the_context_has_no_room_for_is_left_out_for_all(measure, folder):
    for name in ("tree", "chain"):
        path = folder / f"{name}.yaml"
        path.write_text(path.read_text().replace("vocab: 26,", "vocab: 26, max_positions: 20,", 1))
    with pytest.warns(SpecdecWarning) as told:
        results = measure("tree")
    assert [str(warning.message).partition(";")[0] for warning in told] == [
        f"question questions/{number} is left out: 17 tokens and 12 of an answer" for number in (1, 3)
    ]
    assert {(m.group, m.turn) for m in results.measurements} == {(0, 0), (1, 0), (2, 0)}


def test_progress_ends_where_it_said_it_would(measure):
    told = []
    measure("tree", "chain", temperatures=(0.0, 1.0), batch_sizes=(1, 2), progress=lambda *facts: told.append(facts))
    assert told[-1][0] == told[-1][1] == 3 * 2 * (5 + 4)
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)


def test_what_one_contender_cannot_answer_is_named_at_the_end_and_all_else_is_measured(folder, monkeypatch):
    load_all = Lineup.load

    def answering(contender):
        def answer(task):
            if contender.name == "tree" and len(task.prompts[0]) == 3 and task.max_new_tokens == 12 and task.seeds[0] % 2:
                raise NumericsError("prompts[0], step 3: row 0 of the target's logits")
            return contender.answer(task)

        return replace(contender, answer=answer)

    def loaded(self, dtype):
        made = load_all(self, dtype)
        return replace(made, contenders=tuple(map(answering, made.contenders)))

    monkeypatch.setattr(Lineup, "load", loaded)
    plan = BenchSettings(max_new_tokens=12)
    questions, _ = read_questions([folder / "questions.jsonl"], Selection())
    lineup = Lineup(Choice(["tree.yaml", "chain.yaml"]), load_catalog(), ())
    header = Header({"settings": plan.described()}, lineup.describe(), {"started": "2026-01-01T00:00:00+00:00"})
    words = r"^tree, question .*: prompts\[0\], step 3: .*; measurements left out: \d, all others"
    with pytest.raises(NumericsError, match=words), ResultsFile(folder / "results.jsonl", header) as file:
        Bench(plan, questions, lineup, file).run()
    counts = Counter(m.contender for m in read_results(folder / "results.jsonl").measurements)
    assert counts["plain"] == counts["chain"] == 5
    assert 0 < counts["tree"] < 5
    monkeypatch.setattr(Lineup, "load", load_all)
    with ResultsFile(folder / "results.jsonl", header) as file:
        Bench(plan, questions, lineup, file).run()
    assert len(read_results(folder / "results.jsonl").measurements) == 15
