"""An attribute that a test replaces is put back as its owner held it."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace

import pytest

from tests.support.harness.replaced import replaced


class Counted:
    number = 1

    @staticmethod
    def name() -> str:
        return "counted"


class Derived(Counted):
    pass


@pytest.mark.parametrize(
    "owner",
    [SimpleNamespace(number=1), Counted, Counted(), Derived],
    ids=["itself", "a class", "an instance", "a derived class"],
)
def test_an_attribute_is_put_back_as_it_was_held(owner: object) -> None:
    held = dict(vars(owner))
    with suppress(KeyError), replaced(owner, "number", 2):
        assert owner.number == 2  # type: ignore[attr-defined]
        raise KeyError
    assert owner.number == 1  # type: ignore[attr-defined]
    assert dict(vars(owner)) == held


def test_a_static_method_stays_one() -> None:
    with replaced(Counted, "name", lambda: "other"):
        assert Counted.name() == "other"
    assert Counted().name() == "counted"
