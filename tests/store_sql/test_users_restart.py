"""Users survive a restart as they were left: the default user is made once and never put back over a change."""

from __future__ import annotations

from pathlib import Path

import pytest

from flintmq.access.permissions import Permissions
from flintmq.access.users import Users
from flintmq.errors import StoreError
from flintmq.ports import PermissionRecord, Resource, UserRecord, Verb
from flintmq.store.definitions import MemoryDefinitions
from flintmq.store.sql.definitions import SqlDefinitions


def start(directory: Path) -> tuple[SqlDefinitions, Users]:
    definitions = SqlDefinitions.open(directory)
    users = Users(definitions)
    users.ensure_default_user()
    return definitions, users


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


@pytest.mark.parametrize("changes", [0, 1])
def test_a_crash_while_guest_is_made_leaves_no_guest_without_permissions(changes: int) -> None:
    definitions = Failing()
    definitions.left = changes
    users = Users(definitions)
    with pytest.raises(StoreError):
        users.ensure_default_user()
    users.close()
    definitions.left = 9
    again = Users(definitions)
    again.ensure_default_user()
    assert [record.name for record in definitions.load_users()] == ["guest"]
    assert [record.user for record in definitions.load_permissions()] == ["guest"]
    again.close()


def test_a_user_that_could_not_be_deleted_is_still_there() -> None:
    definitions = Failing()
    definitions.left = 2
    users = Users(definitions)
    users.ensure_default_user()
    with pytest.raises(StoreError):
        users.delete("guest")
    assert users.names() == ["guest"]
    users.close()
