"""The fixtures of the engine's contract tests."""

from __future__ import annotations

from support.engine import litellm, model, shop, worker

__all__ = ["litellm", "model", "shop", "worker"]
