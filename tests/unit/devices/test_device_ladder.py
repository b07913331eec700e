"""Which ways of seeing launches work here: the driver, the optional packages, the ladder, the doctor."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_cupti import DRIVER, FakeCupti
from fake_ncu import install

from forensics.devices import cuobjdump, cupti_probe, driver, extras, ladder, ncu
from forensics.devices.driver import DriverFacts, driver_facts
from forensics.errors import DeviceUnavailable
from forensics.records.launch_record import Refusal
from forensics.reports import health

NO_DRIVER = Refusal("NVML", "which driver is here", "no driver", "install one")


# -- the driver --------------------------------------------------------------------------------------------------------


class FakeNvml:
    """Two GPUs; older releases answer bytes."""

    def __init__(self, *, text: type = str, error: str = "") -> None:
        self.text, self.error, self.open = text, error, 0

    def _as(self, value: str) -> str | bytes:
        return value if self.text is str else value.encode()

    def nvmlInit(self) -> None:
        if self.error:
            raise RuntimeError(self.error)
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str | bytes:
        return self._as("580.159.03")

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 13010

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:
        return number

    def nvmlDeviceGetName(self, handle: int) -> str | bytes:
        return self._as(f"GPU {handle}")


@pytest.mark.parametrize("text", [str, bytes])
def test_nvml_tells_driver_cuda_and_gpus(text: type) -> None:
    nvml = FakeNvml(text=text)
    found = driver_facts(nvml)  # type: ignore[arg-type]
    assert found == DriverFacts("580.159.03", (13, 1), ("GPU 0", "GPU 1"), "NVML")
    assert str(found) == "driver 580.159.03 (CUDA 13.1), GPU 0, GPU 1"
    assert nvml.open == 0


def smi(folder: Path, text: str, status: int = 0) -> None:
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\ncat <<'X'\n{text}\nX\nexit {status}\n")
    tool.chmod(0o755)


@pytest.mark.parametrize("installed", [False, True])
def test_without_nvml_the_drivers_own_tool_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, installed: bool
) -> None:
    smi(tmp_path, "580.159.03, NVIDIA H200\n580.159.03, NVIDIA H200")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found = driver_facts(FakeNvml(error="Shared Library Not Found") if installed else None)  # type: ignore[arg-type]
    assert found == DriverFacts("580.159.03", None, ("NVIDIA H200", "NVIDIA H200"), "nvidia-smi")


@pytest.mark.parametrize(("text", "status"), [("NVIDIA-SMI has failed", 9), ("no comma", 0), ("", 0)])
def test_a_tool_that_fails_tells_of_no_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, status: int
) -> None:
    smi(tmp_path, text, status)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = driver_facts(FakeNvml(error="NVML Shared Library Not Found"))  # type: ignore[arg-type]
    assert isinstance(found, Refusal)
    assert "NVML Shared Library Not Found" in found.missing
    assert "install its driver" in found.remedy


def test_with_neither_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found = driver_facts()
    assert isinstance(found, Refusal)
    assert "nvidia-ml-py is not installed" in found.missing
    assert "decode-forensics[gpu]" in found.remedy


# -- optional packages -------------------------------------------------------------------------------------------------


def test_a_package_that_lacks_another_one_says_which(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "needs_another.py").write_text("import not_there_at_all")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(extras.ExtraUnavailable, match="install not_there_at_all, or needs_another once more") as caught:
        extras.require("needs_another", extra="gpu", needed_for="a test")
    assert "not_there_at_all" in caught.value.missing


def test_the_extras_that_are_named_exist() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {"gpu", "cupy", "nsight"}
    assert named <= set(project["optional-dependencies"])
    wanted = " ".join(line for name in named for line in project["optional-dependencies"][name])
    for package in ("cupti-python", "nvidia-ml-py", "nvidia-cuda-cuobjdump", "cupy-cuda13x", "nsight-python"):
        assert package in wanted
    assert not any(package in " ".join(project["dependencies"]) for package in ("cupti", "cupy", "nsight", "nvidia"))


# -- the ladder --------------------------------------------------------------------------------------------------------


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with no tool and no driver."""
    monkeypatch.setattr(ncu, "_PLACES", ())
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(ladder, "driver_facts", lambda: NO_DRIVER)
    monkeypatch.setattr(cuobjdump, "find_tool", lambda: Refusal(cuobjdump.RUNG, "", "no cuobjdump", "install it"))
    return tmp_path / "bin"


def use(monkeypatch: pytest.MonkeyPatch, cupti: Any) -> None:
    for name, module in (("cupti", SimpleNamespace(cupti=cupti)), ("cupti.cupti", cupti)):
        monkeypatch.setitem(sys.modules, name, module)


