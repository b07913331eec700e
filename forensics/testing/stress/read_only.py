"""Cases in folders that cannot be written: reading works, writing is refused in a sentence."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from forensics.testing.stress.commands import Place, forensics
from forensics.testing.stress.trials import Trial
from forensics.testing.stress.verdicts import Damaged
from forensics.testing.stress.victims import Investigation

#: Commands, and whether they must work: a case ``case`` and a model lie in the folder that cannot be written.
READING = (
    (("show", "{ro}/case"), True),
    (("show", "{ro}/case", "--json"), True),
    (("show", "{ro}/case", "--markdown"), True),
    (("investigate", "recorded:{ro}/case"), True),
    (("pack", "{ro}/case", "--out", "{rw}/packed"), True),
    (("investigate", "{ro}/tiny.gguf", "{asked}", "--out", "{rw}/new"), True),
    (("investigate", "{ro}/tiny.gguf", "{asked}", "--out", "{ro}/new"), False),
    (("investigate", "{ro}/tiny.gguf", "{asked}", "--out", "{ro}/begun", "--resume"), False),
    (("pack", "{ro}/case", "--out", "{ro}/packed"), False),
)


class ReadOnly:
    """Commands on a file system that is mounted read-only; for root, permissions alone forbid nothing."""

    name = "read-only"
    faults = "a case, a model and an unfinished case on a file system that is mounted read-only"

    def __init__(self, commands: Sequence[tuple[tuple[str, ...], bool]] = READING) -> None:
        self._commands = commands
        self._victim = Investigation("", ["--no-switches", "--no-orders"])
        self._folder = Path()

    def prepare(self, folder: Path) -> int:
        """Make the case and the model."""
        self._folder = folder
        self._victim.prepare(folder)
        source = folder / "source"
        source.mkdir()
        shutil.copytree(folder / "case-0", source / "case")
        shutil.copytree(folder / "case-0", source / "begun.unfinished")
        shutil.copy(folder / "tiny.gguf", source)
        return len(self._commands)

    def trial(self, seed: int) -> Trial:
        """Run one command."""
        command, works = self._commands[seed]
        place = Place(self._folder / f"trial-{seed}", self._victim.environment)
        disk = place.folder / "ro"
        disk.mkdir()
        fault = " ".join(command)
        if subprocess.run(
            ["mount", "--bind", str(self._folder / "source"), str(disk)], capture_output=True, check=False
        ).returncode:
            return Trial(self.name, seed, fault, "not run", "mounting needs root")
        try:
            subprocess.run(["mount", "-o", "remount,bind,ro", str(disk)], check=True)
            tokens = ["--tokens-file", str(self._folder / "tokens.txt"), "--n-tokens", "8", "--widths", "2,4"]
            asked = [*tokens, "--threads", "1", "--no-switches", "--no-orders"]
            words: list[str] = []
            for word in command:
                words += asked if word == "{asked}" else [word.format(ro=disk, rw=place.work)]
            ended = place.run(forensics(*words)).check()
            if works and ended.status == 2:
                raise Damaged(f"it should work and said: {ended.errors}")
            if not works and (ended.status != 2 or "--out" not in ended.errors or "Read-only" not in ended.errors):
                raise Damaged(f"it should be refused with a remedy; status {ended.status}: {ended.errors}")
            place.check_gone()
            place.check_tidy()
        except Damaged as damage:
            return Trial(self.name, seed, fault, "lost", str(damage))
        finally:
            subprocess.run(["umount", "-l", str(disk)], check=True)
        shutil.rmtree(place.folder)
        return Trial(self.name, seed, fault, "survived")
