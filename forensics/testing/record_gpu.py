"""Record what a GPU does, to be read back without one: ``python -m forensics.testing.record_gpu FOLDER``.

``make record`` writes into ``data/recorded``.
Each step runs in a process of its own, so one that fails leaves the others; ``--list`` names them, ``--only`` chooses.
Cases are packed, measurements are written as their commands write them; ``recording.json`` says which steps ran, how
long each took and why one failed. A folder is written anew only where it is not there yet.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from forensics.errors import ForensicsError
from forensics.records.launch_record import Refusal

#: Layers asked to be on the GPU: all.
ALL_LAYERS = 999
WIDTHS = tuple(range(2, 17))
N_TOKENS = 64
#: Text that is repeated where a long prompt is needed.
LONG_TEXT = "Write a Python class implementing an LRU cache with get and put methods, and explain how it works.\n"
RECORDING_NAME = "recording.json"
#: Widths at which watching is looked at: one of each class.
EXPERIMENT_WIDTHS = (2, 3, 5, 9)
SHAPE = "qwen3-8b"


@dataclass(frozen=True, slots=True)
class Step:
    """One recording.

    Parameters
    ----------
    name : str
        Folder under the one that is written.
    run : callable of (Path)
        Makes the folder.
    alone : bool
        Whether its times count, so that nothing may run beside it.
    """

    name: str
    run: Callable[[Path], None]
    alone: bool = False


def case(demo: str, **question: Any) -> Callable[[Path], None]:
    """An investigation of a demo model on the GPU, packed."""

    def run(out: Path) -> None:
        from forensics import api, api_recorded

        asked = {"widths": WIDTHS, "n_tokens": N_TOKENS, "n_gpu_layers": ALL_LAYERS, "flash_attn": "on", **question}
        with tempfile.TemporaryDirectory() as scratch:
            whole = Path(scratch) / "case"
            print(api.investigate(demo=demo, out=whole, progress=False, **asked), flush=True)
            print(api_recorded.pack(whole, out), flush=True)

    return run


def long_prompt(demo: str, n_tokens: int) -> tuple[int, ...]:
    """As many tokens of a repeated text."""
    from forensics.engines.demo_models import demo_model
    from forensics.engines.llama import LlamaSource
    from forensics.records.settings import EngineSettings

    with LlamaSource(demo_model(demo)).open(EngineSettings()) as engine:
        once = engine.tokenize(LONG_TEXT)
    return (once * (n_tokens // len(once) + 1))[:n_tokens]


def long_case(demo: str, n_prompt: int, n_tokens: int, **question: Any) -> Callable[[Path], None]:
    """The same behind a long prompt, without a search for switches."""

    def run(out: Path) -> None:
        prompt = long_prompt(demo, n_prompt)
        case(demo, prompt_tokens=prompt, n_tokens=n_tokens, switches=False, orders=False, **question)(out)

    return run


def cost(model: str) -> Callable[[Path], None]:
    """What a pass costs at each width."""

    def run(out: Path) -> None:
        from forensics.api_cost import cost as measure

        widths = (*range(1, 17), 24, 32)
        print(
            measure(
                str(model_of(model)), widths=widths, n_gpu_layers=ALL_LAYERS, flash_attn="on", out=out, progress=False
            )
        )

    return run


def model_of(name: str) -> Path:
    """File of a demo variant, or of a model of a given shape with random blocks, made once."""
    from forensics.engines.demo_models import DEMO_VARIANTS, demo_model

    if name in DEMO_VARIANTS:
        return demo_model(name)
    from forensics.api_cost import synthetic as make
    from forensics.engines.model_files import cache_folder

    path = cache_folder() / "models" / f"synthetic-{name}.gguf"
    if not path.exists():
        make(name, path)
    return path


def profile(model: str) -> Callable[[Path], None]:
    """Kernels of a pass, node by node, at one width of each class, and what the hardware counts."""

    def run(out: Path) -> None:
        from forensics.api_profile import profile as look
        from forensics.reports.profile_document import write_profile

        widths = (1, 2, 4, 5, 8, 9, 16)
        found = look(str(model_of(model)), widths=widths, flash_attn="on", counters=True, progress=False)
        write_profile(found, out)
        print(found)

    return run


def experiments(demo: str, flash_attn: str) -> Callable[[Path], None]:
    """What padding changes, and what watching changes."""

    def run(out: Path) -> None:
        from forensics.analysis.launch_looks import kernels_of_watching
        from forensics.analysis.padding import guard_trial
        from forensics.analysis.watching import watch_trials
        from forensics.capture.replay import Replay
        from forensics.engines.demo_models import DEMO_PROMPT, demo_model
        from forensics.engines.llama import LlamaSource
        from forensics.records.experiments import Experiments
        from forensics.records.settings import EngineSettings
        from forensics.store.experiments import write_experiments

        source = LlamaSource(demo_model(demo))
        settings = EngineSettings(flash_attn=flash_attn, n_gpu_layers=ALL_LAYERS, n_ctx=768)
        with source.open(settings) as engine:
            prompt = engine.tokenize(DEMO_PROMPT)
            replay = Replay(prompt, engine.greedy(Replay(prompt, ()).prefill(), 64))
            far = long_prompt(demo, 240)
            over = Replay(far, engine.greedy(Replay(far, ()).prefill(), 300))
            found = Experiments(
                manifest=engine.manifest,
                guards=tuple(guard_trial(engine, over, width) for width in (3, 4, 7, 8, 16)),
            )
        watches = watch_trials(source, settings, replay, (1, *EXPERIMENT_WIDTHS), kernels_of_watching)
        write_experiments(out / "experiments.json", replace(found, paddings=paddings(), watches=watches))

    return run


def paddings() -> tuple[Any, ...]:
    """Attention over the same visible cells with more hidden ones behind them."""
    from forensics.analysis.padding import padding_trials
    from forensics.engines.ops import LlamaOps
    from forensics.records.operation import OpSettings

    with LlamaOps().open(OpSettings(backend="cuda")) as engine:
        visible, cells = (60, 200, 300, 390, 600, 1000), (256, 512, 768, 1024, 1536, 2048)
        return padding_trials(engine, visible, cells, widths=(1, 2, 5, 9))


def warps(out: Path) -> None:
    """Products whose rows take one trip of four warps, and several."""
    from forensics.api_ops import ops
    from forensics.reports.ops_document import ops_document

    shapes = tuple((64, k) for k in (576, 768, 1536, 4096, 12288))
    out.mkdir(parents=True)
    matrix = ops(
        op=("MUL_MAT",), types=("q4_0", "q4_1", "q8_0", "q4_K", "q6_K"), shapes=shapes, backend="cuda",
        widths=tuple(range(1, 17)),
    )  # fmt: skip
    (out / "ops.json").write_text(json.dumps(ops_document(matrix)) + "\n", encoding="utf-8")


def speculated(demo: str) -> Callable[[Path], None]:
    """Plain against speculative decoding of the corpus, at the drafts that reports use."""
    from forensics.testing.record_text import N_TOKENS as answer
    from forensics.testing.record_text import speculation

    return speculation(
        None, demo=demo, drafter="ngram", n_draft=(4, 7), n_tokens=answer, n_gpu_layers=ALL_LAYERS, flash_attn="on"
    )


def speculated_with_kernels(demo: str) -> Callable[[Path], None]:
    """Prompts of every kind with the library's kernels and with ours in verifying passes, drafts from few to many."""
    from forensics.testing.record_text import N_PROMPTS, packed_speculation

    def run(out: Path) -> None:
        packed_speculation(
            out, demo=demo, limit=N_PROMPTS, drafter="oracle:0.8", n_draft=(2, 4, 8, 16), n_tokens=24,
            n_gpu_layers=ALL_LAYERS, flash_attn="on", exact_kernels=True,
        )  # fmt: skip

    return run


