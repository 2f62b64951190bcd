"""The list of names that the root of the repository may have."""

from __future__ import annotations

from tools.root_names import ROOT, ROOT_NAMES, unexpected


def test_a_name_that_a_run_left_in_the_root_is_reported_once() -> None:
    assert unexpected(["README.md", "orders-0/1.log", "orders-0/2.log", "kstore/log.py", "1h/.lock"]) == [
        "1h",
        "orders-0",
    ]


def test_every_listed_name_exists() -> None:
    assert {name for name in ROOT_NAMES if not (ROOT / name).exists()} == set()
