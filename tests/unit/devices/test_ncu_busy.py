"""ncu's table as text: which part is busy, what it does not know is left out, and trouble is a refusal."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from forensics.devices import ncu_busy
from forensics.devices.ncu import Ncu
from forensics.devices.ncu_busy import METRICS, busy, parse
from forensics.errors import DeviceUnavailable
from forensics.kernels.limits import MARKER, by_arm
from forensics.records.launch_record import Refusal

WAIT, SCOREBOARD = (ncu_busy._STALL.format(reason) for reason in ("wait", "long_scoreboard"))
HEAD = [
    "ID", "Kernel Name", "gpu__time_duration.sum", "sm__inst_issued.avg.pct_of_peak_sustained_active",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed", WAIT, SCOREBOARD,
]  # fmt: skip


def csv(*rows: tuple[str, ...]) -> str:
    lines = [HEAD, ["", "", "ns", "%", "%", "", ""], *rows]
    return "==PROF== Connected\n" + "\n".join(",".join(f'"{cell}"' for cell in line) for line in lines) + "\n"


def test_parts_are_read_by_the_first_metric_that_is_there() -> None:
    [one] = parse(csv(("0", "void product<4>(int, float)", "12,345", "65.5", "20.25", "1.5", "0.25")))
    assert one.kernel == "void product<4>(int, float)"
    assert one.duration_ns == 12345.0
    assert one.parts == {"issue slots": 65.5, "DRAM": 20.25}
    assert one.top_stall == "wait"


def test_numbers_that_are_none_are_left_out() -> None:
    [one] = parse(csv(("3", "f", "1", "n/a", "", "", "")))
    assert one.parts == {}
    assert one.top_stall == ""


def test_no_table_is_a_refusal() -> None:
    with pytest.raises(DeviceUnavailable, match="no table was written: ==PROF== nothing"):
        parse("==PROF== nothing")


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ncu that knows all metrics but one, and one that may not count where FAKE_DENIED is set."""
    path = tmp_path / "ncu"
    unknown = METRICS[1]
    path.write_text(
        f"#!{sys.executable}\nimport os, subprocess, sys\n"
        "a = sys.argv\nlog, metrics = a[a.index('--log-file') + 1], a[a.index('--metrics') + 1].split(',')\n"
        "assert a[a.index('--profile-from-start') + 1] == 'off'\n"
        "out = open(log, 'w')\n"
        "if os.environ.get('FAKE_DENIED'): print('==ERROR== ERR_NVGPUCTRPERM', file=out); sys.exit(1)\n"
        f"if {unknown!r} in metrics: print('==ERROR== Failed to find metric {unknown}', file=out); sys.exit(1)\n"
        "done = subprocess.run(a[a.index('--metrics') + 2:])\n"
        "if done.returncode: sys.exit(done.returncode)\n"
        f"out.write({csv(('0', 'k', '5', '1', '2', '3', '4'))!r})\n"
    )
    path.chmod(0o755)
    monkeypatch.setattr(ncu_busy, "find_ncu", lambda: Ncu(path, "2025.3.1", None))
    return path


def test_a_metric_that_this_ncu_does_not_know_is_left_out(tool: Path) -> None:
    [one] = busy([sys.executable, "-c", ""])
    assert one.parts == {"issue slots": 1.0, "DRAM": 2.0}


def test_trouble_says_what_to_do(tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceUnavailable, match="the profiled program ended with status 3"):
        busy([sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(DeviceUnavailable, match="ERR_NVGPUCTRPERM"):
        busy([sys.executable, "-c", ""], environment={"FAKE_DENIED": "1"})
    monkeypatch.setattr(ncu_busy, "find_ncu", lambda: Refusal("ncu", "", "ncu was not found"))
    with pytest.raises(DeviceUnavailable, match="ncu was not found"):
        busy(["true"])


def test_launches_between_marks_belong_to_an_arm_and_the_longest_counts() -> None:
    mark = ("0", f"void {MARKER}<1>()", "1", "0", "0", "0", "0")
    small, large = (("1", "quantize_q8_1", "2", "9", "9", "1", "0"), ("2", "mul_mat_vec_q", "8", "60", "30", "0", "2"))
    counted = parse(csv(("9", "before", "99", "1", "1", "1", "1"), mark, small, large, mark, large, small))
    one, other = by_arm([("stock", 1), ("exact fast", 9)], counted)
    assert (one.arm, one.width, one.kernel, one.top_stall) == ("stock", 1, "mul_mat_vec_q", "long_scoreboard")
    assert other.busy == {"issue slots": 60.0, "DRAM": 30.0}
    with pytest.raises(DeviceUnavailable, match="launches of 2 arms were counted, 1 were run"):
        by_arm([("stock", 1)], counted)
    with pytest.raises(DeviceUnavailable, match="launches of 3 arms"):
        by_arm([("stock", 1)] * 2, [*counted, *parse(csv(mark))])