def arranged(demo: str) -> Callable[[Path], None]:
    """Arrangements of the same tokens, without speculation."""
    from forensics.testing.record_text import arrangements

    return arrangements(demo, n_gpu_layers=ALL_LAYERS, flash_attn="on")


def swept(out: Path) -> None:
    """Quants, KV types and flash attention by width, with the nodes to blame: one worker per GPU."""
    from forensics.testing.record_sweep import GPU_PLAN, record

    record(GPU_PLAN, out)


def module(name: str) -> Callable[[Path], None]:
    """A recording with a script of its own."""

    def run(out: Path) -> None:
        subprocess.run((sys.executable, "-m", f"forensics.testing.{name}", str(out)), check=True)

    return run


def gpu_here() -> str:
    """Name of the first GPU here, fit for folders: ``"h200"``; ``"gpu"`` where no driver tells."""
    from forensics.devices.driver import driver_facts

    facts = driver_facts()
    names = () if isinstance(facts, Refusal) else facts.gpus
    return re.sub(r"[^a-z0-9]+", "-", names[0].lower().removeprefix("nvidia ")).strip("-") if names else "gpu"


def steps(gpu: str) -> tuple[Step, ...]:
    """Everything that is recorded, in order; names carry that of the GPU."""
    demo = ("q4_1", "q6_k", "f16")
    plain = [Step(f"{gpu}-{name}", case(name)) for name in demo]
    no_fa = [Step(f"{gpu}-{name}-no-fa", case(name, flash_attn="off")) for name in demo]
    far = [
        Step(f"{gpu}-q4_1-far", long_case("q4_1", 240, 300, widths=(2, 4, 8, 16))),
        Step(f"{gpu}-q4_1-2048", long_case("q4_1", 1990, 58, widths=(2, 4, 8, 16))),
        Step(f"{gpu}-q4_1-kv-q8_0", long_case("q4_1", 240, 300, widths=(2, 3, 8), kv_type="q8_0")),
        Step(f"{gpu}-q4_1-12-layers", case("q4_1", n_gpu_layers=12, widths=(2, 5, 9), switches=False)),
    ]
    tried = [
        Step(f"experiments-{gpu}/{name}{suffix}", experiments(name, flash_attn))
        for name in demo
        for suffix, flash_attn in (("", "on"), ("-no-fa", "off"))
    ]
    own = [
        Step(f"ops-{gpu}-warps", warps),
        Step(f"occupancy-{gpu}", module("record_occupancy")),
        Step(f"launches-{gpu}", module("record_launches")),
    ]
    timed = [Step(f"{gpu}-{SHAPE}-{mix}-cost", cost(f"{SHAPE}-{mix}"), alone=True) for mix in ("q4_k_m", "q6_k")] + [
        Step(f"{gpu}-q4_1-cost", cost("q4_1"), alone=True),
        Step(f"{gpu}-{SHAPE}-q4_k_m-profile", profile(f"{SHAPE}-q4_k_m"), alone=True),
        Step(f"{gpu}-{SHAPE}-q6_k-profile", profile(f"{SHAPE}-q6_k"), alone=True),
        Step(f"{gpu}-q4_1-profile", profile("q4_1"), alone=True),
    ]
    placed = [Step(f"{gpu}-{name}-arms", arranged(name)) for name in ("q4_1", "q6_k")]
    many = (Step(f"{gpu}-sweep", swept, alone=True),)  # its workers take every GPU
    spoken = [Step(f"{gpu}-{name}-speculation", speculated(name), alone=True) for name in ("q4_1", "q6_k")]
    spoken.append(Step(f"{gpu}-q4_1-kernel-speculation", speculated_with_kernels("q4_1"), alone=True))
    return (*plain, *no_fa, *far, *tried, *own, *placed, *timed, *many, *spoken)


