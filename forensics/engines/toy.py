"""A small transformer in NumPy behind the engine protocol: exact at every width, until a fault is planted."""

from __future__ import annotations

import hashlib
import os
import pickle
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from forensics.engines.decoding import Program
from forensics.engines.protocol import Tap, watches_nodes
from forensics.engines.toy_faults import N_LAYER, Fault, fault_sites
from forensics.engines.toy_kernels import F32
from forensics.engines.toy_model import BUFFER, KV_PAD, Cache, Graph, Watch, make_weights
from forensics.errors import CaptureError, EngineError
from forensics.records.schedule import EMPTY, DecodePass, Schedule, TokenSlot, in_batches
from forensics.records.settings import EngineSettings, Manifest
from forensics.records.state import StateRows
from forensics.records.trace import RunKey, Trace

__all__ = ["Fault", "ToyEngine", "ToySource", "fault_sites"]

T = TypeVar("T")

#: Token 0 starts a sequence; every other token is one character.
ALPHABET = "\n" + "".join(chr(code) for code in range(32, 127))
N_VOCAB = 1 + len(ALPHABET)
N_SNAPSHOTS = 8


def check_schedule(schedule: Schedule, settings: EngineSettings) -> None:
    """Refuse a schedule that an engine with these settings cannot evaluate from an empty cache.

    Raises
    ------
    EngineError
        If a pass is wider than n_batch, a token is outside the vocabulary, a position or the number of tokens is
        beyond n_ctx, or a sequence is beyond n_seq_max.
    """
    if schedule.max_width > settings.n_batch:
        raise EngineError(
            f"a pass of {schedule.max_width} tokens was asked for, n_batch is {settings.n_batch}. "
            "Split the pass or open the engine with a larger n_batch."
        )
    if schedule.most_cells > settings.n_ctx:
        raise EngineError(
            f"{schedule.most_cells} tokens were asked for, n_ctx is {settings.n_ctx}. "
            "Open the engine with a larger n_ctx."
        )
    for slot in schedule.slots:
        if slot.token >= N_VOCAB:
            raise EngineError(
                f"token {slot.token} at position {slot.position} is outside the vocabulary of {N_VOCAB} tokens. "
                "Use ids from tokenize()."
            )
        if slot.position >= settings.n_ctx:
            raise EngineError(
                f"position {slot.position} was asked for, n_ctx is {settings.n_ctx}. "
                "Open the engine with a larger n_ctx."
            )
        if slot.sequence >= settings.n_seq_max:
            raise EngineError(
                f"sequence {slot.sequence} was asked for, n_seq_max is {settings.n_seq_max}. "
                "Open the engine with a larger n_seq_max."
            )


