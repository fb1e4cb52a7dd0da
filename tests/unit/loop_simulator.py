"""A branch in memory on which the turn loop's effects are performed, without I/O, by a process that dies where told.

What is durable is a `Branch`; everything else goes when the process dies. What must hold at each effect, whatever
the loop is given, is asserted as it is performed.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, TypeVar

from turnkeep import jsontext
from turnkeep.model import PendingCall
from turnkeep.runner.agent import Agent
from turnkeep.runner.effects import (
    AskModel,
    AwaitTool,
    Effect,
    FailTurn,
    HandBack,
    Head,
    Json,
    Landed,
    ModelRefused,
    ModelReply,
    Outcome,
    Policy,
    RunTool,
    Save,
    SaveStarted,
    TakeRequest,
    ToolCall,
    WaitForPerson,
)
from turnkeep.runner.loop import turns
from turnkeep.runner.tools import Tool, tool
from turnkeep.runner.transcript import request_messages, tool_message

T = TypeVar("T")
Place = tuple[int, int, int]
Model = Callable[[Sequence[Json]], ModelReply | ModelRefused]

TIME = "2026-01-01T00:00:00.000+00:00"
DECIDED = "A person says that it was done."
_MOST_EFFECTS = 1000


# -- what an agent is made of


def make_tool(name: str, policy: Policy) -> Tool:
    """A tool that takes an integer `n`."""

    async def function(n: int) -> str:
        raise AssertionError("the simulator runs no function")

    return replace(tool(function, name=name), policy=policy)


SEARCH = make_tool("search", Policy.RERUN)
REFUND = make_tool("refund", Policy.TRANSACTIONAL)
MAIL = make_tool("mail", Policy.REPORT)
DEPLOY = make_tool("deploy", Policy.ASK)
TOOLS = (SEARCH, REFUND, MAIL, DEPLOY)


def make_agent(*tools: Tool, max_steps: int = 100, instructions: str | None = None) -> Agent:
    return Agent("support", model="scripted", tools=tools or TOOLS, max_steps=max_steps, instructions=instructions)


# -- what a model says


def call(name: str, arguments: str = '{"n": 1}', id: str = "call_1") -> ToolCall:
    return ToolCall(id, name, arguments)


def asks(*calls: ToolCall, finish_reason: str = "tool_calls", provided: Sequence[Json] = ()) -> ModelReply:
    """A reply with calls; `provided` are further ones in its message, which the provider has run itself."""
    own = [
        {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}} for one in calls
    ]
    provider = {"role": "assistant", "content": None, "tool_calls": [*provided, *own]}
    return ModelReply(provider, None, None, calls, finish_reason, None)


def says(content: str | None, *, refusal: str | None = None, finish_reason: str = "stop") -> ModelReply:
    provider = {"role": "assistant", "content": content} | ({"refusal": refusal} if refusal else {})
    return ModelReply(provider, content, refusal, (), finish_reason, {"total_tokens": 7})


def scripted(*replies: ModelReply | ModelRefused) -> Model:
    """A model that is chosen its reply by the messages alone: how often it has replied. At the end it says "done"."""

    def reply(messages: Sequence[Json]) -> ModelReply | ModelRefused:
        said = sum(message["role"] == "assistant" for message in messages)
        return replies[said] if said < len(replies) else says("done")

    return reply


def well_formed(messages: Sequence[Json]) -> None:
    """Assert what every model server insists on: each call is followed directly by its one result, in order (G7)."""
    expected: list[str] = []
    for message in messages:
        assert isinstance(message["role"], str)
        if message["role"] == "tool":
            assert expected, f"a result without a call: {message}"
            assert message["tool_call_id"] == expected.pop(0)
            assert isinstance(message["content"], str)
            continue
        assert not expected, f"calls without a result: {expected}"
        calls = message.get("tool_calls")
        if message["role"] == "assistant" and calls is None:
            assert message["content"] is not None or message.get("refusal")
        if calls is not None:
            assert message["role"] == "assistant"
            assert calls
            for one in calls:
                assert isinstance(one["id"], str)
                assert one["type"] == "function"
                assert isinstance(one["function"]["name"], str)
                assert isinstance(json.loads(one["function"]["arguments"]), dict)
            expected = [one["id"] for one in calls]
            assert len(set(expected)) == len(expected), f"two calls with one id: {expected}"
            assert all(expected)
    assert not expected, f"calls without a result: {expected}"
    json.dumps(messages)


# -- what is durable


@dataclass
class Branch:
    """What the database would hold. `results` counts those of each call."""

    number: int = 0
    turn_index: int = -1
    sub_step: int = 0
    turn_open: bool = False
    messages: list[Json] = field(default_factory=list)
    pending: dict[Place, PendingCall] = field(default_factory=dict)
    state: Any = None
    waiting: list[str] = field(default_factory=list)
    results: Counter[Place] = field(default_factory=Counter)

    def head(self) -> Head:
        return Head(
            self.turn_index,
            self.sub_step,
            self.turn_open,
            list(self.messages),
            tuple(self.pending.values()),
            self.state,
        )

    def fork(self, number: int, *, uncertain: bool = True) -> Branch:
        """Another branch that begins with what this one has. A call keeps the number of the branch that issued it."""
        pending = {place: replace(one, uncertain=uncertain or one.uncertain) for place, one in self.pending.items()}
        return replace(
            self,
            number=number,
            messages=list(self.messages),
            pending=pending,
            waiting=list(self.waiting),
            results=Counter(self.results),
        )

    def copy(self) -> Branch:
        return self.fork(self.number, uncertain=False)

    def save(
        self, messages: Sequence[Json], tool_calls: Sequence[Any] = (), answers: Sequence[PendingCall] = ()
    ) -> None:
        """Write a checkpoint. What is stored is JSON text: nothing of it is shared with the one who saves."""
        assert self.turn_open
        self.sub_step += 1
        self.messages += _stored(list(messages))
        for answer in answers:
            assert answer.place in self.pending, f"{answer} is answered, and is not pending"
            del self.pending[answer.place]
            self.results[answer.place] += 1
        if tool_calls:
            text = jsontext.encode(list(tool_calls), "tool_calls")
            for index in range(len(tool_calls)):
                issued = PendingCall(
                    self.turn_index, self.sub_step, index, self.number, 0, False, text, uuid.UUID(int=1)
                )
                self.pending[issued.place] = issued

    def begin(self, message: Json) -> None:
        assert not self.turn_open
        self.turn_index, self.sub_step, self.turn_open = self.turn_index + 1, 0, True
        self.messages.append(message)


def _stored(value: Any) -> Any:
    return jsontext.decode(jsontext.encode(value, "value"), "value")


# -- the process


@dataclass(frozen=True)
class Crash:
    """Die at the `nth` effect of a kind, after it was performed or before."""

    kind: type = object
    nth: int = 1
    after: bool = True


class Crashed(Exception):
    """The process is dead."""


@dataclass
class Simulator:
    """Processes, one after the other, that go on with a branch.

    Everything that was asked for is in `effects`. `runs` counts how often each call was run, on any branch, by the
    branch and the place that issued it. `lands` chooses which of the running tools comes to its end first.
    `rollbacks` is how often the transaction of each transactional call can't commit.
    """

    agent: Agent
    model: Model
    branch: Branch
    outcome: Callable[[RunTool], Landed] = lambda run: Landed(run.call, f"{run.name} of {run.call.place}", Outcome.OK)
    lands: Callable[[Sequence[RunTool]], int] = lambda running: 0
    rollbacks: int = 0
    effects: list[Effect] = field(default_factory=list)
    runs: Counter[tuple[int, Place]] = field(default_factory=Counter)
    checkpoints: list[Branch] = field(default_factory=list)
    _running: list[RunTool] = field(default_factory=list)
    _transactions: dict[Place, RunTool] = field(default_factory=dict)
    _rolled_back: Counter[Place] = field(default_factory=Counter)

    def go(self, crash: Crash | None = None) -> Effect | None:
        """Go on from the head until nothing waits (None), or to the effect that has stopped the turn.

        Raises `Crashed`; what was running is gone then.
        """
        self._running, self._transactions = [], {}
        loop = turns(self.agent, self.branch.head(), lambda: TIME)
        outcome: Any = None
        left = crash.nth if crash else 0
        stopped: Effect | None = None
        for number in count():
            assert number < _MOST_EFFECTS, "the loop does not come to an end"
            try:
                effect = loop.send(outcome)
            except StopIteration:
                return stopped
            assert stopped is None, f"{stopped} was to be the last effect"
            left -= crash is not None and isinstance(effect, crash.kind)
            dies = crash is not None and left == 0 and isinstance(effect, crash.kind)
            if dies and crash is not None and not crash.after:
                loop.close()
                raise Crashed
            self.effects.append(effect)
            outcome = self._perform(effect)
            if dies:
                loop.close()
                raise Crashed
            if isinstance(effect, FailTurn | WaitForPerson | HandBack):
                stopped = effect
        raise AssertionError

    def dies(self, crash: Crash) -> None:
        """Go on until the process dies, as it must."""
        try:
            stopped = self.go(crash)
        except Crashed:
            return
        raise AssertionError(f"there was no {crash}: {stopped}")

    def finish(self) -> None:
        """Go on to the end: what has failed is resumed, and a person decides where one is asked."""
        for _ in range(_MOST_EFFECTS):
            match self.go():
                case None:
                    return
                case WaitForPerson(calls):
                    self.decide(calls)
                case FailTurn():
                    pass
                case effect:
                    raise AssertionError(effect)
        raise AssertionError("the turn does not come to an end")

    def decide(self, calls: Sequence[PendingCall], content: Any = DECIDED) -> None:
        """Be the person, who knows what became of these calls."""
        self.branch.save([tool_message(one, content, Outcome.OK, TIME) for one in calls], answers=calls)

    def kinds(self, since: int = 0) -> list[str]:
        """What was asked for, by name."""
        return [type(effect).__name__ for effect in self.effects[since:]]

    def of(self, kind: type[T]) -> list[T]:
        """The effects of a kind."""
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def _perform(self, effect: Effect) -> Any:
        branch = self.branch
        match effect:
            case TakeRequest(state):
                assert not branch.turn_open
                if not branch.waiting:
                    return None
                branch.state = _stored(state)
                branch.begin({"role": "user", "content": branch.waiting.pop(0)})
            case AskModel(messages):
                assert branch.turn_open
                assert not branch.pending, "the model is asked while a call has no result"
                well_formed(messages)
                return self.model(messages)
            case Save():
                return self._save(effect)
            case SaveStarted(calls):
                assert branch.turn_open
                assert calls
                assert not self._running
                for one in calls:
                    assert branch.pending[one.place] == one
                    branch.pending[one.place] = replace(one, attempts=one.attempts + 1)
                branch.sub_step += 1
            case RunTool():
                self._run(effect)
                return None
            case AwaitTool():
                assert self._running, "nothing runs that could be waited for"
                landed = self._running.pop(self.lands(self._running))
                if landed.policy is Policy.TRANSACTIONAL:
                    self._transactions[landed.call.place] = landed
                return self.outcome(landed)
            case WaitForPerson(calls):
                assert not self._running
                assert calls == tuple(branch.pending.values())
            case FailTurn() | HandBack():
                assert not self._running
        if isinstance(effect, TakeRequest | SaveStarted):
            self.checkpoints.append(branch.copy())
            return branch.head()
        return None

    def _run(self, effect: RunTool) -> None:
        one = effect.call
        assert self.branch.pending.get(one.place) == one, f"{one} is run, and has a result"
        assert one.place not in [running.call.place for running in self._running], f"{one} runs twice at once"
        assert effect.name in [tool.name for tool in self.agent.tools]
        if effect.policy in (Policy.REPORT, Policy.ASK):
            assert one.attempts == 1, f"{one} is run, and was not marked once as started"
        self._running.append(effect)
        self.runs[one.branch, one.place] += 1

    def _save(self, effect: Save) -> Head:
        branch = self.branch
        assert len(effect.answers) == len(effect.tool_results)
        for result, answer in zip(effect.tool_results, effect.answers, strict=True):
            assert result["tool_call_id"] == answer.call_id
        if len(effect.answers) == 1 and self._rolls_back(effect.answers[0]):
            return branch.head()
        branch.save(effect.messages, effect.tool_calls, effect.answers)
        branch.state = _stored(effect.state)
        if effect.final:
            assert not branch.pending
            branch.turn_open = False
        self.checkpoints.append(branch.copy())
        return branch.head()

    def _rolls_back(self, answer: PendingCall) -> bool:
        """Whether the answer's transaction can't commit; its tool is started once more then."""
        run = self._transactions.pop(answer.place, None)
        if run is None or self._rolled_back[answer.place] >= self.rollbacks:
            return False
        self._rolled_back[answer.place] += 1
        self._running.append(run)
        return True


def simulate(*replies: ModelReply | ModelRefused, agent: Agent | None = None, requests: int = 1) -> Simulator:
    """A new conversation in which requests wait, and what the model will reply."""
    branch = Branch(waiting=[f"request {number}" for number in range(requests)])
    return Simulator(agent or make_agent(), scripted(*replies), branch)


def in_call_order(messages: Sequence[Json]) -> list[Json]:
    """A transcript in which results stand as their calls do, not as they landed."""
    ordered: list[Json] = []
    results: list[Json] = []
    for message in [*messages, {"role": "end"}]:
        if message["role"] == "tool":
            results.append(message)
        else:
            ordered += sorted(results, key=lambda result: int(result["metadata"]["index"]))
            ordered.append(message)
            results = []
    return ordered[:-1]


def wire(branch: Branch) -> list[Json]:
    """What the model would be asked next."""
    messages = request_messages(None, branch.messages)
    well_formed(messages)
    return messages
