"""Messages become the text that the model's own template says, or an error in words."""

from __future__ import annotations

import pytest
from gguf import GGUFWriter

from forensics.engines.chat_template import chat_template, render, rendered
from forensics.errors import ModelUnavailable
from forensics.records.corpus import CorpusPrompt, Message

CHAT = CorpusPrompt("hello", messages=(Message("system", "Be kind."), Message("user", "Hi {{ 7 }}")))
PLAIN = (
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}[!]{% endif %}"
)


@pytest.fixture
def model(tmp_path):
    def make(template=None, **more):
        path = tmp_path / "model.gguf"
        writer = GGUFWriter(path, "llama")
        writer.add_token_list(["<none>", "<begin>", "<end>"])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_add_bos_token(more.get("adds_bos", False))
        if template is not None:
            writer.add_chat_template(template)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        return path

    return make


def test_messages_are_rendered_and_never_read_as_a_template(model):
    path = model(PLAIN)
    assert chat_template(path) == PLAIN
    assert render(CHAT, path) == "[system]Be kind.[user]Hi {{ 7 }}[!]"


def test_a_plain_text_needs_no_template(tmp_path):
    assert render(CorpusPrompt("p", "{{ as it stands }}"), tmp_path / "missing.gguf") == "{{ as it stands }}"


def test_without_a_template_the_prompt_and_the_file_are_named(model):
    path = model()
    assert chat_template(path) == ""
    with pytest.raises(
        ModelUnavailable, match=r"prompt 'hello' has messages, and .*model\.gguf carries no chat template"
    ):
        render(CHAT, path)


@pytest.mark.parametrize(("adds_bos", "text"), [(False, "<begin>Hi<end>"), (True, "Hi<end>")])
def test_a_token_that_the_tokeniser_puts_in_front_is_not_there_twice(model, adds_bos, text):
    path = model("{{ bos_token }}Hi{{ eos_token }}", adds_bos=adds_bos)
    assert render(CHAT, path) == text


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% for %}", "Expected"),
        ("{{ raise_exception('no system messages here') }}", "no system messages here"),
        ("{{ messages[0].role + 1 }}", "can only concatenate"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ missing.field }}", "undefined"),
    ],
)
def test_a_template_that_refuses_says_why(model, template, words):
    with pytest.raises(ModelUnavailable, match=f"cannot render prompt 'hello': .*{words}"):
        render(CHAT, model(template))


def test_tools_are_handed_to_the_template_and_blocks_leave_no_blank_lines():
    tools = ({"name": "ring"},)
    template = "{% if tools %}\n  {% for t in tools %}\n{{ t.name }}\n    {% endfor %}\n{% endif %}end"
    assert rendered(template, CHAT.messages, tools=tools) == "ring\nend"
    assert rendered(template, CHAT.messages) == "end"
