"""What a page says at its top: how much of what it shows was checked, and what a check of every byte does now. Pure.

What was not checked is never called sound.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from kstore.ui.checking import Coverage, Progress
from kstore.ui.survey import Counted
from kstore.upkeep.numbers import count_text, duration_text, size_text, time_text

Model = dict[str, Any]

NOTHING = "Nothing was checked yet"
HEADERS = "Headers checked, payloads not"


class Known(NamedTuple):
    """What is known of one log: the count, and the check of every byte."""

    counted: Counted | None
    coverage: Coverage
    progress: Progress

    @property
    def level(self) -> str:
        """How much was checked: "none", "headers", "part" (of the bytes) or "bytes"."""
        is_deep = self.counted is not None and "verified" in self.counted.document
        if is_deep or self.coverage.is_complete:
            return "bytes"
        if self.coverage.checked_segments:
            return "part"
        return "none" if self.counted is None else "headers"


def of_log(known: Known) -> Model:
    """What was checked of a log: "level" and "text"."""
    level, coverage = known.level, known.coverage
    if level == "none":
        text = NOTHING
    elif level == "headers":
        text = HEADERS
    elif level == "part":
        text = (
            f"{size_text(coverage.checked_size)} of {size_text(coverage.size)} were checked byte for byte at"
            f" {time_text(coverage.ended_ms)}; of the rest, which is new or has changed, headers alone, payloads not"
        )
    else:
        ended_ms = coverage.ended_ms or (0 if known.counted is None else known.counted.at_ms)
        text = f"Every byte was checked at {time_text(ended_ms)}"
    return {"level": level, "text": f"{text}."}


def of_logs(known: Sequence[Known]) -> Model:
    """What was checked of several logs."""
    levels = [each.level for each in known]
    whole, some, none = (levels.count(level) for level in ("bytes", "part", "none"))
    if not known or none == len(known):
        return {"level": "none", "text": f"{NOTHING}."}
    if whole == len(known):
        return {"level": "bytes", "text": "Every byte was checked."}
    text = f"{HEADERS}."
    if whole or some:
        text = f"Every byte of {count_text(whole)} of {count_text(len(known))} logs was checked."
        text += f" Of {count_text(some)} a part was." if some else ""
        text += " Of the others headers were checked, payloads not."
    if none:
        text += f" {count_text(none)} logs were not checked yet."
    return {"level": "part" if whole or some else "headers", "text": text}


def of_a_part(text: str, log: Model) -> Model:
    """What a page has checked of what it shows itself, before what was checked of its log."""
    return {"level": log["level"], "text": f"{text} Of the log: {log['text'][:1].lower()}{log['text'][1:]}"}


def check_of(url: str, progress: Iterable[Progress], size: int, bytes_per_second: float | None) -> Model:
    """The form that begins a check of every byte, or cancels it, and how far it is."""
    every = list(progress)
    going = [each for each in every if each.is_going_on]
    (failed, cancelled, done) = (
        [each for each in every if each.state == state] for state in ("failed", "cancelled", "done")
    )
    texts = []
    if going:
        running = [each for each in going if each.state == "running"]
        texts += [
            f"Every byte is being checked: {size_text(each.read)} of {size_text(each.total)}." for each in running
        ]
        waiting = len(going) - len(running)
        if waiting:
            texts.append(
                f"{count_text(waiting)} wait for their turn." if len(every) > 1 else "The check waits for its turn."
            )
    else:
        speed = "" if bytes_per_second is None else f" at {size_text(round(bytes_per_second))} a second"
        seconds = "" if bytes_per_second is None else f", about {duration_text(round(1000 * size / bytes_per_second))}"
        texts.append(f"Reads {size_text(size)}{speed}{seconds}.")
    texts += [f"A check ended early: {each.problem}." for each in failed[:3]]
    if cancelled and not done and not going:
        texts.append(f"The last check was cancelled at {time_text(max(each.ended_ms for each in cancelled))}.")
    return {
        "url": url,
        "going": bool(going),
        "read": sum(each.read for each in going),
        "total": sum(each.total for each in going),
        "text": " ".join(texts),
    }
