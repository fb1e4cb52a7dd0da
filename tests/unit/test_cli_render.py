"""What the command line prints, decided without any database."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from turnkeep import errors
from turnkeep.cli.failures import EXPLAINED, Exit, exit_code
from turnkeep.cli.jsonview import elements, load, pretty
from turnkeep.cli.text import ago, cut, duration, harmless_json, one_line, printable, short_ids, size
from turnkeep.cli.transcript import Part, read_call, read_message

CORPUS = Path(__file__).parent.parent / "corpus"
NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)


def parts(message: object) -> list[tuple[str, str, str]]:
    return [(part.kind, part.title, part.text) for part in read_message(json.dumps(message)).parts]


# -- text


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x9b2J", "\\x9b2J"),
        ("nul \0", "nul \\x00"),
        ("over\rwritten", "over\\rwritten"),
        ("windows\r\nline", "windows\nline"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("lone \ud800", "lone \\ud800"),
        ("hidden \U000e0041", "hidden \\U000e0041"),
        ("line\nbreak\ttab é 😀", "line\nbreak\ttab é 😀"),
    ],
)
def test_text_that_could_control_a_terminal_is_shown_as_escapes(hostile: str, shown: str) -> None:
    assert printable(hostile) == shown


def test_every_control_character_is_escaped() -> None:
    every = "".join(map(chr, [*range(0x20), *range(0x7F, 0xA0)]))
    assert not set(printable(every)) & (set(every) - {"\n", "\t"})
    assert not set(one_line(every)) & set(every)


def test_json_for_a_terminal_has_the_same_value() -> None:
    text = json.dumps({"a": "\x9b31m \x7f \u202e é"}, ensure_ascii=False)
    assert "\x9b" not in harmless_json(text)
    assert json.loads(harmless_json(text)) == json.loads(text)


def test_long_text_is_cut_by_characters_and_by_lines() -> None:
    assert cut("abc", 3, 10) == ("abc", 0)
    assert cut("abcdef", 4, 10) == ("abcd", 2)
    assert cut("a\nb\nc\nd", 100, 2) == ("a\nb", 4)
    assert cut("a\nb\n", 100, 2) == ("a\nb\n", 0)


def test_times_and_sizes_are_short() -> None:
    assert duration(timedelta(seconds=59)) == "59 s"
    assert duration(timedelta(seconds=-5)) == "0 s"
    assert duration(timedelta(minutes=61)) == "1 h"
    assert ago(NOW - timedelta(days=3), NOW) == "3 d ago"
    assert ago(NOW - timedelta(days=100), NOW) == "2026-08-21"
    assert (size(999), size(40_000_000), size(3_000_000_000)) == ("999 B", "40.0 MB", "3.0 GB")


def test_short_ids_tell_the_listed_ids_apart() -> None:
    ids = [uuid.UUID(int=1), uuid.UUID(int=2), uuid.UUID("12345678-0000-0000-0000-000000000000")]
    assert len(set(short_ids(ids))) == 3
    assert short_ids(ids[2:]) == ["12345678"]


# -- JSON


@pytest.mark.parametrize("array", ["[]", "[ ]", '[1e400, {"a" : [1,2]} ,"]"\n]', '[{"a":1,"a":2}]'])
def test_elements_are_the_exact_texts(array: str) -> None:
    expected = {"[]": [], "[ ]": [], '[{"a":1,"a":2}]': ['{"a":1,"a":2}']}
    assert elements(array) == expected.get(array, ["1e400", '{"a" : [1,2]}', '"]"'])


def test_numbers_are_shown_as_spelled() -> None:
    text = '{"n": [1e400, 1.50, -0, 123456789012345678901234567890], "e": {}, "l": []}'
    assert pretty(load(text)) == text
    long = json.dumps({"key": ["x" * 60, "y" * 60]})
    assert json.loads(pretty(load(long))) == json.loads(long)
    assert len(pretty(load(long)).splitlines()) == 6


# -- messages


def test_the_runners_messages_are_read() -> None:
    call = {"id": "c1", "name": "search", "arguments": {"q": "x"}}
    assert parts({"role": "assistant", "content": "Wait.", "metadata": {"tool_calls": [call]}}) == [
        ("text", "", "Wait."),
        ("call", "search", '{"q": "x"}'),
    ]
    tool = read_message(
        '{"role": "tool", "content": {"n": 1e400}, "metadata": {"tool_name": "s", "tool_call_id": "c1"}}'
    )
    assert (tool.role, tool.detail) == ("tool", "s c1")
    assert tool.parts == (Part("data", '{"n": 1e400}'),)


@pytest.mark.parametrize(
    ("message", "role", "expected"),
    [
        (
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{"}}],
            },
            "assistant",
            [("call", "f", "{")],
        ),
        (
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm"},
                    {"type": "tool_use", "id": "1", "name": "f", "input": {}},
                ],
            },
            "assistant",
            [("thought", "", "hm"), ("call", "f", "{}")],
        ),
        (
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "42"}]}],
            },
            "user",
            [("result", "", "42")],
        ),
        (
            {
                "lc": 1,
                "type": "constructor",
                "id": ["langchain", "AIMessage"],
                "kwargs": {"content": "hi", "type": "ai"},
            },
            "assistant",
            [("text", "", "hi")],
        ),
        ({"type": "human", "data": {"content": "hi", "type": "human"}}, "user", [("text", "", "hi")]),
        ({"from": "gpt", "value": "hi"}, "assistant", [("text", "", "hi")]),
        (
            {"kind": "response", "parts": [{"part_kind": "tool-call", "tool_name": "f", "args": {"a": 1}}]},
            "assistant",
            [("call", "f", '{"a": "1"}'.replace('"1"', "1"))],
        ),
        (
            {"kind": "request", "parts": [{"part_kind": "tool-return", "tool_name": "f", "content": "ok"}]},
            "tool",
            [("result", "f", "ok")],
        ),
        ({"role": "model", "parts": [{"functionCall": {"name": "f", "args": {}}}]}, "model", [("call", "f", "{}")]),
        ({"type": "function_call_output", "call_id": "1", "output": "ok"}, "tool", [("result", "", "ok")]),
        ({"what": "ever"}, "message", [("data", "", '{"what": "ever"}')]),
        ({"role": "user", "content": ""}, "user", [("data", "", '{"content": ""}')]),
    ],
)
def test_messages_of_many_frameworks_are_read(
    message: dict[str, Any], role: str, expected: list[tuple[str, str, str]]
) -> None:
    assert read_message(json.dumps(message)).role == role
    assert parts(message) == expected


def test_a_call_that_stands_in_two_places_is_shown_once() -> None:
    message = {
        "type": "ai",
        "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}],
        "tool_calls": [{"id": "1", "name": "f", "args": {}}, {"id": "2", "name": "f", "args": {}}],
    }
    assert [part.id for part in read_message(json.dumps(message)).parts] == ["1", "2"]


def test_a_message_without_one_value_is_shown_as_its_text() -> None:
    text = '{"role":"user","role":"tool","content":1}'
    assert read_message(text).parts == (Part("data", text),)
    deep = "[" * 100_000 + "]" * 100_000
    assert read_message(deep).parts == (Part("data", deep),)


def test_no_word_of_the_corpus_is_lost() -> None:
    """Every text, call and result that a person would look for is shown, whatever the framework."""
    words = {
        "openai_chat_parallel_tools.json": ["Weather in Tarn", '{"town":"Tarn","unit":"c"}', "room taken"],
        "anthropic_thinking_tools.json": ["First open it.", "screenshot", "800x600", "[image"],
        "langchain_dumps.json": ["calling", '{"k":', "done"],
        "pydantic_ai_messages.json": ["Be brief", "hmm", "Field required", '{"q":"cat"}'],
        "sharegpt.json": ["What is 3*3?", '{"e": "3*3"}'],
        "vllm_reasoning_content.json": ["I must call add.", "newer field name"],
    }
    for name, expected in words.items():
        shown = "\n".join(
            part.text + part.title for text in _objects(CORPUS / name) for part in read_message(text).parts
        )
        for word in expected:
            assert word in shown, (name, word)


def _objects(path: Path) -> list[str]:
    """Every JSON object of a file that looks like a message."""
    found: list[str] = []

    def walk(value: Any) -> None:
        if isinstance(value, dict) and {"role", "from", "parts", "lc", "data"} & set(value):
            found.append(json.dumps(value, ensure_ascii=False))
        elif isinstance(value, dict | list):
            for item in value.values() if isinstance(value, dict) else value:
                walk(item)

    walk(json.loads(path.read_text()))
    return found


def test_calls_of_any_shape_have_a_name() -> None:
    assert read_call('{"id":"1","function":{"name":"f","arguments":"{}"}}') == Part("call", "{}", "f", "1")
    assert read_call('{"name":"f","arguments":{"n":1e400}}').text == '{"n": 1e400}'
    assert read_call('"odd"').text == '"odd"'


# -- exit codes


def test_every_error_has_its_exit_code() -> None:
    assert exit_code(errors.NotFoundError()) is Exit.NOT_FOUND
    assert exit_code(errors.LeaseHeldError()) is exit_code(errors.KeyReusedError()) is Exit.CONFLICT
    assert exit_code(errors.ConversationEndedError()) is Exit.CONFLICT
    assert exit_code(errors.ReplyTimeoutError()) is Exit.NO_REPLY
    assert exit_code(errors.TurnFailedError("x")) is Exit.FAILURE
    assert exit_code(errors.UnavailableError()) is exit_code(errors.EmbeddedError()) is Exit.UNREACHABLE
    assert exit_code(errors.UnstorableError("a", "b")) is exit_code(errors.ConfigurationError()) is Exit.USAGE
    assert exit_code(errors.SchemaError()) is exit_code(errors.TurnkeepError()) is Exit.FAILURE
    assert set(EXPLAINED) == set(Exit)
