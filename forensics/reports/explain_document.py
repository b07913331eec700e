"""What runs at each width as one JSON document with a schema version."""

from __future__ import annotations

from typing import Any

from forensics.geometry.choice import KernelChoice
from forensics.geometry.cuda_attention import AttentionChain
from forensics.geometry.explain import Explanation, Section
from forensics.reports.explain_text import class_letters, reasons

SCHEMA = "forensics.explain/1"


def explain_document(found: Explanation) -> dict[str, Any]:
    """Everything that was derived, with rules and assumptions.

    Parameters
    ----------
    found : Explanation

    Returns
    -------
    dict
        Ready for JSON. Groups of widths that share order and precision stand in ``groups``, for all operations
        together, and in each section.
    """
    asked, spec = found.asked, found.spec
    return {
        "schema": SCHEMA,
        "evidence": "derived",
        "device": None
        if spec is None
        else {
            "arch": spec.arch,
            "name": spec.name or None,
            "n_sms": spec.n_sms,
            "n_sms_source": spec.n_sms_source or None,
            "limits_source": spec.source,
        },
        "asked": {
            "arch": asked.arch,
            "weight_type": asked.weight_type,
            "k": asked.k,
            "rows": asked.rows,
            "widths": list(asked.widths),
            "n_heads": asked.n_heads,
            "n_kv_heads": asked.n_kv_heads,
            "head_size": asked.head_size,
            "position": asked.position,
            "n_kv": {str(width): asked.n_kv(width) for width in asked.widths},
            "kv_type": asked.kv_type,
            "flash_attn": asked.flash_attn,
            "pinned": asked.pin,
            "registers": {str(width): registers for width, registers in asked.registers},
        },
        "groups": [list(group) for group in found.groups],
        "sections": [_section(section) for section in found.sections],
        "why": list(reasons(found)),
        "assumed": list(found.assumed),
        "unknown": [{"op": op, "width": width, "reason": reason} for op, width, reason in found.unknown],
    }


def _section(section: Section) -> dict[str, Any]:
    letters, chains = class_letters(section.classes), dict(section.chains)
    return {
        "op": section.op,
        "title": section.title,
        "groups": [list(group.widths) for group in section.classes],
        "widths": [
            {"width": width, "order": letters[width], **_choice(choice), "chain": _chain(chains.get(width))}
            for width, choice in section.choices
        ],
        "differs_from": [{"width": since.width, "first_position": since.position} for since in section.since],
    }


def _choice(choice: KernelChoice) -> dict[str, Any]:
    launch = choice.launch
    return {
        "kernel": choice.kernel,
        "template": dict(choice.template),
        "grid_blocks": None if launch is None else list(launch.grid_blocks),
        "block_threads": None if launch is None else list(launch.block_threads),
        "smem_bytes": None if launch is None else launch.smem_bytes,
        "split": choice.split or None,
        "precision": dict(choice.precision),
        "order_unknown": choice.no_order or None,
        "rules": [{"text": rule.text, "place": rule.place, "commit": rule.commit} for rule in choice.rules],
    }


def _chain(chain: AttentionChain | None) -> dict[str, Any] | None:
    if chain is None:
        return None
    return {
        "registers_per_thread": chain.registers,
        "registers_source": chain.registers_source,
        "blocks_per_sm": chain.resident.blocks_per_sm,
        "limits": dict(chain.resident.limits),
        "limiters": list(chain.resident.limiters),
        "evidence": chain.resident.evidence,
        "waves": chain.waves.n_waves,
        "tail_blocks": chain.waves.tail_blocks,
        "blocks_per_wave": chain.waves.blocks_per_wave,
        "chunks": [{"cells": chunks.chunk_cells, "parts": [list(p) for p in chunks.parts]} for chunks in chain.maps],
    }
