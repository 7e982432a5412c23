"""`nnadapter.records`: data classes that do what those of the standard library do."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import weakref

import pytest

from nnadapter import records


@records.dataclass(frozen=True, slots=True)
class Point:
    """A point."""

    x: int
    y: int = 2
    names: list[str] = records.field(default_factory=list, compare=False)
    hidden: int = records.field(default=0, repr=False, kw_only=True)


def define(decorator, **options):
    @decorator(**options)
    class Base:
        a: int
        b: tuple = ()

    @decorator(**options)
    class Derived(Base):
        c: list = records.field(default_factory=list, compare=False)
        d: int = records.field(default=3, init=False)

        def __post_init__(self):
            object.__setattr__(self, "d", self.a + 1)

    return Base, Derived


OPTIONS = [
    {"frozen": frozen, "slots": slots, "eq": eq, "kw_only": kw_only}
    for frozen in (False, True)
    for slots in (False, True)
    for eq in (False, True)
    for kw_only in (False, True)
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("mixed", [False, True], ids=["records", "with_dataclasses"])
def test_records_behave_like_dataclasses(options, mixed):
    base, derived = define(records.dataclass, **options)
    if mixed:  # a class of the standard library that inherits from one of ours

        @dataclasses.dataclass(**options)
        class derived(base):  # noqa: N801
            c: list = dataclasses.field(default_factory=list, compare=False)
            d: int = dataclasses.field(default=3, init=False)

            def __post_init__(self):
                object.__setattr__(self, "d", self.a + 1)

        derived.__qualname__ = "define.<locals>.Derived"
    _, expected = define(dataclasses.dataclass, **options)
    ours, theirs = derived(a=1, b=(2,)), expected(a=1, b=(2,))
    assert repr(ours) == repr(theirs)
    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs) == {"a": 1, "b": (2,), "c": [], "d": 2}
    assert [each.name for each in dataclasses.fields(derived)] == [each.name for each in dataclasses.fields(expected)]
    assert str(inspect.signature(derived)) == str(inspect.signature(expected))
    assert derived.__match_args__ == expected.__match_args__
    assert (ours == derived(a=1, b=(2,), c=[1])) == (theirs == expected(a=1, b=(2,), c=[1])) == options["eq"]
    assert ours != derived(a=2, b=(2,))
    assert ours != base(a=1, b=(2,))
    assert (derived.__hash__ is None) == (expected.__hash__ is None)
    assert hasattr(ours, "__dict__") == hasattr(theirs, "__dict__")
    assert dataclasses.is_dataclass(derived)
    for replace in (records.replace, dataclasses.replace):
        assert repr(replace(ours, a=5)) == repr(dataclasses.replace(theirs, a=5))
    for name in ("a", "d"):
        if options["frozen"]:
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(ours, name, 7)
            with pytest.raises(dataclasses.FrozenInstanceError):
                delattr(ours, name)
        else:
            setattr(ours, name, 7)
            assert getattr(ours, name) == 7
    with pytest.raises(TypeError, match="missing 1 required"):
        derived()


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_frozen_slots_are_copied_and_pickled(duplicate):
    assert duplicate(Point(1, names=["a"])) == Point(1)
    assert duplicate(Point(1, names=["a"])).names == ["a"]


def test_field_options_are_respected():
    point = Point(1, hidden=4)
    assert repr(point) == "Point(x=1, y=2, names=[])".replace("Point", Point.__qualname__)
    assert hash(point) == hash((1, 2, 4))
    assert Point(1).names is not Point(1).names
    with pytest.raises(TypeError):
        Point(1, 2, [], 4)


def test_methods_of_the_class_are_not_replaced():
    @records.dataclass(frozen=True)
    class Named:
        name: str

        def __eq__(self, other):
            return isinstance(other, Named) and self.name.lower() == other.name.lower()

        def __hash__(self):
            return 5

        def __repr__(self):
            return "named"

    assert Named("A") == Named("a")
    assert hash(Named("A")) == 5
    assert repr(Named("A")) == "named"


def test_classes_with_one_or_no_field():
    @records.dataclass(frozen=True)
    class Nothing:
        pass

    @records.dataclass(frozen=True)
    class One:
        value: float

    nan = float("nan")
    assert Nothing() == Nothing()
    assert hash(Nothing()) == hash(())
    assert One(nan) == One(nan)  # as in the standard library, tuples are compared, so identical values are equal
    assert hash(One(1.0)) == hash((1.0,))


def test_weakref_slot_allows_weak_references():
    @records.dataclass(slots=True, weakref_slot=True)
    class Watched:
        value: int

    watched = Watched(1)
    assert weakref.ref(watched)() is watched


def test_repr_of_a_cycle_is_finite():
    @records.dataclass
    class Node:
        next: object

    node = Node(None)
    node.next = node
    assert "..." in repr(node)
