"""Where and with what something was measured."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from specdec.files.paths import exists, resolved

PACKAGES = ("specdec", "torch", "transformers")
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES")


def provenance() -> dict[str, Any]:
    """Versions, git commit, machine and threads; nothing that names a user or a folder."""
    return {
        "versions": {name: _version(name) for name in PACKAGES} | {"python": platform.python_version()},
        "git_commit": git_commit(resolved(Path(__file__)).parents[2]),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def git_commit(root: Path) -> str | None:
    """The commit of the checkout at `root`, with '+' where files were changed since; None where it is no checkout."""
    if not exists(root / ".git"):
        return None
    try:
        head = _git(root, "rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git(root, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
