"""The tables' columns."""

from __future__ import annotations

import subprocess
import sys

import pytest

from flintmq.arrow import schema


def test_importing_the_schema_imports_neither_pyarrow_nor_spark() -> None:
    """A broker or a forking worker may import the tables."""
    code = "import sys, flintmq.arrow.schema; assert not {'pyarrow', 'pyspark'} & set(sys.modules), sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_columns_are_chosen_in_the_order_of_the_table() -> None:
    """Spark compares types and order, whatever order the user names them in."""
    assert schema.messages_schema(["body", "queue"]).names == ["queue", "body"]
    assert schema.messages_schema().names[0] == "queue"


def test_an_unknown_column_is_an_error() -> None:
    """A misspelt column is never left out silently."""
    with pytest.raises(ValueError, match="bdoy"):
        schema.messages_schema(["bdoy"])


def test_new_columns_of_messages_stand_at_the_end() -> None:
    """Schemas of running queries stay valid: the first 23 columns are those of the first release."""
    names = [name for name, _, _ in schema.MESSAGES]
    assert names[:3] == ["queue", "position", "lsn"] and names[22:] == ["cluster_id", "published_time", "delivery_count"]
    assert [name for name, _, _ in schema.LOG_MESSAGES] == [*names, "copy"]


@pytest.mark.parametrize(("text", "limit"), [(None, -1), ("full", -1), ("none", 0), ("prefix:0", 0), ("prefix:17", 17)])
def test_body_limits(text: str | None, limit: int) -> None:
    """`body` says how much of a body is kept."""
    assert schema.body_limit(text) == limit


@pytest.mark.parametrize("text", ["", "all", "prefix:", "prefix:-1", "prefix:x", "none:1", "prefix:\u0663"])
def test_other_body_options_are_errors(text: str) -> None:
    """Nothing else is taken for a limit."""
    with pytest.raises(ValueError, match="body must be"):
        schema.body_limit(text)
