from typing import Generic, TypeVar

Ends = TypeVar("Ends")

class EndsMaker(Generic[Ends]):
    def __init__(self, ends_type: type[Ends]) -> None: ...
    def make(
        self,
        start_offset: int,
        recovery_point: int,
        durable_end: int,
        high_watermark: int,
        end_offset: int,
        base_offset: int,
        position: int,
        /,
    ) -> Ends: ...
    def grown(self, before: Ends, end_offset: int, base_offset: int, position: int, /) -> Ends: ...
