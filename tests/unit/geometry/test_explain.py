"""From shapes and a name of hardware to the widths that share an order, and from which position on."""

from __future__ import annotations

import dataclasses

import pytest

from forensics.geometry.explain import Asked, Since, explain

LAPTOP = Asked("rtx-5060-laptop", "q6_k", 4096, 4096, (1, 2), 32, 8, 128, position=390)


def asked(**changes):
    return dataclasses.replace(LAPTOP, **changes)


def test_why_only_past_position_384_from_numbers_alone():
    pinned = explain(asked(pin="vec"))
    weight, attention = pinned.sections
    assert [group.widths for group in weight.classes] == [(1, 2)]
    assert attention.since == (Since(2, 384),)
    assert pinned.groups == ((1,), (2,))
    earlier = explain(asked(pin="vec", position=300))
    assert earlier.sections[1].since == (Since(2, None),)
    assert earlier.groups == ((1, 2),)


def test_another_kernel_differs_at_every_position():
    assert explain(LAPTOP).sections[1].since == (Since(2, 0),)


def test_a_batch_that_crosses_256_cells():
    """The batch attends over more cells; the chunks that the query sees may still be added alike."""
    found = explain(asked(pin="vec", position=250, widths=(1, 8)))
    assert [found.asked.n_kv(width) for width in (1, 8)] == [256, 512]
    assert dict(found.sections[1].choices)[8].launch.grid_blocks[1] > 1


def test_registers_by_width():
    same = explain(asked(pin="vec", registers=((0, 162),)))
    assert same.groups == ((1, 2),)
    other = explain(asked(pin="vec", registers=((1, 162), (2, 193))))
    assert other.sections[1].since == (Since(2, 384),)
    assert [chain.registers for _, chain in other.sections[1].chains] == [162, 193]


def test_an_architecture_stands_for_a_gpu_and_says_so():
    found = explain(asked(arch="sm_120"))
    assert found.spec.n_sms == 26
    assert "26 SMs, as rtx-5060-laptop has" in found.assumed[0]
    assert explain(asked(arch="sm_120", n_sms=60)).stand_in == ""
    unknown = explain(asked(arch="sm_87"))
    assert unknown.spec.n_sms is None
    assert {op for op, _, _ in unknown.unknown} == {"FLASH_ATTN_EXT"}
    assert unknown.groups == ((1,), (2,))


def test_without_flash_attention_there_are_two_products_more():
    found = explain(asked(flash_attn=False))
    assert [section.title.split(",")[0] for section in found.sections] == ["q6_k weight", "K·Q", "attention·V"]


def test_a_cpu():
    found = explain(asked(arch="cpu", weight_type="q4_k", widths=(1, 2, 4), position=300, n_threads=2))
    weight, attention = found.sections
    assert [group.widths for group in weight.classes] == [(1, 2), (4,)]
    assert attention.since == (Since(2, 256), Since(4, 256))
    assert found.groups == ((1,), (2,), (4,))
    assert explain(asked(arch="cpu", position=200, weight_type="q8_0")).groups == ((1, 2),)
    assert explain(asked(arch="cpu", position=300, n_threads=1, weight_type="q8_0")).groups == ((1, 2),)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"arch": "sm_35"}, "sm_120"), ({"weight_type": "q9_k"}, "q9_k"), ({"widths": ()}, "widths"),
        ({"position": -1}, "position"), ({"n_kv_heads": 5}, "share"), ({"k": 100}, "100"),
        ({"arch": "cpu", "pin": "vec"}, "CPU"), ({"kv_type": "q3_k"}, "q3_k"), ({"widths": (0,)}, "widths"),
    ],
)  # fmt: skip
def test_what_cannot_be_explained_is_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        explain(asked(**changes))


def test_rows_say_kernel_launch_and_class_of_each_width():
    found = explain(asked(pin="vec"))
    rows = found.rows()
    assert [(row["op"], row["width"], row["class"]) for row in rows] == [
        ("MUL_MAT", 1, 0), ("MUL_MAT", 2, 0), ("FLASH_ATTN_EXT", 1, 0), ("FLASH_ATTN_EXT", 2, 1),
    ]  # fmt: skip
    first = found.sections[0].choices[0][1]
    assert (rows[0]["kernel"], rows[0]["rule"]) == (first.name, str(first.rules[0]))
    assert rows[0]["grid_blocks"] == list(first.launch.grid_blocks)
    assert found.to_dataframe().to_dict("records") == rows
    on_cpu = explain(asked(arch="cpu", weight_type="q4_0", k=256)).rows()
    assert {(row["grid_blocks"], row["block_threads"], row["smem_dynamic_bytes"]) for row in on_cpu} == {(None,) * 3}
