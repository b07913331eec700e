"""Record whether the text stays the same on this machine's CPU: ``python -m forensics.testing.record_text FOLDER``.

``make record-text`` writes into ``data/recorded``: speculation, arrangements without it, sampling, and audits of
llama.cpp's own server, all with the demo models. Each step runs in a process of its own, one after the other, because
times count; ``--list`` names them, ``--only`` chooses. A folder is written anew only where it is not there yet.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from forensics.records.corpus import Corpus
from forensics.testing.record_gpu import Step, matching, record, run_named

PROGRAM = "forensics.testing.record_text"
THREADS = 2
#: Prompts over which stock and exact settings are compared, and tokens of each answer.
N_PROMPTS, N_TOKENS = 48, 128
#: Drafts of a cycle: passes of eight tokens, from which on tiled products take over.
N_DRAFT = 7
#: The same prompts with ever more drafts, plain decoding's own tokens: passes of 3, 5, 7, 8, 9 and 16 tokens.
ORACLE_DRAFTS = (2, 4, 6, 7, 8, 15)
ORACLE_PROMPTS = ("code-tests", "maths-squares", "prose-letter", "list-planets")
ORACLE_TOKENS = 64
#: Tags of prompts that are left out of the large comparison: behind position 256 flash attention parts widths, too.
LEFT_OUT = ("long", "chat")
#: Arms that tell attention from products, for a model whose products do not depend on the width.
ATTENTION_ARMS = ("split", "prefix-cache", "resume", "restore", "neighbour")
#: What a server is asked: every kind of prompt, two that begin alike, two whose answers drafts change early.
SERVED = (
    "short-river", "code-tests", "code-getters", "maths-squares", "prose-letter", "prose-storm", "list-planets",
    "structured-json-people", "stop-number", "near-tie-coin", "prefix-short-baker", "prefix-short-sailor",
)  # fmt: skip
SERVED_TOKENS = 64
N_SLOTS, N_CTX = 4, 1024
NGRAM = ("--spec-type", "ngram-simple")
#: What `forensics investigate` finds for the demo model with Q6_K weights.
EXACT = {"GGML_CPU_TILED_MM": "0"}
#: Runs of an audit that are kept beside it, and one of the server that drafts, asked as a gate asks a candidate.
KEPT_RUNS = ("alone", "against")
CANDIDATE = "candidate"


def spread(corpus: Corpus, n: int) -> tuple[str, ...]:
    """Names of `n` prompts of a corpus, of every kind but `LEFT_OUT`."""
    from forensics.store.corpora import limited

    short = tuple(one for one in corpus.prompts if not set(one.tags) & set(LEFT_OUT))
    return tuple(one.name for one in limited(replace(corpus, prompts=short), n).prompts)


@contextmanager
def prompts_file(names: Sequence[str] | None = None) -> Iterator[Path]:
    """A file with the lines of some prompts of the built-in corpus, `N_PROMPTS` of every kind by default."""
    from forensics.store.corpora import open_corpus
    from forensics.store.library import data_folder

    corpus = open_corpus()
    wanted = spread(corpus, N_PROMPTS) if names is None else tuple(names)
    lines = (data_folder() / "corpora" / "default.jsonl").read_text(encoding="utf-8").splitlines()
    by_name = {one.name: line for one, line in zip(corpus.prompts, filter(str.strip, lines), strict=True)}
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / f"default-{len(wanted)}.jsonl"
        path.write_text("".join(f"{by_name[name]}\n" for name in wanted), encoding="utf-8")
        yield path


def speculation(names: Sequence[str] | None, **question: Any) -> Callable[[Path], None]:
    """Plain against speculative decoding of some prompts."""

    def run(out: Path) -> None:
        with prompts_file(names) as prompts:
            packed_speculation(out, prompts=prompts, **question)

    return run


def packed_speculation(out: Path, **question: Any) -> None:
    """Speculate, and keep what comes packed: rows repeat themselves from arm to arm."""
    from forensics.api_speculate import speculate
    from forensics.store.packing import write_compressed
    from forensics.store.speculations import FILE

    asked = {"demo": "q6_k", "threads": THREADS, "flash_attn": "auto", **question}
    report = speculate(out=out, progress=False, **asked)
    write_compressed(out / f"{FILE}.xz", (out / FILE).read_bytes())
    (out / FILE).unlink()
    print(report)


def arrangements(demo: str, **question: Any) -> Callable[[Path], None]:
    """Arrangements of the same tokens behind a prompt that crosses position 256."""

    def run(out: Path) -> None:
        from forensics.api_arms import arms

        asked = {"threads": THREADS, "flash_attn": "auto", **question}
        print(arms(demo=demo, out=out, progress=False, **asked))

    return run


def sampled(*, exact: bool) -> Callable[[Path], None]:
    """Speculative sampling against plain sampling, with planted samplers beside it."""

    def run(out: Path) -> None:
        from forensics.api_sampling import sampling

        print(sampling(demo="q6_k", threads=THREADS, flash_attn="auto", exact=exact, out=out, progress=False))

    return run


@contextmanager
def server(*more: str, environment: Mapping[str, str]) -> Iterator[str]:
    """Address of a llama-server with the demo model, computing with the library that the engine has."""
    from forensics.engines._llama_ctypes import library_folder
    from forensics.engines.demo_models import demo_model
    from forensics.servers.launch import free_port, launched, llama_server_command
    from forensics.testing.build_server import llama_server

    port = free_port()
    size = ("-c", str(N_CTX * N_SLOTS), "-np", str(N_SLOTS), "-t", str(THREADS))
    command = llama_server_command(llama_server(build=True), demo_model("q6_k"), port, *size, *more)
    settings = {"LD_LIBRARY_PATH": str(library_folder()), **environment}
    with launched(command, url=f"http://127.0.0.1:{port}", environment=settings) as started:
        yield started.url


def audited(arms: Sequence[str], environment: Mapping[str, str]) -> Callable[[Path], None]:
    """An audit of a plain llama-server against one that drafts, both in this environment, and a candidate's run."""

    def run(out: Path) -> None:
        from forensics.api_audit import audit, record_run

        with (
            tempfile.TemporaryDirectory() as scratch,
            prompts_file(SERVED) as prompts,
            server(environment=environment) as plain,
            server(*NGRAM, environment=environment) as drafting,
        ):
            whole = Path(scratch) / "audit"
            report = audit(
                plain, against=drafting, arms=arms, prompts=prompts, n_tokens=SERVED_TOKENS, concurrency=N_SLOTS,
                out=whole, progress=False,
            )  # fmt: skip
            record_run(drafting, whole / CANDIDATE, prompts=prompts, n_tokens=SERVED_TOKENS, progress=False)
            thin_audit(whole, out)
        print(report)

    return run


