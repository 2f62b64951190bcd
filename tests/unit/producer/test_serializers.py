"""Serializers: what they make of keys and values, and their errors."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from kstore.errors import SerializationError
from kstore.producer.serializers import HeaderList, Serializers


def value_of(setting: Any, value: Any) -> bytes | None:
    return Serializers(value_serializer=setting).serialize("t", None, value)[1]


@pytest.mark.parametrize(
    ("setting", "value", "serialized"),
    [
        ("bytes", b"abc", b"abc"),
        ("bytes", b"", b""),
        ("bytes", bytearray(b"abc"), b"abc"),
        ("bytes", memoryview(b"abcdef")[::2], b"ace"),
        ("bytes", array("B", [1, 2]), b"\x01\x02"),
        ("str", "abc", b"abc"),
        ("str", "", b""),
        ("str", "größer €", b"gr\xc3\xb6\xc3\x9fer \xe2\x82\xac"),
        ("json", {"a": [1, None, "ö"]}, b'{"a":[1,null,"\xc3\xb6"]}'),
        ("json", 0, b"0"),
        ("json", False, b"false"),
        (str.encode, "abc", b"abc"),
        (lambda number: number.to_bytes(4, "big"), 7, b"\x00\x00\x00\x07"),
        (lambda text: bytearray(text, "ascii"), "abc", b"abc"),
    ],
)
def test_a_value_becomes_bytes(setting: Any, value: Any, serialized: bytes) -> None:
    made = value_of(setting, value)
    assert made == serialized
    assert type(made) is bytes


@pytest.mark.parametrize("setting", ["bytes", "str", "json", repr])
def test_none_stays_none(setting: Any) -> None:
    assert Serializers(setting, setting).serialize("t", None, None) == (None, None, ())


@pytest.mark.parametrize(
    ("setting", "value", "type_name", "cause"),
    [
        ("bytes", "text", "str", TypeError),
        # bytes(5) would be five zeros.
        ("bytes", 5, "int", TypeError),
        ("str", b"bytes", "bytes", TypeError),
        ("str", 5, "int", TypeError),
        ("str", "\ud800", "str", UnicodeEncodeError),
        ("json", {1, 2}, "set", TypeError),
        ("json", float("nan"), "float", ValueError),
        (str.encode, b"secret", "bytes", TypeError),
        (lambda value: {}[value], "secret", "str", KeyError),
    ],
)
def test_what_a_serializer_cannot_take_is_an_error_that_names_both(
    setting: Any, value: Any, type_name: str, cause: type[Exception]
) -> None:
    with pytest.raises(
        SerializationError, match=f"the value for topic t, a {type_name}, .* by value_serializer"
    ) as caught:
        value_of(setting, value)
    assert isinstance(caught.value.__cause__, cause)
    # No message contains users' bytes.
    assert "secret" not in str(caught.value)
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ValueError)


def test_an_error_of_a_key_says_so() -> None:
    with pytest.raises(
        SerializationError, match="the key for topic t, a int, cannot be serialized by key_serializer, 'str'"
    ):
        Serializers("str", "str").serialize("t", 5, "value")


@pytest.mark.parametrize("made", ["text", 5, [b"a"]])
def test_what_makes_no_bytes_is_refused(made: Any) -> None:
    with pytest.raises(
        SerializationError, match=f"made a {type(made).__name__} of the value for topic t, expected bytes"
    ):
        value_of(lambda value: made, "x")


class Framing:
    """An object as a serializer: it sees the topic, adds a header, and frames None too."""

    def __init__(self) -> None:
        self.seen: list[HeaderList] = []
        self.close_count = 0

    def serialize(self, topic: str, headers: HeaderList, data: Any) -> bytes | None:
        headers.append(("schema", topic.encode()))
        self.seen.append(headers)
        return b"<" + str(data).encode() + b">"

    def close(self) -> None:
        self.close_count += 1


def test_an_object_sees_the_topic_and_adds_headers() -> None:
    framing = Framing()
    given = (("given", None),)
    assert Serializers("bytes", framing).serialize("t", b"k", None, given) == (
        b"k",
        b"<None>",
        (("given", None), ("schema", b"t")),
    )


def test_the_key_comes_first() -> None:
    key, value = Framing(), Framing()
    Serializers(key, value).serialize("t", 1, 2)
    # One list, to which both added.
    assert key.seen[0] is value.seen[0]
    assert len(value.seen[0]) == 2


def test_headers_are_frozen_when_both_are_done() -> None:
    framing = Framing()
    headers = Serializers(framing, "bytes").serialize("t", 1, b"", [("a", b"1")])[2]
    framing.seen[0].append(("late", b""))
    assert headers == (("a", b"1"), ("schema", b"t"))


def test_headers_given_are_not_changed() -> None:
    given: HeaderList = [("a", b"1")]
    Serializers(Framing(), Framing()).serialize("t", 1, 2, given)
    assert given == [("a", b"1")]
    assert Serializers().serialize("t", None, None, None)[2] == ()


def test_only_bytes_need_no_serializer() -> None:
    assert Serializers().is_plain
    assert not Serializers("str").is_plain
    assert not Serializers("bytes", Framing()).is_plain


def test_those_that_can_be_closed_are_closed_even_if_one_fails(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Framing):
        def close(self) -> None:
            super().close()
            raise RuntimeError("no")

    key, value = Failing(), Framing()
    Serializers(key, value).close()
    Serializers("str", repr).close()
    assert (key.close_count, value.close_count) == (1, 1)
    assert "key_serializer failed in close" in caplog.text
