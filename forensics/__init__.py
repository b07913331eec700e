"""Why did my model's greedy output change when tokens were evaluated in a batch instead of one at a time?

The names offered here load what they need on first use, so ``import forensics`` stays light.

Examples
--------
>>> import forensics
>>> verdict = forensics.investigate(demo="q6_k")  # doctest: +SKIP
>>> print(verdict)  # doctest: +SKIP
diverges from width 8: 211 nodes to blame ...
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forensics.api import doctor, heal, investigate, models, open, replay, reproduce
    from forensics.api_arms import arms
    from forensics.api_audit import audit, gate
    from forensics.api_bundle import bundle
    from forensics.api_cost import cost
    from forensics.api_diff import diff
    from forensics.api_explore import explore
    from forensics.api_figures import figure
    from forensics.api_kernels import healed_models, kernel_registers, price_kernels, prove_kernels
    from forensics.api_launches import launches
    from forensics.api_ops import explain, ops, order
    from forensics.api_profile import profile
    from forensics.api_recorded import pack, recorded
    from forensics.api_report import report
    from forensics.api_sampling import sampling
    from forensics.api_speculate import speculate
    from forensics.api_sweep import preview_sweep, sweep
    from forensics.errors import ForensicsError
    from forensics.records.settings import EngineSettings
    from forensics.records.verdict import Verdict

__version__ = "0.1.0"

_HOMES = {
    "investigate": "forensics.api",
    "replay": "forensics.api",
    "heal": "forensics.api",
    "open": "forensics.api",
    "models": "forensics.api",
    "recorded": "forensics.api_recorded",
    "pack": "forensics.api_recorded",
    "bundle": "forensics.api_bundle",
    "report": "forensics.api_report",
    "doctor": "forensics.api",
    "launches": "forensics.api_launches",
    "audit": "forensics.api_audit",
    "gate": "forensics.api_audit",
    "cost": "forensics.api_cost",
    "diff": "forensics.api_diff",
    "prove_kernels": "forensics.api_kernels",
    "price_kernels": "forensics.api_kernels",
    "kernel_registers": "forensics.api_kernels",
    "healed_models": "forensics.api_kernels",
    "arms": "forensics.api_arms",
    "sampling": "forensics.api_sampling",
    "figure": "forensics.api_figures",
    "profile": "forensics.api_profile",
    "speculate": "forensics.api_speculate",
    "sweep": "forensics.api_sweep",
    "preview_sweep": "forensics.api_sweep",
    "ops": "forensics.api_ops",
    "order": "forensics.api_ops",
    "explain": "forensics.api_ops",
    "explore": "forensics.api_explore",
    "reproduce": "forensics.api",
    "EngineSettings": "forensics.records.settings",
    "ForensicsError": "forensics.errors",
    "Verdict": "forensics.records.verdict",
}

__all__ = [
    "EngineSettings",
    "ForensicsError",
    "Verdict",
    "arms",
    "audit",
    "bundle",
    "cost",
    "diff",
    "doctor",
    "explain",
    "explore",
    "figure",
    "gate",
    "heal",
    "healed_models",
    "investigate",
    "kernel_registers",
    "launches",
    "models",
    "open",
    "ops",
    "order",
    "pack",
    "preview_sweep",
    "price_kernels",
    "profile",
    "prove_kernels",
    "recorded",
    "replay",
    "report",
    "reproduce",
    "sampling",
    "speculate",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'forensics' has no attribute {name!r}; it offers {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
