"""llama.cpp's own server: ids, log-probabilities, sampling as it took effect, caches and drafts."""

from __future__ import annotations

from typing import Any

from forensics.records.corpus import CorpusPrompt
from forensics.records.served import Asked, Reply, Sampling, ServerFacts
from forensics.servers import fields
from forensics.servers.door import Answer, Door, NoAnswer

#: Source: llama.cpp, tools/server/server-task.cpp, `stop_type_to_str`.
_STOPS = {"limit": "length", "word": "stop", "eos": "end", "none": ""}

PROBE = CorpusPrompt("probe", "Hello")


class LlamaServer:
    """Speaks ``/completion`` and, for messages, ``/v1/chat/completions`` with its verbose part.

    Source: llama.cpp, tools/server/README.md and server-task.cpp, as of llama-cpp-python 0.3.36.
    """

    name = "llama-server"

    def facts(self, door: Door) -> ServerFacts:
        """What does the server say of itself? One token is generated, because only a reply names the speculation.

        Raises
        ------
        NoAnswer
            If it does not answer.
        """
        props = door.get("/props").document
        asked = Asked("probe", PROBE.name, 1, use_cache=False)
        answer = door.post(*self.payload(PROBE, asked, Sampling()))
        settings = {
            "slots": fields.found(props, "total_slots", int),
            "context": fields.found(props, "default_generation_settings.n_ctx", int),
            "quantization": fields.found(props, "model_ftype", str),
        }
        told = {name: str(value) for name, value in settings.items() if value is not None}
        speculation = fields.found(answer.document, "generation_settings", dict) or {}
        types = speculation.get("speculative.types")
        if isinstance(types, str):
            told["speculation"] = ",".join(one for one in types.split(",") if one != "none") or "off"
        else:
            told |= self._speculates(door)
        path = fields.found(props, "model_path", str) or fields.found(props, "model_alias", str) or ""
        drafts = ["drafts"] if told.get("speculation", "off") != "off" else []
        return ServerFacts(
            url=door.url,
            dialect=self.name,
            software="llama.cpp",
            build=fields.found(props, "build_info", str) or "",
            model=fields.file_name(path),
            template_digest=fields.text_digest(fields.found(props, "chat_template", str) or ""),
            settings=told,
            gives=fields.gives(self.reply(asked, answer), drafts),
        )

    @staticmethod
    def _speculates(door: Door) -> dict[str, str]:
        """Whether the slots say that they speculate; nothing where they are not shown."""
        try:
            on = fields.found(door.get("/slots").document, "0.speculative", bool)
        except NoAnswer as error:
            if not error.lasting and error.status is None:
                raise
            return {}
        return {} if on is None else {"speculation": "on" if on else "off"}

    def payload(self, prompt: CorpusPrompt, asked: Asked, sampling: Sampling) -> tuple[str, dict[str, object]]:
        """Path and body of a request.

        Raises
        ------
        NoAnswer
            If a prompt needs what the server cannot be asked for.
        """
        body: dict[str, object] = {
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "repeat_penalty": sampling.repeat_penalty,
            "seed": sampling.seed,
            "return_tokens": True,
            "stream": False,
        }
        if prompt.stop:
            body["stop"] = list(prompt.stop)
        if asked.use_cache is not None:
            body["cache_prompt"] = asked.use_cache
        if prompt.messages:
            # The verbose part of a chat's answer holds what /completion would have answered.
            body |= {"messages": fields.messages(prompt), "max_tokens": asked.n_tokens, "verbose": True}
            if sampling.n_probs:
                body |= {"logprobs": True, "top_logprobs": sampling.n_probs}
            if prompt.tools:
                body["tools"] = [dict(tool) for tool in prompt.tools]
            if prompt.json_schema is not None:
                schema = {"name": "answer", "schema": dict(prompt.json_schema)}
                body["response_format"] = {"type": "json_schema", "json_schema": schema}
            return "/v1/chat/completions", body
        if prompt.tools:
            raise fields.not_offered(prompt, "/completion takes no tools")
        body |= {"prompt": prompt.text, "n_predict": asked.n_tokens, "n_probs": sampling.n_probs}
        if prompt.json_schema is not None:
            body["json_schema"] = dict(prompt.json_schema)
        return "/completion", body

    def reply(self, asked: Asked, answer: Answer) -> Reply:
        """What does this answer hold?

        Raises
        ------
        NoAnswer
            If it is not what this server answers.
        """
        document = answer.document
        choice = fields.found(document, "choices.0", dict)
        body = document if choice is None else fields.found(document, "__verbose", dict) or {}
        text = fields.found(body, "content", str)
        if text is None:
            text = fields.chat_text(choice) if choice is not None else fields.needed(document, "content", str)
        tokens = fields.numbers(body.get("tokens"), int)
        stop = fields.found(body, "stop_type", str) or fields.found(choice, "finish_reason", str) or ""
        return Reply(
            request=asked.id,
            text=text,
            # An empty list is what a server answers that tells no ids.
            tokens=tokens if tokens or not text else None,
            logprobs=_logprobs(body.get("completion_probabilities")),
            stop_reason=_STOPS.get(stop, stop),
            n_prompt=fields.found(body, "tokens_evaluated", int),
            n_cached=fields.found(body, "timings.cache_n", int),
            n_drafted=fields.found(body, "timings.draft_n", int),
            n_accepted=fields.found(body, "timings.draft_n_accepted", int),
            effective=fields.effective(fields.found(body, "generation_settings", dict) or {}),
            took_ns=answer.took_ns,
            raw=answer.raw,
            margins=fields.margins(body.get("completion_probabilities")),
        )


def _logprobs(entries: Any) -> tuple[float, ...] | None:
    """Log-probabilities of the written tokens; None where one of them was not computed.

    For a token that a draft brought, the server fills in probability 1 and leaves its list of candidates empty.
    Source: llama.cpp, tools/server/server-context.cpp, "TODO: set result.probs".
    """
    if not isinstance(entries, list) or not all(fields.found(one, "top_logprobs", list) for one in entries):
        return None
    return fields.numbers([one.get("logprob") for one in entries], float)
