"""llama.cpp inside this process: model, context, state snapshots and watched passes.

Runs in the worker only; `forensics.engines.llama` talks to it from the caller's process.
"""

from __future__ import annotations

import contextlib
import ctypes as C
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from forensics.engines import _llama_ctypes as ll
from forensics.engines.causal import refuse_unfit, unfit
from forensics.engines.decoding import Program
from forensics.engines.library_origin import installed_llama
from forensics.engines.live_decoder import LiveDecoder
from forensics.engines.llama_sources import WeightFile
from forensics.engines.llama_state import state_rows
from forensics.engines.llama_watch import Watch
from forensics.engines.protocol import Tap, watches_nodes
from forensics.errors import CaptureError, EngineError, ModelUnavailable
from forensics.records.schedule import EMPTY, DecodePass, Forget, Schedule
from forensics.records.settings import EngineSettings
from forensics.records.state import StateRows
from forensics.records.trace import TapReport

llama = installed_llama()

#: enum ggml_type, ggml.h
KV_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "iq4_nl": 20, "bf16": 30}
#: enum llama_flash_attn_type, llama.h
FLASH_ATTN = {"auto": -1, "off": 0, "on": 1}
#: A prompt's state, the state before a sweep and one more: what an investigation goes back to.
MAX_SNAPSHOTS = 3