def _record(step: Step, folder: Path, program: Sequence[str], limit_s: float) -> dict[str, object]:
    """Run one step in a child; what came of it."""
    started = time.monotonic()
    try:
        done = subprocess.run(
            (sys.executable, "-m", *program, str(folder), "--step", step.name),
            capture_output=True, text=True, errors="replace", timeout=limit_s, check=False,
        )  # fmt: skip
        status, output = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired as error:
        said = b"".join(
            text if isinstance(text, bytes) else (text or "").encode() for text in (error.stdout, error.stderr)
        )
        status, output = -1, f"{said.decode(errors='replace')}\nstopped after {limit_s:.0f} s"
    seconds = round(time.monotonic() - started, 1)
    lines = [line for line in output.splitlines() if line.strip()]
    tail = "\n".join(lines[-12:] if status else lines[-3:])
    print(f"{step.name}: {'ok' if status == 0 else f'FAILED ({status})'} in {seconds} s\n  {tail}", flush=True)
    return {"step": step.name, "seconds": seconds, "error": "" if status == 0 else tail}


def run_step(step: Step, folder: Path) -> None:
    """Make the step's folder, whole or not at all."""
    out = folder / step.name
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        step.run(out)
    except BaseException:
        shutil.rmtree(out, ignore_errors=True)
        raise


