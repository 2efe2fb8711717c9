"""Finding the files of a model on the Hugging Face hub, in its cache or in a folder; failures take only seconds.

Nothing here runs code from a repository: a configuration is JSON, weights are safetensors or a checked torch archive.
"""

from __future__ import annotations

import functools
import json
import ssl
import urllib.error
import urllib.request
import zipfile
from pathlib import Path
from typing import Any

from exporter.core import source_lines
from exporter.core.errors import RecipeError
from exporter.model.checkpoint_files import LFS_POINTER

CONFIG = "config.json"
CARD = "README.md"
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
ANSWER_S = 3  # seconds; the hub's own client would retry for twenty


class NotHere(RecipeError):
    """Files that are not available now but may be later, or to another user."""


def config_file(name: str) -> Path:
    """Return `config.json` of a folder, an ID or `ID@REVISION`; by default the hub's latest revision, if it answers.

    Raises RecipeError if there is none.
    """
    folder = local_folder(name)
    if folder is None:
        return _fetch(name, CONFIG)
    if not (folder / CONFIG).is_file():
        raise RecipeError(f"{folder} has no {CONFIG}", "give a folder that save_pretrained wrote, or a model's ID")
    return folder / CONFIG


def read_config(name: str, path: Path) -> dict[str, Any]:
    """Return the content of a configuration file. Raises RecipeError if it is not a JSON object."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RecipeError(f"{path} is broken: {error}", _again(name, path)) from error
    if not isinstance(found, dict):
        raise RecipeError(f"{path} is not a configuration: it holds a {type(found).__name__}", _again(name, path))
    return found


def weight_files(name: str, config_path: Path) -> list[Path]:
    """Return the files of the weights beside the configuration, after checking that each is intact.

    Raises NotHere if they are not available now, and RecipeError if there are none or one is broken.
    """
    folder = config_path.parent
    if local_folder(name) is None:
        first = _fetch_first(name, folder.name)
    elif there := [folder / file for file in WEIGHTS if (folder / file).is_file()]:
        first = there[0]
    else:
        raise NotHere(f"{folder} has no weights", f"put one of {', '.join(WEIGHTS)} there, or give --weights random")
    files = [first] if not first.name.endswith(".index.json") else _shards(name, first)
    for file in files:
        if problem := _problem(file):
            raise RecipeError(f"{file} ({file.stat().st_size:,} bytes) is broken: {problem}", _again(name, file))
    return files


def published(name: str, folder: Path) -> tuple[str, str]:
    """Return the package URL of a model's files and the licence in its card; "" stands for an unknown value."""
    from huggingface_hub import metadata_load

    try:
        licence = (metadata_load(folder / CARD) or {}).get("license")
    except Exception:  # the card is not in the cache, or its YAML is invalid
        licence = None
    origin = "" if local_folder(name) else f"pkg:huggingface/{_parts(name)[0]}@{folder.name}"
    return origin, licence if isinstance(licence, str) else ""


def local_folder(name: str) -> Path | None:
    """Return the folder that `name` denotes, or None if it may be an ID. Raises RecipeError if the path is wrong."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists():
        raise RecipeError(f"{name} is a file", "give the folder that holds config.json and the weights")
    if name.startswith((".", "~", "/")) or name.count("/") > 1:
        raise RecipeError(f"there is no folder {name}", "check the path")
    return None


def _fetch_first(name: str, commit: str) -> Path:
    """Fetch the first of WEIGHTS that this commit has."""
    missing: RecipeError | None = None
    for file in WEIGHTS:
        try:
            return _fetch(name, file, commit)
        except NotHere as error:
            missing = missing or error
        except _NoSuchFile:
            continue
    raise missing or RecipeError(
        f"{name} has no weights for PyTorch", f"it has none of {', '.join(WEIGHTS)}; give --weights random"
    )


def _shards(name: str, index: Path) -> list[Path]:
    try:
        files = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError) as error:
        raise RecipeError(f"{index} is broken: {error}", _again(name, index)) from error
    if local_folder(name) is None:
        return [_fetch(name, file, index.parent.name) for file in files]
    if lost := [file for file in files if not (index.parent / file).is_file()]:
        raise RecipeError(f"{index.parent} lacks {len(lost)} of {len(files)} shards: {lost[0]}", "copy the others too")
    return [index.parent / file for file in files]


class _NoSuchFile(RecipeError):
    """The hub has the model, but not this file in it."""


def _fetch(name: str, file: str, commit: str | None = None) -> Path:
    import huggingface_hub

    repository, revision = _parts(name)
    try:
        found = huggingface_hub.hf_hub_download(
            repository, file, revision=commit or revision, local_files_only=not online()
        )
        return Path(found)
    except Exception as error:  # from the hub's client, its HTTP libraries or the disk
        raise _why(name, file, error) from None


def _parts(name: str) -> tuple[str, str | None]:
    """Split `ID@REVISION` into the repository and the branch, tag or commit (None if absent)."""
    repository, _, revision = name.partition("@")
    return repository, revision or None


@functools.cache
def online() -> bool:
    """Return whether the hub answers, through a proxy if one is set. False if HF_HUB_OFFLINE is set."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    request = urllib.request.Request(constants.ENDPOINT, method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=ANSWER_S).close()
    except urllib.error.HTTPError:
        return True
    except urllib.error.URLError as error:
        return isinstance(error.reason, ssl.SSLError)  # a server answers; the hub's client uses other certificates
    except OSError:
        return False
    return True


