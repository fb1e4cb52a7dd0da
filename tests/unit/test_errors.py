"""One tree of errors, drawn as it is, and each can be sent to another process."""

from __future__ import annotations

import inspect
import pickle
import uuid

import pytest

from turnkeep import errors
from turnkeep.errors import TurnkeepError
from turnkeep.model import PendingCall

CALL = PendingCall(0, 1, 0, 0, 0, False, '[{"id": "a"}]', uuid.UUID(int=1))
PUBLIC = {
    name: value
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, TurnkeepError) and not name.startswith("_")
}


def drawn() -> dict[str, str]:
    """Each error of the drawing with the one it hangs on."""
    parents: dict[int, str] = {}
    found = {}
    for line in (errors.__doc__ or "").splitlines():
        name = line.strip(" │├└─").split(" ")[0]
        if name in PUBLIC:
            depth = line.index(name) // 4
            parents[depth] = name
            found[name] = parents.get(depth - 1, "")
    return found


def test_the_tree_is_drawn_as_it_is() -> None:
    assert drawn().keys() == PUBLIC.keys()
    for name, parent in drawn().items():
        bases = {base.__name__ for base in PUBLIC[name].__mro__[1:] if base.__name__ in PUBLIC}
        assert parent in bases or name == "TurnkeepError"


def example(kind: type[TurnkeepError]) -> TurnkeepError:
    parameters = list(inspect.signature(kind.__init__).parameters)
    if "path" in parameters:
        return kind('messages[0]["a"]', "is too deep")
    return kind("why", (CALL,)) if "pending" in parameters else kind("why")


@pytest.mark.parametrize("kind", PUBLIC.values(), ids=PUBLIC.keys())
def test_each_error_survives_pickling(kind: type[TurnkeepError]) -> None:
    error = example(kind)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (kind, str(error), vars(error))
    assert str(error) in ("why", 'messages[0]["a"]: is too deep')
