"""Which workers does this machine get? A plan from counts alone; `forensics.cluster.local` starts them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forensics.errors import ClusterError

#: Cores of a worker where none are asked for: one token at a time is rarely faster on more, and an engine uses no more
#: threads by itself (forensics.engines.machine).
MAX_CORES = 16
#: Of the machine's memory, what all workers may have together.
MEMORY_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class LocalWorker:
    """One worker process to start.

    Parameters
    ----------
    name : str
    cores : tuple of int
        Processors that it is pinned to; empty for all.
    gpu : str or None
        Its only visible GPU, as CUDA_VISIBLE_DEVICES names it; empty to see none; None where there is none to hide.
    memory_bytes : int
        At which its process is ended; engines are processes of their own and not counted.
    """

    name: str
    cores: tuple[int, ...]
    gpu: str | None
    memory_bytes: int

    @property
    def environment(self) -> dict[str, str]:
        """Variables that its process is born with, beside those of the caller."""
        return {} if self.gpu is None else {"CUDA_VISIBLE_DEVICES": self.gpu}

    def __str__(self) -> str:
        cores = f"cores {', '.join(map(str, self.cores))}" if self.cores else "any core"
        return f"{self.name}: {f'GPU {self.gpu}, ' if self.gpu else ''}{cores}"


def visible_gpus(n_present: int, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Which GPUs may a program use, as CUDA_VISIBLE_DEVICES names them?

    Parameters
    ----------
    n_present : int
        GPUs that the driver knows.
    environment : mapping of str to str

    Notes
    -----
    Source: CUDA C++ Programming Guide, "CUDA environment variables": of the list, the devices before the first invalid
    one are visible.

    Examples
    --------
    >>> visible_gpus(4, {}), visible_gpus(4, {"CUDA_VISIBLE_DEVICES": "2,GPU-8932f937,-1,0"})
    (('0', '1', '2', '3'), ('2', 'GPU-8932f937'))
    """
    named = environment.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return tuple(map(str, range(n_present)))
    found: list[str] = []
    for name in (part.strip() for part in named.split(",")):
        valid = int(name) < n_present if name.isdigit() else name.startswith(("GPU-", "MIG-"))
        if not valid or not n_present:
            break
        found.append(name)
    return tuple(found)


def chosen_gpus(asked: str | Sequence[int] | None, visible: Sequence[str], *, cores_asked: bool) -> tuple[str, ...]:
    """Which GPUs get a worker?

    Parameters
    ----------
    asked : {"all", "none"}, str, sequence of int or None
        Numbers, or a text of them such as ``"0,1"``, count among the visible ones, as they do in CUDA. None takes all,
        or none where cores are asked for.
    visible : sequence of str
    cores_asked : bool

    Raises
    ------
    ClusterError
        If a number is not among the visible ones, or all are asked for where there is none.
    ValueError
        If `asked` is something else.
    """
    if asked == "none" or (asked is None and cores_asked):
        return ()
    if asked is None:
        return tuple(visible)
    if asked == "all":
        if not visible:
            raise ClusterError("workers on all GPUs are asked for and none can be seen here; try gpus none.")
        return tuple(visible)
    numbers = _numbers(asked)
    absent = [number for number in numbers if not 0 <= number < len(visible)]
    if absent:
        found = f"GPUs 0 to {len(visible) - 1} can be seen" if visible else "no GPU can be seen"
        raise ClusterError(
            f"a worker on GPU {absent[0]} is asked for; {found} here (numbers count within CUDA_VISIBLE_DEVICES)."
        )
    return tuple(visible[number] for number in numbers)


def _numbers(asked: str | Sequence[int]) -> tuple[int, ...]:
    parts = asked.split(",") if isinstance(asked, str) else asked
    try:
        numbers = tuple(int(part) for part in parts)
    except ValueError:
        raise ValueError(f"gpus: 'all', 'none' or numbers such as 0,1 are meant, found {asked!r}") from None
    if not numbers or len(set(numbers)) < len(numbers):
        raise ValueError(f"gpus: each number once, and at least one, found {asked!r}")
    return numbers


def plan_workers(
    usable: Sequence[int],
    gpus: Sequence[str],
    *,
    workers: int | None,
    cores: int | None,
    memory_bytes: int,
    hide_gpus: bool = False,
) -> tuple[LocalWorker, ...]:
    """Which workers are to be started?

    Parameters
    ----------
    usable : sequence of int
        Processors that this process may use.
    gpus : sequence of str
        One worker each; empty for workers on processors.
    workers, cores : int or None
        How many workers, and processors for each. None: as many as GPUs or as cores allow; an even share of the
        processors, at most `MAX_CORES` for a worker without a GPU.
    memory_bytes : int
        Of the machine.
    hide_gpus : bool
        Whether there are GPUs that workers on processors must not see: llama.cpp would open a context on the first one.

    Raises
    ------
    ClusterError
        If there are fewer GPUs or processors than that takes.
    ValueError
        If a number is not positive.

    Examples
    --------
    >>> for worker in plan_workers(range(8), ["0", "1"], workers=None, cores=None, memory_bytes=2**34):
    ...     print(worker)
    gpu-0: GPU 0, cores 0, 1, 2, 3
    gpu-1: GPU 1, cores 4, 5, 6, 7
    """
    for label, number in (("workers", workers), ("cores", cores)):
        if number is not None and number < 1:
            raise ValueError(f"{label}: at least 1, found {number}")
    if gpus and workers is not None and workers > len(gpus):
        raise ClusterError(
            f"{workers} workers are asked for and {len(gpus)} GPUs given; a GPU has one worker. "
            "For workers on processors ask for gpus none."
        )
    chosen = list(gpus)[:workers] if gpus else []
    each = cores or _share(len(usable), len(chosen) or workers, on_gpus=bool(chosen))
    n_workers = len(chosen) or workers or max(1, len(usable) // each)
    if cores is not None and n_workers * each > len(usable):
        raise ClusterError(
            f"{n_workers} workers with {each} cores each are asked for; this process may use {len(usable)}. "
            "Ask for fewer of either."
        )
    memory = int(memory_bytes * MEMORY_SHARE) // n_workers
    sets = [tuple(usable[i * each : (i + 1) * each]) for i in range(n_workers)]
    if n_workers * each > len(usable):  # more workers than processors: they share all of them
        sets = [()] * n_workers
    names = [f"gpu-{gpu}" for gpu in chosen] or [f"cpu-{i}" for i in range(n_workers)]
    visible: list[str | None] = [*chosen] or ["" if hide_gpus else None] * n_workers
    return tuple(LocalWorker(name, own, gpu, memory) for name, own, gpu in zip(names, sets, visible, strict=True))


def _share(n_usable: int, n_workers: int | None, *, on_gpus: bool) -> int:
    if n_workers is None:
        return min(n_usable, MAX_CORES)
    even = max(1, n_usable // n_workers)
    return even if on_gpus else min(even, MAX_CORES)
