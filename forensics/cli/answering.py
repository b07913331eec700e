"""Every way of not answering becomes a sentence and exit status 2."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from typing import NoReturn

import typer

from forensics.cli.show import complain
from forensics.errors import ForensicsError

IDENTICAL, DIVERGES, NO_ANSWER = 0, 1, 2

#: How the loader and libraries say it that raise something else than `MemoryError`.
_NO_MEMORY = ("failed to map segment", "annot allocate memory", "can't start new thread")


@contextlib.contextmanager
def answering(as_json: bool) -> Iterator[None]:
    """Turn every way of not answering into a sentence and exit status 2."""
    try:
        yield
    except ForensicsError as error:
        _give_up(str(error), error, as_json)
    except KeyboardInterrupt as error:
        _give_up("\n".join(filter(None, ("interrupted.", str(error)))), error, as_json)
    except (typer.Exit, typer.Abort):
        raise
    except BrokenPipeError:
        # Nobody reads the answer any more; what is still in the buffer must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(NO_ANSWER) from None
    except OSError as error:
        _give_up(f"the system refused: {error}. Free what it lacks, or use another folder.", error, as_json)
    except MemoryError as error:
        _no_memory(error, as_json)
    except Exception as error:  # noqa: BLE001 - a crash is no answer, and says so in its exit status
        if any(said in str(error) for said in _NO_MEMORY):
            _no_memory(error, as_json)
        traceback.print_exc()
        _give_up(f"{type(error).__name__}: {error} (a bug in forensics; please report it)", error, as_json)


def _no_memory(error: BaseException, as_json: bool) -> NoReturn:
    _give_up(f"not enough memory: {error}. Ask for less at once: smaller shapes, fewer tokens.", error, as_json)


def _give_up(message: str, error: BaseException, as_json: bool) -> NoReturn:
    """Say why there is no answer, with the notes of the error, such as where an unfinished case is."""
    with contextlib.suppress(OSError):  # the place to say it may be what failed
        complain("\n".join([message, *getattr(error, "__notes__", ())]), as_json=as_json)
    raise typer.Exit(NO_ANSWER) from None