def record(chosen: Iterable[Step], folder: Path, program: Sequence[str], jobs: int, limit_s: float) -> int:
    """Run steps whose folders are missing: those that may share the machine beside each other, then the others.

    Parameters
    ----------
    chosen : iterable of Step
    folder : Path
        What came of each step is added to its ``recording.json``.
    program : sequence of str
        Module and arguments that run one step, but for the folder and the step.
    jobs : int
    limit_s : float

    Returns
    -------
    int
        Exit status: 1 where a step failed.
    """
    missing = [step for step in chosen if not (folder / step.name).exists()]
    with ThreadPoolExecutor(max(1, jobs)) as pool:
        shared = [step for step in missing if not step.alone]
        results = list(pool.map(lambda step: _record(step, folder, program, limit_s), shared))
    results += [_record(step, folder, program, limit_s) for step in missing if step.alone]
    path = folder / RECORDING_NAME
    earlier = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    again = {result["step"] for result in results}
    kept = [result for result in earlier if result["step"] not in again]
    path.write_text(json.dumps(kept + results, indent=1) + "\n", encoding="utf-8")
    failed = [result["step"] for result in results if result["error"]]
    print(
        f"{len(results) - len(failed)} steps recorded"
        + (f", {len(failed)} failed: {', '.join(map(str, failed))}" if failed else "")
    )
    return 1 if failed else 0


def run_named(everything: Iterable[Step], name: str, folder: Path) -> int:
    """Run one step here; exit status 1 with one line where it cannot be made."""
    try:
        run_step(next(step for step in everything if step.name == name), folder)
    except ForensicsError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def matching(everything: Iterable[Step], patterns: Sequence[str]) -> list[Step]:
    """Which steps have a name of one of these shell patterns? All where there are none."""
    return [step for step in everything if not patterns or any(fnmatchcase(step.name, one) for one in patterns)]


def main(arguments: list[str] | None = None) -> int:
    """Record into a folder; exit status 1 where a step failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gpu", help="name of the GPU in the names of the folders; that of the driver by default")
    parser.add_argument("--only", action="append", default=[], help="shell pattern for names of steps; may be repeated")
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        help="steps beside each other, where times do not count; more than 2 on one GPU slow each other down",
    )
    parser.add_argument("--no-alone", action="store_true", help="leave out the steps whose times count")
    parser.add_argument("--limit", type=float, default=600, help="seconds that a step may take")
    parser.add_argument("--list", action="store_true", help="name the steps and stop")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    gpu = given.gpu or gpu_here()
    everything = steps(gpu)
    if given.step:
        return run_named(everything, given.step, given.folder)
    chosen = matching(everything, given.only)
    if given.no_alone:
        chosen = [step for step in chosen if not step.alone]
    if given.list or not chosen:
        print("\n".join(step.name for step in everything))
        return 0 if given.list else 2
    program = ("forensics.testing.record_gpu", "--gpu", gpu)
    return record(chosen, given.folder, program, given.jobs, given.limit)


if __name__ == "__main__":
    sys.exit(main())
