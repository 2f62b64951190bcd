from typing import Generic, TypeVar

Ends = TypeVar("Ends")

class EndsMaker(Generic[Ends]):
    def __init__(self, ends_type: type[Ends]) -> None: ...
