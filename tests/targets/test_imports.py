"""What needs no model does without transformers, whose import takes longer than all the rest."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys
from specdec.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print("transformers" in sys.modules, file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.parametrize("command", [("list",), ("check", "self-dynamic", "own-model-ngram"), ("schema",)])
def test_commands_that_need_no_model_import_no_transformers(command):
    ran = subprocess.run([sys.executable, "-c", SCRIPT, *command], capture_output=True, text=True, check=True)
    assert ran.stderr == "False\n"
