"""What a hook makes of values is what is stored, compared, restored and held; the rest never reaches the database."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

import turnkeep
from tests.observing import Observer
from tests.store.conftest import OpenStore
from turnkeep import AsyncStore, KeyReusedError, RawJSON, RedactionError, UnstorableError
from turnkeep.redaction import secrets

SECRET = "sk-proj-canary4711canary4711"
SAID = f"my key is {SECRET}"
KEPT = "my key is [redacted]"


@pytest.fixture
async def guarded(dsn: str, open_store: OpenStore) -> AsyncIterator[AsyncStore]:
    """A store with the ready-made hook."""
    async with open_store(dsn, redact=secrets()) as opened:
        yield opened


async def test_whatever_is_passed_is_redacted_and_the_handle_holds_what_is_stored(
    guarded: AsyncStore, observer: Observer
) -> None:
    branch = await guarded.conversation("c", agent_id="a", title=SAID, tags=[SAID, "t"], metadata={"m": {SECRET: SAID}})
    await branch.begin_turn({"role": "user", "content": SAID}, key="k", state={"said": SAID})
    await branch.save(
        [RawJSON(f'{{"role": "assistant", "n": 1.0, "said": "{SAID}"}}')],
        tool_calls=[{"id": "1", "name": "look", "arguments": {"api_key": "short"}}, {"id": "2"}],
    )
    await branch.save([{"role": "tool"}], tool_results=[{"tool_call_id": "1", "content": [SAID]}], state=[SAID])
    await branch.save_all([*branch.messages, {"role": "tool", "content": SAID}], tool_results=[{"tool_call_id": "2"}])
    await branch.save([{"role": "assistant", "content": SAID}], final=True)
    await guarded.post("c", SAID, key="posted")
    await guarded.post("c", [{"role": "user", "content": SAID}], key="listed")
    await guarded.update("c", title=f"new {SAID}", tags=[SECRET], metadata={"n": SAID})
    await branch.claim()
    await branch.take_request(state={"taken": SAID})
    await branch.release(failure={"type": "error", "message": SAID})
    assert observer.traces([], SECRET) == {}
    assert observer.traces([], "short") == {}
    restored = await guarded.restore("c")
    assert branch.messages == restored.messages
    assert [one.get("content", one.get("said")) for one in restored.messages] == [KEPT, KEPT, None, KEPT, KEPT, KEPT]
    assert restored.failure == {"type": "error", "message": KEPT}
    said = await guarded.describe("c")
    assert (said.title, said.tags, said.metadata["n"]) == (f"new {KEPT}", ("[redacted]",), KEPT)


async def test_one_tenants_view_and_other_handles_redact_as_well(guarded: AsyncStore, observer: Observer) -> None:
    view = guarded.tenant("t")
    await view.post("c", SAID, agent_id="a", key="k")
    (claimed,) = await view.claim_waiting(["a"], limit=1)
    await claimed.take_request()
    async with claimed.transaction() as transaction:
        await transaction.save([{"role": "assistant", "content": SAID}])
    fork = await view.fork("c")
    await fork.save([{"content": SAID}], final=True)
    assert observer.traces([], SECRET) == {}


async def test_retries_are_known_again(guarded: AsyncStore) -> None:
    branch = await guarded.conversation("c")
    first, second = uuid.uuid4(), uuid.uuid4()
    message = {"role": "user", "content": SAID}
    await branch.begin_turn(message, key="k")
    await branch.save([message], tool_calls=[{"id": SECRET}], write_id=first)
    await branch.save_all([*branch.messages, message], tool_results=[{"tool_call_id": SECRET}], write_id=second)
    again = await guarded.conversation("c")
    assert (await again.begin_turn(message, key="k")).repeated
    assert (await again.save([message], tool_calls=[{"id": SECRET}], write_id=first)).repeated
    whole = [message, message, message]
    assert (await again.save_all(whole, tool_results=[{"tool_call_id": SECRET}], write_id=second)).repeated
    assert (await again.save_all(whole)).repeated
    with pytest.raises(KeyReusedError):
        await again.save([{"role": "user", "content": "other"}], tool_calls=[{"id": "1"}], write_id=first)
    assert not (await guarded.post("c", SAID, key="p")).repeated
    assert (await guarded.post("c", SAID, key="p")).repeated


async def test_exact_text_stays_where_the_hook_changes_nothing(guarded: AsyncStore) -> None:
    branch = await guarded.conversation("c")
    texts = ['{ "b" : 1.50,  "a":1e2 }', '{"a":1,"a":2}', f'{{"a":"{SAID}","a":1}}', f'{{ "x": 1.0, "a": "{SAID}"}}']
    await branch.begin_turn([RawJSON(text) for text in texts], state=RawJSON("[ 1.0 ]"))
    restored = await guarded.restore("c")
    assert restored.message_texts == (texts[0], '{"a":2}', '{"a":1}', f'{{"x":1.0,"a":"{KEPT}"}}')
    assert restored.state_text == "[ 1.0 ]"


async def test_a_hook_that_fails_is_an_error_and_nothing_is_stored(
    dsn: str, open_store: OpenStore, observer: Observer
) -> None:
    def hook(value: Any) -> Any:
        if "bad" in str(value):
            raise ValueError(f"can't look at {value}")
        return {1, 2} if "odd" in str(value) else value

    async with open_store(dsn, redact=hook) as store:
        branch = await store.conversation("c")
        await branch.begin_turn({"role": "user"})
        before = observer.counts()
        refused = {"content": "bad canary4711"}
        for call in (
            lambda: branch.save([{}, refused]),
            lambda: branch.save_all([refused]),
            lambda: branch.save([], tool_calls=[refused]),
            lambda: branch.save([], state=refused),
            lambda: store.post("c", refused),
            lambda: store.post("c", "bad canary4711"),
            lambda: store.update("c", title="bad canary4711"),
            lambda: store.conversation("new", metadata=refused),
        ):
            with pytest.raises(RedactionError, match=r"hook has failed \(ValueError\); nothing was stored") as caught:
                await call()
            assert "canary4711" not in str(caught.value)
        with pytest.raises(UnstorableError, match=r"redact\(messages\[0\]\)"):
            await branch.save([{"content": "odd"}])
        with pytest.raises(RedactionError, match="can't look at it"):
            await branch.save([RawJSON(f'{{"a":{"9" * 5000}}}')])
        assert observer.counts() == before
        assert (await branch.save([{"content": "good"}])).sub_step == 1


async def test_the_hook_can_not_change_what_is_the_callers(dsn: str, open_store: OpenStore) -> None:
    def hook(value: Any) -> Any:
        value.clear()
        return value

    async with open_store(dsn, redact=hook) as store:
        branch = await store.conversation("c")
        message, metadata = {"role": "user", "deep": [{"a": 1}]}, {"m": 1}
        await branch.begin_turn(message)
        await store.update("c", metadata=metadata)
        assert (message, metadata) == ({"role": "user", "deep": [{"a": 1}]}, {"m": 1})
        assert branch.messages == [{}]


async def test_what_is_no_hook_is_refused(dsn: str) -> None:
    with pytest.raises(turnkeep.InvalidInputError, match="redact"):
        turnkeep.open(dsn, redact="app:redact")  # type: ignore[arg-type]


@pytest.mark.parametrize("made", [None, "words", ["words"]])
async def test_a_posted_message_that_the_hook_makes_no_object_of_is_refused(
    dsn: str, open_store: OpenStore, made: object
) -> None:
    async with open_store(dsn, redact=lambda _: made) as store:
        await store.conversation("c")
        with pytest.raises(RedactionError, match=r"not an object; nothing was stored"):
            await store.post("c", "words", key="k")


async def test_what_the_hook_says_of_a_posted_message_stays(dsn: str, open_store: OpenStore) -> None:
    async with open_store(dsn, redact=lambda value: {**value, "metadata": {"seen": True}}) as store:
        await store.conversation("c")
        await store.post("c", "words", key="k")
        branch = await store.conversation("c")
        assert await branch.take_request() is not None
        assert branch.messages[0]["metadata"] == {"seen": True}
