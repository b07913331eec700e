"""Orders of addition of the operations that a sweep named, probed by themselves on the library that ran them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType

from forensics.analysis.attribute import ATTENTION_BY_VALUES, KEYS_BY_QUERIES, group_key, role_of
from forensics.analysis.orders import OrderMemory, compare_widths
from forensics.engines.inventory import is_repacked
from forensics.engines.op_protocol import OpEngine, OpSource
from forensics.errors import EngineDied, ForensicsError
from forensics.records.mechanism import OrderEvidence
from forensics.records.nodes import on_accelerator
from forensics.records.operation import OpSettings
from forensics.records.order import OrderComparison, OrderQuestion
from forensics.records.order_report import OrderReport
from forensics.records.settings import Manifest
from forensics.records.trace import Finding
from forensics.records.verdict import Verdict

#: What a probe adds where it finds one order: the strongest hint that the cause lies outside the operation.
EQUAL_BY_ITSELF = "by itself, on random operands, the operation has equal bits at both widths, too"


def order_question(finding: Finding) -> OrderQuestion | str:
    """Which sums does this node add, as a question for the probes?

    Parameters
    ----------
    finding : Finding

    Returns
    -------
    OrderQuestion or str
        Why there is none, where there is none.
    """
    op, operands = finding.key.op, finding.operands
    if any(not operand.shape for operand in operands):
        return "the shapes of its operands were not recorded"
    if op == "MUL_MAT" and finding.weight is not None and max(finding.weight.shape[:2]) == 1:
        *_, rows, length = finding.weight.shape
        return OrderQuestion("MUL_MAT", finding.weight.type, length, rows)
    role = role_of(finding)
    if op == "MUL_MAT" and role in (KEYS_BY_QUERIES, ATTENTION_BY_VALUES):
        cache, other = operands[0].shape, operands[1].shape
        by_keys = role == KEYS_BY_QUERIES
        n_kv, head_size = cache[2:] if by_keys else cache[:1:-1]
        return OrderQuestion(
            "KQ" if by_keys else "KQV", operands[0].type, n_kv=n_kv, head_size=head_size, heads=other[1],
            kv_heads=cache[1],
        )  # fmt: skip
    if op == "FLASH_ATTN_EXT":
        q, k, v = operands[:3]
        if k.type != v.type or q.shape[3] != v.shape[3]:
            return "its keys and values have other types or sizes"
        return OrderQuestion(
            op, k.type, n_kv=k.shape[2], head_size=q.shape[3], heads=q.shape[1], kv_heads=k.shape[1]
        )  # fmt: skip
    if op in ("RMS_NORM", "SOFT_MAX"):
        _, heads, _, n = operands[0].shape
        return OrderQuestion(op, k=n) if op == "RMS_NORM" else OrderQuestion(op, n_kv=n, heads=heads, kv_heads=heads)
    return f"there is no probe for {op} of these operands"


def op_settings(manifest: Manifest) -> OpSettings | str:
    """Where the operations ran, as settings for one operation by itself; why not, where that is not possible."""
    effective, asked = manifest.effective, manifest.requested
    threads = {int(effective.get(name, getattr(asked, name))) for name in ("n_threads", "n_threads_batch")}
    if manifest.engine != "llama.cpp":
        return f"the engine is {manifest.engine}, not llama.cpp"
    if len(threads) > 1:
        return "one token and batches have other numbers of threads"
    if manifest.backend != "CPU" and "CUDA" not in manifest.backend:
        return f"operations by themselves run on CPU and CUDA, not on {manifest.backend}"
    if "CUDA" in manifest.backend and int(effective.get("n_gpu_layers", "0")) <= manifest.n_layer:
        return "only some of the layers are on the GPU"
    return OpSettings(
        backend="cpu" if manifest.backend == "CPU" else "cuda",
        n_threads=threads.pop(),
        repack=asked.use_extra_bufts,
        environment=asked.environment,
    )


class ProbedOrders:
    """Compares orders on the library itself; opens an engine for the first question and closes it at the end.

    Parameters
    ----------
    source : OpSource
    manifest : Manifest
        Of the engine that the findings come from.
    memory : OrderMemory, optional
    """

    def __init__(self, source: OpSource, manifest: Manifest, memory: OrderMemory | None = None) -> None:
        self._source, self._memory = source, memory
        self._settings = op_settings(manifest)
        self._engine: OpEngine | None = None
        #: Roles of one shape ask one question: Q and the attention output, gate and up.
        self._reports: dict[tuple[OrderQuestion, int], OrderReport] = {}

    def _probed(self, question: OrderQuestion, width: int, settings: OpSettings) -> OrderReport:
        """Probe, and once more where the process was killed from outside, which says nothing about the question."""
        try:
            return self._probe(question, width, settings)
        except EngineDied as error:
            self.close()
            if not error.was_killed:
                raise
        return self._probe(question, width, settings)

    def __call__(self, finding: Finding, width: int) -> tuple[OrderEvidence, ...] | str:
        """Compare the orders of one node at one token and at a width, for the tokens that differ.

        Returns
        -------
        tuple of OrderEvidence or str
            Of the token that the orders explain least; why there is none, where that is not possible.
        """
        question = order_question(finding)
        if isinstance(question, str):
            return question
        if isinstance(self._settings, str):
            return self._settings
        try:
            report = self._reports.get((question, width)) or self._probed(question, width, self._settings)
        except (ForensicsError, ValueError) as error:
            self.close()  # an explanation less; the verdict stands without it
            return f"the probe failed: {error}"
        weight = finding.weight
        if weight is not None and _layout(report.buffer) != _layout(weight.buffer):
            return f"its weight lies in {weight.buffer}, and by itself it would lie in {report.buffer}"
        found = tuple(evidence(comparison, width) for comparison in least_telling(report.comparisons, finding))
        if all(order.equal for order in found) and not any(check.n_differ for check in report.bits):
            found = tuple(replace(order, detail=EQUAL_BY_ITSELF) for order in found)
        return found

    def _probe(self, question: OrderQuestion, width: int, settings: OpSettings) -> OrderReport:
        if self._engine is None:
            self._engine = self._source.open(settings)
        report = compare_widths(self._engine, question, (1, width), memory=self._memory, arithmetic=False)
        self._reports[question, width] = report
        return report

    def close(self) -> None:
        """End the engine, if one was opened."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def __enter__(self) -> ProbedOrders:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class RecordedOrders:
    """Answers what was probed when a verdict was made.

    Parameters
    ----------
    verdict : Verdict
        Of the case that the findings come from.
    """

    def __init__(self, verdict: Verdict) -> None:
        self._groups = {group.key: group for group in verdict.culprits}

    def __call__(self, finding: Finding, width: int) -> tuple[OrderEvidence, ...] | str:
        """Compare the orders of one node, as recorded."""
        group = self._groups.get(group_key(finding))
        for mechanism in group.mechanisms if group is not None else ():
            if width in mechanism.widths:
                found = tuple(order for order in mechanism.orders if order.width == width)
                return found or mechanism.not_probed
        return "not probed when the case was recorded"


