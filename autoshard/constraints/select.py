"""What a selector picks in a program, and what to say where it picks nothing."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from autoshard.constraints.program import Equation, Program, TensorType, holder_of
from autoshard.constraints.selector import (
    AnySteps,
    KeyStep,
    ModuleSelector,
    NameSelector,
    PathSelector,
    Selector,
    SourceSelector,
    name_steps,
)
from autoshard.errors import ConstraintError
from autoshard.listed import listed
from autoshard.source_place import format_source

_MAX_SHOWN = 8
_CLOSE = 0.85
"""Names share most of their text anyway; less likeness than this is no slip of the pen."""


@dataclass(frozen=True, slots=True)
class Selected:
    """A tensor of the program.

    Args:
        path: `in.3` of an argument, `out<2` of a result, a value path otherwise.
        label: What the user calls it.
        type: Shape and element type.
    """

    path: str
    label: str
    type: TensorType

    @property
    def is_result(self) -> bool:
        return self.path.startswith("out<")

    def __str__(self) -> str:
        return f"{self.label}: {self.type}"


@dataclass(slots=True, eq=False)
class Chooser:
    """Picks tensors and equations of one program."""

    program: Program
    _readers: dict[str, list[str]] = field(init=False)
    _inside: dict[str, list[str]] = field(init=False)
    _passed_on: dict[str, list[str]] = field(init=False)

    def __post_init__(self) -> None:
        self._readers = {}
        self._inside = {}
        self._passed_on = {}
        for inner, outer in self.program.passed.items():
            self._passed_on.setdefault(outer, []).append(inner)
        for path, equation in self.program.equations.items():
            for operand in dict.fromkeys(equation.operands):
                if operand is not None:
                    self._readers.setdefault(operand, []).append(path)
            holder = holder_of(path)
            while holder:
                self._inside.setdefault(holder, []).append(path)
                holder = holder_of(holder)

    def tensors(self, selector: Selector, said: str) -> tuple[Selected, ...]:
        """What a selector picks, in program order.

        Args:
            selector: Any.
            said: The term it stands in, for errors.

        Raises:
            ConstraintError: Nothing; says what is close, or what is there.
        """
        if isinstance(selector, PathSelector):
            found = tuple(self._by_name(selector))
        elif isinstance(selector, SourceSelector):
            found = tuple(self._made_at(selector, said))
        elif isinstance(selector, ModuleSelector):
            found = tuple(self._made_in(selector)) or tuple(self._by_segments(selector))
        else:
            found = tuple(self._called(selector))
        if not found:
            raise self._nothing(selector, said)
        return found

    def reads(self, tensor: Selected, by: Selector | None) -> tuple[str, ...]:
        """Use paths (`7.jaxpr/38<1`) of the reads of a tensor; none where nobody reads it so.

        A value that a body takes over unchanged is read where the body's equations read it, but for
        `by` None, which means every read, and for a body whose holder is meant itself.
        """
        if by is None:
            return (*self._uses_of(tensor.path), *self._returns_of(tensor.path))
        found: list[str] = []
        taken: set[str] = set()
        for name in self._aliases(tensor.path):
            for reader in self._readers.get(name, ()):
                if self._is_meant(by, reader) and not _is_inside(reader, taken):
                    taken.add(reader)
                    found += self._operands_at(reader, name)
        return tuple(found)

    def reading_lines(self, tensors: Sequence[Selected]) -> str:
        """What to name instead of a line that does not read tensors."""
        readers = dict.fromkeys(
            reader
            for tensor in tensors
            for name in self._aliases(tensor.path)
            for reader in self._readers.get(name, ())
        )
        equations = [self.program.equations[reader] for reader in readers]
        lines = dict.fromkeys(
            f"{_base(e.line)} {e.primitive}" + (" backward" if e.is_backward else "")
            for e in equations
            if e.line
        )
        if not lines:
            return "pin the tensor itself"
        shown = f"name a line that reads it: {_listed(lines)}; or pin the tensor itself"
        anew = sorted({e.primitive for e in equations if _gives_anew(e)})
        if not anew:
            return shown
        return (
            f"{shown}. A body of {' or '.join(anew)} reads a tensor of its own (a slice, what is"
            " carried, a device's piece): give that a jax.ad_checkpoint.checkpoint_name there, and"
            " select it by name:..."
        )

    def check_reader(self, by: Selector, said: str) -> None:
        """Refuse a reader that is no line or name of the program.

        Raises:
            ConstraintError: Likewise where it is the name of an argument or result.
        """
        if isinstance(by, PathSelector):
            raise ConstraintError(
                f"`{by.text}` is no line of source, and only lines read",
                where=said,
                fix="name the line that reads, as in model.py:42 or model.py:42 dot_general",
            )
        if not any(self._is_meant(by, path) for path in self.program.equations):
            raise self._nothing(by, said)

    # -- by name --------------------------------------------------------------------------------

    def _by_name(self, selector: PathSelector) -> Iterator[Selected]:
        program = self.program
        for kind, names, types in (
            ("in.{}", program.arguments, program.argument_types),
            ("out<{}", program.results, program.result_types),
        ):
            for number, (name, type_) in enumerate(zip(names, types, strict=True)):
                if selector.matches(name):
                    yield Selected(kind.format(number), f"`{name}`", type_)

    def _called(self, selector: NameSelector) -> Iterator[Selected]:
        for equation in self.program.equations.values():
            if equation.name == selector.name:
                yield from self._results_of(equation)

    # -- by line --------------------------------------------------------------------------------

    def _made_at(self, selector: SourceSelector, said: str) -> Iterator[Selected]:
        self._check_one_file(selector, said)
        for equation in self.program.equations.values():
            if not _is_at(selector, equation):
                continue
            for made in self._results_of(equation):
                if selector.primitive or self._is_handed_on(made.path, equation, _line):
                    yield made

    # -- by module ------------------------------------------------------------------------------

    def _made_in(self, selector: ModuleSelector) -> Iterator[Selected]:
        def part(equation: Equation) -> str:
            return selector.instance(equation.place.module) or "outside"

        for equation in self.program.equations.values():
            if not _is_in(selector, equation):
                continue
            for made in self._results_of(equation):
                if selector.primitive or self._is_handed_on(made.path, equation, part):
                    yield made

    def _by_segments(self, selector: ModuleSelector) -> Iterator[Selected]:
        """Arguments and results by the segments of their names, where no module has such a path."""
        for tensor in self._by_name(PathSelector(selector.text, None, (AnySteps(),))):
            steps = name_steps(tensor.label.strip("`"))[1]
            words = [str(one.key) if isinstance(one, KeyStep) else one.name for one in steps]
            if selector.matches("/".join(words)):
                yield tensor

    def _results_of(self, equation: Equation) -> Iterator[Selected]:
        for path in equation.results:
            if path is not None:
                place = replace(equation.place, line=_base(equation.line))
                label = f"{equation.primitive} at {format_source(place) or 'unknown line'}"
                yield Selected(path, label, self.program.types[path])

    def _is_handed_on(self, path: str, maker: Equation, part: Callable[[Equation], str]) -> bool:
        """Whether another part of the same pass reads what an equation makes, or it is returned.

        What the forward pass keeps for the backward pass alone does not count, nor what a body
        returns to an equation of the same part: that equation hands it on, or not.

        Args:
            path: Of the value.
            maker: The equation that makes it.
            part: Of the program that an equation belongs to, its line or its module; "" where that
                is not known.
        """
        for reader in self._readers.get(path, ()):
            equation = self.program.equations[reader]
            if equation.is_backward and not maker.is_backward:
                continue
            inside = (self.program.equations[path] for path in self._inside.get(reader, ()))
            parts = {part(equation), *map(part, inside)} - {""}
            if parts != {part(maker)}:
                return True
        holder = holder_of(path)
        if not holder:
            return path in self.program.returned
        outer = self.program.equations[holder]
        if part(outer) == part(maker):
            return False
        for body in outer.bodies.values():
            for number, returned in enumerate(body):
                if returned != path:
                    continue
                if number < outer.carried:
                    return True
                above = outer.results[number] if number < len(outer.results) else None
                if above is not None and self._is_handed_on(above, maker, part):
                    return True
        return False

    def _check_one_file(self, selector: SourceSelector, said: str) -> None:
        files = sorted(
            {
                equation.line.rpartition(":")[0]
                for equation in self.program.equations.values()
                if _is_at(selector, equation)
            }
        )
        if len(files) > 1:
            raise ConstraintError(
                f"`{selector.file}` is {len(files)} files: {', '.join(files)}",
                where=said,
                fix="write as many folders before it as tell them apart",
            )

    # -- reads ----------------------------------------------------------------------------------

    def _aliases(self, path: str) -> list[str]:
        """A value and the arguments of bodies that are the same value, outer ones first."""
        found = [path]
        for name in found:  # grows as it goes
            found += self._passed_on.get(name, ())
        return found

    def _is_meant(self, by: Selector, path: str) -> bool:
        equation = self.program.equations[path]
        if isinstance(by, NameSelector):
            return equation.name == by.name
        if isinstance(by, ModuleSelector):
            return _is_in(by, equation)
        return isinstance(by, SourceSelector) and _is_at(by, equation)

    def _uses_of(self, path: str) -> Iterator[str]:
        for reader in self._readers.get(path, ()):
            yield from self._operands_at(reader, path)

    def _returns_of(self, path: str) -> Iterator[str]:
        if holder_of(path):
            return
        for number, returned in enumerate(self.program.returned):
            if returned == path:
                yield f"out<{number}"

    def _operands_at(self, reader: str, path: str) -> Iterator[str]:
        for number, operand in enumerate(self.program.equations[reader].operands):
            if operand == path:
                yield f"{reader}<{number}"

    # -- nothing found --------------------------------------------------------------------------

    def _nothing(self, selector: Selector, said: str) -> ConstraintError:
        if isinstance(selector, PathSelector):
            fix = self._closest_names(selector)
        elif isinstance(selector, SourceSelector):
            fix = self._closest_lines(selector)
        elif isinstance(selector, ModuleSelector):
            fix = self._closest_modules(selector)
        else:
            names = {e.name for e in self.program.equations.values() if e.name}
            fix = _choice(selector.name, names, "names") or (
                "wrap the value: jax.ad_checkpoint.checkpoint_name(x, "
                f"{selector.name!r}); the program names none"
            )
        return ConstraintError(
            f"`{selector.text.strip()}` selects nothing in this program", where=said, fix=fix
        )

    def _closest_names(self, selector: PathSelector) -> str:
        names = (*self.program.arguments, *self.program.results)
        root = selector.root.parts[0] if selector.root and selector.root.is_plain else None
        under = [name for name in names if name_steps(name)[0] == root]
        if under and not selector.steps:
            return f"`{root}**` selects all of it: {_listed(under)}"
        close = difflib.get_close_matches(_plain(selector.text), under or names, n=3, cutoff=_CLOSE)
        if close:
            return f"did you mean {_listed(close)}?"
        if under:
            return f"under `{root}` there are: {_listed(under)}"
        modules = {e.place.module for e in self.program.equations.values()}
        segments = {segment for module in modules for segment in module.split("/")}
        if selector.root and any(map(selector.root.matches, segments)):
            return f"for the module write `module:{'*'.join(selector.root.parts)}`"
        roots = dict.fromkeys(name_steps(name)[0] for name in names)
        return f"arguments and results begin with: {_listed(roots)}"

    def _closest_modules(self, selector: ModuleSelector) -> str:
        here = [
            equation
            for equation in self.program.equations.values()
            if selector.instance(equation.place.module)
        ]
        if here:
            kinds = dict.fromkeys(
                e.primitive + (" backward" if e.is_backward else "") for e in here
            )
            return f"in it there are: {_listed(kinds)}; name one to select what it makes"
        modules = {e.place.module for e in self.program.equations.values() if e.place.module}
        wanted = selector.text.split()[0].removeprefix("module:").removeprefix("re:")
        written = {
            _slashed(name): name for name in (*self.program.arguments, *self.program.results)
        }
        close = difflib.get_close_matches(wanted, written, n=3, cutoff=_CLOSE)
        if close and not difflib.get_close_matches(wanted, modules, cutoff=_CLOSE):
            return f"did you mean {_listed(written[one] for one in close)}?"
        return _choice(wanted, modules, "modules") or (
            "the program names no modules; jax.named_scope does, or name the line: model.py:42"
        )

    def _closest_lines(self, selector: SourceSelector) -> str:
        equations = self.program.equations.values()
        here = [e for e in equations if _is_on_line(selector, e)]
        if here:
            kinds = dict.fromkeys(
                e.primitive + (" backward" if e.is_backward else "") for e in here
            )
            functions = dict.fromkeys(e.function for e in here if e.function)
            line = f"{selector.file}:{selector.line}"
            shown = f"on {line}, in {_listed(functions)}, there are: {_listed(kinds)}"
            if selector.primitive or selector.function:
                return shown
            return f"{shown}; name one to select what it makes, whoever reads it"
        lines = sorted(
            {
                int(equation.line.rpartition(":")[2])
                for equation in equations
                if equation.line and _is_file(selector.file, equation.line.rpartition(":")[0])
            }
        )
        if lines:
            near = sorted(sorted(lines, key=lambda n: abs(n - selector.line))[:_MAX_SHOWN])
            return f"lines of {selector.file} that compute something near: {_listed(near)}"
        files = {_base(e.line.rpartition(":")[0]) for e in equations if e.line}
        return _choice(_base(selector.file), files, "source files")


def _gives_anew(equation: Equation) -> bool:
    """Whether its body is given other tensors than the equation reads."""
    return bool(equation.bodies) and equation.primitive in ("scan", "while", "shard_map")


def _line(equation: Equation) -> str:
    return equation.line


def _is_in(selector: ModuleSelector, equation: Equation) -> bool:
    return (
        selector.is_backward == equation.is_backward
        and selector.primitive in ("", equation.primitive)
        and bool(selector.instance(equation.place.module))
    )


def _is_at(selector: SourceSelector, equation: Equation) -> bool:
    return (
        _is_on_line(selector, equation)
        and selector.primitive in ("", equation.primitive)
        and selector.function in ("", equation.function)
        and selector.is_backward == equation.is_backward
    )


def _is_on_line(selector: SourceSelector, equation: Equation) -> bool:
    file, _, number = equation.line.rpartition(":")
    return number == str(selector.line) and _is_file(selector.file, file)


def _is_file(wanted: str, file: str) -> bool:
    """Whether a file is the one wanted: its last folders are those written."""
    parts = re.split(r"[/\\]", file)
    ends = re.split(r"[/\\]", wanted.removeprefix("./"))
    return parts[-len(ends) :] == ends


def _is_inside(path: str, holders: Iterable[str]) -> bool:
    return any(path.startswith(f"{holder}.") for holder in holders)


def _base(file: str) -> str:
    return re.split(r"[/\\]", file)[-1]


def _plain(text: str) -> str:
    """A path selector in the quotes in which tensors are named."""
    return text.strip().replace('"', "'")


def _slashed(name: str) -> str:
    """The name of a tensor as people write paths: `params/layers/0/up`."""
    return re.sub(r"[^\w]+", "/", name).strip("/")


def _choice(wrong: str, known: Iterable[str], what: str) -> str:
    names = sorted(known)
    close = difflib.get_close_matches(wrong, names, n=3)
    if close:
        return f"did you mean {_listed(close)}?"
    return f"{what} there are: {_listed(names)}" if names else ""


def _listed(items: Iterable[object]) -> str:
    return listed([f"`{item}`" for item in items], _MAX_SHOWN)
