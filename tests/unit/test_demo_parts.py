"""The parts of the demo that need no process: its plan, its tools, its script, its ledger, its board."""

from __future__ import annotations

import importlib.util
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from turnkeep.demo.calls import DECLARED, policy_of, recorded_calls
from turnkeep.demo.director import Moment, plan
from turnkeep.demo.events import (
    Acknowledged,
    Ended,
    Killed,
    ModelStarted,
    Moved,
    PostgresStarted,
    Recovered,
    Target,
    Undisturbed,
    Unseen,
    WorkerStarted,
)
from turnkeep.demo.exchanges import exchanges, posted, user_text
from turnkeep.demo.ledger import LedgerFile, Request, read_ledger
from turnkeep.demo.outside import Mark, OutsideFile, OutsideReader
from turnkeep.demo.run import run_demo
from turnkeep.demo.script import load_scripts
from turnkeep.demo.show import Board
from turnkeep.demo.tools import World, agents
from turnkeep.errors import ConfigurationError
from turnkeep.runner.effects import Policy
from turnkeep.testing.script import choose

SCRIPTS = load_scripts()
MESSAGES = sum(len(script.transcript()) for script in SCRIPTS)


def test_a_seed_plans_kills_of_all_kinds_in_an_order_of_its_own() -> None:
    plans = [plan(seed, MESSAGES) for seed in range(50)]
    assert plans[7] == plan(7, MESSAGES)
    assert len({tuple((kill.target, kill.moment) for kill in kills) for kills in plans}) > 25
    for kills in plans:
        assert len(kills) >= 8
        assert {kill.target for kill in kills} == set(Target)
        assert {kill.moment for kill in kills} == set(Moment)
        assert [kill.after for kill in kills] == sorted(kill.after for kill in kills)
        assert 0 < kills[0].after < kills[-1].after < MESSAGES
        assert all(kill.count >= 1 for kill in kills)
        assert Moment.TRANSACTION in [kill.moment for kill in kills[:6]]


def test_every_tool_is_declared_once_and_every_policy_is_shown() -> None:
    tools = {call.tool for call in recorded_calls(SCRIPTS).values()}
    declared = Counter(name for names in DECLARED.values() for name in names.split())
    assert set(declared) == tools
    assert set(declared.values()) == {1}
    policies = Counter(call.policy for call in recorded_calls(SCRIPTS).values())
    assert set(policies) == {Policy.RERUN, Policy.TRANSACTIONAL, Policy.REPORT}
    assert min(policies.values()) >= 20
    assert {policy_of(name) for name in ("send_message", "notify", "page", "deploy")} == {Policy.REPORT}
    assert {policy_of(name) for name in ("book_slot", "create_issue")} == {Policy.TRANSACTIONAL}
    failed = [
        call for call in recorded_calls(SCRIPTS).values() if call.policy is Policy.TRANSACTIONAL and call.is_error
    ]
    assert failed
    assert not any(call.has_effect for call in failed)


def test_no_two_calls_have_one_place() -> None:
    calls = sum(len(step.tool_calls) for script in SCRIPTS for turn in script.turns for step in turn.steps)
    assert len(recorded_calls(SCRIPTS)) == calls == 226


def test_the_model_says_what_was_recorded() -> None:
    script = exchanges(SCRIPTS)
    assert len({exchange.user for exchange in script}) == len(script) == 106
    for conversation in SCRIPTS:
        messages: list[dict[str, Any]] = []
        for turn in conversation.turns:
            messages.append(posted(turn))
            for step in turn.steps:
                for message in step.messages:
                    if message["role"] == "assistant":
                        place, reply = choose(script, {"messages": messages})
                        assert place.user == user_text(turn)
                        assert reply.content == message["content"]
                        calls = [{"id": c.id, "name": c.name, "arguments": c.arguments} for c in reply.tool_calls]
                        assert calls == list(step.tool_calls)
                    messages.append(message)