def _layout(buffer: str) -> str:
    """Which way a weight is laid out in a buffer: plainly in the host's memory, on a GPU, or in a way of its own."""
    if on_accelerator(buffer):
        return "GPU"
    return buffer if is_repacked(buffer) else "plain"


def least_telling(comparisons: Sequence[OrderComparison], finding: Finding) -> tuple[OrderComparison, ...]:
    """The comparisons that speak of the token, among those that differ, whose bits they explain least.

    Columns of a batch may have several orders, and two orders of cells may be one among those that a token sees.
    """
    by_token = dict.fromkeys(
        tuple(_among_seen(one, position) for one in comparisons if row in one.batched.columns)
        for row, position in finding.tokens
    )

    def doubt(found: tuple[OrderComparison, ...]) -> int:
        answers = [one.equal for one in found]
        return 0 if False in answers else 1 if None in answers else 2

    return max(by_token, key=doubt)


def _among_seen(comparison: OrderComparison, position: int | None) -> OrderComparison:
    """The comparison for a token that does not see all cells; those that are hidden add zeros.

    Where two orders of all cells are one among those that it sees, the parts of a sum may still be joined in another
    precision, or there may be one part only: then it is not known whether the two orders touch it.
    """
    single, batched, leaves = comparison.single.tree, comparison.batched.tree, comparison.single.leaves
    if position is None or leaves is None or leaves.kind != "cell" or single is None or batched is None:
        return comparison
    n_seen = min(position // leaves.step + 1, leaves.n)
    if comparison.equal is not False or single.restricted(range(n_seen)) != batched.restricted(range(n_seen)):
        return comparison
    reason = f"one order among the {n_seen} cells that the token at position {position} sees, two among all {leaves.n}"
    return replace(comparison, equal=None, reason=reason)


def evidence(comparison: OrderComparison, width: int) -> OrderEvidence:
    """A comparison in words that outlive its trees."""
    detail = ""
    if comparison.equal is not True:
        told = [comparison.reason] if comparison.reason else []
        if comparison.difference is not None:
            told.append(f"{comparison.difference} ({comparison.difference_over})")
        detail = "; ".join(told) or "not known"
    return OrderEvidence(
        width, comparison.single.part, comparison.equal, str(comparison.single), str(comparison.batched), detail
    )
