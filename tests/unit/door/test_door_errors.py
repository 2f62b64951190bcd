"""Kafka's code of each error of kstore."""

from __future__ import annotations

import inspect

import pytest

from kstore import errors
from kstore.door.errors import UNKNOWN_SERVER_ERROR, code_of

CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.KstoreError)]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_of_kstore_has_a_code(kind: type[BaseException]) -> None:
    if kind in (errors.KstoreError, errors.DeliveryError):  # raised by no store
        return
    assert code_of(kind.__new__(kind)) > 0


def test_an_unknown_error_is_a_server_s() -> None:
    assert code_of(ValueError("x")) == UNKNOWN_SERVER_ERROR
    assert code_of(KeyboardInterrupt()) == UNKNOWN_SERVER_ERROR


def test_the_nearest_class_decides() -> None:
    class Subclass(errors.InvalidProducerEpochError):
        pass

    assert code_of(Subclass(1, 0, 5)) == 47
    # Clients take 46 for a success.
    assert code_of(errors.DuplicateSequenceError(1, 0, 5, 6)) == 45
    assert code_of(errors.OutOfOrderSequenceError(1, 0, 5, 6)) == 45
    assert code_of(errors.PoisonedError(5, "poisoned")) == 56
    assert code_of(errors.DiskFullError(28, "full")) == 56
    assert code_of(errors.ReadOnlyError(30, "read-only")) == 44
