"""The schemas of Kafka's messages are those of its jars."""

from __future__ import annotations

from importlib import resources

import pytest

from tools.interop import java
from tools.interop.schemas import SOURCES, schema_text

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("name", SOURCES)
def test_a_schema_that_is_generated_again_is_the_same(name: str) -> None:
    try:
        jars = java.fetch_jars(kafka_release=java.NEWEST_KAFKA)
    except java.Unavailable as error:
        pytest.skip(str(error))
    assert schema_text(name, jars) == resources.files("kstore.messages").joinpath(f"schemas/{name}.schema").read_text()
