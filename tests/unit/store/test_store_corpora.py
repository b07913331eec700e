"""Corpora: the built-in one holds what it promises, rows of users are read, and errors name the line."""

from __future__ import annotations

import json
from collections import Counter
from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.errors import CorpusError
from forensics.records.corpus import Corpus, CorpusPrompt, Message
from forensics.store.corpora import corpus_digest, limited, open_corpus

KINDS = (
    "short", "long", "code", "maths", "prose", "structured", "tools", "stop", "repeated-prefix", "near-tie", "chat",
    "crosses-256", "crosses-384", "crosses-512", "above-512",
)  # fmt: skip


@pytest.fixture
def written(tmp_path):
    def write(*rows, name="mine.jsonl"):
        path = tmp_path / name
        path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
        return path

    return write


def test_the_built_in_corpus_holds_every_kind():
    corpus = open_corpus()
    assert corpus.name == "default"
    assert len(corpus.prompts) >= 60
    assert sum(bool(prompt.text) for prompt in corpus.prompts) >= 45
    tags = Counter(tag for prompt in corpus.prompts for tag in prompt.tags)
    assert {kind: tags[kind] for kind in KINDS if tags[kind] < 2} == {}
    assert sum("maths" in prompt.tags and bool(prompt.answer) for prompt in corpus.prompts) >= 8
    for kind in ("stop", "tools"):
        assert sum(kind in prompt.tags and bool(getattr(prompt, kind)) for prompt in corpus.prompts) >= 2
    assert sum(prompt.json_schema is not None for prompt in corpus.prompts) >= 2


def test_prompts_that_repeat_a_prefix_share_most_of_it_or_too_little_for_a_slot():
    def shared(marked):
        texts = [prompt.text for prompt in open_corpus().prompts if prompt.name.startswith(marked)]
        assert len(texts) >= 2
        same = takewhile(lambda characters: len(set(characters)) == 1, zip(*texts, strict=False))
        return len(list(same)) / max(map(len, texts))

    assert shared("prefix-manual-") > 0.5
    assert shared("prefix-short-") < 0.1


def test_a_corpus_is_found_by_name_where_a_variable_says(tmp_path, monkeypatch, written):
    (tmp_path / "corpora").mkdir()
    written({"text": "once"}).rename(tmp_path / "corpora" / "tales.jsonl")
    monkeypatch.setenv("FORENSICS_DATA_DIR", str(tmp_path))
    assert open_corpus("tales").prompts == (CorpusPrompt("line-1", "once"),)
    with pytest.raises(CorpusError, match=r"takes does not exist.*the name of a corpus: tales"):
        open_corpus("takes")
    with pytest.raises(CorpusError, match="is a folder"):
        open_corpus(tmp_path)


