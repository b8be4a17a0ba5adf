"""Which commands there are, and that one starts without the modules of the others."""

import subprocess
import sys

import click
import pytest
import typer

from specdec.cli.application import COMMANDS, application

NAMES = [name for names in COMMANDS.values() for name in names]


def names_of(app):
    return list(typer.main.get_command(app).list_commands(click.Context(click.Command("specdec"))))


def test_every_module_registers_the_commands_that_the_table_says():
    assert sorted(names_of(application())) == sorted(NAMES)
    for names in COMMANDS.values():
        assert names_of(application(names[0])) == list(names)


def test_what_is_no_command_has_all_of_them():
    assert sorted(names_of(application("chekc"))) == sorted(NAMES)


@pytest.mark.slow
def test_check_starts_without_the_modules_of_other_commands():
    code = (
        "import sys; from specdec.cli.application import application; application('check'); "
        "print(*(m for m in sys.modules if m.startswith(('specdec.cli', 'specdec.tree_search', 'specdec.bench', 'filelock'))))"
    )
    loaded = set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())
    assert {name for name in loaded if not name.startswith("specdec.cli")} == set()
    assert not loaded & {f"specdec.cli.{module}" for module in COMMANDS if module != "describe"}
