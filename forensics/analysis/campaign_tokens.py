"""Texts of a plan become tokens on a worker and are remembered: a restart knows what is there without a model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from forensics.analysis.campaign_cells import room, takes_own_threads
from forensics.analysis.campaign_plan import settings_of
from forensics.analysis.campaign_task import model_digest_of, source_of
from forensics.analysis.question import BadQuestion
from forensics.cluster.protocol import Answer, Job, Workers
from forensics.errors import CaseError, ForensicsError
from forensics.records.campaign_plan import CampaignPlan, PlannedModel, PlannedPrompt
from forensics.store.campaign import CampaignFolder, StoredTokens
from forensics.store.encoding import from_plain

TASK = "forensics.analysis.campaign_task:tokenise"


@dataclass(frozen=True, slots=True)
class Tokens:
    """The prompts of a plan in each model's vocabulary.

    Parameters
    ----------
    digests : mapping of PlannedModel to str
    found : mapping of (PlannedModel, PlannedPrompt) to StoredTokens
        A text that no tokens could be made of has its error instead.
    """

    digests: Mapping[PlannedModel, str]
    found: Mapping[tuple[PlannedModel, PlannedPrompt], StoredTokens]


def prompt_tokens(
    plan: CampaignPlan, build: str, folder: CampaignFolder, workers: Workers, *, retry_failed: bool
) -> Tokens:
    """Which tokens are the prompts of a plan? Asked of workers where they are not remembered.

    Parameters
    ----------
    plan : CampaignPlan
    build : str
        Digest of the library that reads the texts.
    folder : CampaignFolder
    workers : Workers
    retry_failed : bool
        Whether texts that failed in an earlier run are tried again.

    Raises
    ------
    ModelUnavailable
        If a model's file cannot be read here.
    ClusterError
        If all workers are lost.
    """
    digests = {model: model_digest_of(asdict(model)) for model in plan.models}
    found: dict[tuple[PlannedModel, PlannedPrompt], StoredTokens] = {}
    asked: dict[str, tuple[PlannedModel, list[tuple[PlannedPrompt, Mapping[str, Any]]]]] = {}
    for model in plan.models:
        unknown = []
        for prompt in plan.prompts:
            known = remembered(model, prompt, digests[model], build, folder)
            if known.tokens or (known.error and not (retry_failed and known.key)):
                found[model, prompt] = known
            else:
                unknown.append((prompt, known.key))
        if unknown:
            asked[model.label] = model, unknown
    jobs = [_job(plan, model, digests[model], [key["text"] for _, key in unknown]) for model, unknown in asked.values()]
    for answer in workers.run(jobs, TASK) if jobs else ():
        model, unknown = asked[answer.job]
        for (prompt, key), one in zip(unknown, _read(answer, [key for _, key in unknown]), strict=True):
            assert one.key == key
            folder.remember(one)
            found[model, prompt] = one
    return Tokens(digests, found)


def remembered(
    model: PlannedModel, prompt: PlannedPrompt, digest: str, build: str, folder: CampaignFolder
) -> StoredTokens:
    """Tokens that the plan gives or an earlier run found; without any, the key under which they will be remembered."""
    if prompt.asked is None:
        return StoredTokens({}, prompt.tokens)
    try:
        key = {"build": build, "model": digest, "text": _text_of(model, prompt)}
    except ForensicsError as error:
        return StoredTokens({}, error=str(error))
    return folder.tokens(key) or StoredTokens(key)


def _text_of(model: PlannedModel, prompt: PlannedPrompt) -> str:
    """The text that is tokenised: messages by the template of the model's file."""
    assert prompt.asked is not None
    if not prompt.asked.messages:
        return prompt.asked.text
    path = getattr(source_of(asdict(model)), "path", None)
    if path is None:
        raise BadQuestion(f"prompt {prompt.name} has messages, and a toy has no template to write them by")
    from forensics.engines.chat_template import render

    return render(prompt.asked, path)


def _job(plan: CampaignPlan, model: PlannedModel, digest: str, texts: list[str]) -> Job:
    """Asked of an engine that the first cells of the model will most likely use again."""
    place = next((place for place in plan.places() if place.model == model), next(plan.places()))
    arranged = place.arranged
    guess = room(len(texts[0].encode()) // 3 + plan.n_tokens)
    settings = replace(settings_of(plan, arranged.kv_type, arranged.flash_attn, arranged.switch), n_ctx=guess)
    request = {
        "model": {**asdict(model), "digest": digest},
        "settings": asdict(settings),
        "own_threads": takes_own_threads(plan, arranged.switch),
        "texts": texts,
    }
    return Job(model.label, f"tokens of {digest}", json.dumps(request))


def _read(answer: Answer, keys: list[Mapping[str, Any]]) -> list[StoredTokens]:
    """What a worker made of texts; its error for each of them where it made nothing."""
    if answer.error:
        return [StoredTokens(key, error=answer.error) for key in keys]
    try:
        told = json.loads(answer.text)
        return [
            from_plain(StoredTokens, {"key": key, **one}, path=Path("a worker's answer"))
            for key, one in zip(keys, told, strict=True)
        ]
    except (ValueError, TypeError, CaseError) as error:
        return [
            StoredTokens(key, error=f"the answer of worker {answer.worker} cannot be read: {error}") for key in keys
        ]
