"""Reports on hostile data, and what a page about it may contain."""

from __future__ import annotations

import os
import random
import unicodedata
from html.parser import HTMLParser
from pathlib import Path

import kstore
from kstore.reports.report import Report
from kstore.transactions.group_records import OffsetAndMetadata

FRAGMENTS = (
    "<script>document.title='owned'</script>",
    "<img src=x onerror=document.title='owned'>",
    "</title><script>document.title='owned'//",
    "</style><style>*{background:url(http://127.0.0.1:9/leak)}",
    "</svg><svg onload=document.title='owned'>",
    "<svg><a xlink:href=javascript:alert(1)>",
    "\"'><iframe src=javascript:alert(1)>",
    "' autofocus onfocus='document.title=1",
    '" style="position:fixed',
    "javascript:alert(1)",
    "<!--",
    "-->",
    "]]><![CDATA[",
    "<base href=http://127.0.0.1:9/>",
    "<meta http-equiv=refresh content='0;url=http://127.0.0.1:9/'>",
    "<link rel=stylesheet href=//127.0.0.1:9/x.css>",
    "{{ 7 * 7 }}",
    "{% for x in range(9) %}9{% endfor %}",
    "{{ ''.__class__.__mro__ }}",
    "&lt;b&gt;&#60;b&#62;&amp;",
    "&#x3c;script&#x3e;",
    "\u202etxet desrever\u202c",
    "\u2066\u2069\u200b\u200d\ufeff",
    "\x1b[31mred\x1b]0;title\x07",
    "\r\n\t\x0b\x0c",
    "\x01\x7f\x9b",
    "\ud800",
    "\U000e0041\ue000\uffff",
    "e\u0301\u0301\u0301\u0301",
    "A" * 60,
    "\\u003cscript\\u003e",
    "%3Cscript%3E",
    "\u2028\u2029",
    "ﷺ" * 8,
)
RECORDS_OF_A_LOG = 10
NAME_BYTES_MAX = 200


def hostile_text(choose: random.Random) -> str:
    return "".join(choose.choices(FRAGMENTS, k=choose.randint(1, 3)))


def hostile_report(path: Path, choose: random.Random, count: int) -> Report:
    """A full report on about ``count`` hostile payloads, keys, headers, and names of groups.

    The names of the directories and of some files are hostile too, and every third log is damaged.
    """
    # First: a directory in which there are only others is refused.
    with kstore.open(path, durability="os", background=False) as store:
        store.create_topic("read")
    for number in range(-(-count // RECORDS_OF_A_LOG)):
        name = os.fsdecode(_file_name(hostile_text(choose)))
        directory = path / f"{name}-{number}"
        with kstore.Log(directory, durability="os") as log:
            for _ in range(RECORDS_OF_A_LOG):
                key, value, title = (hostile_text(choose).encode("utf-8", "surrogatepass") for _ in range(3))
                log.append(value, key=key, headers=[(title.decode("utf-8", "replace"), value)])
        (directory / os.fsdecode(_file_name(hostile_text(choose)))).write_bytes(b"")
        if number % 3 == 0:
            segment = next(directory.glob("*.log"))
            data = bytearray(segment.read_bytes())
            data[80:90] = b"<b>danger!"
            segment.write_bytes(data)
    with kstore.open(path, durability="os", background=False) as store:
        store.log("read").append(b"v")
        for _ in range(count):
            group = hostile_text(choose).encode("utf-8", "replace").decode()
            store.consumer_offsets.commit(group, {kstore.TopicPartition("read", 0): OffsetAndMetadata(1)})
    return kstore.report(path, deep=True, with_payload=True)


def _file_name(text: str) -> bytes:
    return text.replace("/", "|").encode("utf-8", "replace")[:NAME_BYTES_MAX] or b"x"


def hidden_characters(page: str) -> set[str]:
    """The invisible characters in ``page``, which could hide or reverse the text beside them."""
    return {char for char in set(page) if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")} - {
        "\n"
    }


class Elements(HTMLParser):
    """The elements of a page with the names of their attributes, where its links lead, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.kinds: set[tuple[str, frozenset[str]]] = set()
        self.links: set[str] = set()
        self.texts: list[str] = []
        self.feed(page)
        self.close()
        self.text = "".join(self.texts)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.kinds.add((tag, frozenset(name for name, _ in attrs)))
        self.links |= {value or "" for name, value in attrs if name in ("href", "xlink:href", "src", "action")}

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
