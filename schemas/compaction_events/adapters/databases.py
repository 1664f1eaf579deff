"""SQLite files of other programs: opened read-only, while those programs may be writing them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

_MAGIC = b"SQLite format 3\0"


def is_database(path: Path) -> bool:
    """Whether a file is a SQLite database, by its first bytes."""
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A read-only connection.

    Raises:
        sqlite3.Error: It cannot be read.
    """
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5)) as connection:
        # Half a character, as a cut text leaves it, must not stop the reading.
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA query_only = 1")
        yield connection


def columns(connection: sqlite3.Connection, table: str) -> frozenset[str]:
    """The columns of a table; none if there is no such table."""
    return frozenset(row["name"] for row in connection.execute("SELECT name FROM pragma_table_info(?)", (table,)))


def rows(connection: sqlite3.Connection, query: str, *values: Any) -> Iterator[dict[str, Any]]:
    """The rows of a query as objects, one at a time."""
    for row in connection.execute(query, values):
        yield dict(row)
