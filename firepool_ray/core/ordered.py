"""Two small ordered containers for the machines: by key, and by time.

Both keep a plain sorted list. Insertion moves memory, not objects: at 10,000 entries that is about
a microsecond, and every order is explicit, so no decision ever depends on hashing.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class Ordered(Generic[T]):
    """Items by (key, number): the number is unique, says which item it is and breaks ties."""

    __slots__ = ("_items", "_keys", "_order")

    def __init__(self) -> None:
        self._order: list[tuple[float, int]] = []
        self._keys: dict[int, float] = {}
        self._items: dict[int, T] = {}

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, number: int) -> bool:
        return number in self._keys

    def add(self, key: float, number: int, item: T) -> None:
        """Insert, or move to another key."""
        old = self._keys.get(number)
        if old is not None:
            if old == key:
                return
            del self._order[bisect_left(self._order, (old, number))]
        self._keys[number] = key
        self._items[number] = item
        insort(self._order, (key, number))

    def discard(self, number: int) -> None:
        key = self._keys.pop(number, None)
        if key is not None:
            del self._order[bisect_left(self._order, (key, number))]
            del self._items[number]

    def first(self) -> T | None:
        return self._items[self._order[0][1]] if self._order else None

    def last(self) -> T | None:
        return self._items[self._order[-1][1]] if self._order else None

    def key_of(self, number: int) -> float:
        """Key of an item that is there."""
        return self._keys[number]

    def first_key(self) -> float:
        """Key of the first item; inf when empty."""
        return self._order[0][0] if self._order else float("inf")

    def __iter__(self) -> Iterator[T]:
        """In order. The container must not change while this runs."""
        items = self._items
        return (items[number] for _, number in self._order)


class Agenda(Generic[K]):
    """At most one time per owner; owners in the order of their times."""

    __slots__ = ("_numbers", "_ordered", "_serial")

    def __init__(self) -> None:
        self._ordered: Ordered[K] = Ordered()
        self._numbers: dict[K, int] = {}
        self._serial = 0

    def __len__(self) -> int:
        return len(self._ordered)

    def set(self, owner: K, when: float) -> None:
        number = self._numbers.get(owner)
        if number is None:
            self._serial += 1
            number = self._numbers[owner] = self._serial
        self._ordered.add(when, number, owner)

    def set_earlier(self, owner: K, when: float) -> None:
        """As ``set``, but an earlier time stands."""
        number = self._numbers.get(owner)
        if number is None or self._ordered.key_of(number) > when:
            self.set(owner, when)

    def cancel(self, owner: K) -> None:
        number = self._numbers.pop(owner, None)
        if number is not None:
            self._ordered.discard(number)

    def next_time(self) -> float:
        """inf when nothing is due ever."""
        return self._ordered.first_key()

    def time_of(self, owner: K) -> float:
        """inf for an owner that has no time."""
        number = self._numbers.get(owner)
        return float("inf") if number is None else self._ordered.key_of(number)

    def pop_due(self, at: float) -> K | None:
        if self._ordered.first_key() > at:
            return None
        owner = self._ordered.first()
        assert owner is not None
        self.cancel(owner)
        return owner
