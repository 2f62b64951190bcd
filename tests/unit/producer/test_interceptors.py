"""Interceptors: a failing link does not affect the rest of the chain."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from kstore.producer.interceptors import Interceptors, ProducerInterceptor
from kstore.producer.records import Headers, ProducerRecord, RecordMetadata

RECORD = ProducerRecord("topic", "value", "key", (), None, None)
METADATA = RecordMetadata("topic", 0, 7, 1, 3, 5)


class Appending(ProducerInterceptor):
    """Appends its name to each value; fails on request."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.fails = False
        self.sent: list[ProducerRecord] = []
        self.told: list[tuple[RecordMetadata, Exception | None]] = []
        self.close_count = 0

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        self.sent.append(record)
        self._fail("on_send")
        return dataclasses.replace(record, value=record.value + self.name)

    def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
        self.told.append((metadata, error))
        self._fail("on_acknowledgement")

    def close(self) -> None:
        self.close_count += 1
        self._fail("close")

    def _fail(self, where: str) -> None:
        if self.fails:
            raise RuntimeError(f"{self.name} in {where}")


class Chain:
    def __init__(self) -> None:
        self.one, self.two = Appending("-one"), Appending("-two")
        self.interceptors = Interceptors([self.one, self.two])


@pytest.fixture
def chain() -> Chain:
    return Chain()


def test_each_gets_what_the_one_before_has_made(chain: Chain) -> None:
    assert chain.interceptors.on_send(RECORD) == dataclasses.replace(RECORD, value="value-one-two")
    assert [record.value for record in chain.two.sent] == ["value-one"]


def test_topic_partition_and_key_can_be_changed_too() -> None:
    class Elsewhere(ProducerInterceptor):
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            return dataclasses.replace(record, topic="other", partition=3, key=b"k", headers=[("h", b"1")], timestamp=5)

    sent = Interceptors([Elsewhere()]).on_send(RECORD)
    assert sent == ProducerRecord("other", "value", b"k", (("h", b"1"),), 5, 3)


def test_after_one_that_fails_the_next_gets_the_last_good_record(
    chain: Chain, caplog: pytest.LogCaptureFixture
) -> None:
    chain.one.fails = True
    assert chain.interceptors.on_send(RECORD).value == "value-two"
    assert "topic: Appending failed in on_send" in caplog.text
    chain.one.fails, chain.two.fails = False, True
    assert chain.interceptors.on_send(RECORD).value == "value-one"
    chain.one.fails = True
    assert chain.interceptors.on_send(RECORD) is RECORD


@pytest.mark.parametrize("returned", [None, "record"])
def test_one_that_returns_no_record_counts_as_failed(returned: Any, caplog: pytest.LogCaptureFixture) -> None:
    class Forgetful(ProducerInterceptor):
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            return returned  # type: ignore[no-any-return]

    assert Interceptors([Forgetful(), Appending("-two")]).on_send(RECORD).value == "value-two"
    assert f"on_send returned a {type(returned).__name__}, expected a ProducerRecord" in caplog.text


def test_all_are_notified_of_an_arrival_even_if_one_fails(chain: Chain, caplog: pytest.LogCaptureFixture) -> None:
    chain.interceptors.on_acknowledgement(METADATA, None)
    chain.one.fails = True
    chain.interceptors.on_acknowledgement(METADATA, None)
    chain.two.fails = True
    chain.interceptors.on_acknowledgement(METADATA, None)
    assert chain.one.told == chain.two.told == [(METADATA, None)] * 3
    assert "topic: Appending failed in on_acknowledgement" in caplog.text


@pytest.mark.parametrize(
    ("named", "chosen", "known"),
    [
        pytest.param(None, None, -1, id="not-known"),
        pytest.param(0, None, 0, id="the-records-own"),
        pytest.param(None, 2, 2, id="chosen"),
        pytest.param(1, 2, 2, id="both"),
    ],
)
def test_a_failure_to_send_is_reported_with_the_known_partition(
    chain: Chain, named: int | None, chosen: int | None, known: int
) -> None:
    error = ValueError("too large")
    chain.interceptors.on_send_error(dataclasses.replace(RECORD, partition=named), error, chosen)
    assert chain.one.told == chain.two.told == [(RecordMetadata("topic", known), error)]


def test_an_interceptor_that_wants_headers_gets_them() -> None:
    class Tracing(ProducerInterceptor):
        def __init__(self) -> None:
            self.headers: list[Headers | None] = []

        def on_acknowledgement_with_headers(
            self, metadata: RecordMetadata, error: Exception | None, headers: Headers | None
        ) -> None:
            self.headers.append(headers)

    tracing, plain = Tracing(), Appending("")
    interceptors = Interceptors([tracing, plain])
    interceptors.on_acknowledgement(METADATA, None)
    interceptors.on_acknowledgement(METADATA, None, (("trace", b"1"),))
    interceptors.on_send_error(dataclasses.replace(RECORD, headers=[("trace", b"2")]), ValueError("too large"))
    assert tracing.headers == [None, (("trace", b"1"),), (("trace", b"2"),)]
    assert len(plain.told) == 3


def test_one_need_not_extend_the_class() -> None:
    class Plain:
        told = 0

        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            return record

        def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
            self.told += 1

    plain: Any = Plain()
    interceptors = Interceptors([plain])
    assert interceptors.on_send(RECORD) is RECORD
    interceptors.on_acknowledgement(METADATA, None, ())
    interceptors.close()
    assert plain.told == 1


def test_all_are_closed_even_if_one_fails(chain: Chain, caplog: pytest.LogCaptureFixture) -> None:
    chain.one.fails = True
    chain.interceptors.close()
    assert (chain.one.close_count, chain.two.close_count) == (1, 1)
    assert "Appending failed in close" in caplog.text


def test_an_interrupt_is_no_failure_of_an_interceptor() -> None:
    class Interrupted(ProducerInterceptor):
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Interceptors([Interrupted()]).on_send(RECORD)


def test_none_is_an_empty_chain() -> None:
    assert not Interceptors()
    assert Interceptors().on_send(RECORD) is RECORD
