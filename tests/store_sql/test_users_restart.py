"""Users survive a restart as they were left: the default user is made once and never put back over a change."""

from __future__ import annotations

from pathlib import Path

import pytest

from flintmq.access.permissions import Permissions
from flintmq.access.users import Users, default_user
from flintmq.errors import OperatorError, StoreError
from flintmq.ports import PermissionRecord, Resource, UserRecord, Verb
from flintmq.store.definitions import MemoryDefinitions
from flintmq.store.sql.definitions import SqlDefinitions


def start(directory: Path) -> tuple[SqlDefinitions, Users]:
    definitions = SqlDefinitions.open(directory, first=default_user())
    return definitions, Users(definitions)


def stop(definitions: SqlDefinitions, users: Users) -> None:
    users.close()
    definitions.close()


def test_a_changed_guest_password_stays(tmp_path: Path) -> None:
    definitions, users = start(tmp_path)
    assert users.check("guest", "guest")
    users.set_password("guest", "better")
    stop(definitions, users)
    definitions, users = start(tmp_path)
    assert users.check("guest", "better")
    assert not users.check("guest", "guest")
    Permissions(definitions).authorize("guest", "/", Verb.CONFIGURE, Resource("queue", "q"))
    stop(definitions, users)


def test_a_deleted_guest_and_taken_permissions_stay_away(tmp_path: Path) -> None:
    definitions, users = start(tmp_path)
    users.put(UserRecord("boss", "", ("administrator",)))
    users.delete("guest")
    definitions.save_permission(PermissionRecord("boss", "/", "^b", "", ".*"))
    stop(definitions, users)
    definitions, users = start(tmp_path)
    assert users.names() == ["boss"]
    assert list(definitions.load_permissions()) == [PermissionRecord("boss", "/", "^b", "", ".*")]
    stop(definitions, users)


class Failing(MemoryDefinitions):
    """Fails the n-th change, as a crash or a full disk would."""

    left = 0

    def _step(self) -> None:
        if self.left == 0:
            raise StoreError("no more")
        self.left -= 1

    def save_user(self, record: UserRecord) -> None:
        self._step()
        super().save_user(record)

    def save_permission(self, record: PermissionRecord) -> None:
        self._step()
        super().save_permission(record)

    def delete_user(self, name: str) -> None:
        self._step()
        super().delete_user(name)


def test_guest_comes_with_the_store_and_never_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the transaction that makes it; with the last user gone nobody is put back."""
    from flintmq.store.sql.sqlite_driver import SqliteDriver

    change_schema = SqliteDriver.change_schema

    def torn(driver: SqliteDriver, texts: object, operations: object) -> None:
        change_schema(driver, texts, [*operations, ("save_user", {})])  # type: ignore[misc, arg-type]

    monkeypatch.setattr(SqliteDriver, "change_schema", torn)
    with pytest.raises((OperatorError, StoreError)):
        start(tmp_path)
    monkeypatch.undo()
    definitions, users = start(tmp_path)
    assert definitions.created and users.names() == ["guest"]
    assert [record.user for record in definitions.load_permissions()] == ["guest"]
    users.delete("guest")
    stop(definitions, users)
    definitions, users = start(tmp_path)
    assert not definitions.created and users.names() == [] and not list(definitions.load_permissions())
    stop(definitions, users)


def test_a_user_that_could_not_be_deleted_is_still_there() -> None:
    definitions = Failing()
    definitions.left = 2
    permission, guest = default_user()
    definitions.save_permission(permission)
    definitions.save_user(guest)
    users = Users(definitions)
    with pytest.raises(StoreError):
        users.delete("guest")
    assert users.names() == ["guest"]
    users.close()
