"""The numbered steps of the schema, forward only: `migrations/NNNN_what.DIALECT.sql`.

in: a driver's dialect and the version that its database has. out: the steps that follow, done or as text.

A new database goes through all of them. A released file never changes. Its first line, a comment, says what it does; a statement ends
with a semicolon at the end of a line.

I1  The steps from one version to the newest are one transaction: a crash or an error leaves the old version.
I2  The version stands in the table `alembic_version`, where a tool of an earlier release put it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from flintmq.errors import OperatorError
from flintmq.slotted import slotted
from flintmq.store.sql.driver import Driver, Operation

# Directories of steps; tests add one of their own.
FOLDERS: list[Path] = [Path(__file__).parent / "migrations"]


@slotted(frozen=True)
class Step:
    """One version. about: a sentence; statements: what makes it of the version before."""

    version: str
    about: str
    statements: Sequence[str]


def steps_after(version: str, dialect: str) -> list[Step]:
    """Each version that follows, oldest first; all of them after ""."""
    files = sorted(path for folder in FOLDERS for path in folder.glob(f"[0-9][0-9][0-9][0-9]_*.{dialect}.sql"))
    return [_read(path) for path in files if path.name[:4] > version]


def _read(path: Path) -> Step:
    about, _, text = path.read_text().partition("\n")
    return Step(path.name[:4], about.removeprefix("-- "), [part.strip() for part in re.split(r";\s*\n", text) if part.strip()])


def _stamp(step: Step) -> str:
    return f"UPDATE alembic_version SET version_num = '{step.version}'"


def create(driver: Driver, operations: Sequence[Operation]) -> None:
    """Makes all tables and the first rows of an empty database, in one transaction."""
    steps = steps_after("", driver.dialect)
    stamp: Operation = ("stamp", {"version_num": steps[-1].version})
    driver.change_schema([text for step in steps for text in step.statements], [stamp, *operations])


def migrate(driver: Driver, version: str) -> None:
    """Brings a database of this version to the newest schema.

    Raises: OperatorError when a step fails; the database then is as before.
    """
    try:
        driver.change_schema([text for step in steps_after(version, driver.dialect) for text in (*step.statements, _stamp(step))], [])
    except OperatorError:
        raise
    except Exception as error:
        raise OperatorError(f"migration of {driver.where} failed, nothing has changed: {' '.join(str(error).split())}") from error


def text_of(driver: Driver, version: str) -> str:
    """The SQL that `migrate` would run."""
    parts = ["BEGIN"]
    for step in steps_after(version, driver.dialect):
        first, *texts = [*step.statements, _stamp(step)]
        parts += [f"-- {step.version}: {step.about}\n\n{first}", *texts]
    return "".join(f"{part};\n\n" for part in (*parts, "COMMIT"))