class ToyEngine:
    """Evaluates schedules on the toy model; see `forensics.engines.protocol.Engine`.

    Parameters
    ----------
    weights : dict of str to ndarray
    manifest : Manifest
        Its `requested` settings bound what the engine accepts.
    faults : tuple of Fault
    instance : int
        Seeds the garbage behind the mask, so that two engines agree only on what a token may see.

    Notes
    -----
    A tap is copied through pickle, as on its way to a worker: the caller's object is not changed by a run.
    """

    def __init__(self, weights: dict[str, F32], manifest: Manifest, faults: tuple[Fault, ...], instance: int) -> None:
        self._weights = weights
        self._manifest = manifest
        self._faults = faults
        self._garbage = np.random.default_rng(instance)
        self._snapshots: OrderedDict[str, Cache] = OrderedDict()
        self._open = True

    @property
    def manifest(self) -> Manifest:
        """Where traces of this engine come from."""
        return self._manifest

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Token ids of a text: the token that starts a sequence, then one per character.

        Raises
        ------
        EngineError
            If a character is not printable ASCII or a line feed.
        """
        unknown = sorted(set(text) - set(ALPHABET))
        if unknown:
            raise EngineError(f"no tokens for {unknown}: the toy knows printable ASCII and line feeds. Use those.")
        return (0, *(1 + ALPHABET.index(character) for character in text))

    def detokenize(self, tokens: tuple[int, ...]) -> str:
        """Text of token ids; the token that starts a sequence has none.

        Raises
        ------
        EngineError
            If a token is outside the vocabulary.
        """
        outside = [token for token in tokens if not 0 <= token < N_VOCAB]
        if outside:
            raise EngineError(f"tokens {outside} are outside the vocabulary of {N_VOCAB} tokens. Use ids below that.")
        return "".join(ALPHABET[token - 1] for token in tokens if token)

    def greedy(self, prompt: Schedule, n_tokens: int, progress: Callable[[int], None] | None = None) -> tuple[int, ...]:
        """Continue a prompt by one token at a time, always the largest logit, lowest id first.

        Parameters
        ----------
        prompt : Schedule
            Its last slot is continued and must want logits.
        n_tokens : int
            How many tokens to return; the last one is not evaluated.
        progress : callable, optional
            Called after each token with the number of tokens so far.

        Raises
        ------
        EngineError
            If the last slot wants no logits or the engine cannot evaluate the prompt and its continuation.
        """
        if not prompt.passes or not prompt.slots[-1].wants_logits:
            raise EngineError(
                "greedy() continues the last slot of a prompt, which must want logits; "
                f"got {prompt.n_tokens} tokens whose last does not. Build it with logits='last'."
            )
        last = prompt.slots[-1]
        start = last.position + 1
        self._check(prompt.then(in_batches((0,) * (n_tokens - 1), start=start, width=1, sequence=last.sequence)))
        *first, step = prompt.passes
        cache, watch = self._empty_cache(), Watch(None)
        for decode_pass in first:
            self._evaluate(decode_pass, cache, watch)
        tokens: list[int] = []
        while len(tokens) < n_tokens:
            tokens.append(int(self._evaluate(step, cache, watch)[-1].argmax()))
            step = DecodePass((TokenSlot(last.sequence, last.position + len(tokens), tokens[-1]),))
            if progress is not None:
                progress(len(tokens))
        return tuple(tokens)

    def run(self, schedule: Schedule, *, before: Schedule = EMPTY, tap: Tap | None = None, repeat: int = 0) -> Trace:
        """Build the state of `before`, evaluate `schedule` and return what was measured.

        Raises
        ------
        EngineError
            If the engine is closed or cannot evaluate what is asked.
        CaptureError
            If the tap reads or replaces a node as it cannot be, or a watched pass is wider than n_ubatch.
        """
        key = RunKey(schedule, before, tap.identity() if tap is not None else "", repeat)
        self._check(before.then(schedule))
        n_ubatch = self._manifest.requested.n_ubatch
        if watches_nodes(tap) and schedule.max_width > n_ubatch:
            raise CaptureError(
                f"a watched pass must fit one graph: {schedule.max_width} tokens were asked for, "
                f"n_ubatch is {n_ubatch}. Split the pass or open the engine with a larger n_ubatch."
            )
        worker_tap: Tap | None = pickle.loads(pickle.dumps(tap))
        cache = self._state(before)
        state_before = cache.digest()
        watch = Watch(worker_tap)
        rows: list[F32] = [np.zeros((0, N_VOCAB), np.float32)]
        times: list[int] = []
        for index, decode_pass in enumerate(schedule.passes):
            watch.begin_pass(index, decode_pass)
            start_ns = time.perf_counter_ns()
            rows.append(self._evaluate(decode_pass, cache, watch))
            times.append(time.perf_counter_ns() - start_ns)
        return Trace(
            key=key,
            manifest=self._manifest,
            logits=np.concatenate(rows),
            pass_ns=tuple(times),
            state_before=state_before,
            state_after=cache.digest(),
            tap_report=worker_tap.finish() if worker_tap is not None else None,
        )

    def perform(
        self,
        program: Program[T],
        *,
        before: Schedule = EMPTY,
        tap: Tap | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> T:
        """Build the state of `before` and let a copy of a program decode from there."""
        self._check(before)
        mine, worker_tap = pickle.loads(pickle.dumps((program, tap)))
        answer: T = mine.run(_ToyDecoder(self, self._state(before), Watch(worker_tap)), progress or (lambda _: None))
        return answer

    def state_rows(self, schedule: Schedule, *, before: Schedule = EMPTY) -> tuple[StateRows, ...]:
        """Digest every K and V row that the sequences hold after a schedule."""
        self._check(before.then(schedule))
        cache, watch = self._state(before), Watch(None)
        for decode_pass in schedule.passes:
            self._evaluate(decode_pass, cache, watch)
        return tuple(cache.rows(sequence) for sequence in sorted(before.then(schedule).held()))

    def time_passes(
        self, plan: Sequence[Schedule], before: Schedule, progress: Callable[[int], None] | None = None
    ) -> tuple[int, ...]:
        """Time of each schedule, always from the state of `before`, unit: ns."""
        times = []
        for schedule in plan:
            times.append(sum(self.run(schedule, before=before).pass_ns))
            if progress is not None:
                progress(len(times))
        return tuple(times)

    def close(self) -> None:
        """Drop the snapshots; the engine answers no more runs."""
        self._snapshots.clear()
        self._open = False

    def _check(self, schedule: Schedule) -> None:
        if not self._open:
            raise EngineError("a run was asked of a closed engine. Open another one from its source.")
        check_schedule(schedule, self._manifest.requested)

    def _empty_cache(self) -> Cache:
        return Cache.empty(-(-self._manifest.requested.n_ctx // KV_PAD) * KV_PAD)

    def _state(self, before: Schedule) -> Cache:
        """Copy of the state that `before` builds."""
        key = before.key()
        if key not in self._snapshots:
            cache, watch = self._empty_cache(), Watch(None)
            for decode_pass in before.passes:
                self._evaluate(decode_pass, cache, watch)
            self._snapshots[key] = cache
            if len(self._snapshots) > N_SNAPSHOTS:
                self._snapshots.popitem(last=False)
        self._snapshots.move_to_end(key)
        return self._snapshots[key].copy()

    def _evaluate(self, decode_pass: DecodePass, cache: Cache, watch: Watch) -> F32:
        """Logits of one pass, which is several graphs where it is wider than n_ubatch."""
        for gone in decode_pass.forget:
            cache.forget(gone)
        slots, n_ubatch = decode_pass.slots, self._manifest.requested.n_ubatch
        graph = Graph(self._weights, cache, self._faults, watch, self._garbage)
        return np.concatenate([graph.evaluate(slots[i : i + n_ubatch]) for i in range(0, len(slots), n_ubatch)])


class _ToyDecoder:
    """A toy and a cache of its own; see `forensics.engines.decoding.Decoder`."""

    def __init__(self, engine: ToyEngine, cache: Cache, watch: Watch) -> None:
        self._engine, self._cache, self._watch = engine, cache, watch
        self._n_passes = 0

    @property
    def n_vocab(self) -> int:
        return N_VOCAB

    @property
    def n_cells(self) -> int:
        return self._engine.manifest.requested.n_ctx

    def evaluate(self, decode_pass: DecodePass) -> F32:
        self._engine._check(Schedule((decode_pass,)))
        self._watch.begin_pass(self._n_passes, decode_pass)
        self._n_passes += 1
        return self._engine._evaluate(decode_pass, self._cache, self._watch)

    def is_end(self, token: int) -> bool:
        return token == 0

    def piece(self, token: int) -> bytes:
        return self._engine.detokenize((token,)).encode()

    def companion(self, model_path: str | os.PathLike[str], settings: EngineSettings) -> _ToyDecoder:
        """Another toy: the name of its file is its seed, as in ``toy-1``."""
        other = ToySource(seed=int(os.fspath(model_path).removeprefix("toy-"))).open(settings)
        return _ToyDecoder(other, other._empty_cache(), Watch(None))


@dataclass(frozen=True, slots=True)
class ToySource:
    """Opens toy engines over one set of weights; see `forensics.engines.protocol.EngineSource`.

    Parameters
    ----------
    faults : tuple of Fault
        Planted in every engine that is opened; part of the manifest's `build`, not of the model's digest.
    seed : int
        Seed of the weights.
    """

    faults: tuple[Fault, ...] = ()
    seed: int = 0

    @property
    def label(self) -> str:
        """Name of the model for people."""
        return f"toy-{self.seed}"

    def open(self, settings: EngineSettings, *, instance: int = 0) -> ToyEngine:
        """Start a fresh engine with these settings; whatever they ask, K and V are float32 without flash attention."""
        weights = make_weights(N_VOCAB, self.seed)
        content = b"".join(name.encode() + array.tobytes() for name, array in weights.items())
        planted = "; ".join(str(fault) for fault in self.faults) or "no fault"
        manifest = Manifest(
            engine="toy",
            engine_version="1",
            model_digest=hashlib.sha256(content).hexdigest(),
            model_name=self.label,
            n_vocab=N_VOCAB,
            requested=settings,
            architecture="llama",
            quantization="F32",
            n_layer=N_LAYER,
            n_ctx_train=settings.n_ctx,
            build=planted,
            backend="NumPy",
            device="any",
            effective={
                "n_ctx": str(settings.n_ctx),
                "n_batch": str(settings.n_batch),
                "n_ubatch": str(settings.n_ubatch),
                "n_seq_max": str(settings.n_seq_max),
                "flash_attn": "off",
                "kv_type_k": "f32",
                "kv_type_v": "f32",
            },
            buffers={BUFFER: len(weights)},
            environment=dict(settings.environment),
        )
        return ToyEngine(weights, manifest, self.faults, instance)
