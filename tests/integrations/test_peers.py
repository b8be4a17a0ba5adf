"""`verify --peer`: engines by name, on the target that the command names."""

import json

import pytest
from typer.testing import CliRunner

from specdec.cli import app

HOT = ("--set", "sampling.temperature=1")


def verify(*arguments):
    return CliRunner().invoke(app, ["verify", *map(str, arguments), "--set", "target.device=cpu"])


@pytest.mark.slow
@pytest.mark.parametrize("peer", ["transformers-assisted", "transformers"])
def test_an_engine_of_transformers_is_run_on_the_target(tiny, tiny_draft, peer):
    assistant = ("--assistant", tiny_draft) if peer == "transformers-assisted" else ()
    result = verify("--peer", peer, *assistant, "--target", tiny, *HOT, "--budget", 0.3, "--json")
    assert result.exit_code in (0, 3), result.output
    level = json.loads(result.stdout)["levels"]["sampled"]
    assert (level["steps"] is None) is (peer == "transformers")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--peer", "nobody"), "got 'nobody'; there are transformers, "),
        (("--peer", "transformers-assisted"), "needs a draft model: name one by --assistant"),
        (("--peer", "transformers", "plain"), "one of them"),
        (("--assistant", "x", "plain"), "is the draft model of an engine"),
        (("--peer", "transformers", "--set", "sampling.presence_penalty=1"), "presence_penalty is not passed on"),
        (("--peer", "transformers", "--level", "sampled"), "needs --set sampling.temperature=1"),
        (("--peer", "transformers", "--set", "target={use: tabular, vocab: 4}"), "is no transformers model"),
        (("--peer", "transformers", "--models", "2"), "--peer has none"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_loaded(arguments, words):
    result = CliRunner().invoke(app, ["verify", *arguments])
    assert result.exit_code == 2, result.output
    assert words in " ".join(result.output.split())
