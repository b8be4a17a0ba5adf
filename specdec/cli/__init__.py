"""The command line: thin commands over the library.

Nothing is imported before `main` runs, so that an interrupt while torch is being imported ends quietly too.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """`app`: the commands, imported on first use."""
    if name != "app":
        raise AttributeError(f"module 'specdec.cli' has no attribute '{name}'")
    from specdec.cli.application import application

    return application()


def main() -> None:
    """The entry point: exit 0 done, 1 refuted, 2 an error to fix, 130 interrupted, 141 closed pipe."""
    import sys

    try:
        from specdec.cli.application import application
        from specdec.cli.output import exit_code

        sys.exit(exit_code(lambda: application(*sys.argv[1:2])(prog_name="specdec")))
    except KeyboardInterrupt:
        sys.stderr.write("specdec: interrupted\n")
        sys.exit(130)
