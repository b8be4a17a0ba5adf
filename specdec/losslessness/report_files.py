"""Report files of a verification: JSON, Markdown and a picture; each appears only once it is whole."""

import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from specdec.config.certification import installed
from specdec.errors import SpecError
from specdec.files.atomic import write_whole
from specdec.files.paths import is_file
from specdec.files.text_escapes import markdown_text
from specdec.losslessness.levels import LevelResult

FILES = ("report.json", "report.md", "report.png")
CPU_FILE = Path("/proc/cpuinfo")


def report_folder(folder: Path) -> Path:
    """The folder, made where it is missing; an earlier report in it is taken away, so that it never speaks for a later run.

    Raises SpecError for a folder that cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.write_text("")
        probe.unlink()
        for name in FILES:
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise SpecError(f"--report: '{folder}' cannot be written to: {error.strerror or error}") from error
    return folder


def surroundings() -> dict[str, Any]:
    """Versions, the machine (no name of it) and the time."""
    import torch

    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), **installed()},
        "machine": {
            "cpu": _cpu(),
            "cores": os.cpu_count(),
            "torch_threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
            "system": platform.system(),
        },
    }


def report_data(
    name: str, spec: Mapping[str, Any], results: Sequence[LevelResult], seed: int, faults: Mapping[str, str]
) -> dict[str, Any]:
    """Everything, as JSON data. spec: resolved. faults: by level, why it could not be run."""
    levels = {result.level.value: result.plain() for result in results}
    return {"strategy": name, "levels": levels, "faults": dict(faults), "seed": seed, "spec": dict(spec), **surroundings()}


def write_report(folder: Path, data: Mapping[str, Any], results: Sequence[LevelResult]) -> list[Path]:
    """report.json, report.md, and report.png where there is something to draw."""
    from specdec.losslessness.pictures import draw

    files = [folder / name for name in FILES[:2]]
    write_whole(files[0], json.dumps(finite(data), indent=2, ensure_ascii=False) + "\n")
    curves = [curve for result in results for curve in result.curves]
    picture = draw(curves, str(data["strategy"])) if curves else None
    write_whole(files[1], markdown(data, results, picture=picture is not None))
    if picture is not None:
        files.append(folder / FILES[2])
        write_whole(files[2], picture)
    return files


def markdown(data: Mapping[str, Any], results: Sequence[LevelResult], *, picture: bool) -> str:
    """The report for people."""
    machine, versions = data["machine"], data["versions"]
    lines = [
        f"# {markdown_text(data['strategy'])}: verification",
        "",
        "| level | verdict | what was found | seconds |",
        "|---|---|---|---|",
    ]
    lines += [f"| {r.level.value} | {r.outcome.value} | {markdown_text(r.words)} | {r.seconds:.0f} |" for r in results]
    lines += [f"| {levels} | failed | {markdown_text(words)} | |" for levels, words in data["faults"].items()]
    for result in results:
        lines += ["", f"## {result.level.value}", ""]
        lines += [f"- {title.strip() or 'and'}: {markdown_text(words)}" for title, words in result.lines]
    if picture:
        lines += ["", "![e-processes, p-values and total variations](report.png)"]
    lines += ["", "## Circumstances", ""]
    lines += [f"- {data['time']}, seed {data['seed']}"]
    lines += [
        f"- {machine['cpu']}, {machine['cores']} cores, {machine['torch_threads']} threads, GPU: {machine['gpu'] or 'none'}"
    ]
    lines += ["- " + ", ".join(f"{name} {number}" for name, number in versions.items())]
    spec = json.dumps(finite(data["spec"]), indent=2, ensure_ascii=False)
    return "\n".join([*lines, "", "```json", spec, "```", ""])


def finite(value: Any) -> Any:
    """The same, with null for numbers that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def _cpu() -> str:
    if is_file(CPU_FILE):
        for line in CPU_FILE.read_text(errors="replace").splitlines():
            if line.lower().startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
