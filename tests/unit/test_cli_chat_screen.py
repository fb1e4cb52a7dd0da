"""How a reply looks that comes piece by piece."""

from __future__ import annotations

import json

import pytest

from turnkeep.cli.chat_screen import Screen
from turnkeep.cli.output import Output
from turnkeep.cli.post import reply_text


def reply(content: object, **metadata: object) -> str:
    return json.dumps({"role": "assistant", "content": content, "metadata": metadata})


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        (["a", "b\n"], "ab\n"),
        (["a\r", "\nb"], "a\nb\n"),
        (["a\r", "b"], "a\\rb\n"),
        (["a\r"], "a\\r\n"),
        (["\ud83d", "\ude00"], "😀\n"),
        (["\ud83d", "x"], "\\ud83dx\n"),
        (["\x1b", "[2J"], "\\x1b[2J\n"),
        (["", "\n"], "\n"),
    ],
)
def test_pieces_join_however_they_are_cut(pieces: list[str], shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(Output(), streaming=True)
    screen.ask()
    for piece in pieces:
        screen.piece(piece)
    screen.saved([reply("".join(pieces))])
    assert capsys.readouterr().out == shown


def test_what_did_not_come_in_pieces_is_shown_when_it_is_stored(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(Output(), streaming=True)
    screen.ask()
    screen.saved([reply(None, provider={"refusal": "I can not."})])
    assert capsys.readouterr().out == "I can not.\n"


def test_a_reply_that_begins_again_is_marked_once(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(Output(), streaming=True)
    screen.ask()
    screen.piece("wor")
    for _ in range(3):
        screen.lost("it broke")
        screen.ask()
    screen.piece("words")
    screen.saved([reply("words")])
    captured = capsys.readouterr()
    assert captured.out == "wor\nwords\n"
    assert captured.err == "… the model server was lost (it broke); asking again\n"


def test_messages_of_others_are_shown_and_what_was_typed_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(Output(), streaming=True)
    messages = [json.dumps({"role": "user", "content": f"m{number}"}) for number in range(8)]
    screen.before(messages)
    assert capsys.readouterr().err == "(2 earlier messages)\n> m2\n> m3\n> m4\n> m5\n> m6\n> m7\n"
    screen.typed = "mine"
    screen.others([*messages, json.dumps({"role": "user", "content": "mine"}), reply("yours")])
    assert capsys.readouterr().err == "yours\n"


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (reply("text\n"), "text\n"),
        (reply(None, provider={"content": None, "refusal": "no"}), "no"),
        (reply(""), ""),
        (reply([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), "a\nb"),
        ('{"role":"assistant","content":{"n":1e400}}', '{"n": 1e400}'),
        ('{"role":"assistant","content":"a","content":"b"}', '{"role":"assistant","content":"a","content":"b"}'),
    ],
)
def test_a_reply_is_its_content(message: str, said: str) -> None:
    assert reply_text(message) == said