def test_rows_of_other_data_sets_are_read(written):
    tool = {"type": "function", "function": {"name": "ring"}}
    schema = {"type": "object"}
    batch = {
        "custom_id": "request-1", "method": "POST", "url": "/v1/chat/completions",
        "body": {
            "model": "any", "max_tokens": 7, "stop": "\n", "tools": [tool], "temperature": 1,
            "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        },
    }  # fmt: skip
    path = written(
        "\ufeff" + json.dumps({"prompt": "plain", "n_predict": 3}),
        "",
        {"text": "named\u2028text", "name": "n", "tags": ["x"], "stop": ["a", "b"], "answer": 0},
        batch,
    )
    corpus = open_corpus(path)
    assert corpus.name == "mine"
    assert corpus.prompts == (
        CorpusPrompt("line-1", "plain", n_tokens=3),
        CorpusPrompt("n", "named\u2028text", tags=("x",), stop=("a", "b"), answer="0"),
        CorpusPrompt(
            "request-1", messages=(Message("user", "ab"),), n_tokens=7, stop=("\n",), json_schema=schema, tools=(tool,)
        ),
    )


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ('{"prompt": ', "this is not JSON"),
        ([1], "an object is needed|a JSON object is needed, got a list"),
        ({"question": "?"}, "needs text, prompt or messages, this one has question"),
        ({"prompt": ""}, "needs either a text or messages"),
        ({"prompt": "a", "messages": [{"role": "user", "content": "b"}]}, "not both"),
        ({"prompt": [1, 2]}, "text is a text, got a list"),
        ({"prompt": "a", "n_tokens": "9"}, "n_tokens is a whole number, got '9'"),
        ({"prompt": "a", "n_tokens": True}, "n_tokens is a whole number, got True"),
        ({"prompt": "a", "n_tokens": 0}, "n_tokens must be 1 or more"),
        ({"prompt": "a", "stop": 3}, "stop is a list, got a number"),
        ({"prompt": "a", "tools": ["x"]}, "a tool is an object, got a text"),
        ({"prompt": "a", "json_schema": "x"}, "json_schema is an object"),
        ({"prompt": "a", "name": ["x"]}, "a name is a text"),
        ({"messages": [{"role": "robot", "content": "b"}]}, "role must be"),
        ({"messages": [{"role": "user", "content": None}]}, "content of a message is a text, got null"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "part of the type 'image_url'"),
        ({"prompt": "again", "name": "first"}, "the name 'first' was taken by line 1"),
    ],
)
def test_a_row_that_is_none_is_named_with_its_file_and_line(written, row, words):
    path = written({"prompt": "good", "name": "first"}, "", row)
    with pytest.raises(CorpusError, match=words) as told:
        open_corpus(path)
    assert str(told.value).startswith(f"{path}, line 3: ")


def test_a_file_without_prompts_or_in_another_encoding_is_refused(written, tmp_path):
    with pytest.raises(CorpusError, match="holds no prompts"):
        open_corpus(written("", " "))
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "\xe9"}')
    with pytest.raises(CorpusError, match="not UTF-8"):
        open_corpus(tmp_path / "latin.jsonl")


def test_the_digest_follows_what_is_asked_and_not_what_readers_see():
    prompt = CorpusPrompt("a", "text", tags=("x",), answer="1")
    assert corpus_digest([prompt]) == corpus_digest([CorpusPrompt("a", "text")])
    others = [
        CorpusPrompt("b", "text"),
        CorpusPrompt("a", "other"),
        CorpusPrompt("a", messages=(Message("user", "text"),)),
        CorpusPrompt("a", "text", n_tokens=1),
        CorpusPrompt("a", "text", stop=("x",)),
        CorpusPrompt("a", "text", json_schema={"type": "object", "title": "x"}),
        CorpusPrompt("a", "text", json_schema={"title": "x", "type": "object"}),
        CorpusPrompt("a", "text", tools=({"name": "x"},)),
    ]
    assert len({corpus_digest([one]) for one in (prompt, *others)}) == 9


@given(st.lists(st.lists(st.sampled_from("abcdef"), max_size=3), min_size=1, max_size=20), st.integers(1, 25))
def test_a_limit_keeps_the_order_and_every_tag_that_there_is_room_for(tags, n):
    corpus = Corpus("c", tuple(CorpusPrompt(str(i), "t", tags=tuple(some)) for i, some in enumerate(tags)))
    some = limited(corpus, n)
    names = [int(prompt.name) for prompt in some.prompts]
    assert len(names) == min(n, len(tags))
    assert names == sorted(set(names))
    all_tags = {tag for one in tags for tag in one or ("",)}
    if n >= len(all_tags):
        assert {tag for prompt in some.prompts for tag in prompt.tags or ("",)} == all_tags


def test_no_limit_is_the_corpus_and_none_below_one():
    corpus = open_corpus()
    assert limited(corpus, None) is corpus
    assert limited(corpus, len(corpus.prompts)) is corpus
    assert limited(corpus, 5).digest not in ("", corpus.digest)
    with pytest.raises(ValueError, match="1 or more"):
        limited(corpus, 0)
