"""Named scopes for the methods of Flax NNX modules, which tell JAX no names.

A module is named by the attributes that it was read through, `layers/0/up`, since transforms such
as `nnx.remat` and `nnx.value_and_grad` call their functions with copies.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import Any
from unittest import mock

import jax

_ONE_AT_A_TIME = threading.RLock()
"""Held while the classes are changed: one trace would put back what another has put there."""


@contextmanager
def nnx_module_scopes() -> Iterator[None]:
    """While it lasts, methods of NNX modules run in a `jax.named_scope` of their module.

    Its name leads there from the module whose method called it. A module that no attribute leads
    to has the name of its class, as in Flax Linen.
    """
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        yield
        return
    with _ONE_AT_A_TIME, ExitStack() as changes:
        scopes = _Scopes(nnx.Module)
        for cls in _subclasses(nnx.Module):
            for name, method in list(vars(cls).items()):
                if isinstance(method, FunctionType) and (name == "__call__" or name[0] != "_"):
                    changes.enter_context(mock.patch.object(cls, name, scopes.scoped(method)))
        changes.enter_context(mock.patch.object(nnx.Module, "__getattribute__", scopes.read()))
        yield


def _subclasses(cls: type) -> set[type]:
    below: set[type] = set(cls.__subclasses__())
    return below.union(*map(_subclasses, below))


class _Scopes:
    """Where the modules met in one thread were read, and which of them run."""

    def __init__(self, module: type) -> None:
        self._module = module
        self._thread = threading.get_ident()
        self._running: list[Any] = []
        # By identity: a module, the one it was read from and the attributes. It is held, since
        # another could get the identity of one that is gone.
        self._read_from: dict[int, tuple[Any, Any, str]] = {}

    def read(self) -> Callable[[Any, str], Any]:
        """A `__getattribute__` that keeps where modules are read from."""
        plain: Any = self._module.__getattribute__

        def getattribute(holder: Any, name: str) -> Any:
            value = plain(holder, name)
            if name[0] != "_" and self._is_here():
                for inner, module in self._modules_in(value):
                    self._read_from[id(module)] = module, holder, "/".join((name, *inner))
            return value

        return getattribute

    def scoped(self, method: FunctionType) -> FunctionType:
        """The method in the scope of its module."""

        @functools.wraps(method)
        def in_scope(module: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._is_here() or any(module is running for running in self._running):
                return method(module, *args, **kwargs)
            scope = self._path(module)
            self._running.append(module)
            try:
                with jax.named_scope(scope):
                    return method(module, *args, **kwargs)
            finally:
                self._running.pop()

        return in_scope  # type: ignore[return-value]

    def _is_here(self) -> bool:
        return threading.get_ident() == self._thread

    def _modules_in(self, value: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
        """Modules that an attribute holds, and the keys and positions that lead to each."""
        if isinstance(value, self._module):
            yield (), value
        elif isinstance(value, (list, tuple, dict)):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for key, item in items:
                yield from (((str(key), *keys), found) for keys, found in self._modules_in(item))

    def _path(self, module: Any) -> str:
        """The attributes from the nearest module that runs, or from the class of the outermost."""
        steps: list[str] = []
        seen: set[int] = set()
        while id(module) in self._read_from and id(module) not in seen:
            seen.add(id(module))
            _, holder, name = self._read_from[id(module)]
            steps.insert(0, name)
            if any(holder is running for running in self._running):
                return "/".join(steps)
            module = holder
        if not (steps and self._running):  # else of a copy of one that runs
            steps.insert(0, type(module).__name__)
        return "/".join(steps)
