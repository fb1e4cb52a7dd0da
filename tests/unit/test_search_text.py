"""The words of messages in the shapes people store: what is read is there, what is only carried along is not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeep.search.text import KINDS, pieces, storable, words

CORPUS = Path(__file__).parents[1] / "corpus"


def said(message: Any, *include: Any) -> str:
    return words(json.dumps(message), include) if include else words(json.dumps(message))


def corpus() -> dict[str, list[Any]]:
    """Every message of every sample."""
    found: dict[str, list[Any]] = {}
    for path in sorted(CORPUS.glob("*.json")):
        value = json.loads(path.read_text())
        match path.stem:
            case "langchain_dumps":
                found[path.stem] = [*value["dumpd"], *value["messages_to_dict"], value[list(value)[-1]]]
            case "sharegpt":
                found[path.stem] = [message for one in value for message in one["conversations"]]
            case "branching_tree":
                tree = value["open_webui_like"]["history"]["messages"].values()
                found[path.stem] = [*value["parent_pointer_like"], *tree]
            case "agent_state_embedding_stream":
                found[path.stem] = [value["message"]]
            case _:
                found[path.stem] = value if isinstance(value, list) else value["messages"]
    return found


SAMPLES = corpus()


@pytest.mark.parametrize("name", SAMPLES)
def test_every_sample_gives_storable_words_and_nothing_that_is_only_carried_along(name: str) -> None:
    for message in SAMPLES[name]:
        text = said(message, *KINDS)
        text.encode()
        assert "\0" not in text
        assert not re.search(r"[A-Za-z0-9+/]{60,}", text), "base64"
        assert not re.search(r"data:\w+/|toolu_|call_[A-Z0-9]|chatcmpl-|run--|[0-9a-f]{8}-[0-9a-f]{4}-", text) or (
            name == "langchain_dumps" and "constructor" in text
        )


def expected(name: str) -> dict[str, str]:
    """What each kind comes to in a sample, the messages joined."""
    joined: dict[str, list[str]] = {}
    for message in SAMPLES[name]:
        for piece in pieces(json.dumps(message)):
            joined.setdefault(piece.kind, []).append(storable(piece.text).strip())
    return {kind: "|".join(text for text in texts if text) for kind, texts in joined.items()}


def test_openai_chat() -> None:
    found = expected("openai_chat_parallel_tools")
    assert found["system"] == "Answer briefly."
    assert found["user"] == "Weather in Tarn and Olveston, and book the blue room for 9.|yes|yes"
    assert found["call"].startswith('get_weather {"town":"Tarn","unit":"c"}|get_weather')
    assert found["tool"].split("|")[1:] == ['{"temp":-1,"sky":"snow"}', "Error: room taken until 09:30"]
    assert expected("openai_chat_refusal_audio") == {
        "system": "Voice helper",
        "user": "plan v2 (final).pdf",
        "assistant": "Good morning!|I can't help with that part.|No.|But here is a summary.",
        "tool": "legacy role",
    }
    assert expected("vllm_reasoning_content")["reasoning"] == "I must call add.|Call.|newer field name"


def test_anthropic() -> None:
    assert expected("anthropic_thinking_tools") == {
        "user": "What is on the page?|also: hurry",
        "reasoning": "First open it.\r\n\tThen read\xa0it.",
        "assistant": "Opening.|The click failed.",
        "call": "open_page https://p.example|screenshot|click",
        "tool": "<h1>Hi</h1>|800x600",
    }
    document = {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "D"}}
    assert said({"role": "user", "content": [document, {"type": "text", "text": "q"}]}) == "T\n\nD\n\nq"


def test_langchain() -> None:
    found = expected("langchain_dumps")
    assert (found["user"].split("|")[0], found["assistant"], found["tool"]) == ("hi", "calling|done", "ok")
    assert found["call"] == 'f|g {"k":'
    assert "must stay data" not in " ".join(found.values())


def test_pydantic_ai() -> None:
    found = expected("pydantic_ai_messages")
    assert (found["system"], found["user"], found["reasoning"]) == ("Be brief", "Look:", "hmm")
    assert found["call"] == 'find {"q":"cat"}|final_result'
    assert "Field required" in found["tool"]
    text = {"kind": "response", "parts": [{"content": "Done.", "part_kind": "text"}]}
    assert said(text) == "Done."


def test_sharegpt() -> None:
    assert expected("sharegpt") == {
        "user": "<image>\nWhat is 3*3?",
        "call": '{"name": "calc", "arguments": {"e": "3*3"}}',
        "tool": "9",
        "assistant": "9|(starts with the model)",
    }


@pytest.mark.parametrize(
    ("message", "kinds"),
    [
        (
            {"role": "model", "parts": [{"text": "a"}, {"text": "hm", "thought": True}]},
            {"assistant": "a", "reasoning": "hm"},
        ),
        ({"role": "model", "parts": [{"functionCall": {"name": "f", "args": {"q": "x"}}}]}, {"call": "f x"}),
        ({"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"r": "y"}}}]}, {"tool": "y"}),
        ({"role": "user", "parts": [{"inlineData": {"mimeType": "image/png", "data": "QUJD" * 99}}]}, {}),
        ({"content": {"role": "model", "parts": [{"text": "adk"}]}, "author": "a", "id": "e"}, {"assistant": "adk"}),
    ],
)
def test_gemini(message: Any, kinds: dict[str, str]) -> None:
    assert {piece.kind: piece.text for piece in pieces(json.dumps(message))} == kinds


@pytest.mark.parametrize(
    ("item", "kinds"),
    [
        (
            {"type": "message", "role": "assistant", "id": "msg_1", "content": [{"type": "output_text", "text": "a"}]},
            {"assistant": "a"},
        ),
        ({"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"q":1}'}, {"call": 'f {"q":1}'}),
        ({"type": "function_call_output", "call_id": "c", "output": "out"}, {"tool": "out"}),
        (
            {"type": "reasoning", "encrypted_content": "AAA", "summary": [{"type": "summary_text", "text": "s"}]},
            {"reasoning": "s"},
        ),
        ({"type": "web_search_call", "id": "w", "action": {"type": "search", "query": "q"}}, {"call": "search q"}),
        ({"type": "image_generation_call", "id": "i", "result": "iVBOR" * 200}, {"call": ""}),
    ],
)
def test_openai_responses(item: Any, kinds: dict[str, str]) -> None:
    assert {piece.kind: piece.text for piece in pieces(json.dumps(item))} == kinds


def test_turnkeeps_own() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q": "x"}'}}
    verbatim = {"reasoning_content": "let me think", "tool_calls": [call], "usage": {"total": 7}, "model": "qwen"}
    asked = {"role": "assistant", "content": None, "metadata": {"tool_calls": [call], "provider": verbatim}}
    assert [(piece.kind, piece.text) for piece in pieces(json.dumps(asked))] == [
        ("reasoning", "let me think"),
        ("call", 'find {"q": "x"}'),
    ]
    answered = {"role": "tool", "content": {"hits": ["one"]}, "metadata": {"tool_name": "find", "tool_call_id": "c1"}}
    assert said(answered, "tool") == "one"
    assert said(answered) == ""


def test_what_is_not_known_gives_its_strings_but_no_bookkeeping() -> None:
    event = {"event": "note", "payload": {"body": ["first", {"deep": "second"}], "id": "abc", "blob": "QUJD" * 100}}
    assert said(event) == "note\n\nfirst\n\nsecond"
    assert said({"role": "narrator", "content": "Once upon a time"}) == "Once upon a time"
    assert said({"a": "data:image/png;base64,AAAA"}) == ""


def test_odd_characters_become_storable() -> None:
    assert storable("W\0s\0l") == "Wsl"
    assert storable("cut \ud83d, pair 😀") == "cut \ufffd, pair 😀"


def test_values_that_python_can_not_hold_or_nest_do_no_harm() -> None:
    assert words('{"role": "user", "content": "ok", "n": ' + "9" * 5000 + ', "e": 1e999}') == "ok"
    deep = '{"a":' * 450 + '"leaf"' + "}" * 450
    assert words(deep) == "leaf"
    block = '{"role":"user","content":' + '[{"type":"tool_result","content":' * 240 + '"x"' + "}]" * 240 + "}"
    assert words(block, KINDS)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["role", "content", "parts", "type", "text", "kwargs", "lc", "data", "tool_calls", "x", "id"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)


@given(JSON)
def test_whatever_is_stored_has_words_that_can_be_stored(value: Any) -> None:
    text = words(json.dumps(value), KINDS)
    text.encode()
    assert "\0" not in text