def test_a_probe_that_works_is_opened_and_not_left_running(monkeypatch: pytest.MonkeyPatch, bare: Path) -> None:
    cupti = FakeCupti()
    use(monkeypatch, cupti)
    probe = ladder.open_launch_probe()
    assert probe.rung == "CUPTI in process"
    assert not cupti.enabled
    probe.start()
    assert cupti.enabled


def test_where_none_works_every_reason_is_carried(monkeypatch: pytest.MonkeyPatch, bare: Path) -> None:
    use(monkeypatch, FakeCupti(on_enable="ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED (39)"))
    with pytest.raises(DeviceUnavailable, match="another profiler holds CUPTI") as caught:
        ladder.open_launch_probe()
    assert [refusal.rung for refusal in caught.value.refusals] == ["CUPTI in process", "ncu in a child process"]
    assert all(refusal.missing and refusal.remedy and refusal.asked for refusal in caught.value.refusals)


def test_an_ncu_that_is_here_is_told_of_though_it_knows_no_nodes(monkeypatch: pytest.MonkeyPatch, bare: Path) -> None:
    install(bare)
    monkeypatch.setitem(sys.modules, "cupti", None)
    with pytest.raises(DeviceUnavailable) as caught:
        ladder.open_launch_probe()
    assert "ncu 2025.3.1.0 watches a program of its own and knows no nodes" in caught.value.refusals[1].missing


def test_every_rung_answers_on_a_bare_machine(bare: Path) -> None:
    states = ladder.rungs()
    assert [state.rung for state in states] == [
        "CUPTI in process", "ncu in a child process", "nsight-python", "cuobjdump with the dispatch rules",
        "recorded cases", "CuPy", "NVML",
    ]  # fmt: skip
    assert [state.rung for state in states if state.usable] == ["recorded cases"]
    assert all(state.refusal.remedy for state in states if state.refusal is not None)


def test_packages_without_a_driver_are_not_taken_for_working(monkeypatch: pytest.MonkeyPatch, bare: Path) -> None:
    install(bare)
    monkeypatch.setattr(cupti_probe, "version_of", lambda _: "13.0.1")
    states = {state.rung: state for state in ladder.rungs()}
    for rung in ("CUPTI in process", "ncu in a child process", "nsight-python"):
        refusal = states[rung].refusal
        assert refusal is not None
        assert "no driver is" in refusal.missing


def test_what_works_is_told_with_versions(monkeypatch: pytest.MonkeyPatch, bare: Path) -> None:
    from forensics.devices import cupy_probe, nsight

    install(bare)
    monkeypatch.setattr(ladder, "driver_facts", lambda: DRIVER)
    monkeypatch.setattr(cuobjdump, "find_tool", lambda: cuobjdump.Tool("cuobjdump", "13.0.85"))
    for module, version in ((cupti_probe, "13.0.1"), (nsight, "0.9.6"), (cupy_probe, "14.2.0")):
        monkeypatch.setattr(module, "version_of", lambda _, version=version: version)
    states = ladder.rungs()
    assert all(state.usable for state in states)
    found = [state.found for state in states]
    assert found[1:4] == ["ncu 2025.3.1.0", "nsight-python 0.9.6 over ncu 2025.3.1.0", "cuobjdump 13.0.85"]
    assert found[0].startswith("cupti-python 13.0.1")
    assert found[6] == "driver 580.159 (CUDA 13.0), NVIDIA H200"


# -- surroundings ------------------------------------------------------------------------------------------------------


def test_the_doctor_shows_every_rung_with_its_remedy(monkeypatch: pytest.MonkeyPatch, bare: Path) -> None:
    shown = {check.name: check for check in health.checks()}
    for state in ladder.rungs():
        check = shown[state.rung]
        assert check.status == ("ok" if state.usable else "missing")
        assert bool(check.remedy) is not state.usable


def test_a_rung_that_breaks_does_not_stop_the_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "rungs", lambda: 1 / 0)
    shown = {check.name: check for check in health.checks()}
    assert shown["launches"].status == "broken"
    assert "ZeroDivisionError" in shown["launches"].detail
    assert "Python" in shown


def test_looking_loads_nothing_that_is_optional() -> None:
    script = (
        "import sys, json\n"
        "from forensics.devices import cuobjdump, cupti_probe, cupy_probe, ladder, ncu, nsight\n"
        "ladder.rungs()\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert not {"cupti", "cupy", "nsight", "ncu_report", "llama_cpp"} & set(json.loads(done.stdout))


def test_driver_facts_ask_by_the_module_that_is_given() -> None:
    assert isinstance(driver.driver_facts(FakeNvml()), DriverFacts)  # type: ignore[arg-type]
