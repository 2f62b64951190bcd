"""``kstore ui`` shows hostile, huge and odd keys, values, headers and names as text; they break no page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import kstore
from kstore.ui.payload import TEXT_BYTES_MAX, preview, shown
from tests.support.lives.ui_parts import Site, site
from tests.unit.reports.test_report import HOSTILE_NAMES, Seen
from tests.unit.ui.test_ui_pages import assert_harmless

HOSTILE_VALUES = (
    b"<script>alert(1)</script>",
    b"\" onload='alert(1)' x=\"",
    "a\u202egpj.exe".encode(),
    b"{{ 7 * 7 }}{% raw %}",
    b"\x1b[31mred\x07\x9b2J",
    b"-->]]></pre></main><!--",
    b"\xff\xfe\x00binary",
    b"</title><svg onload=alert(1)>",
    b'{"<script>alert(1)</script>": "</pre><b>"}',
    b"[" * 60_000,
    b"[" * 900 + b"]" * 900,
    b"9" * 5000,
    "\u2028\u2029\ufeff\u200b".encode(),
    b"line\r\nline\ttab\nlast",
)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    root = tmp_path_factory.mktemp("hostile")
    with kstore.Log(root / "hostile-0") as log:
        for value in HOSTILE_VALUES:
            name = value[:500].decode("utf-8", "replace")
            log.append_many([value], keys=[value], headers=[[(name, value), (name, None)]])
    for name in HOSTILE_NAMES:
        kstore.Log(root / name).close()
    with site([root]) as made:
        yield made


@pytest.mark.parametrize("number", range(len(HOSTILE_VALUES)))
@pytest.mark.sampled(3)
def test_a_hostile_record_disturbs_no_page(hostile: Site, number: int) -> None:
    value = HOSTILE_VALUES[number]
    record = hostile.get(f"/logs/0/hostile/0/jump?to={number}").headers["location"]
    forms = [f"{record}?as={form}" for form in ("auto", "text", "json", "hex", "<script>")]
    for url in (*forms, record.rpartition("/")[0], "/logs/0/hostile/0/live"):
        text = hostile.page(url)
        seen = assert_harmless(text)
        assert not re.search(
            r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]", text.replace("\n", "")
        )
        assert "alert(1)" not in [attribute for _, attributes in seen.elements for attribute in attributes.values()]
        hostile.json(url.partition("?")[0] + ".json")
    assert shown(value, "hex").text.splitlines()[0][:30] in Seen(hostile.page(forms[3])).text


def test_hostile_names_of_directories_disturb_no_page(hostile: Site) -> None:
    names = {topic["topic"]: topic["url"] for topic in hostile.json("/overview.json")["topics"]}
    assert len(names) == len(HOSTILE_NAMES) + 1
    for name, url in names.items():
        assert re.fullmatch(r"/logs/0/~?[\w.-]+", url, re.ASCII), name
        for page in (url, f"{url}/{'0' if name == 'hostile' else 'log'}"):
            assert_harmless(hostile.page(page))
            hostile.json(f"{page}.json")
    text = hostile.page("/")
    assert_harmless(text)
    assert "\u202e" not in text
    assert "<script>alert" not in text


def test_a_huge_value_is_cut_and_its_size_is_shown(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "huge-0", max_message_bytes="8MiB") as log:
        log.append(b"x" * (4 << 20), key=b"\x00" * (1 << 20))
    with site([tmp_path]) as pages:
        text = pages.page("/logs/0/huge/0/0/0/0")
        assert len(text) < 500_000
        assert "4.00 MiB" in text
        assert "are not shown" in text
        page = pages.json("/logs/0/huge/0/0/0/0.json")
        assert page["value"]["size"] == 4 << 20
        assert page["value"]["hidden"] == (4 << 20) - TEXT_BYTES_MAX
        assert len(pages.page("/logs/0/huge/0/0/0")) < 50_000


def test_many_headers_and_many_steps_make_no_endless_page(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "wide-0", max_message_bytes="32MiB") as log:
        log.append(b"x", headers=[("h", b"y" * 20_000)] * 1000)
    with site([tmp_path]) as pages:
        text = pages.page("/logs/0/wide/0/0/0/0")
        assert "800 more are not shown" in text
        assert len(text) < 3_000_000


def test_a_record_has_the_form_that_fits_or_is_wanted() -> None:
    assert shown(None) == ("null", "", None, 0)
    assert shown(b"") == ("text", "", 0, 0)
    assert shown(b"plain").form == shown(b"17").form == shown(b'"x"').form == "text"
    assert shown(b"17", "json").form == "json"
    assert shown(b"{}").form == "json"
    assert shown(b"\xff\x00").form == "hex"
    assert shown(b"\xff{", "text").text == "\\xff{"
    assert shown(b"no json", "json").form == "text"
    assert shown(b"A\x00", "hex").text == f"00000000  {'41 00':<47}  A."


@pytest.mark.parametrize(
    "text",
    [
        '{"a":[1,2,{"b":1.000000000000000000001,"a":"x,y\\"{"}],"a":{},"c":[]}',
        "[1e400,-0,1E5,123456789012345678901234567890,null,true]",
        '{"\\ud800":"\\u0041 [ ] { } , :"}',
        "[[[]],[{}]]",
    ],
)
def test_json_keeps_every_token_as_it_was_written(text: str) -> None:
    pretty = shown(text.encode()).text
    assert "\n" in pretty
    assert json.dumps(json.loads(pretty)) == json.dumps(json.loads(text))
    outside = re.sub(r'"(?:[^"\\]|\\.)*"', '""', pretty)
    assert re.sub(r"\s", "", outside) == re.sub(r'"(?:[^"\\]|\\.)*"', '""', text)


def test_a_cut_text_ends_between_characters() -> None:
    data = "ü".encode() * 1000
    assert shown(data, "text", 101).text == "ü" * 50
    assert preview(data).text == "ü" * 60
    assert preview(data).hidden == 2000 - 120
