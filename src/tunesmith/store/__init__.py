"""The persistent store: every Trial with all its samples, and the Choices made of them. Safe for many processes."""

from tunesmith.store.rows import StoredChoice
from tunesmith.store.store import Store, default_store

__all__ = ["Store", "StoredChoice", "default_store"]
