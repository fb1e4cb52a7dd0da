"""JSON values for tests: how to make them, and when two are the same."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

quick = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))

any_text = st.text(st.characters(exclude_categories=()), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | any_text,
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(any_text, inner, max_size=5),
    max_leaves=25,
)


def strict(value: object) -> object:
    """A form in which values are equal only if their types, signs and key order are too."""
    if isinstance(value, dict):
        return "dict", [(strict(key), strict(child)) for key, child in value.items()]
    if isinstance(value, list | tuple):
        return "list", [strict(child) for child in value]
    if isinstance(value, str):
        return "str", value.encode("utf-16-le", "surrogatepass")
    return type(value).__name__, repr(value)
