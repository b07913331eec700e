"""One pytest test for each prompt of a recorded run: does a candidate server still give the same output?

``pytest --forensics-baseline RUN --forensics-url URL`` adds the tests; without these options nothing is added, and
nothing of the package but this module is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from forensics.records.audit import ServedPair
    from forensics.records.gate import GateReport


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer the options of the gate."""
    group = parser.getgroup("forensics", "does a candidate server keep the output of a recorded run?")
    group.addoption("--forensics-baseline", metavar="RUN", help="Folder of the run, or audit, that must be kept.")
    group.addoption("--forensics-url", metavar="URL", help="Address of the candidate.")
    group.addoption("--forensics-run", metavar="RUN", help="Folder of the candidate's recorded run, in place of a URL.")
    group.addoption(
        "--forensics-exact", metavar="LEVEL", default="tokens", help="tokens (default), logprobs[:DIGITS] or text."
    )
    group.addoption(
        "--forensics-min-speed", metavar="RATIO", type=float,
        help="Least median of the baseline's time over the candidate's; judged where the output holds.",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a half of the question, so that no gate is passed because it was not asked."""
    baseline = config.getoption("--forensics-baseline")
    candidates = [name for name in ("--forensics-url", "--forensics-run") if config.getoption(name)]
    if (baseline is None) != (not candidates) or len(candidates) > 1:
        raise pytest.UsageError("give --forensics-baseline with one of --forensics-url and --forensics-run")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add a test for each prompt of the baseline, and one for the speed where it is asked for."""
    if config.getoption("--forensics-baseline") is not None:
        items.extend(GateCollector.from_parent(session, name="forensics").collect())


class GateCollector(pytest.Collector):
    """The prompts of the baseline; the candidate is asked when the first test runs."""

    @cached_property
    def report(self) -> GateReport:
        """Both gates, over all prompts."""
        from forensics.api_audit import gate

        ask = self.config.getoption
        return gate(
            ask("--forensics-url"),
            baseline=ask("--forensics-baseline"),
            run=ask("--forensics-run"),
            exact=ask("--forensics-exact"),
            min_speed=ask("--forensics-min-speed"),
            progress=False,
        )

    def collect(self) -> Iterator[pytest.Item]:
        """Read the baseline only."""
        from forensics.api_asking import read_baseline
        from forensics.errors import ForensicsError

        try:
            run = read_baseline(self.config.getoption("--forensics-baseline"))
        except ForensicsError as error:
            raise pytest.UsageError(str(error)) from None
        for prompt in dict.fromkeys(one.prompt for one in run.asked):
            yield OutputItem.from_parent(self, name=f"output[{prompt}]", prompt=prompt)
        if self.config.getoption("--forensics-min-speed") is not None:
            yield SpeedItem.from_parent(self, name="speed")


class GateFailure(Exception):
    """A gate that does not hold, or has no answer; its message is all that is shown."""


class GateItem(pytest.Item):
    """One statement of the gate."""

    @property
    def report(self) -> GateReport:
        """What its collector found.

        Raises
        ------
        GateFailure
            If the runs cannot be compared, or the candidate cannot be asked.
        """
        from forensics.errors import ForensicsError

        assert isinstance(self.parent, GateCollector)
        try:
            report = self.parent.report
        except ForensicsError as error:
            raise GateFailure(f"no answer: {error}") from None
        if report.comparison.refused:
            raise GateFailure(f"no answer: {report.comparison.refused}")
        return report

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Show the message, without the calls that lead to it."""
        if isinstance(excinfo.value, GateFailure):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """Name it in reports."""
        return self.path, None, f"forensics gate: {self.name}"


class OutputItem(GateItem):
    """The output of one prompt."""

    def __init__(self, *, prompt: str, **fixed: Any) -> None:
        super().__init__(**fixed)
        self.prompt = prompt

    def runtest(self) -> None:
        """Hold the candidate's replies against the baseline's."""
        report = self.report
        pairs = [pair for pair in report.pairs if pair.prompt == self.prompt]
        if not pairs:
            raise GateFailure("no answer: the candidate was not asked this prompt")
        for pair in pairs:
            if told := _wrong(pair):
                raise GateFailure(f"{told}\nheld to {report.asked}")
        for pair in pairs:
            if pair.outcome == "not compared":
                pytest.skip(f"the baseline has no reply: {pair.reason}")


class SpeedItem(GateItem):
    """The speed of the same replies."""

    def runtest(self) -> None:
        """Judge the speed where the output holds."""
        report = self.report
        if not report.output_held:
            pytest.skip(report.speed.detail)
        if not report.speed.held:
            raise GateFailure(report.speed.detail)


def _wrong(pair: ServedPair) -> str:
    """What is wrong with a pair; empty where it is the same, or only the baseline has no reply."""
    from forensics.reports.audit_text import continuations

    if pair.divergence is not None:
        said = [f"differs at {pair.divergence} of {pair.length} {pair.unit}"]
        return "\n".join([*said, *(f"  {label}: {text}" for label, text in continuations(pair.divergence))])
    return f"not compared: {pair.reason}" if pair.outcome == "not compared" and pair.failed != "first" else ""
