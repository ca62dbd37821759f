"""The bindings of an exchange that compares keys: table and index in one.

in: bindings that come and go. out: those of a key; those of an identity; all of them.

I1  A key has its one binding, or a table of its bindings: most keys have one, and a table of one takes four times what a binding does.
I2  `values` is one moment's answer: whoever lists bindings may be another thread than the one that binds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, MutableMapping
from typing import Any

from flintmq.routing.binding import Binding, BindingIdentity, Destination


class BindingsByKey(MutableMapping[BindingIdentity, Binding]):
    """Identity -> binding, and routing key -> destinations. Its order is that of the keys."""

    __slots__ = ("_count", "_keys")

    def __init__(self) -> None:
        self._keys: dict[bytes, Binding | dict[BindingIdentity, Binding]] = {}
        self._count = 0

    def destinations(self, routing_key: bytes) -> Collection[Destination]:
        """Those of a key, each once. O(bindings of the key)."""
        entry: Any = self._keys.get(routing_key)
        if entry is None:
            return ()
        if type(entry) is not dict:
            return (entry.destination,)
        return dict.fromkeys(one.destination for one in entry.values())

    def add(self, binding: Binding) -> None:
        """A binding that is not there yet."""
        key = binding.routing_key
        entry: Any = self._keys.setdefault(key, binding)
        if entry is not binding:
            if type(entry) is not dict:
                entry = self._keys[key] = {entry.identity: entry}
            entry[binding.identity] = binding
        self._count += 1

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, identity: BindingIdentity) -> Binding:
        entry: Any = self._keys[identity[3]]
        if type(entry) is dict:
            binding: Binding = entry[identity]
            return binding
        if entry.identity != identity:
            raise KeyError(identity)
        return entry  # type: ignore[no-any-return]

    def __setitem__(self, identity: BindingIdentity, binding: Binding) -> None:
        if identity in self:
            del self[identity]
        self.add(binding)

    def __delitem__(self, identity: BindingIdentity) -> None:
        key = identity[3]
        entry: Any = self._keys[key]
        if type(entry) is not dict:
            if entry.identity != identity:
                raise KeyError(identity)
            del self._keys[key]
        else:
            del entry[identity]
            if len(entry) == 1:
                (self._keys[key],) = entry.values()
        self._count -= 1

    def __iter__(self) -> Iterator[BindingIdentity]:
        return iter([one.identity for one in self.values()])

    def values(self) -> list[Binding]:  # type: ignore[override]
        """All bindings (I2). O(bindings)."""
        bindings: list[Any] = []
        for entry in list(self._keys.values()):
            if type(entry) is dict:
                bindings += entry.values()
            else:
                bindings.append(entry)
        return bindings

    def popitem(self) -> tuple[BindingIdentity, Binding]:
        """Takes out one of the last key. O(1). Raises: KeyError: there is none."""
        key, entry = self._keys.popitem()
        self._keys[key] = entry
        binding: Any = entry
        if type(entry) is dict:
            identity, binding = entry.popitem()
            entry[identity] = binding
        identity = binding.identity
        del self[identity]
        return identity, binding
