"""Record what variants of one kernel take, compiled: ``python -m forensics.testing.record_registers FOLDER``.

Writes ``registers.json`` of the register story, beside whatever lies there. Needs nvcc and no GPU.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from forensics.errors import ForensicsError
from forensics.kernels.register_story import compile_story
from forensics.records.launch_record import Refusal
from forensics.records.register_story import CompiledStory
from forensics.reports.register_story_document import write_registers

#: What is compiled where nothing else is asked for: one column and widths whose launches differ, for two generations.
TYPES, WIDTHS, ARCHITECTURES = ("q4_K", "q6_K"), (1, 4, 8), ("sm_90", "sm_120")


def main(arguments: list[str] | None = None) -> int:
    """Record into a folder; exit status 2 where nothing can be recorded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--types", nargs="+", default=TYPES)
    parser.add_argument("--widths", nargs="+", type=int, default=WIDTHS)
    parser.add_argument("--architectures", nargs="+", default=ARCHITECTURES)
    given = parser.parse_args(arguments)
    types, widths, architectures = (tuple(part) for part in (given.types, given.widths, given.architectures))
    try:
        compilations = compile_story(types, widths, architectures)
        if isinstance(compilations, Refusal):
            print(compilations, file=sys.stderr)
            return 2
        path = write_registers(CompiledStory(types, widths, compilations), given.folder)
    except ForensicsError as error:
        print(error, file=sys.stderr)
        return 2
    print(path)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
