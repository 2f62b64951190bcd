"""How the commands hold Ctrl-C back."""

from __future__ import annotations

import signal

import pytest

from kstore.cli.interrupts import held_interrupts


def test_a_handler_that_python_does_not_know_becomes_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(signal, "getsignal", lambda _: None)
            with held_interrupts():
                pass
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, before)
