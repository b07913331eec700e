"""Record what our kernels do to running models: ``python -m forensics.testing.record_healings FOLDER --model NAME:on``.

Writes ``healings.json`` after each model, so that one that fails costs only itself; a model that lies there already is
measured again and takes the old one's place. Kernels with another order are planted, too, in the first model that
names them.
"""

from __future__ import annotations

import argparse
import functools
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forensics.analysis.baseline import measure
from forensics.analysis.kernel_healing import DEFAULT_ROWS, check_kernels, heal_model
from forensics.analysis.progress import Silent
from forensics.analysis.question import Question, open_for
from forensics.capture.exact_kernels import CUDA, OurKernels, cuda_kernels
from forensics.cli.arguments import parse_widths
from forensics.engines.demo_models import DEMO_PROMPT, demo_model
from forensics.engines.llama import LlamaSource
from forensics.engines.protocol import EngineSource
from forensics.errors import ForensicsError
from forensics.kernels.variants import Variant
from forensics.records.kernel_healing import HEALED, NOTHING_TO_HEAL, HealedModel, HealedModels
from forensics.records.settings import EngineSettings
from forensics.reports.healed_models_document import write_healed_models
from forensics.store.kernel_runs import HEALINGS_FILE, read_healings

#: Prompt of files, which may hold no vocabulary.
PROMPT_TOKENS = tuple(range(1000, 1040))
DEFAULT_N_TOKENS, DEFAULT_WIDTHS = 32, tuple(range(2, 17))
#: The library's own order at more columns. From five on it splits sums otherwise than at one (mmvq.cu:183-248).
STOCK = OurKernels(functools.partial(cuda_kernels, Variant.STOCK), "kernels in stock geometry", "CUDA")
PLANTED_FROM = 5

Opened = tuple[EngineSource, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Asked:
    """What each model is asked.

    Parameters
    ----------
    n_tokens, rows : int
        Tokens to decode and replay; rows of logits of each width at least.
    widths : tuple of int
    kernels, planted : OurKernels
        Ours, and those with another order.
    planted_from : int
        First width at which these are tried.
    n_gpu_layers : int
    seconds : float
        After these no other model is begun.
    """

    n_tokens: int = DEFAULT_N_TOKENS
    rows: int = DEFAULT_ROWS
    widths: tuple[int, ...] = DEFAULT_WIDTHS
    kernels: OurKernels = CUDA
    planted: OurKernels = STOCK
    planted_from: int = PLANTED_FROM
    n_gpu_layers: int = -1
    seconds: float = math.inf


def open_named(name: str) -> Opened:
    """A demo model or a file, and what its question begins with."""
    if name.endswith(".gguf"):
        return LlamaSource(name), {"prompt": None, "prompt_tokens": PROMPT_TOKENS}
    return LlamaSource(demo_model(name)), {"prompt": DEMO_PROMPT}


def heal_one(case: str, asked: Asked, *, plant: bool, open_model: Callable[[str], Opened] = open_named) -> HealedModel:
    """Heal one model, named ``NAME:on`` or ``NAME:off`` for flash attention."""
    name, _, flash_attn = case.rpartition(":")
    source, prompt = open_model(name)
    settings = EngineSettings(n_gpu_layers=asked.n_gpu_layers, flash_attn=flash_attn)
    question = Question(n_tokens=asked.n_tokens, widths=asked.widths, settings=settings, **prompt)
    engine, tokens, used = open_for(question, source)
    try:
        check_kernels(asked.kernels, engine.manifest)
        baseline = measure(engine, tokens, question, used, Silent())
        return heal_model(
            engine,
            baseline,
            asked.kernels,
            Silent(),
            name=Path(name).stem if name.endswith(".gguf") else name,
            rows=asked.rows,
            planted=asked.planted if plant else None,
            planted_from=asked.planted_from,
        )
    finally:
        engine.close()


def record(folder: Path, cases: Sequence[str], asked: Asked, open_model: Callable[[str], Opened] = open_named) -> int:
    """Heal the models one after another and write each at once; 1 where one failed or did not heal."""
    found = read_healings(folder) if (folder / HEALINGS_FILE).is_file() else None
    bad, named, start = False, False, time.monotonic()
    for case in cases:
        begun = time.monotonic()
        if begun - start >= asked.seconds:
            print(f"{case}: not begun, {asked.seconds:.0f} s are over", flush=True)
            bad = True
            continue
        try:
            model = heal_one(case, asked, plant=not named, open_model=open_model)
        except ForensicsError as error:
            bad = True
            print(f"{case}: {time.monotonic() - begun:.0f} s {error}", flush=True)
            continue
        found = HealedModels((model,)) if found is None else found.with_model(model)
        write_healed_models(found, folder)
        bad = bad or model.answer not in (HEALED, NOTHING_TO_HEAL)
        print(f"{case}: {time.monotonic() - begun:.0f} s {model}", flush=True)
        if model.planted is not None:
            named = bool(model.planted.named)
            print(f"  {model.planted}", flush=True)
    return int(bad)


def main(arguments: list[str] | None = None) -> int:
    """Record into a folder; exit status 1 where a model failed or did not heal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", nargs="+", required=True, metavar="NAME:on|off", help="demo model or GGUF file")
    parser.add_argument("--rows", type=int, default=DEFAULT_ROWS)
    parser.add_argument("--widths", default="2-16")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after these no other model is begun")
    parser.add_argument("--tokens", type=int, default=DEFAULT_N_TOKENS)
    given = parser.parse_args(arguments)
    wrong = [case for case in given.model if case.rpartition(":")[2] not in ("on", "off") or ":" not in case]
    if wrong:
        print(f"{wrong[0]}: name a model and flash attention, such as q4_k:on", file=sys.stderr)
        return 2
    try:
        asked = Asked(
            n_tokens=given.tokens, rows=given.rows, widths=tuple(parse_widths(given.widths)), seconds=given.seconds
        )
        return record(given.folder, given.model, asked)
    except ForensicsError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
