"""The compression ratio of a topic's batches, as observed so far (Kafka: CompressionRatioEstimator)."""

from __future__ import annotations

from typing import Final

# An estimate that is too low makes batches too large: it rises fast and falls slowly.
STEP_UP: Final = 0.05
STEP_DOWN: Final = 0.005
# The margin on top of the estimate (Kafka: COMPRESSION_RATE_ESTIMATION_FACTOR).
MARGIN: Final = 1.05
# A batch of zeros would make the next one unbounded.
RATIO_MIN: Final = 0.02


class CompressionRatios:
    """Compressed by uncompressed size, by topic and codec. Thread-safe under the GIL: each value is one store."""

    def __init__(self) -> None:
        self._ratios: dict[tuple[str, str], float] = {}

    def estimate(self, topic: str, codec: str) -> float:
        """The ratio expected for the next batch's records, with a margin."""
        return max(self._ratios.get((topic, codec), 1.0), RATIO_MIN) * MARGIN

    def observe(self, topic: str, codec: str, ratio: float) -> None:
        """Notes that a batch compressed to ``ratio`` of its size."""
        last = self._ratios.get((topic, codec), 1.0)
        step = STEP_UP if ratio > last else -STEP_DOWN
        self._ratios[topic, codec] = max(last + step, ratio)

    def reset(self, topic: str, codec: str, ratio: float) -> None:
        """Notes that a batch was too large, at ``ratio``, and was split."""
        self._ratios[topic, codec] = max(1.0, ratio)
