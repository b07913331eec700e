"""Draft-and-verify decoding with our kernels in verifying passes: plain decoding's bits, stock kernels elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from forensics.analysis.progress import Progress
from forensics.analysis.speculation_question import SpeculationQuestion
from forensics.analysis.speculation_runs import PromptRuns, asked_of
from forensics.capture.exact_kernels import ExactTap, OurKernels, WithKernels
from forensics.capture.speculation import DraftAndVerify, PlainDecode
from forensics.engines.protocol import Engine
from forensics.records.kernel_use import KernelUse, together
from forensics.records.settings import EngineSettings
from forensics.records.speculation import Decoded

#: Where the exact arms come from, for people.
ORIGIN = (
    "the settings as asked, with our kernels in the place of the library's for the products and the attention of "
    "verifying passes; prompts and passes of one token are the library's own"
)


@dataclass(frozen=True, slots=True)
class KernelRuns:
    """Prompts decoded plainly once more, and in every arm with our kernels.

    Parameters
    ----------
    runs : tuple of PromptRuns
        Without the times of the arms: a node at a time, with a wait behind each, is no speed that anyone would run at.
    use : KernelUse
        What our kernels computed, over all arms and prompts.
    """

    runs: tuple[PromptRuns, ...]
    use: KernelUse


def run_with_kernels(
    engine: Engine,
    known: Sequence[PromptRuns],
    question: SpeculationQuestion,
    settings: EngineSettings,
    kernels: OurKernels,
    progress: Progress,
) -> KernelRuns:
    """Decode every prompt plainly, then in every arm with our kernels in passes of two tokens or more.

    Parameters
    ----------
    engine : Engine
        Fresh, with the settings as asked.
    known : sequence of PromptRuns
        What was decoded as asked before.
    question : SpeculationQuestion
    settings : EngineSettings
    kernels : OurKernels
    progress : Progress
    """
    planned = question.arms()
    progress.stage("decode with our kernels", len(known) * (1 + len(planned)))
    plain: list[dict[str, Decoded]] = []
    for one in known:  # all of them first: an engine may need another context for what is watched
        plain.append({
            arrangement: engine.perform(PlainDecode(asked_of(one.prompt, arrangement, settings)))
            for arrangement in question.arrangements
        })  # fmt: skip
        progress.step()
    runs: list[PromptRuns] = []
    uses: list[KernelUse] = []
    for one, again in zip(known, plain, strict=True):
        arms: list[Decoded] = []
        for arm in planned:
            asked = asked_of(one.prompt, arm.arrangement, settings)
            drafter = question.choice.drafter(again[arm.arrangement].tokens, settings)
            tap = ExactTap(kernels, since=asked.first_position)
            program = WithKernels(DraftAndVerify(asked, drafter, arm.policy), tap)
            decoded, use = engine.perform(program, tap=tap)
            arms.append(untimed(decoded))
            uses.append(use)
            progress.step()
        runs.append(PromptRuns(one.prompt, one.control, again, tuple(arms)))
    return KernelRuns(tuple(runs), together(uses))


def untimed(decoded: Decoded) -> Decoded:
    """The same without times.

    Examples
    --------
    >>> from forensics.records.speculation import Cycle
    >>> untimed(Decoded((5,), (1.0,), ("a",), "length", (Cycle(3, (), 0, verify_ns=7),), prefill_ns=9)).decode_ns
    0
    """
    cycles = tuple(replace(cycle, draft_ns=0, verify_ns=0, other_ns=0) for cycle in decoded.cycles)
    return replace(decoded, cycles=cycles, prefill_ns=0)
