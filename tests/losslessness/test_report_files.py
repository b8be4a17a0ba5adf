import json
import math
import socket

import pytest

from specdec.errors import SpecError
from specdec.losslessness.levels import Curve, Level, LevelResult, Outcome, exit_code
from specdec.losslessness.report_files import finite, report_data, report_folder, surroundings, write_report
from specdec.losslessness.suite import Verification

CURVES = (
    Curve("wealth", "long runs", (0.0, 10.0), (0.0, 1.0)),
    Curve("p", "chi-square", y=(0.2,)),
    Curve("tv", "long runs", y=(0.01, 0.02), labels=("towards_drafter_at_most", "towards_drafter_visible")),
)


def result(level=Level.SAMPLED, outcome=Outcome.PROVED, curves=CURVES):
    return LevelResult(level, outcome, "words | with a bar", (("tests", "3"),), {"x": math.nan}, curves, 2.0)


def test_the_report_has_json_markdown_and_a_picture(tmp_path):
    results = [result(), result(Level.EXACT, Outcome.REFUTED, ())]
    data = report_data("mine", {"name": "mine"}, results, 3, {"bitwise": "no | such\nmode"})
    files = write_report(tmp_path, data, results)
    assert [file.name for file in files] == ["report.json", "report.md", "report.png"]
    read = json.loads(files[0].read_text())
    assert read["levels"]["sampled"]["x"] is None
    assert read["levels"]["exact"]["outcome"] == "refuted"
    assert {"versions", "machine", "time", "seed", "spec"} <= set(read)
    assert "| exact | refuted |" in files[1].read_text()
    assert "| bitwise | failed | no \\| such mode | |" in files[1].read_text()
    assert read["faults"] == {"bitwise": "no | such\nmode"}
    assert "report.png" in files[1].read_text()
    assert files[2].read_bytes()[:4] == b"\x89PNG"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["report.json", "report.md", "report.png"]


def test_without_curves_there_is_no_picture(tmp_path):
    results = [result(curves=())]
    files = write_report(tmp_path, report_data("mine", {}, results, 0, {}), results)
    assert [file.name for file in files] == ["report.json", "report.md"]
    assert "png" not in files[1].read_text()


def test_the_machine_is_described_without_its_name():
    told = json.dumps(surroundings())
    assert "cpu" in told
    if len(socket.gethostname()) > 4:
        assert socket.gethostname() not in told


def test_a_folder_that_cannot_be_written_to_is_refused_before_anything_runs(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match="cannot be written to"):
        report_folder(tmp_path / "file")


def test_an_earlier_report_does_not_stay_to_speak_for_a_run_that_fails(tmp_path):
    write_report(tmp_path, report_data("mine", {}, [result()], 0, {}), [result()])
    (tmp_path / "notes.md").write_text("mine")
    report_folder(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["notes.md"]


def test_a_fault_of_several_levels_is_told_once_with_their_names():
    faults = {Level.EXACT: SpecError("no"), Level.RUNTIME: SpecError("no"), Level.SAMPLED: SpecError("other")}
    assert Verification((), faults).fault_words == {"exact, runtime": "no", "sampled": "other"}


def test_numbers_that_json_lacks_become_null():
    assert finite({"a": [math.inf, 1.5], "b": (math.nan,)}) == {"a": [None, 1.5], "b": [None]}


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ([], 0),
        ([Outcome.PROVED, Outcome.MEASURED], 0),
        ([Outcome.PROVED, Outcome.INCONCLUSIVE], 3),
        ([Outcome.INCONCLUSIVE, Outcome.REFUTED], 1),
    ],
)
def test_the_exit_code_is_that_of_the_worst_level(outcomes, code):
    assert exit_code(result(outcome=outcome) for outcome in outcomes) == code
