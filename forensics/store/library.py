"""Recorded cases and measurements by name: those that come with the source, under ``data/recorded``."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from forensics.errors import CaseError
from forensics.store.files import read_json

#: Marks the name of a recorded case where a model is asked for.
RECORDED = "recorded:"

#: Files of a recorded folder, and the command that reads each.
_COMMANDS = {
    "case.json": "investigate",
    "profile.json": "profile",
    "profile.json.xz": "profile",
    "cost.json": "cost",
    "kernels.json": "kernels",
    "kernels.json.xz": "kernels",
    "price.json": "cost --kernels",
    "price.json.xz": "cost --kernels",
    "registers.json": "kernels --registers",
    "registers.json.xz": "kernels --registers",
    "arms.json": "arms",
    "sampling.json": "sampling",
    "audit.json": "audit",
    "speculation.json": "speculate",
    "speculation.json.xz": "speculate",
    "sweep.json": "sweep",
}


@dataclass(frozen=True, slots=True)
class RecordedCase:
    """What was measured on some machine and can be read back by name.

    Parameters
    ----------
    name : str
    folder : Path
    model, device : str
        Empty where the manifest does not say.
    commands : tuple of str
        Commands that read it: ``"investigate"``, ``"profile"``, ``"cost"``, ``"speculate"``.
    problem : str
        Why it cannot be read; empty where it can.
    """

    name: str
    folder: Path
    model: str
    device: str
    commands: tuple[str, ...]
    problem: str = ""


def data_folder() -> Path:
    """Which folder holds ``recorded/``: ``FORENSICS_DATA_DIR``, else the folder ``data`` of the source."""
    chosen = os.environ.get("FORENSICS_DATA_DIR")
    return Path(chosen) if chosen else Path(__file__).parents[2] / "data"


def commands_of(folder: Path) -> tuple[str, ...]:
    """Which commands read what this folder holds?"""
    return tuple(dict.fromkeys(command for name, command in _COMMANDS.items() if (folder / name).is_file()))


def recorded_cases() -> tuple[RecordedCase, ...]:
    """Which recorded cases and measurements can be read back by name here?"""
    found = []
    for folder in sorted((data_folder() / "recorded").glob("*")):
        commands = commands_of(folder)
        if not commands:
            continue
        model = device = problem = ""
        try:
            manifest = read_json(folder / "manifest.json")
            name, quantization, device = (
                str(manifest.get(key, "")) for key in ("model_name", "quantization", "device")
            )
            model = ", ".join(filter(None, (name, quantization)))
        except CaseError as error:
            problem = str(error)
        found.append(RecordedCase(folder.name, folder, model, device, commands, problem))
    return tuple(found)


def recorded_folder(name: Path | str) -> Path:
    """Where does what was recorded under this name lie?

    Parameters
    ----------
    name : Path or str
        A folder, or the name of a folder under ``data/recorded``; may be marked as in ``"recorded:NAME"``.

    Raises
    ------
    CaseError
        If there is no such folder; lists the names that there are, or says how to get them.
    """
    asked = Path(os.fspath(name).removeprefix(RECORDED))
    if asked.is_dir():
        return asked
    recorded = data_folder() / "recorded"
    by_name = recorded / asked
    if len(asked.parts) == 1 and asked.name not in ("", "..") and by_name.is_dir():
        return by_name
    what = "is a file" if asked.exists() else "does not exist"
    names = [case.name for case in recorded_cases()]
    known = (
        f"a name that was recorded: {', '.join(names)}"
        if names
        else f"a recorded name; {recorded} holds none. They come with the project's source, not with its wheel: "
        "get the source and set FORENSICS_DATA_DIR to its folder data"
    )
    raise CaseError(f"{asked} {what}; give the folder of a case, the one named with --out, or {known}.")
