"""Typed stubs of the store's operations: each builds an `Op` from plain values and says how its reply reads."""