def _why(name: str, file: str, error: Exception) -> RecipeError:
    """Translate an error of the hub's client for the user."""
    from huggingface_hub import constants, errors

    if isinstance(error, errors.GatedRepoError):
        return NotHere(
            f"{name} is gated: the hub serves it only to users who accepted its terms",
            f"accept them at {constants.ENDPOINT}/{name}, then run `hf auth login` or set HF_TOKEN",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        repository, revision = _parts(name)
        return RecipeError(f"{repository} has no revision {revision}", "check the branch, tag or commit after the @")
    if isinstance(error, errors.RepositoryNotFoundError):
        return RecipeError(
            f"the hub has no model {name}, or it is private",
            "check the ID; for a private model run `hf auth login` or set HF_TOKEN",
        )
    if isinstance(error, errors.HFValidationError):
        return RecipeError(
            f"{name} is not a valid model ID", "write hf:ORGANISATION/NAME, hf:./FOLDER or hf:ARCHITECTURE"
        )
    if isinstance(error, errors.LocalEntryNotFoundError):
        return _not_cached(name, file)
    if isinstance(error, errors.EntryNotFoundError):
        return _NoSuchFile(f"{name} has no {file}", "choose a model that transformers can load")
    return NotHere(f"{file} of {name} cannot be fetched: {source_lines.named(error)}", "try again later")


def _not_cached(name: str, file: str) -> NotHere:
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE)
    offline = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"{constants.ENDPOINT} does not answer"
    started = sorted((cache / _cache_name(name) / "blobs").glob("*.incomplete"))
    found = f"{name} is not in {cache}"
    if started:
        found = f"the download of {name} is incomplete ({started[0].stat().st_size:,} bytes in {started[0]})"
    elif (cache / _cache_name(name)).is_dir():
        found = f"{cache} holds {name} without its {file}"
    return NotHere(
        f"{found}, and {offline}",
        f"run `hf download {_command(name)}` with a network connection, "
        "or give a folder or an architecture such as hf:bert",
    )


def _cache_name(name: str) -> str:
    return f"models--{_parts(name)[0].replace('/', '--')}"


def _command(name: str, *files: str) -> str:
    """Return the arguments of `hf download`."""
    repository, revision = _parts(name)
    return " ".join([repository, *files, *(["--revision", revision] if revision else [])])


def _problem(file: Path) -> str:
    """Return what is wrong with a file of weights, judged by its head, or "" if it looks intact."""
    from safetensors import SafetensorError, safe_open

    with file.open("rb") as opened:
        head = opened.read(len(LFS_POINTER))
    if head == LFS_POINTER:
        return "it is a git-lfs pointer; run `git lfs pull`"
    try:
        if file.suffix == ".safetensors":
            with safe_open(file, framework="pt"):
                pass
        elif head.startswith(b"PK"):
            zipfile.ZipFile(file).close()
        elif not head:
            return "it is empty"
    except (SafetensorError, zipfile.BadZipFile, OSError) as error:
        return str(error)
    return ""


def _again(name: str, path: Path) -> str:
    if local_folder(name) is not None:
        return f"copy {path.name} again"
    return f"delete {path} with {path.resolve()}, and fetch it again: hf download {_command(name, path.name)}"