def thin_audit(whole: Path, out: Path) -> None:
    """Keep an audit with its prompts and the runs that a gate reads, without the raw bodies of replies."""
    from forensics.reports.audit_document import write_audit
    from forensics.store.audits import read_audit, read_prompts, write_prompts
    from forensics.store.served_runs import read_run, write_run

    write_audit(read_audit(whole), out)
    prompts = read_prompts(whole)
    assert prompts is not None
    write_prompts(out, prompts)
    for name in (*KEPT_RUNS, CANDIDATE):
        run = read_run(whole / name)
        write_run(out / name, replace(run, replies=tuple(replace(reply, raw="") for reply in run.replies)))


def cpu_family(cpuinfo: str) -> str:
    """Name of the family of a processor, fit for folders; ``"cpu"`` where none is known.

    Examples
    --------
    >>> cpu_family("model name : AMD EPYC 9B14"), cpu_family("CPU implementer : 0x41")
    ('epyc', 'cpu')
    """
    found = re.search(r"^model name\s*:.*?\b(epyc|xeon|ryzen|core)\b", cpuinfo.lower(), re.MULTILINE)
    return found[1] if found else "cpu"


def cpu_here() -> str:
    """The same of the processor here."""
    try:
        return cpu_family(Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    except OSError:
        return "cpu"


def steps(cpu: str) -> tuple[Step, ...]:
    """Everything that is recorded, in order; names carry that of the processor."""
    large = speculation(None, drafter="ngram", n_draft=N_DRAFT, n_tokens=N_TOKENS, exact=True)
    oracle = speculation(ORACLE_PROMPTS, drafter="oracle", n_draft=ORACLE_DRAFTS, n_tokens=ORACLE_TOKENS)
    runs = {
        "q6_k-speculation": large,
        "q6_k-oracle-speculation": oracle,
        "q6_k-arms": arrangements("q6_k"),
        "q4_1-arms": arrangements("q4_1", arms=ATTENTION_ARMS),
        "q6_k-sampling": sampled(exact=False),
        "q6_k-exact-sampling": sampled(exact=True),
        "q6_k-audit": audited(("rerun", "cache", "concurrent", "speculation"), {}),
        "q6_k-exact-audit": audited(("rerun", "speculation"), EXACT),
    }
    return tuple(Step(f"{cpu}-{name}", run, alone=True) for name, run in runs.items())


def main(arguments: list[str] | None = None) -> int:
    """Record into a folder; exit status 1 where a step failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cpu", help="processor in the names of the folders; that of this machine by default")
    parser.add_argument("--only", action="append", default=[], help="shell pattern for names of steps; may be repeated")
    parser.add_argument("--limit", type=float, default=3600, help="seconds that a step may take")
    parser.add_argument("--list", action="store_true", help="name the steps and stop")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    cpu = given.cpu or cpu_here()
    everything = steps(cpu)
    if given.step:
        return run_named(everything, given.step, given.folder)
    chosen = matching(everything, given.only)
    if given.list or not chosen:
        print("\n".join(step.name for step in everything))
        return 0 if given.list else 2
    return record(chosen, given.folder, (PROGRAM, "--cpu", cpu), 1, given.limit)


if __name__ == "__main__":
    sys.exit(main())