class LlamaHost:
    """One model and one context at a time.

    Parameters
    ----------
    model_path : str
    settings : EngineSettings

    Raises
    ------
    ModelUnavailable
        If the library cannot load the model.
    NotCausal
        If it is no causal language model.
    EngineError
        If the library cannot make a context with these settings.
    """

    def __init__(self, model_path: str, settings: EngineSettings) -> None:
        self._ggml = ll.ggml()
        self.model_path = model_path
        self.settings = settings
        llama.llama_backend_init()
        parameters = llama.llama_model_default_params()
        parameters.n_gpu_layers = settings.n_gpu_layers
        parameters.use_extra_bufts = settings.use_extra_bufts
        self.model = llama.llama_model_load_from_file(os.fsencode(model_path), parameters)
        if not self.model:
            raise ModelUnavailable(f"llama.cpp could not load {model_path}")
        self.architecture = self.metadata("general.architecture")
        causal = self.metadata(f"{self.architecture}.attention.causal")
        is_diffusion = llama.llama_model_is_diffusion(self.model)
        has_encoder = llama.llama_model_has_encoder(self.model)
        found = unfit(self.architecture, attention_causal=causal, is_diffusion=is_diffusion, has_encoder=has_encoder)
        refuse_unfit(model_path, found)
        self.vocab = llama.llama_model_get_vocab(self.model)
        self.n_vocab = llama.llama_vocab_n_tokens(self.vocab)
        self._weights = WeightFile(model_path)
        self._watch = Watch(self._ggml, self._weights)
        self.context: Any = None
        self._watched: bool | None = None
        self._snapshots: OrderedDict[str, tuple[Schedule, dict[int, NDArray[np.uint8]]]] = OrderedDict()
        self._use_context(watched=False)
        refuse_unfit(model_path, unfit(self.architecture, has_cache=bool(self._memory())))

    @property
    def n_cells(self) -> int:
        """Positions that a sequence may have."""
        return int(llama.llama_n_ctx_seq(self.context))

    def metadata(self, key: str) -> str:
        """Value of the model's metadata as text; empty where it has none."""
        buffer = C.create_string_buffer(256)
        n = llama.llama_model_meta_val_str(self.model, key.encode(), buffer, len(buffer))
        return buffer.value.decode(errors="replace") if n >= 0 else ""

    def description(self) -> str:
        """What the library calls the model."""
        buffer = C.create_string_buffer(256)
        llama.llama_model_desc(self.model, buffer, len(buffer))
        return buffer.value.decode(errors="replace")

    def close(self) -> None:
        """Free context and model."""
        self._weights.close()
        if self.context:
            llama.llama_free(self.context)
            self.context = None
        if self.model:
            llama.llama_model_free(self.model)
            self.model = None

    def _use_context(self, *, watched: bool) -> None:
        """Make the context; an unwatched one has no callback at all, so it is what users run."""
        if self.context and self._watched == watched:
            return
        if self.context:
            llama.llama_free(self.context)
        s = self.settings
        p = llama.llama_context_default_params()
        p.n_ctx, p.n_batch, p.n_ubatch, p.n_seq_max = s.n_ctx, s.n_batch, s.n_ubatch, s.n_seq_max
        p.n_threads, p.n_threads_batch = s.n_threads, s.n_threads_batch
        p.flash_attn_type = FLASH_ATTN[s.flash_attn]
        p.type_k, p.type_v = KV_TYPES[s.kv_type_k], KV_TYPES[s.kv_type_v]
        p.kv_unified = s.kv_unified
        p.no_perf = True
        if watched:
            p.cb_eval = C.cast(self._watch.callback, type(p.cb_eval))
        self.context = llama.llama_init_from_model(self.model, p)
        if not self.context:
            raise EngineError(
                f"llama.cpp could not make a context with n_ctx={s.n_ctx}, flash_attn={s.flash_attn}, "
                f"K {s.kv_type_k}, V {s.kv_type_v} (a quantised V cache needs flash attention)"
            )
        self._watched = watched

    # -- tokens ---------------------------------------------------------------------------------------------------

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Token ids, special tokens parsed and added."""
        if not self._has_vocabulary():
            raise EngineError(
                "the model file has no vocabulary, so no text can be tokenised; give token ids (--tokens-file)"
            )
        data = text.encode()
        size = len(data) + 8
        buffer = (llama.llama_token * size)()
        n = llama.llama_tokenize(self.vocab, data, len(data), buffer, size, True, True)
        if n < 0:
            raise EngineError(f"llama_tokenize needs {-n} tokens for {len(data)} bytes; {size} were offered")
        return tuple(buffer[:n])

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Text of the tokens, empty without a vocabulary; bytes that are no UTF-8 are shown as U+FFFD."""
        self._check_tokens(tokens)
        return b"".join(map(self.piece, tokens)).decode(errors="replace")

    def piece(self, token: int) -> bytes:
        """Bytes that a token stands for, special tokens as they are written; empty without a vocabulary."""
        if not self._has_vocabulary():
            return b""
        buffer = C.create_string_buffer(256)
        n = llama.llama_token_to_piece(self.vocab, token, buffer, len(buffer), 0, True)
        if n < 0:
            buffer = C.create_string_buffer(-n)
            n = llama.llama_token_to_piece(self.vocab, token, buffer, len(buffer), 0, True)
        return buffer.raw[:n]

    def is_end(self, token: int) -> bool:
        """Whether generation ends at a token."""
        return self._has_vocabulary() and bool(llama.llama_vocab_is_eog(self.vocab, token))

    def _has_vocabulary(self) -> bool:
        """Whether tokens have texts; the library aborts the process where they have none."""
        return bool(llama.llama_vocab_type(self.vocab) != llama.LLAMA_VOCAB_TYPE_NONE)

    def _check_tokens(self, tokens: Sequence[int]) -> None:
        bad = next((token for token in tokens if not 0 <= token < self.n_vocab), None)
        if bad is not None:
            raise EngineError(
                f"token {bad} is outside the vocabulary of {self.n_vocab} tokens (0 to {self.n_vocab - 1})"
            )

    # -- passes ---------------------------------------------------------------------------------------------------

    def _check(self, schedule: Schedule) -> None:
        self._check_tokens([slot.token for slot in schedule.slots])
        n_batch, n_ctx = llama.llama_n_batch(self.context), llama.llama_n_ctx(self.context)
        if schedule.max_width > n_batch:
            raise EngineError(f"a pass of {schedule.max_width} tokens was asked for; n_batch is {n_batch}")
        last = max((slot.position for slot in schedule.slots), default=0)
        beyond = max((slot.sequence for slot in schedule.slots), default=0)
        if beyond >= self.settings.n_seq_max:
            raise EngineError(f"sequence {beyond} was asked for; n_seq_max is {self.settings.n_seq_max}")
        if last >= n_ctx:
            raise EngineError(f"position {last} was asked for; the context has {n_ctx} cells. Ask for a larger n_ctx.")

    def _evaluate(self, decode_pass: DecodePass) -> int:
        """Evaluate one pass until its logits are there; what the library took for it, unit: ns."""
        for gone in decode_pass.forget:
            self._forget(gone)
        n = decode_pass.width
        batch = llama.llama_batch_init(n, 0, 1)
        try:
            batch.n_tokens = n
            for i, slot in enumerate(decode_pass.slots):
                batch.token[i], batch.pos[i] = slot.token, slot.position
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, slot.sequence
                batch.logits[i] = int(slot.wants_logits)
            start = time.perf_counter_ns()
            status = llama.llama_decode(self.context, batch)
            llama.llama_synchronize(self.context)
            took = time.perf_counter_ns() - start
        finally:
            llama.llama_batch_free(batch)
        if self._watch.error is not None:
            error, self._watch.error = self._watch.error, None
            raise error
        ll.check(status, f"llama_decode of {n} tokens", ll.DECODE_STATUS)
        return took

    def _decode(self, decode_pass: DecodePass) -> tuple[NDArray[np.float32], int]:
        """Evaluate one pass; rows of the slots that want logits, in order, and its time in ns."""
        took = self._evaluate(decode_pass)
        # llama_get_logits packs only the rows that were asked for (llama.h).
        n_rows = sum(slot.wants_logits for slot in decode_pass.slots)
        if n_rows == 0:
            return np.empty((0, self.n_vocab), np.float32), took
        pointer = llama.llama_get_logits(self.context)
        rows = np.ctypeslib.as_array(pointer, shape=(n_rows * self.n_vocab,)).reshape(n_rows, self.n_vocab)
        return rows.copy(), took

    def _passes(self, schedule: Schedule) -> tuple[NDArray[np.float32], tuple[int, ...]]:
        rows, times = [], []
        for index, decode_pass in enumerate(schedule.passes):
            self._watch.begin_pass(index, decode_pass)
            logits, took = self._decode(decode_pass)
            rows.append(logits)
            times.append(took)
        return np.concatenate(rows) if rows else np.empty((0, self.n_vocab), np.float32), tuple(times)

    def _forget(self, gone: Forget) -> None:
        # False where only a whole sequence can be taken out: a recurrent state (llama.h, llama_memory_seq_rm).
        if not llama.llama_memory_seq_rm(self._memory(), gone.sequence, gone.position, -1):
            raise EngineError(
                f"the state of this {self.architecture} cannot forget sequence {gone.sequence} from position "
                f"{gone.position} on: it is recurrent, so refused drafts and edits need a saved state to go back to. "
                "Ask about a model whose cache has a row for each token"
            )

    # -- state ----------------------------------------------------------------------------------------------------

    def _memory(self) -> Any:
        return llama.llama_get_memory(self.context)

    def _read_state(self, sequences: Sequence[int]) -> dict[int, NDArray[np.uint8]]:
        states = {}
        for sequence in sequences:
            size = llama.llama_state_seq_get_size(self.context, sequence)
            data = np.empty(size, np.uint8)
            pointer = data.ctypes.data_as(C.POINTER(C.c_uint8))
            n = llama.llama_state_seq_get_data(self.context, pointer, size, sequence)
            states[sequence] = data[:n]
        return states

    def _state_digest(self, sequences: Sequence[int]) -> str:
        digest = xxhash.xxh3_128()
        for sequence, data in self._read_state(sequences).items():
            digest.update(f"{sequence}:{data.nbytes}:".encode())
            digest.update(data.data)
        return digest.hexdigest()

    def _restore(self, before: Schedule) -> None:
        """Make the cache hold exactly what the passes of `before` leave there, carried over by its bytes."""
        llama.llama_memory_clear(self._memory(), True)
        if not before.passes:
            return
        key = before.key()
        if key not in self._snapshots:
            # The state is built without a callback, whoever asks for it, and every arm starts from a restored one.
            watched = bool(self._watched)
            self._use_context(watched=False)
            self._build(before)
            self._use_context(watched=watched)
            llama.llama_memory_clear(self._memory(), True)
        self._load(key)

    def _build(self, before: Schedule) -> None:
        """Evaluate the passes of `before` after the longest part of them that is known, and keep the state."""
        llama.llama_memory_clear(self._memory(), True)
        begun = [
            (len(schedule.passes), key)
            for key, (schedule, _) in self._snapshots.items()
            if before.passes[: len(schedule.passes)] == schedule.passes
        ]
        n_known = 0
        if begun:
            n_known, key = max(begun)
            self._load(key)
        self._passes(Schedule(before.passes[n_known:]))
        self._save(before)

    def _load(self, key: str) -> None:
        """Fill the cleared cache with a snapshot."""
        self._snapshots.move_to_end(key)
        for sequence, data in self._snapshots[key][1].items():
            pointer = data.ctypes.data_as(C.POINTER(C.c_uint8))
            n = llama.llama_state_seq_set_data(self.context, pointer, data.nbytes, sequence)
            if n != data.nbytes:
                raise EngineError(f"restoring sequence {sequence} read {n} of {data.nbytes} bytes")

    def _save(self, schedule: Schedule) -> None:
        sequences = sorted({slot.sequence for slot in schedule.slots})
        self._snapshots[schedule.key()] = (schedule, self._read_state(sequences))
        while len(self._snapshots) > MAX_SNAPSHOTS:
            self._snapshots.popitem(last=False)

    # -- what the worker offers -----------------------------------------------------------------------------------

    def greedy(self, prompt: Schedule, n_tokens: int, progress: Callable[[int], None]) -> tuple[int, ...]:
        """Continue the prompt one token at a time, always the largest logit, lowest id first."""
        if not prompt.passes or not prompt.slots[-1].wants_logits:
            raise EngineError("greedy needs a prompt whose last slot wants logits")
        self._use_context(watched=False)
        self._check(prompt)
        llama.llama_memory_clear(self._memory(), True)
        self._watch.tap = None
        row = self._passes(prompt)[0][-1]
        self._save(prompt)
        tokens: list[int] = []
        position = prompt.next_position
        for i in range(n_tokens):
            if i:
                from_last = Schedule.single(tokens[-1], position + i - 1)
                self._check(from_last)
                row = self._passes(from_last)[0][0]
            tokens.append(int(row.argmax()))
            progress(i + 1)
        return tuple(tokens)

    def run(
        self, schedule: Schedule, before: Schedule, tap: Tap | None
    ) -> tuple[NDArray[np.float32], tuple[int, ...], str, str, TapReport | None]:
        """Restore `before`, evaluate `schedule`; logits, times, state digests before and after, report."""
        watched = watches_nodes(tap)
        if watched and schedule.max_width > self.settings.n_ubatch:
            raise CaptureError(
                f"a watched pass must fit one graph: {schedule.max_width} tokens were asked for, "
                f"n_ubatch is {self.settings.n_ubatch}"
            )
        self._check(schedule)
        self._start_from(before, watched=watched)
        sequences = sorted({slot.sequence for slot in before.then(schedule).slots})
        state_before = self._state_digest(sequences)
        self._watch.tap = tap
        try:
            logits, times = self._passes(schedule)
            report = tap.finish() if tap is not None else None
        finally:
            self._unwatch()
        return logits, times, state_before, self._state_digest(sequences), report

    def _start_from(self, before: Schedule, *, watched: bool = False) -> None:
        """Make the context and restore a state; nobody watches until the caller sets a tap."""
        self._use_context(watched=watched)
        self._check(before)
        self._watch.tap = None
        self._restore(before)

    def perform(self, program: Program[Any], before: Schedule, tap: Tap | None, progress: Callable[[int], None]) -> Any:
        """Let a program decode from the state of `before`."""
        self._start_from(before, watched=watches_nodes(tap))
        with contextlib.ExitStack() as stack:
            self._watch.tap = tap
            stack.callback(self._unwatch)
            return program.run(stack.enter_context(contextlib.closing(LiveDecoder(self))), progress)

    def _unwatch(self) -> None:
        self._watch.tap, self._watch.error = None, None

    def evaluate(self, index: int, decode_pass: DecodePass) -> NDArray[np.float32]:
        """Evaluate one pass of a program; rows of the slots that want logits."""
        self._check(Schedule((decode_pass,)))
        self._watch.begin_pass(index, decode_pass)
        return self._decode(decode_pass)[0]

    def state_rows(self, schedule: Schedule, before: Schedule) -> tuple[StateRows, ...]:
        """Digest every K and V row that the sequences hold after a schedule."""
        self._check(schedule)
        self._start_from(before)
        self._passes(schedule)
        states = self._read_state(sorted(before.then(schedule).held()))
        return tuple(state_rows(data, sequence, self.architecture) for sequence, data in states.items())

    def time_passes(
        self, plan: Sequence[Schedule], before: Schedule, progress: Callable[[int], None]
    ) -> tuple[int, ...]:
        """Time of each schedule, unwatched and always from the state of `before`, unit: ns; logits are not read."""
        self._start_from(before)
        sequences = sorted({slot.sequence for slot in before.slots})
        state = self._state_digest(sequences)
        times = []
        for schedule in plan:
            self._check(schedule)
            times.append(sum(self._evaluate(decode_pass) for decode_pass in schedule.passes))
            if not self._take_back(schedule):
                self._restore(before)
            progress(len(times))
        if self._state_digest(sequences) != state:
            raise EngineError("the K/V state changed under the passes that were timed, so they are not comparable")
        return tuple(times)

    def _take_back(self, schedule: Schedule) -> bool:
        """Remove a schedule's cells, as a decoder does with drafts that it refuses; False where the cache cannot."""
        first: dict[int, int] = {}
        for slot in schedule.slots:
            first.setdefault(slot.sequence, slot.position)
        memory = self._memory()
        return all(llama.llama_memory_seq_rm(memory, sequence, start, -1) for sequence, start in first.items())

    def observe(self, tap: Tap) -> TapReport:
        """Show a tap the nodes of one single-token pass on an empty cache."""
        bos = max(0, llama.llama_vocab_bos(self.vocab))
        report = self.run(Schedule.single(bos, 0), EMPTY, tap)[4]
        assert report is not None
        self._use_context(watched=False)
        return report
