"""Finding what a command is to plan: `module:function`, and the arguments from a hook beside it.

The hook is Python, never a pickle. The first of these that exists is called without arguments:

1. `autoshard_args`, an attribute of the function;
2. `autoshard_args_<function>`, beside it in the module;
3. `autoshard_args`, likewise.

It returns the positional arguments as a tuple (abstract ones, `jax.ShapeDtypeStruct`, will do),
or a dict with the tuple under `"args"` and, if wanted, `"kwargs"`, `"in_shardings"`,
`"out_shardings"`, `"constraints"`, `"donate_argnums"`, `"static_argnums"` as `autoshard.optimize`
takes them:

    def train_step(state, batch): ...

    def autoshard_args_train_step():
        state = jax.eval_shape(init_state, jax.random.key(0))
        batch = jax.ShapeDtypeStruct((32, 1024), jnp.int32)
        return {"args": (state, batch), "donate_argnums": 0}
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from autoshard.errors import AutoshardError, InputError

HOOK = "autoshard_args"
OPTIONS = (
    "kwargs",
    "in_shardings",
    "out_shardings",
    "constraints",
    "donate_argnums",
    "static_argnums",
)

_HOOK_EXAMPLE = (
    'return a tuple of arguments, or a dict such as {"args": (state, batch), "donate_argnums": 0}'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A function to plan and how it is called.

    Args:
        name: `module:function`.
        function: The function.
        args: Positional arguments, abstract or not.
        options: Of `OPTIONS`, those the hook gave.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


def load_target(name: str) -> Target:
    """Import a function and ask its hook for arguments.

    Args:
        name: `package.module:function`; modules in the current folder are found too. A dotted name
            after the colon reaches into objects: `train:Trainer.step`.

    Raises:
        InputError: The name is not of that form; there is no such module, function or hook; one of
            them fails; or the hook returns something else than arguments.
    """
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name or "/" in module_name or module_name.endswith(".py"):
        dotted = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise InputError(
            f'expected module:function, found "{name}"',
            where="TARGET",
            fix="write dots in the module and a colon before the function, as in"
            f" {dotted or 'train'}:{function_name or 'train_step'}",
        )
    module = _import_module(module_name)
    function = _find_function(module, function_name)
    hook_name, hook = _find_hook(module, function, function_name)
    try:
        given = hook()
    except AutoshardError:
        raise
    except Exception as error:
        raise InputError(
            f"the hook failed: {_described(error)}",
            where=f"{module_name}:{hook_name}, {_place(error)}",
            fix="correct the hook; --debug shows the traceback",
        ) from error
    args, options = _read_call(given, f"{module_name}:{hook_name}")
    return Target(name=name, function=function, args=args, options=options)


def _import_module(name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name != missing and not name.startswith(f"{missing}."):
            raise InputError(
                f'the module imports "{missing}", which is not installed',
                where=f'module "{name}", {_place(error)}',
                fix=f'install "{missing}" in this environment',
            ) from error
        raise InputError(
            f'there is no module "{missing}"',
            where=f"looked in {here} and the installed packages",
            fix="run the command in the folder that holds it, or install the package",
        ) from error
    except Exception as error:
        raise InputError(
            f"the module fails on import: {_described(error)}",
            where=f'module "{name}", {_place(error)}',
            fix="correct the module; --debug shows the traceback",
        ) from error


def _find_function(module: ModuleType, name: str) -> Callable[..., Any]:
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise InputError(
                f'there is no "{part}" in {_called(found)}',
                where=f"{module.__name__}:{name}",
                fix=_name_one_of(part, _callables(found)),
            )
        found = getattr(found, part)
    if not callable(found):
        raise InputError(
            f"expected a function, found {type(found).__name__}",
            where=f"{module.__name__}:{name}",
            fix=_name_one_of(name, _callables(module)),
        )
    function: Callable[..., Any] = found
    return function


def _find_hook(
    module: ModuleType, function: Callable[..., Any], name: str
) -> tuple[str, Callable[[], Any]]:
    short = name.rpartition(".")[2]
    places = (
        (function, HOOK, f"{name}.{HOOK}"),
        (module, f"{HOOK}_{short}", f"{HOOK}_{short}"),
        (module, HOOK, HOOK),
    )
    for holder, attribute, shown in places:
        hook = getattr(holder, attribute, None)
        if hook is None:
            continue
        if not callable(hook):
            raise InputError(
                f"expected a function without arguments, found {type(hook).__name__}",
                where=f"{module.__name__}:{shown}",
                fix=f"make it a function that can {_HOOK_EXAMPLE}",
            )
        return shown, hook
    raise InputError(
        f"nothing says what {name} is called with",
        where=f"{module.__name__}:{name}",
        fix=f"define {HOOK}_{short}() in {module.__name__} and {_HOOK_EXAMPLE}",
    )


def _read_call(given: Any, where: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if type(given) is tuple:  # a named tuple is an argument, not a list of them
        return given, {}
    if not isinstance(given, Mapping) or "args" not in given:
        found = type(given).__name__
        if isinstance(given, Mapping):
            found = 'a mapping without "args"'
        raise InputError(
            f"expected a tuple of arguments or a dict with one, found {found}",
            where=where,
            fix=_HOOK_EXAMPLE,
        )
    unknown = [str(key) for key in given if key != "args" and key not in OPTIONS]
    if unknown:
        raise InputError(
            f"the hook gives {', '.join(map(repr, unknown))}, which no plan takes",
            where=where,
            fix=f'use "args" and, if wanted, {", ".join(f"{option!r}" for option in OPTIONS)}',
        )
    args = given["args"]
    if not isinstance(args, (tuple, list)):
        raise InputError(
            f'expected a tuple under "args", found {type(args).__name__}',
            where=where,
            fix="write a comma after a single argument: (state,)",
        )
    kwargs = given.get("kwargs", {})
    if not isinstance(kwargs, Mapping):
        raise InputError(
            f'expected a dict under "kwargs", found {type(kwargs).__name__}',
            where=where,
            fix='give keyword arguments by name: {"kwargs": {"dropout": rate}}',
        )
    return tuple(args), {key: given[key] for key in OPTIONS if key in given}


def _callables(holder: Any) -> list[str]:
    return (
        [
            name
            for name, value in vars(holder).items()
            if callable(value) and not name.startswith("_") and not name.startswith(HOOK)
        ]
        if hasattr(holder, "__dict__")
        else []
    )


def _name_one_of(wrong: str, names: Iterable[str]) -> str:
    known = list(names)
    close = difflib.get_close_matches(wrong, known, n=3)
    shown = close or sorted(known)[:8]
    if not shown:
        return "name a function that is there"
    return f"name a function that is there, such as {', '.join(shown)}"


def _called(holder: Any) -> str:
    if isinstance(holder, ModuleType):
        return f'module "{holder.__name__}"'
    return f'"{getattr(holder, "__qualname__", type(holder).__name__)}"'


def _described(error: BaseException) -> str:
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _place(error: BaseException) -> str:
    """`file.py:12`, where the error was raised, machinery of the import left out."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and frame.filename != __file__
    ]
    if isinstance(error, SyntaxError) and error.filename:
        return f"{os.path.basename(error.filename)}:{error.lineno}"
    if not frames:
        return "no source line"
    return f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}"
