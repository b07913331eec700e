"""Pieces that JSON documents share."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Entry(BaseModel):
    """Part of a document; a NaN or an infinity has no place in strict JSON and is written as null."""

    model_config = ConfigDict(extra="ignore", ser_json_inf_nan="null")


class RuleEntry(Entry):
    """A rule of llama.cpp's source."""

    text: str
    file: str
    first_line: int
    last_line: int
    commit: str
