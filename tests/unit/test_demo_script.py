"""The shipped conversations are well-formed, varied, and exact."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from importlib import resources
from itertools import pairwise
from typing import Any

import pytest

from turnkeep.demo.script import Script, ScriptTurn, load_scripts

SCRIPTS = load_scripts()
each_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.external_id)


def texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from texts_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts_in(item)


def calls_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    return list(message["metadata"].get("tool_calls", ()))


def all_turns() -> Iterator[ScriptTurn]:
    for script in SCRIPTS:
        yield from script.turns


def test_there_are_twelve_and_exactly_one_has_47_turns() -> None:
    lengths = sorted(len(script.turns) for script in SCRIPTS)
    assert len(SCRIPTS) == 12
    assert lengths[-1] == 47
    assert all(3 <= length <= 9 for length in lengths[:-1])


def test_ids_and_titles_are_unique() -> None:
    assert len({script.external_id for script in SCRIPTS}) == len(SCRIPTS)
    assert len({script.title for script in SCRIPTS}) == len(SCRIPTS)


def test_files_are_named_by_their_external_id_and_are_exact_json() -> None:
    folder = resources.files("turnkeep").joinpath("demo", "conversations")
    names = set()
    for file in folder.iterdir():
        text = file.read_bytes().decode("utf-8")
        data = json.loads(text)
        assert json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n" == text, file.name
        assert file.name == f"{data['external_id']}.json"
        names.add(data["external_id"])
    assert names == {script.external_id for script in SCRIPTS}


@each_script
def test_every_call_has_exactly_one_result_before_the_turn_ends(script: Script) -> None:
    for number, turn in enumerate(script.turns):
        pending: list[str] = []
        for step in turn.steps:
            assert not (step.tool_calls and pending), f"turn {number}: asks the model with calls pending"
            pending += [call["id"] for call in step.tool_calls]
            assert len(set(pending)) == len(pending), f"turn {number}: one id twice among pending calls"
            for result in step.tool_results:
                pending.remove(result["tool_call_id"])
        assert not pending, f"turn {number}: no result for {pending}"
        assert [step.final for step in turn.steps] == [False] * (len(turn.steps) - 1) + [True]


@each_script
def test_messages_agree_with_the_calls_and_results_of_their_step(script: Script) -> None:
    for turn in script.turns:
        assert turn.input["role"] in {"user", "system"}
        names: dict[str, str] = {}
        for step in turn.steps:
            (message,) = step.messages
            metadata = message["metadata"]
            assert set(message) == {"role", "content", "metadata"}
            assert calls_of(message) == list(step.tool_calls)
            if message["role"] == "tool":
                (result,) = step.tool_results
                assert result == {"tool_call_id": metadata["tool_call_id"], "content": message["content"]}
                assert metadata["tool_name"] == names[metadata["tool_call_id"]]
            else:
                assert message["role"] == "assistant"
                assert not step.tool_results
                assert step.final == (not step.tool_calls)
                assert message["content"] or step.tool_calls
            for call in step.tool_calls:
                assert set(call) == {"id", "name", "arguments"}
                assert isinstance(call["arguments"], dict)
                names[call["id"]] = call["name"]


@each_script
def test_time_goes_forward(script: Script) -> None:
    stamps = [message["metadata"]["timestamp"] for message in script.transcript()]
    assert all(datetime.fromisoformat(stamp).utcoffset() == timedelta(0) for stamp in stamps)
    assert all(stamp.endswith("Z") for stamp in stamps)
    assert all(a <= b for a, b in pairwise(stamps))


@each_script
def test_states_are_complete_where_they_are_given(script: Script) -> None:
    for turn in script.turns:
        assert turn.steps[-1].has_state
        for step in turn.steps:
            if step.state is not None:
                assert step.has_state
                assert set(step.state) == {"step_count", "variables", "flags"}
                assert step.state["flags"]["is_final"] is step.final


def test_absent_and_null_states_both_occur_and_differ() -> None:
    steps = [step for turn in all_turns() for step in turn.steps]
    assert sum(not step.has_state for step in steps) >= 10
    assert any(step.has_state and step.state is None for step in steps)
    assert all(step.state is None for step in steps if not step.has_state)


def test_the_data_holds_the_cases_a_demo_must_show() -> None:
    parallel = out_of_order = without_tools = several_steps = 0
    for turn in all_turns():
        groups = [step.tool_calls for step in turn.steps if step.tool_calls]
        called = [call["id"] for group in groups for call in group]
        answered = [result["tool_call_id"] for step in turn.steps for result in step.tool_results]
        parallel += any(len(group) > 1 for group in groups)
        out_of_order += called != answered
        without_tools += not groups
        several_steps += len(groups) > 1
    assert parallel >= 40
    assert out_of_order >= 15
    assert without_tools >= 5
    assert several_steps >= 20

    messages = [message for script in SCRIPTS for message in script.transcript()]
    tool_messages = [message for message in messages if message["role"] == "tool"]
    assert sum(message["metadata"].get("is_error", False) for message in tool_messages) >= 10
    assert sum(len(json.dumps(m["content"], ensure_ascii=False)) >= 2_000 for m in tool_messages) >= 8
    assert {type(message["content"]) for message in messages} == {str, list, dict, type(None)}


def test_one_provider_uses_the_same_call_id_in_every_turn() -> None:
    (script,) = [s for s in SCRIPTS if any(calls_of(m) and calls_of(m)[0]["id"] == "call_0" for m in s.transcript())]
    calls = [call["id"] for turn in script.turns for step in turn.steps for call in step.tool_calls]
    assert len(calls) > 3
    assert set(calls) == {"call_0"}
    assert all(len([call for step in turn.steps for call in step.tool_calls]) <= 1 for turn in script.turns)


def test_other_providers_never_repeat_a_call_id() -> None:
    ids = Counter(call["id"] for turn in all_turns() for step in turn.steps for call in step.tool_calls)
    del ids["call_0"]
    assert set(ids.values()) == {1}


def test_nothing_long_is_said_twice() -> None:
    said = Counter(
        text
        for script in SCRIPTS
        for message in script.transcript()
        for text in texts_in([message["content"], [call["arguments"] for call in calls_of(message)]])
        if len(text) > 200
    )
    assert [text[:60] for text, times in said.items() if times > 1] == []


def test_no_two_inputs_are_the_same() -> None:
    inputs = Counter(json.dumps(turn.input["content"]) for turn in all_turns())
    assert set(inputs.values()) == {1}


def test_saves_and_transcript_count_every_message_once() -> None:
    for script in SCRIPTS:
        assert len(script.transcript()) == script.saves
        assert script.transcript()[0] is script.turns[0].input


def test_loading_again_gives_equal_but_independent_scripts() -> None:
    again = load_scripts()
    assert again == SCRIPTS
    assert again[0].turns[0].input is not SCRIPTS[0].turns[0].input
