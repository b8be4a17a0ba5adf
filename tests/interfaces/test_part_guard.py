import asyncio

import pytest

from specdec.errors import PluginError, SpecError
from specdec.interfaces.part_guard import PartGuard


class Part:
    name = "part"


class Odd(BaseException):
    pass


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), Odd("x"), OSError("no file")])
@pytest.mark.parametrize("package", ["specdec", "stranger"])
def test_what_a_part_raises_names_the_part_and_its_package(error, package):
    with (
        pytest.raises(PluginError, match=f"drafter 'part' of '{package}' fails: {type(error).__name__}"),
        PartGuard("drafter", Part, package),
    ):
        raise error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), asyncio.CancelledError(), SpecError("said")])
def test_what_no_part_is_to_blame_for_passes(error):
    with pytest.raises(type(error)), PartGuard("drafter", Part):
        raise error


def test_a_file_that_our_part_cannot_read_is_the_files_error(tmp_path):
    with pytest.raises(SpecError, match=r"gone: cannot be read: No such file"), PartGuard("drafter", Part, "specdec"):
        (tmp_path / "gone").read_bytes()
    with pytest.raises(PluginError, match="fails: FileNotFoundError"), PartGuard("drafter", Part, "stranger"):
        (tmp_path / "gone").read_bytes()
