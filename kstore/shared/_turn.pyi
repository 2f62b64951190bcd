from types import TracebackType

from kstore.engine.files import LogFiles
from kstore.engine.others import Others
from kstore.files.lock import DirectoryLock
from kstore.shared.turn import SharedTurn

class TurnLock:
    _mutex: object
    def __init__(self, turn: SharedTurn, files: LogFiles, others: Others, directory_lock: DirectoryLock) -> None: ...
    @property
    def is_mine(self) -> bool: ...
    def __enter__(self) -> None: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
