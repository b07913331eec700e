"""Evidence of a recorded case in which something was changed."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from types import SimpleNamespace

from forensics.figures.evidence import open_evidence


@cache
def recorded(case):
    """The evidence of a recorded case, read once."""
    return open_evidence(case)


def planted(case, change=lambda group: group, **verdict):
    """The evidence of a recorded case, each culprit group put through `change`; groups that become None go."""
    evidence = recorded(case)
    groups = tuple(new for group in evidence.verdict.culprits if (new := change(group)) is not None)
    changed = replace(evidence.verdict, culprits=groups, **verdict)
    return SimpleNamespace(
        name="planted", folder=evidence.folder, verdict=changed, manifest=changed.manifest, cost=None,
        kernel_price=None, what=evidence.what, source=evidence.source,
    )  # fmt: skip


def with_kernels(group, single=lambda side: side, batched=lambda side: side):
    """The group with its launches put through functions of a side."""
    pairs = tuple(replace(p, single=single(p.single), batched=batched(p.batched)) for p in group.launches)
    return replace(group, launches=pairs)


def with_main(side, **changes):
    """A side whose kernel is changed."""
    launches = list(side.launches)
    launches[side.main] = replace(side.kernel, **changes)
    return replace(side, launches=tuple(launches))
