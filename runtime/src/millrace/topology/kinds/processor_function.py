"""The kind ``function`` of processors: user code."""

from __future__ import annotations

from millrace.functions import FunctionKind, FunctionSpec
from millrace.topology.kinds.base import Columns, Incoming, ProcessorKind, UserCode
from millrace.topology.scalars import Target


class FunctionProcessorKind(ProcessorKind[str]):
    """A function or class of the user's own; the decorator says how it is called."""

    name = "function"
    meaning = 'User code as "module:function" or "module:Class".'
    settings = Target
    fillers = {"function": "count"}
    compiler = "millrace.engine.program.kinds:function"
    step = "millrace.engine.task.steps.making:function"

    def summary(self, settings: str) -> str:
        return f"function {settings}"

    def columns(self, settings: str, incoming: Incoming) -> Columns | None:
        if incoming.function is None:
            return None
        where = incoming.function.kind is FunctionKind.WHERE
        return incoming.columns if where else incoming.function.output

    def keeps_state(self, settings: str, function: FunctionSpec | None) -> str:
        keyed = function is not None and function.keyed
        return f"{settings}, which keeps state" if keyed else ""

    def user_code(self, settings: str) -> UserCode:
        return UserCode((), settings)


FUNCTION = FunctionProcessorKind()
