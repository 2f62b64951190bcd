"""An extension of griffe for the documentation site: ``flush = in_thread(Log.flush)`` is shown as a method.

Griffe reads the sources without running them, so it would show an attribute without arguments or documentation.
"""

from __future__ import annotations

from typing import Any

from griffe import Docstring, ExprCall, Extension, Function, GriffeLoader, Module


class InThread(Extension):  # type: ignore[misc]  # untyped for us
    def on_package(self, *, pkg: Module, loader: GriffeLoader, **_: Any) -> None:
        for module in pkg["aio"].modules.values():
            for found in module.classes.values():
                for name, one in list(found.attributes.items()):
                    if isinstance(one.value, ExprCall) and str(one.value.function) == "in_thread":
                        blocking = loader.modules_collection[one.value.arguments[0].canonical_path]
                        found.set_member(name, _method(blocking, name, one.lineno))


def _method(blocking: Any, name: str, line: int | None) -> Function:
    made = Function(
        name,
        parameters=blocking.parameters,
        returns=blocking.returns,
        docstring=Docstring(f"{blocking.docstring.value}\n\nIf cancelled, it runs to its end."),
        lineno=line,
        endlineno=line,
    )
    made.docstring.parent = made
    made.labels.add("async")
    return made
