"""Where a model's files are: a folder, the hub, or the hub's local cache; asked quickly, before anything is loaded."""

import re
from pathlib import Path

from specdec.errors import TargetMismatch, did_you_mean
from specdec.files.paths import exists, expanded, is_folder, matching

HUB_ID = re.compile(r"[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*")
PATH_LIKE = ("/", "./", "../", "~")
ANSWER_SECONDS = 4.0
"""How long the hub may take to say that it has a repository."""


def local_folder(model: str) -> Path | None:
    """The folder that is meant; None for a hub id. Raises TargetMismatch where it can be neither, with the nearest names."""
    folder = expanded(model)
    if is_folder(folder):
        return folder
    if exists(folder):
        raise TargetMismatch(f"'{model}' is a file; a model is a folder with a config.json, or a hub id")
    if not model.startswith(PATH_LIKE) and (HUB_ID.fullmatch(model) or cached_folder(model, None) is not None):
        return None
    raise TargetMismatch(
        f"no folder '{model}'; a model is a folder with a config.json, or a hub id (ORGANISATION/NAME)"
        + did_you_mean(model, _models_beside(model, folder), listing="at hand")
    )


def _models_beside(model: str, folder: Path) -> list[str]:
    """Folders with a config.json in the same place, written as the name was; and the model that comes along."""
    prefix = model[: len(model) - len(folder.name)]
    places = matching(folder.parent, "*/config.json") if folder.name else []
    return ["builtin", *(f"{prefix}{place.parent.name}" for place in places)]


def cached_folder(model: str, revision: str | None) -> Path | None:
    """The folder of a hub model in the local cache; None where it is not there."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(model, "config.json", revision=revision)
    except HFValidationError:
        return None
    return Path(found).parent if isinstance(found, str) else None


def hub_has(model: str, file: str, revision: str | None, *, endpoint: str | None = None) -> bool:
    """Whether the hub says that the repository has this file; one request, without retries."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    try:
        get_hf_file_metadata(
            hf_hub_url(model, file, revision=revision, endpoint=endpoint), timeout=ANSWER_SECONDS, endpoint=endpoint
        )
    except Exception:  # whatever the connection raises, and that it is not there
        return False
    return True


def hub_answers(model: str, revision: str | None, *, endpoint: str | None = None) -> bool:
    """Whether the hub can be asked for this model's files; False where only the local cache has them.

    One request, without retries. Raises TargetMismatch for a repository that is not there, and where neither has it.
    """
    from huggingface_hub import errors, get_hf_file_metadata, hf_hub_url

    url = hf_hub_url(model, "config.json", revision=revision, endpoint=endpoint)
    try:
        get_hf_file_metadata(url, timeout=ANSWER_SECONDS, endpoint=endpoint)
    except errors.GatedRepoError as error:
        raise TargetMismatch(f"'{model}' is gated: accept its terms on the hub, and log in with `hf auth login`") from error
    except errors.RepositoryNotFoundError as error:
        raise TargetMismatch(f"the hub has no repository '{model}', or it is private (`hf auth login`)") from error
    except errors.RevisionNotFoundError as error:
        raise TargetMismatch(f"'{model}' has no revision '{revision}'") from error
    except errors.RemoteEntryNotFoundError as error:
        raise TargetMismatch(f"'{model}' on the hub has no config.json, so it is no model of transformers") from error
    except Exception as error:  # whatever the connection raises: no answer
        if cached_folder(model, revision) is not None:
            return False
        offline = isinstance(error, errors.OfflineModeIsEnabled)
        reason = "HF_HUB_OFFLINE is set" if offline else f"the hub is out of reach ({str(error).strip().partition(chr(10))[0]})"
        raise TargetMismatch(f"no folder '{model}', nor is it in the hub's local cache; {reason}") from error
    return True
