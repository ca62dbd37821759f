"""Schema migrations, forward only, by Alembic. Imported only when there is something to migrate (Alembic takes 0.13 s to import).

in: a Location of an existing database. out: the newest schema, or the SQL that would make it.

I1  A migration from one version to the newest is one transaction: a crash or an error leaves the old version.
I2  A dry run executes nothing but the SELECT of the version.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, Engine, create_engine, event, text
from sqlalchemy.pool import NullPool

from flintmq.errors import OperatorError
from flintmq.store.sql.driver import Location

HERE = Path(__file__).parent / "migrations"
# Directories of migration scripts; tests add one of their own.
VERSIONS: list[Path] = [HERE / "versions"]


def _config(stdout: io.StringIO) -> Config:
    config = Config(stdout=stdout, output_buffer=stdout)
    # Alembic takes '%' for interpolation.
    config.set_main_option("script_location", str(HERE).replace("%", "%%"))
    config.set_main_option("path_separator", "newline")
    config.set_main_option("version_locations", "\n".join(str(path) for path in VERSIONS).replace("%", "%%"))
    return config


def versions_after(version: str) -> Sequence[str]:
    """`0002: what it does` for each version that follows `version`, oldest first."""
    script = ScriptDirectory.from_config(_config(io.StringIO()))
    return [f"{step.revision}: {step.doc}" for step in reversed(list(script.iterate_revisions("head", version)))]


def migrate(location: Location, *, dry_run_from: str | None = None) -> str:
    """Brings the database to the newest schema.

    Args: dry_run_from: the version it has; given, nothing is done. Returns: the SQL in a dry run, else "".
    Raises: OperatorError when a migration fails; the database then is as before.
    """
    output = io.StringIO()
    config = _config(output)
    engine = _engine(location)
    try:
        if dry_run_from is not None:
            config.attributes["dialect"] = engine.dialect.name
            command.upgrade(config, f"{dry_run_from}:head", sql=True)
            return output.getvalue()
        with engine.connect() as connection:
            config.attributes["connection"] = connection
            with connection.begin():
                command.upgrade(config, "head")
                _check_foreign_keys(connection)
        return ""
    except OperatorError:
        raise
    except Exception as error:
        where = location.path or engine.url.render_as_string(hide_password=True)
        raise OperatorError(f"migration of {where} failed, nothing has changed: {' '.join(str(error).split())}") from error
    finally:
        engine.dispose()


def _engine(location: Location) -> Engine:
    if location.path is None:
        from flintmq.store.sql.postgres_driver import server_url

        return create_engine(server_url(location), poolclass=NullPool)
    engine = create_engine(URL.create("sqlite", database=str(location.path)), poolclass=NullPool)

    # sqlite3 would commit before DDL: with its own transactions switched off, ours hold. SQLAlchemy's manual, "pysqlite".
    @event.listens_for(engine, "connect")
    def _connected(connection: object, _record: object) -> None:
        connection.isolation_level = None  # type: ignore[attr-defined]
        connection.execute("PRAGMA synchronous=full")  # type: ignore[attr-defined]
        # A table that is rebuilt is dropped, and that would cascade. They are checked before the commit instead.
        connection.execute("PRAGMA foreign_keys=off")  # type: ignore[attr-defined]

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _check_foreign_keys(connection: Connection) -> None:
    if connection.dialect.name == "sqlite":
        broken = connection.execute(text("PRAGMA foreign_key_check")).fetchall()
        if broken:
            raise OperatorError(f"migration refused: it would break {len(broken)} references, first {tuple(broken[0])}")
