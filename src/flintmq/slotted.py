"""Classes of a few named fields, as dataclasses have them, defined without generating code.

in: a class whose annotated attributes are its fields, some with defaults. out: the same class with slots, and `__init__`, `__repr__`,
`__eq__`, `__hash__` and `__lt__` of its fields.

A dataclass compiles up to six functions of its own when its module is imported: half a millisecond each, which was a tenth of a broker's
start. Here all classes share functions that go over the fields: an instance costs 1 us rather than 0.3. Modules that a broker loads at its
start use this one (tests/test_start.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field
from inspect import get_annotations
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform

C = TypeVar("C")

_put = object.__setattr__


@dataclass_transform(field_specifiers=(field,))
def slotted(*, frozen: bool = False, eq: bool = True, order: bool = False, kw_only: bool = False) -> Callable[[type[C]], type[C]]:
    """Decorator. Its arguments, `field(default, default_factory, repr)` and `__post_init__` mean the same as those of a dataclass; there
    are always slots, and no base that has fields of its own. Raises (the class, when it is called): TypeError, as a function does."""

    def make(cls: type[C]) -> type[C]:
        names = tuple(get_annotations(cls))
        space = {key: value for key, value in cls.__dict__.items() if key not in (*names, "__dict__", "__weakref__")}
        remake: Any = type(cls)
        made: Any = remake(cls.__name__, cls.__bases__, {"__slots__": names, **_methods(cls, names, eq, order, kw_only), **space})
        made.__qualname__ = cls.__qualname__
        if eq and "__hash__" not in space:
            made.__hash__ = _hash if frozen else None
        if frozen:
            made.__setattr__, made.__delattr__ = _no_change, _no_change
        return made  # type: ignore[no-any-return]

    return make


def replaced(one: C, **changes: Any) -> C:
    """A copy with some fields changed, as `dataclasses.replace` makes it. Raises: TypeError for a name that is no field's."""
    names: tuple[str, ...] = type(one).__slots__  # type: ignore[attr-defined]
    return type(one)(**{name: getattr(one, name) for name in names} | changes)


class _Fields:
    """`__dataclass_fields__`, made when somebody asks for it: `replace`, `fields`, `asdict` and the like of dataclasses take these
    classes, too. Args: space: annotations and defaults, as the class was written."""

    def __init__(self, space: dict[str, Any]) -> None:
        self._space = space

    def __get__(self, _one: object, cls: Any) -> dict[str, Field[Any]]:
        written: Any = type(cls.__name__, (), dict(self._space))
        fields: dict[str, Field[Any]] = dataclass(written).__dataclass_fields__
        cls.__dataclass_fields__ = fields
        return fields


def _methods(cls: type, names: tuple[str, ...], eq: bool, order: bool, kw_only: bool) -> dict[str, Any]:
    """What a class gets unless it has its own."""
    given = {name: cls.__dict__[name] for name in names if name in cls.__dict__}
    fields = {name: value for name, value in given.items() if isinstance(value, Field)}
    makers = {name: one.default_factory for name, one in fields.items() if one.default_factory is not MISSING}
    defaults = {name: value for name, value in given.items() if name not in fields}
    defaults |= {name: one.default for name, one in fields.items() if one.default is not MISSING}
    shown = tuple(name for name in names if name not in fields or fields[name].repr)
    methods: dict[str, Any] = {
        "__dataclass_fields__": _Fields({"__annotations__": get_annotations(cls), **given}),
        "__init__": _init(cls.__name__, () if kw_only else names, names, defaults, makers, hasattr(cls, "__post_init__")),
        "__repr__": lambda self: f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})",
    }
    if not kw_only:
        methods["__match_args__"] = names
    if eq:
        values = attrgetter(*names) if len(names) > 1 else lambda self: tuple(getattr(self, name) for name in names)
        methods["_values"] = staticmethod(values)
        methods["__eq__"] = _eq
    if order:
        methods["__lt__"] = _lt
    return methods


def _init(
    title: str, places: tuple[str, ...], names: tuple[str, ...], defaults: dict[str, Any], makers: dict[str, Callable[[], Any]], post: bool
) -> Callable[..., None]:
    def __init__(self: Any, /, *values: Any, **named: Any) -> None:
        if len(values) > len(places):
            raise TypeError(f"{title} takes {len(places)} values, {len(values)} were given")
        for name, value in zip(places, values, strict=False):
            _put(self, name, value)
        if len(values) < len(names):
            for name in names[len(values) :]:
                if name in named:
                    _put(self, name, named.pop(name))
                elif name in defaults:
                    _put(self, name, defaults[name])
                elif name in makers:
                    _put(self, name, makers[name]())
                else:
                    raise TypeError(f"{title} needs {name}")
        if named:
            raise TypeError(f"{title} has no {', '.join(named)}, or was given it twice")
        if post:
            self.__post_init__()

    return __init__


def _eq(self: Any, other: Any) -> Any:
    return self._values(self) == self._values(other) if other.__class__ is self.__class__ else NotImplemented


def _lt(self: Any, other: Any) -> Any:
    return self._values(self) < self._values(other) if other.__class__ is self.__class__ else NotImplemented


def _hash(self: Any) -> int:
    return hash(self._values(self))


def _no_change(self: Any, name: str, _value: Any = None) -> None:
    raise FrozenInstanceError(f"{name} of a {type(self).__name__} does not change")
