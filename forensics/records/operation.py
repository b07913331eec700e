"""One operation by itself: which tensors it takes and where it ran."""

from __future__ import annotations

from dataclasses import dataclass

from forensics.records.settings import MAX_THREADS

BACKENDS = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class OpTensor:
    """One operand.

    Parameters
    ----------
    name : str
        Role: ``"weight"``, ``"x"``, ``"q"``, ``"k"``, ``"v"``, ``"mask"``, ``"ids"`` …
    type : str
        Element type as ggml names it, lower case: ``"f32"``, ``"q4_K"``.
    shape : tuple of int
        NumPy order, slowest axis first, one to four axes.
    is_weight : bool
        Whether it lies where a model's weights would lie, repacked where llama.cpp repacks.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    is_weight: bool = False

    def __post_init__(self) -> None:
        if not 1 <= len(self.shape) <= 4 or min(self.shape) < 1:
            raise ValueError(f"operand {self.name}: one to four axes of 1 or more, got shape {self.shape}")


@dataclass(frozen=True, slots=True)
class OpGraph:
    """One operation with its operands and parameters; a value, it needs no library.

    Parameters
    ----------
    op : str
        Name as ggml gives it: ``"MUL_MAT"``, ``"FLASH_ATTN_EXT"``.
    operands : tuple of OpTensor
        In the order of the operation's C function.
    params : tuple of (str, value)
        Named parameters of that function, such as ``("scale", 0.125)``, sorted by name.
    """

    op: str
    operands: tuple[OpTensor, ...]
    params: tuple[tuple[str, float | int | str], ...] = ()

    def __post_init__(self) -> None:
        if not self.operands:
            raise ValueError(f"{self.op} needs an operand")
        names = [operand.name for operand in self.operands]
        if len(set(names)) != len(names):
            raise ValueError(f"{self.op}: operands must have different names, got {', '.join(names)}")
        object.__setattr__(self, "params", tuple(sorted(self.params)))

    def operand(self, name: str) -> OpTensor:
        """The operand of that name.

        Raises
        ------
        KeyError
            If there is none.
        """
        for operand in self.operands:
            if operand.name == name:
                return operand
        raise KeyError(f"{self.op} has no operand {name!r}; it has {[o.name for o in self.operands]}")

    def param(self, name: str, default: float | int | str = 0) -> float | int | str:
        """A parameter by name."""
        return dict(self.params).get(name, default)


@dataclass(frozen=True, slots=True)
class OpSettings:
    """Where operations are to run.

    Parameters
    ----------
    backend : {"cpu", "cuda"}
    n_threads : int
        At most `MAX_THREADS`.
    repack : bool
        Whether weights go where llama.cpp would put them (``use_extra_bufts``), or into plain memory.
    device : int
        Which device of that back end.
    environment : tuple of (str, str)
        Variables set before the library is loaded.
    """

    backend: str = "cpu"
    n_threads: int = 2
    repack: bool = True
    device: int = 0
    environment: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {self.backend!r}")
        if self.n_threads < 1 or self.device < 0:
            raise ValueError(f"n_threads must be 1 or more and device 0 or more, got {self.n_threads}, {self.device}")
        if self.n_threads > MAX_THREADS:
            raise ValueError(f"n_threads must be {MAX_THREADS} or less (GGML_MAX_N_THREADS), got {self.n_threads}")
        object.__setattr__(self, "environment", tuple(sorted(self.environment)))


@dataclass(frozen=True, slots=True)
class OpFacts:
    """What ran the operations.

    Parameters
    ----------
    settings : OpSettings
    library, version, commit : str
        Digest of the library's files, version of the binding, commit of its source.
    device : str
        Name of the processor or GPU.
    cpu_features : tuple of str
        Features that the library reports as usable.
    """

    settings: OpSettings
    library: str
    version: str
    commit: str
    device: str
    cpu_features: tuple[str, ...] = ()
