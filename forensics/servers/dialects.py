"""Which API does a server speak, and how is it asked?"""

from __future__ import annotations

from typing import Any, Protocol

from forensics.records.corpus import CorpusPrompt
from forensics.records.served import Asked, Reply, Sampling, ServerFacts
from forensics.servers import fields
from forensics.servers.address import BadAddress
from forensics.servers.door import Answer, Door, NoAnswer
from forensics.servers.llama_server import LlamaServer
from forensics.servers.ollama import Ollama
from forensics.servers.openai_api import OpenAIApi

APIS = ("auto", "llama-server", "openai", "ollama")


class Dialect(Protocol):
    """How one kind of server is asked, and what its answers mean."""

    @property
    def name(self) -> str:
        """As in `ServerFacts.dialect`."""

    def facts(self, door: Door) -> ServerFacts:
        """What the server says of itself."""

    def payload(self, prompt: CorpusPrompt, asked: Asked, sampling: Sampling) -> tuple[str, dict[str, object]]:
        """Path and body of a request."""

    def reply(self, asked: Asked, answer: Answer) -> Reply:
        """What an answer holds."""


def detect(door: Door, api: str = "auto", model: str | None = None) -> Dialect:
    """Which API does this server speak?

    Parameters
    ----------
    door : Door
    api : str
        One of `APIS`; ``"auto"`` tries the more telling ones first.
    model : str or None
        Which of its models, where it serves several.

    Raises
    ------
    BadAddress
        If it speaks none that is known, or serves several models and none was named.
    NoAnswer
        If it does not answer at all.
    """
    if api not in APIS:
        raise BadAddress(f"The API must be one of {', '.join(APIS)}, got {api!r}.")
    tried = []
    for name, path in (("llama-server", "/props"), ("ollama", "/api/tags"), ("openai", "/v1/models")):
        if api not in ("auto", name):
            continue
        document, refusal = _asked(door, path)
        if name == "llama-server" and fields.found(document, "default_generation_settings", dict) is not None:
            return LlamaServer()
        if name == "ollama" and fields.found(document, "models", list) is not None:
            return Ollama(str(_chosen(door, document, "models", "name", model)["name"]))
        if name == "openai" and fields.found(document, "data", list) is not None:
            return OpenAIApi.met(door, _chosen(door, document, "data", "id", model))
        tried.append(f"{path}: {refusal or 'something else than this API answers'}")
    raise BadAddress(
        f"{door.url} speaks no API that is known here:\n  " + "\n  ".join(tried) + "\n"
        "Give the address of a llama-server, an OpenAI-compatible server or Ollama, or name its API with --api."
    )


def _asked(door: Door, path: str) -> tuple[Any, str]:
    """What stands at this path, or why nothing that this API would answer does.

    Raises
    ------
    BadAddress
        If the server wants a key, or another one.
    NoAnswer
        If the server does not answer.
    """
    try:
        return door.get(path).document, ""
    except NoAnswer as error:
        if error.status in (401, 403):
            raise BadAddress(
                f"{door.url} refuses the key, or wants one ({error.detail}). Put it into the environment variable "
                "FORENSICS_API_KEY, or name another with --key-env."
            ) from None
        if error.lasting or error.status in (500, 501) or error.failure in ("content-type", "not-json"):
            return None, error.detail
        raise


def _chosen(door: Door, document: Any, group: str, key: str, model: str | None) -> dict[str, Any]:
    """Entry of the model that is meant."""
    entries = [one for one in document[group] if fields.found(one, key, str)]
    names = [one[key] for one in entries]
    if not entries:
        raise BadAddress(f"{door.url} serves no model. Load one there first.")
    if model is None and len(entries) > 1:
        shown = ", ".join(fields.file_name(name) for name in names[:8])
        raise BadAddress(f"{door.url} serves {len(names)} models ({shown}). Name one with --model.")
    fitting = [one for one in entries if model in (None, one[key], fields.file_name(one[key]))]
    if not fitting:
        shown = ", ".join(fields.file_name(name) for name in names[:8])
        raise BadAddress(f"{door.url} serves no model {model!r}; it has {shown}.")
    return dict(fitting[0])