def test_what_is_posted_is_a_user_s_message_that_any_server_takes() -> None:
    for script in SCRIPTS:
        for turn in script.turns:
            message = posted(turn)
            assert message["role"] == "user"
            assert isinstance(message["content"], str | list)
            assert message["metadata"] == turn.input["metadata"]
            if isinstance(turn.input["content"], dict):
                assert json.loads(str(message["content"])) == turn.input["content"]


def test_every_call_passes_the_validation_of_its_tool(tmp_path: Path) -> None:
    made = agents(SCRIPTS, World(SCRIPTS, "test", tmp_path / "outside", paced=True), "http://127.0.0.1:1/v1")
    for script, agent in zip(SCRIPTS, made, strict=True):
        assert agent.name == script.agent_id
        for turn in script.turns:
            for step in turn.steps:
                for call in step.tool_calls:
                    tool = agent.tool(call["name"])
                    assert tool is not None
                    assert tool.policy is policy_of(call["name"])
                    assert tool.validated(json.dumps(call["arguments"])) == call["arguments"]


def test_a_ledger_comes_back_from_its_file(tmp_path: Path) -> None:
    file = LedgerFile(tmp_path / "ledger.jsonl")
    first, second = (Request("c", number, f"c/{number}") for number in range(2))
    file.intend(first)
    file.acknowledge(first)
    file.intend(second)
    file.answer(first)
    file.close()
    again = read_ledger(file.path)
    assert again == file.ledger
    assert again.requests == {"c/0": first, "c/1": second}
    assert again.acknowledged == again.answered == {"c/0"}
    with pytest.raises(KeyError):
        again.take({"acknowledged": "never intended"})


def test_marks_are_read_as_they_come(tmp_path: Path) -> None:
    path = tmp_path / "outside.jsonl"
    reader = OutsideReader(path)
    assert reader.look() == []
    file = OutsideFile(path)
    begun, other = (Mark("c", 0, call_id, "psql", "key", 1, ended=False) for call_id in "ab")
    file.leave(begun)
    assert reader.look() == [begun]
    file.leave(other)
    file.leave(Mark("c", 0, "a", "psql", "key", 1, ended=True))
    with path.open("a") as unfinished:
        unfinished.write('{"conversation": "c", "tu')
    assert len(reader.look()) == 2
    assert reader.look() == []
    assert reader.under_way() == [other]


def test_without_the_packages_of_agents_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"openai and pydantic: pip install 'turnkeep\[openai\]'"):
        run_demo(Unseen(), seed=1, sabotage=False)


def test_the_board_fits_a_small_terminal() -> None:
    board = Board(SCRIPTS)
    names = tuple(script.external_id for script in SCRIPTS)
    board.tell(PostgresStarted("18.6", Path("/tmp/somewhere")))
    board.tell(ModelStarted(4_194_304))
    board.tell(WorkerStarted(12, 4_194_304))
    for number in range(1, 10):
        seen = "transaction of create_replacement" if number % 2 else "4 replies streaming"
        board.tell(Killed(number, Target.BOTH, seen, names))
        board.tell(Recovered(number, 12.34))
    for script in SCRIPTS:
        board.tell(Acknowledged(script.external_id, 46, 106))
        board.tell(Moved(script.external_id, len(script.transcript()), len(script.turns) - 1, 10))
    board.tell(Ended(names[0], "TurnFailedError: of some length, with the whole story"))
    board.tell(Ended(names[1]))
    board.tell(Moved(names[1], 1, 0, 0))
    board.tell(Undisturbed())
    output = io.StringIO()
    Console(file=output, width=80, height=24, force_terminal=True, color_system=None).print(board.render())
    lines = output.getvalue().splitlines()
    assert len(lines) <= 23
    assert max(map(len, lines)) <= 80
    assert all(any(line.startswith(name) for line in lines) for name in names)
    assert "kill 9" in lines[-1]
    assert next(line for line in lines if line.startswith(names[1])).rstrip().endswith("done")
    assert "…" not in output.getvalue()
