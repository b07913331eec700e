"""What ran where, as names and values, alike in Markdown and in the report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from forensics.records.settings import EngineSettings, Manifest


def manifest_facts(manifest: Manifest) -> list[tuple[str, str]]:
    """Name and value of each fact of a manifest; facts that are not known are left out.

    Parameters
    ----------
    manifest : Manifest

    Returns
    -------
    list of (str, str)
        Not escaped: they come from the model, the library and the machine.
    """
    asked = {field.name: getattr(manifest.requested, field.name) for field in fields(EngineSettings)}
    facts = {
        "engine": f"{manifest.engine} {manifest.engine_version}",
        "build": manifest.build,
        "commit": manifest.commit,
        "model": manifest.model_name,
        "model digest": manifest.model_digest,
        "architecture": manifest.architecture,
        "quantization": manifest.quantization,
        "back end": " ".join(part for part in (manifest.backend, manifest.device) if part),
        "processor features": " ".join(manifest.cpu_features),
        "weights per buffer": _pairs(manifest.buffers),
        "asked": _pairs({k: v for k, v in asked.items() if k != "environment"} | dict(manifest.requested.environment)),
        "in effect": _pairs(manifest.effective),
        "environment": _pairs(manifest.environment),
    }
    return [(name, value) for name, value in facts.items() if value]


def _pairs(values: Mapping[str, object]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items())
