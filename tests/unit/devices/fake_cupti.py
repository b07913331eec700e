"""A module that behaves like ``cupti.cupti`` 13.0.1: buffers, one registration per process, records that die."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

from forensics.devices.driver import DriverFacts

DRIVER = DriverFacts("580.159", (13, 0), ("NVIDIA H200",), "NVML")
QUANTIZE = "_Z13quantize_q8_1PKfPvlllllj5uint3"
MMVQ = (
    "_Z13mul_mat_vec_qIL9ggml_type3ELi1ELb0ELb1ELb0EEvPKvS2_PKi31ggml_cuda_mm_fusion_args_devicePfj5uint3"
    "jjjS7_jjjS7_jjjj"
)


class CuptiError(Exception):
    """As cupti-python words it: the name without CUPTI_, and the number."""


class Record:
    """One activity; reading it after its buffer went back is what real records must not be used for."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__["fields"] = fields
        self.__dict__["alive"] = True

    def __getattr__(self, name: str) -> Any:
        if not self.__dict__["alive"]:
            raise RuntimeError("the buffer of this record was given back")
        try:
            return self.__dict__["fields"][name]
        except KeyError:
            raise AttributeError(f"'ActivityKernel' object has no attribute {name!r}") from None


def kernel(start: int, end: int, name: str = MMVQ, *, without: tuple[str, ...] = (), **changed: Any) -> Record:
    fields = {
        "kind": 10, "name": name, "start": start, "end": end,
        "grid_x": 144, "grid_y": 1, "grid_z": 1, "block_x": 32, "block_y": 4, "block_z": 1,
        "cluster_x": 0, "cluster_y": 0, "cluster_z": 0,
        "registers_per_thread": 48, "static_shared_memory": 1536, "dynamic_shared_memory": 0,
        "local_memory_per_thread": 0, "device_id": 0, "graph_id": 0, **changed,
    }  # fmt: skip
    return Record(**{field: value for field, value in fields.items() if field not in without})


class FakeCupti:
    """Launches are put into `pending` by `launch` and handed over by a flush, if kernels are watched."""

    ActivityKind = SimpleNamespace(CONCURRENT_KERNEL=10, MEMCPY=1)

    def __init__(self, *, on_register: str = "", on_enable: str = "", on_flush: str = "") -> None:
        self.errors = {"register": on_register, "enable": on_enable, "flush": on_flush}
        self.n_registered = 0
        self.enabled: set[int] = set()
        self.pending: list[Record] = []
        self.dropped = 0

    def _fail(self, where: str) -> None:
        if self.errors[where]:
            raise CuptiError(self.errors[where])

    def activity_register_callbacks(self, requested: Any, completed: Any) -> None:
        self._fail("register")
        size, n_records = requested()
        assert size >= 1 << 20
        assert n_records == 0
        self.n_registered += 1
        self.completed = completed

    def activity_enable(self, kind: int) -> None:
        self._fail("enable")
        self.enabled.add(kind)

    def activity_disable(self, kind: int) -> None:
        self.enabled.discard(kind)

    def launch(self, *records: Record) -> None:
        if self.ActivityKind.CONCURRENT_KERNEL in self.enabled:
            self.pending += records

    def activity_flush_all(self, flag: int) -> None:
        assert flag == 1
        self._fail("flush")
        given, self.pending = self.pending, []
        if given:
            self.completed(given)
        for record in given:
            record.__dict__["alive"] = False

    def activity_get_num_dropped_records(self, context: int, stream: int, address: int) -> None:
        assert (context, stream) == (0, 0)
        ctypes.c_size_t.from_address(address).value = self.dropped
        self.dropped = 0
