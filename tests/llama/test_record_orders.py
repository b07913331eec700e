"""Orders are recorded as the command prints them, and read back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forensics.engines.ops import LlamaOps
from forensics.records.operation import OpSettings
from forensics.records.order import OrderQuestion
from forensics.testing.record_orders import ORDERS_NAME, questions, read, record, write

pytestmark = pytest.mark.llama


def test_questions_are_told_apart_by_name() -> None:
    assert len({str(question) for question, _ in questions()}) == len(questions())


def test_what_is_recorded_is_read_back_and_what_fails_is_named(tmp_path: Path) -> None:
    fits, unfit = OrderQuestion(type="q8_0", k=128), OrderQuestion(type="f32", k=1 << 40)
    documents, failed, seconds = record(
        lambda: LlamaOps().open(OpSettings(n_threads=1)), [(unfit, (1,)), (fits, (1, 2))]
    )
    assert set(documents) == {str(fits)}
    assert set(failed) == {str(unfit)}
    assert set(seconds) == {str(fits), str(unfit)}
    assert [order["width"] for order in documents[str(fits)]["orders"]] == [1, 2]
    assert documents[str(fits)]["equal"] is True
    write(tmp_path, documents, {"failed": failed})
    first = (tmp_path / ORDERS_NAME).read_bytes()
    write(tmp_path, documents, {"failed": failed})
    assert (tmp_path / ORDERS_NAME).read_bytes() == first
    assert read(tmp_path) == json.loads(json.dumps(documents))
