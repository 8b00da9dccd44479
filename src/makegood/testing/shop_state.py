"""What the test shop holds, and what a request does to it."""

from __future__ import annotations

import collections
import threading
from typing import Any

FIELDS = {
    "tickets": ("customer", "title"),
    "orders": ("customer", "item"),
    "flights": ("customer", "to"),
    "hotels": ("customer", "city"),
}
"""Collections, and what a request must give to create a member. A member's id begins with the collection's first letter."""

BY_KEY = "by-key/"

Answer = tuple[int, dict[str, Any]]


class Store:
    """The collections. A request to create under a known key gives the answer that the first one gave."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in FIELDS}
        self._made: collections.Counter[str] = collections.Counter()
        self._answers: dict[tuple[str, str], tuple[Any, Answer]] = {}

    def all(self, collection: str) -> list[dict[str, Any]]:
        """The members of a collection, oldest first."""
        with self._lock:
            return [dict(each) for each in self._held[collection].values()]

    def answer(self, method: str, path: str, body: Any, key: str) -> Answer:
        """Do what is asked for; returns status and body."""
        collection, _, name = path.strip("/").partition("/")
        with self._lock:
            if method == "POST" and collection in FIELDS and not name:
                return self._create(collection, body, key)
            if method == "GET" and name:
                return self._read(collection, name)
            if method == "DELETE" and collection in FIELDS and name:
                return self._delete(collection, name)
        return 404, {"error": f"there is no {method} {path}"}

    def _create(self, collection: str, body: Any, key: str) -> Answer:
        missing = [field for field in FIELDS[collection] if not isinstance(body, dict) or not body.get(field)]
        if missing:
            return 400, {"error": f"{', '.join(missing)} must be given"}
        known = self._answers.get((collection, key)) if key else None
        if known is not None:
            same, answer = known[0] == body, known[1]
            return (
                answer
                if same
                else (422, {"error": "the Idempotency-Key was already used with another payload"})
            )
        self._made[collection] += 1
        name = f"{collection[0].upper()}-{self._made[collection]}"
        member = {"id": name, **{field: body[field] for field in FIELDS[collection]}}
        self._held[collection][name] = member
        made: Answer = 201, dict(member)
        if key:
            self._answers[collection, key] = body, made
        return made

    def _delete(self, collection: str, name: str) -> Answer:
        member = self._held[collection].pop(name, None)
        return (404, {"error": f"there is no {name}"}) if member is None else (200, member)

    def _read(self, collection: str, name: str) -> Answer:
        if collection in self._held:
            if name.startswith(BY_KEY):
                known = self._answers.get((collection, name.removeprefix(BY_KEY)))
                name = known[1][1]["id"] if known else name
            member = self._held[collection].get(name)
            return (404, {"error": f"there is no {name}"}) if member is None else (200, dict(member))
        number = sum(name.encode()) % 90 + 10
        if collection == "stock":
            return 200, {"item": name, "left": number}
        if collection == "quotes":
            return 200, {"item": name, "price": number}
        return 404, {"error": f"there is no {collection}/{name}"}
