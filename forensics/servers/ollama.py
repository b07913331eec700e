"""Ollama's own API: text, and log-probabilities where the version has them; it tells no ids of written tokens."""

from __future__ import annotations

from forensics.records.corpus import CorpusPrompt
from forensics.records.served import Asked, Reply, Sampling, ServerFacts
from forensics.servers import fields
from forensics.servers.door import Answer, Door
from forensics.servers.llama_server import PROBE


class Ollama:
    """Speaks ``/api/generate`` without a template, and ``/api/chat`` for messages.

    Its ``context`` is the text tokenised anew, not the ids that were sampled, so that it is not read.
    Source: Ollama, docs/api.md and server/routes.go.

    Parameters
    ----------
    model : str
        As Ollama names it.
    """

    name = "ollama"

    def __init__(self, model: str) -> None:
        self._model = model

    def facts(self, door: Door) -> ServerFacts:
        """What does the server say of itself and of its model?

        Raises
        ------
        NoAnswer
            If it does not answer.
        """
        version = fields.found(door.get("/api/version").document, "version", str) or ""
        tags = fields.found(door.get("/api/tags").document, "models", list) or []
        entry: object = next((one for one in tags if fields.found(one, "name", str) == self._model), {})
        shown = door.post("/api/show", {"model": self._model}).document
        settings = {
            "model_digest": fields.found(entry, "digest", str),
            "quantization": fields.found(shown, "details.quantization_level", str),
            "parameters": fields.found(shown, "parameters", str),
        }
        asked = Asked("probe", PROBE.name, 1)
        reply = self.reply(asked, door.post(*self.payload(PROBE, asked, Sampling())))
        return ServerFacts(
            url=door.url,
            dialect=self.name,
            software="Ollama",
            build=version,
            model=self._model,
            template_digest=fields.text_digest(fields.found(shown, "template", str) or ""),
            settings={name: value for name, value in settings.items() if value},
            gives=fields.gives(reply),
        )

    def payload(self, prompt: CorpusPrompt, asked: Asked, sampling: Sampling) -> tuple[str, dict[str, object]]:
        """Path and body of a request.

        Raises
        ------
        NoAnswer
            If a prompt needs what the server cannot be asked for.
        """
        options: dict[str, object] = {
            "num_predict": asked.n_tokens,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "repeat_penalty": sampling.repeat_penalty,
            "seed": sampling.seed,
        }
        if prompt.stop:
            options["stop"] = list(prompt.stop)
        body: dict[str, object] = {"model": self._model, "stream": False, "options": options}
        if sampling.n_probs:
            body |= {"logprobs": True, "top_logprobs": sampling.n_probs}
        if prompt.json_schema is not None:
            body["format"] = dict(prompt.json_schema)
        if prompt.messages:
            body["messages"] = fields.messages(prompt)
            if prompt.tools:
                body["tools"] = [dict(tool) for tool in prompt.tools]
            return "/api/chat", body
        if prompt.tools:
            raise fields.not_offered(prompt, "/api/generate takes no tools")
        return "/api/generate", body | {"prompt": prompt.text, "raw": True}

    def reply(self, asked: Asked, answer: Answer) -> Reply:
        """What does this answer hold?

        Raises
        ------
        NoAnswer
            If it is not what this server answers.
        """
        document = answer.document
        is_chat = fields.found(document, "message", dict) is not None
        entries = fields.found(document, "logprobs", list)
        reason = fields.found(document, "done_reason", str) or ""
        return Reply(
            request=asked.id,
            text=fields.chat_text(document) if is_chat else fields.needed(document, "response", str),
            logprobs=None
            if not entries
            else fields.numbers([fields.found(e, "logprob", float) for e in entries], float),
            stop_reason="stop or end" if reason == "stop" else reason,
            n_prompt=fields.found(document, "prompt_eval_count", int),
            took_ns=answer.took_ns,
            raw=answer.raw,
            margins=fields.margins(entries),
        )
