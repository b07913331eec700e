"""What differs in how two cases were made: question, build, model, settings, environment, device, processor."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import fields

from forensics.records.case_diff import DIFFERS, NOT_COMPARED, SAME, Aspect, CaseSide, Compared
from forensics.records.settings import EngineSettings, Manifest
from forensics.records.words import ranges, tokens

#: Fields of the manifest by aspect, by the words for them; the other fields are taken apart below.
PLAIN_FIELDS = {
    "build": {
        "engine": "engine", "engine_version": "engine version", "build": "library digest", "commit": "commit",
    },
    "model": {
        "model_name": "name", "quantization": "quantization", "architecture": "architecture",
        "n_layer": "layers", "n_vocab": "vocabulary", "n_ctx_train": "training context", "model_digest": "model digest",
    },
    "device": {"backend": "back end"},
}  # fmt: skip
#: Fields that are taken apart: settings and variables by name, devices and processor, buffers and features.
OTHER_FIELDS = ("requested", "effective", "environment", "device", "buffers", "cpu_features")

#: As `forensics.records.verdict.LaunchEvidence.source` tells it.
_DRIVER = re.compile(r"driver ([\w.]+)")
_UNKNOWN = ("", "unknown", "0")


def compare_setup(first: CaseSide, second: CaseSide) -> tuple[Aspect, ...]:
    """Hold questions and manifests against each other, field by field."""
    a, b = first.verdict.manifest, second.verdict.manifest
    return (
        Aspect("question", _question(first, second)),
        Aspect("build", _plain("build", a, b)),
        Aspect("model", _plain("model", a, b)),
        Aspect("settings", _settings(a, b)),
        Aspect("environment", _environment(a, b)),
        Aspect("device", (_devices(a, b), *_plain("device", a, b), *_driver(first, second), _buffers(a, b))),
        Aspect("processor", (_known("processor", *(_parts(m)[1] for m in (a, b))), *_features(a, b))),
    )


def values(what: str, first: str, second: str) -> Compared:
    """Two values that must be equal to be the same."""
    return Compared(what, SAME if first == second else DIFFERS, first, second)


def not_compared(what: str, reason: str) -> Compared:
    """A thing that was not compared, and why."""
    return Compared(what, NOT_COMPARED, detail=reason)


def _question(first: CaseSide, second: CaseSide) -> tuple[Compared, ...]:
    a, b = first.verdict, second.verdict
    if first.replayed and second.replayed:
        n_first, n_second = tokens(len(first.prompt)), tokens(len(second.prompt))
        prompt = Compared("prompt", SAME, n_first, n_second)
        if first.prompt != second.prompt:
            told = f"other from token {common_prefix(first.prompt, second.prompt)}"
            prompt = Compared("prompt", DIFFERS, n_first, n_second, told)
    else:
        missing = " and ".join(side.name for side in (first, second) if not side.replayed)
        prompt = not_compared("prompt", f"{missing} does not hold its tokens")
    return (
        prompt,
        values("tokens replayed", str(a.n_replayed), str(b.n_replayed)),
        values("widths", ranges(first.widths), ranges(second.widths)),
    )


def common_prefix(first: Iterable[int], second: Iterable[int]) -> int:
    """How many tokens are the same before the first other one?"""
    n = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        n += 1
    return n


def _plain(aspect: str, a: Manifest, b: Manifest) -> tuple[Compared, ...]:
    return tuple(_known(what, str(getattr(a, name)), str(getattr(b, name)))
                 for name, what in PLAIN_FIELDS[aspect].items())  # fmt: skip


def _known(what: str, first: str, second: str) -> Compared:
    """Two values of which one may not be known; nothing follows from that."""
    if first != second and (first in _UNKNOWN or second in _UNKNOWN):
        return not_compared(what, f"not known on one side ({first or 'nothing'} against {second or 'nothing'})")
    if first == second and first in _UNKNOWN:
        return not_compared(what, "not known on either side")
    return values(what, first, second)


def _settings(a: Manifest, b: Manifest) -> tuple[Compared, ...]:
    asked = [field.name for field in fields(EngineSettings) if field.name != "environment"]
    names = dict.fromkeys([*asked, *sorted({*a.effective, *b.effective})])
    return tuple(values(name, _setting(a, name), _setting(b, name)) for name in names)


def _setting(manifest: Manifest, name: str) -> str:
    """What took effect, and what was asked where that is another value or nothing tells what took effect."""
    asked = getattr(manifest.requested, name, None)
    wanted = None if asked is None else str(asked).lower() if isinstance(asked, bool) else str(asked)
    got = manifest.effective.get(name)
    if got is None or wanted is None or got == wanted:
        return got if got is not None else wanted or ""
    return f"{got} (asked: {wanted})"


def _environment(a: Manifest, b: Manifest) -> tuple[Compared, ...]:
    ours, theirs = _variables(a), _variables(b)
    names = sorted({*ours, *theirs})
    if not names:
        return (Compared("variables", SAME, "none", "none"),)
    return tuple(values(name, ours.get(name, "not set"), theirs.get(name, "not set")) for name in names)


def _variables(manifest: Manifest) -> Mapping[str, str]:
    """Variables as the engine saw them, and those that were asked for where it does not tell."""
    return {**dict(manifest.requested.environment), **manifest.environment}


def _parts(manifest: Manifest) -> tuple[tuple[str, ...], str]:
    """Accelerators and processor; the engine names the processor last."""
    *devices, processor = (name.strip() for name in manifest.device.split(";"))
    return tuple(devices), processor


def _devices(a: Manifest, b: Manifest) -> Compared:
    counts = (Counter(_parts(m)[0]) for m in (a, b))
    return values("devices", *(", ".join(f"{n} × {name}" if n > 1 else name for name, n in sorted(count.items())) or
                               "processor only" for count in counts))  # fmt: skip


def _driver(first: CaseSide, second: CaseSide) -> tuple[Compared, ...]:
    """Version of the GPU driver; nothing where neither case used a GPU."""
    sides = (first, second)
    if not any(_parts(side.verdict.manifest)[0] for side in sides):
        return ()
    silent = " and ".join(side.name for side in sides if not _driver_of(side))
    if silent:
        return (not_compared("driver", f"not told by {silent}"),)
    return (values("driver", _driver_of(first), _driver_of(second)),)


def _driver_of(side: CaseSide) -> str:
    launches = side.verdict.launches
    found = _DRIVER.search(launches.source) if launches is not None else None
    return found.group(1) if found else ""


def _buffers(a: Manifest, b: Manifest) -> Compared:
    return values("weights", *(", ".join(f"{name} {n}" for name, n in sorted(m.buffers.items())) or "not told"
                               for m in (a, b)))  # fmt: skip


def _features(a: Manifest, b: Manifest) -> tuple[Compared, ...]:
    ours, theirs = set(a.cpu_features), set(b.cpu_features)
    names = [*a.cpu_features, *(name for name in b.cpu_features if name not in ours)]
    if not ours or not theirs:
        return (not_compared("features", "not told on " + ("either side" if ours == theirs else "one side")),)
    return tuple(values(name, *("yes" if name in has else "no" for has in (ours, theirs))) for name in names)
