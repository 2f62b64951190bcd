"""``block``: like ``contextlib.contextmanager``, without its Python frames."""

from __future__ import annotations

import traceback
from collections.abc import Iterator

import pytest

from kstore.files._locks import block

seen: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    seen.clear()


@block
def noted(name: str, *, passes_over: type[BaseException] = ZeroDivisionError) -> Iterator[str]:
    """Notes what happens."""
    seen.append("begun")
    try:
        yield name
    except passes_over:
        seen.append("passed over")
    finally:
        seen.append("ended")


def test_the_generator_runs_around_the_block() -> None:
    with noted("one") as name:
        seen.append(name)
    assert seen == ["begun", "one", "ended"]
    assert (noted.__name__, noted.__doc__) == ("noted", "Notes what happens.")


def test_an_error_of_the_block_reaches_the_generator_and_the_caller() -> None:
    with pytest.raises(KeyError) as caught, noted("one"):
        raise KeyError("one")
    assert seen == ["begun", "ended"]
    assert [frame.name for frame in traceback.extract_tb(caught.tb)][-1] == (
        "test_an_error_of_the_block_reaches_the_generator_and_the_caller"
    )


def test_the_generator_may_pass_over_an_error() -> None:
    with noted("one", passes_over=KeyError):
        raise KeyError("one")
    assert seen == ["begun", "passed over", "ended"]


def test_an_error_of_the_generator_replaces_that_of_the_block() -> None:
    @block
    def failing() -> Iterator[None]:
        try:
            yield
        except KeyError as error:
            raise ValueError("two") from error

    with pytest.raises(ValueError, match="two") as caught, failing():
        raise KeyError("one")
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("error", [StopIteration("one"), RuntimeError("one"), GeneratorExit("one")])
def test_errors_that_generators_treat_differently_pass_unchanged(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, noted("one"):
        raise error
    assert caught.value is error


def test_a_method_may_be_a_block() -> None:
    class Door:
        @block
        def opened(self) -> Iterator[Door]:
            yield self

    door = Door()
    with door.opened() as inside:
        assert inside is door


def test_a_generator_that_yields_never_or_twice_is_a_mistake() -> None:
    @block
    def yields(count: int) -> Iterator[None]:
        for _ in range(count):
            yield

    with pytest.raises(RuntimeError, match="has no value"), yields(0):
        pass
    with pytest.raises(RuntimeError, match="goes on after its value"), yields(2):
        pass
