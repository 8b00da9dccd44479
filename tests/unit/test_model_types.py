"""The records of the model adapter."""

from __future__ import annotations

import json
import pickle

import pytest

from makegood.tasks.model.types import Failure, FailureCode, ModelFailure

FULL = Failure(
    "Broken off.",
    FailureCode.PARTIAL_RESPONSE,
    status=429,
    retry_after_ms=1500,
    request_id="req-1",
    cause=Failure("Slow down.", FailureCode.RATE_LIMIT, status=429),
)


@pytest.mark.contract("B8")
@pytest.mark.parametrize("failure", [FULL, Failure("No.", FailureCode.AUTH)])
def test_a_failure_survives_json(failure: Failure) -> None:
    """A failure record can be written as JSON and read back, with its cause."""
    assert Failure.from_dict(json.loads(json.dumps(failure.to_dict()))) == failure


@pytest.mark.contract("B8")
def test_a_failure_gives_no_verdict_on_retries() -> None:
    """There is no `retryable` field: facts only, and unknown facts are left out."""
    assert Failure("No.", FailureCode.AUTH).to_dict() == {"message": "No.", "code": "AUTH"}
    assert set(FULL.to_dict()) == {"message", "code", "status", "retry_after_ms", "request_id", "cause"}


@pytest.mark.contract("B11")
def test_a_model_failure_survives_pickling() -> None:
    """What leaves a worker serialises: the exception comes back with its failure."""
    error = pickle.loads(pickle.dumps(ModelFailure(FULL)))
    assert isinstance(error, ModelFailure)
    assert error.failure == FULL
    assert str(error) == "PARTIAL_RESPONSE: Broken off."


@pytest.mark.contract("B9")
def test_the_codes_are_a_closed_set() -> None:
    """Exactly the codes of the contract, and the one that the engine adds."""
    assert {str(code) for code in FailureCode} == {
        *("RATE_LIMIT", "SERVER", "TIMEOUT_CONNECT", "TIMEOUT_FIRST_TOKEN", "TIMEOUT_IDLE", "TIMEOUT_CALL"),
        *("TRANSPORT", "EMPTY_RESPONSE", "AUTH", "QUOTA", "INVALID_REQUEST", "CONTEXT_WINDOW_EXCEEDED"),
        *("CONTENT_FILTER", "CANCELLED", "PARTIAL_RESPONSE"),
    }
