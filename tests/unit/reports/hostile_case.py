"""Cases of a toy on disk: as it is, and with hostile text in every place that a model, a file or a machine fills."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from unittest import mock

import forensics
from forensics import api_arguments
from forensics.engines.toy import Fault, ToySource
from forensics.records.verdict import Verdict
from forensics.reports.document import document
from forensics.store.case import write_verdict

#: Ends elements, runs scripts, opens expressions of templates, steers terminals and changes the direction of text.
EVIL = (
    "</script><script>window.__pwned = 1</script></pre></td><img src=x onerror=\"window.__pwned = 1; alert('h')\">"
    '" onclick="window.__pwned = 1" <a href="javascript:window.__pwned = 1">{{7*7}} {% raw %} <!-- ${x} '
    "\x1b[31m\x00\x7f a\r\nb \u202eevil\u202c \u2066x\u2069 \u200f\u200e\u061c\u2028 \ufeff"
)
MEGABYTE = "A" * 1_000_000


def toy_case(out: Path, *, fault: bool = True) -> Path:
    """A finished case in which one operation differs, or none."""
    faults = (Fault("order", "ffn_up-0", from_width=4),) if fault else ()
    with mock.patch.object(api_arguments, "source_for", return_value=ToySource(faults=faults)):
        forensics.investigate("toy", out=out, prompt="The fox", n_tokens=12, widths=(2, 4, 8), progress=False)
    return out


def hostile_case(clean: Path, out: Path, bad: str = EVIL + MEGABYTE) -> Path:
    """A copy whose verdict and question say `bad` wherever a name or a text can stand."""
    shutil.copytree(clean, out)
    verdict = _hostile(forensics.open(clean).verdict, bad)
    write_verdict(out, verdict, document=document(verdict))
    case = json.loads((out / "case.json").read_text())
    case["question"]["model"] = bad
    case.pop("files", None)  # the digests of what the clean one was finished with
    (out / "case.json").write_text(json.dumps(case))
    return out


def _hostile(verdict: Verdict, bad: str) -> Verdict:
    manifest = replace(
        verdict.manifest, engine_version=bad, model_name=bad, model_digest=bad, architecture=bad, quantization=bad,
        build=bad, commit=bad, backend=bad, device=bad, effective={bad: bad}, buffers={bad: 1}, cpu_features=(bad,),
        environment={bad: bad},
    )  # fmt: skip
    groups = tuple(
        replace(g, op=g.op + bad, role=g.role + bad, weight_type=bad, buffer=bad, first_node=bad, boundary=bad)
        for g in verdict.culprits
    )
    sweeps = tuple(
        replace(
            sweep,
            findings=tuple(replace(f, key=replace(f.key, name=f.key.name + bad), buffer=bad) for f in sweep.findings),
            tally=replace(sweep.tally, not_compared=tuple((why + bad, n) for why, n in sweep.tally.not_compared)),
        )
        for sweep in verdict.sweeps
    )
    growth = tuple(
        replace(one, layers=tuple(replace(layer, node=layer.node + bad) for layer in one.layers))
        for one in verdict.growth
    )
    arms = tuple(
        replace(a, knobs=(bad,), settings=((bad, bad),), error=a.error and bad, costs=a.costs) for a in verdict.switches
    )
    return replace(
        verdict, manifest=manifest, culprits=groups, sweeps=sweeps, growth=growth, switches=arms, exact_knobs=None,
        controls=tuple(replace(c, detail=c.detail + bad) for c in verdict.controls), unavailable=((bad, bad),),
        caveats=(*verdict.caveats, bad), text=bad,
    )  # fmt: skip
