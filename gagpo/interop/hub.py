"""Upload of an exported model to the Hugging Face hub."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from gagpo.base import manifest
from gagpo.base.errors import GagpoError, InvalidArgument
from gagpo.base.hub import reachable
from gagpo.training.model_card import CARD

HIDDEN = "(token)"
LONGEST_REASON = 200  # characters of the hub's message
MODEL_FILE = re.compile(
    r"(README|LICENSE|NOTICE)(\.md|\.txt)?|(generation_|adapter_|tokenizer_)?config\.json"
    r"|(adapter_)?model(-\d+-of-\d+)?\.safetensors|model\.safetensors\.index\.json"
    r"|(tokenizer|special_tokens_map|added_tokens|vocab)\.json|(merges|vocab)\.txt"
    r"|(tokenizer|spiece|sentencepiece\.bpe)\.model|(additional_chat_templates/)?\w+\.jinja|\w+\.py"
)
"""What an export writes, and licences. A folder from somebody else may contain other files, private ones too."""


class PushError(GagpoError, RuntimeError):
    """A model cannot be uploaded; the message says what to do and never contains the token."""


class Repository(NamedTuple):
    """A repository that the user may write to.

    name: ``OWNER/NAME``.
    endpoint: address of the hub.
    """

    name: str
    endpoint: str
    token: str


def is_exported(folder: Path) -> bool:
    """Whether a folder is an exported model with its card, and no run."""
    return (folder / CARD).is_file() and not (folder / "config.yaml").exists()


def open_repository(name: str, private: bool = False) -> Repository:
    """The repository ``OWNER/NAME``, created if it does not exist; before an export that takes minutes.

    The address of the hub is ``$HF_ENDPOINT``, the token ``$HF_TOKEN`` or that of ``hf auth login``.

    Raises:
        InvalidArgument: the name is invalid.
        PushError: there is no network, no token, or no right to write.
    """
    from huggingface_hub import HfApi, constants, get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # documented, not re-exported

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise InvalidArgument(f"--push must be OWNER/NAME (got {name!r:.80}): {_reason(error)}", key="--push") from None
    if name.count("/") != 1:
        raise InvalidArgument(f"--push must be OWNER/NAME (got {name!r:.80})", key="--push")
    endpoint = constants.ENDPOINT
    if constants.HF_HUB_OFFLINE:
        raise PushError("cannot push: offline mode is set", advice="unset HF_HUB_OFFLINE")
    if not reachable(endpoint):
        raise PushError(f"cannot push: no answer from {endpoint}", advice="check the network, or set HF_ENDPOINT")
    token = get_token()
    if not token:
        raise PushError("cannot push: there is no token", advice="run `hf auth login`, or set HF_TOKEN")
    repository = Repository(name, endpoint, token)
    with _failures(repository):
        HfApi(endpoint=endpoint, token=token).create_repo(name, private=private or None, exist_ok=True)
    return repository


def model_files(folder: Path) -> tuple[list[str], list[str]]:
    """The files below ``folder`` that :func:`push` uploads, and the others; hidden ones are in neither.

    Raises: PushError if the folder contains a link.
    """
    try:
        manifest.require_no_links(folder)
    except manifest.ManifestError as error:
        raise PushError(f"cannot push: {error}") from None
    paths = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()]
    names = [str(path) for path in paths if not any(segment.startswith(".") for segment in path.parts)]
    uploaded = [name for name in names if MODEL_FILE.fullmatch(name)]
    return uploaded, [name for name in names if name not in uploaded]


def push(folder: Path, repository: Repository) -> str:
    """Upload the files of an exported model as one commit; returns the address of the repository.

    Raises: PushError.
    """
    from huggingface_hub import HfApi

    uploaded, _ = model_files(folder)
    with _failures(repository):
        HfApi(endpoint=repository.endpoint, token=repository.token).upload_folder(
            repo_id=repository.name,
            folder_path=folder,
            commit_message=f"Upload {folder.name} with gagpo",
            allow_patterns=uploaded,
        )
    return f"{repository.endpoint}/{repository.name}"


@contextmanager
def _failures(repository: Repository) -> Iterator[None]:
    """Errors of the library, of which there are many classes, as a PushError of one line without the token."""
    try:
        yield
    except Exception as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        reason, advice = _reason(error, repository.token), None
        if status in (401, 403):
            reason = f"the token may not write to it ({status})"
            advice = f"create one with write access at {repository.endpoint}/settings/tokens"
        message = f"cannot push to {repository.name} at {repository.endpoint}: {reason}"
        raise PushError(message, advice=advice) from None


def _reason(error: Exception, token: str = "") -> str:
    """The message on one line. The token goes before the message is cut, or a part of it would stay."""
    message = str(error).replace(token, HIDDEN) if token else str(error)
    return " ".join(message.split())[:LONGEST_REASON] or type(error).__name__
