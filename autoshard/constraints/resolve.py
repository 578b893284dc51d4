"""All that a user said, put onto the tensors of one program at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autoshard.constraints.merge import merge_shardings
from autoshard.constraints.problems import joined
from autoshard.constraints.program import Program
from autoshard.constraints.select import Chooser, Selected
from autoshard.constraints.selector import NameSelector
from autoshard.constraints.terms import (
    Group,
    Offload,
    Pin,
    ResidualTerm,
    Term,
    Uses,
    format_said,
    sharding_of,
)
from autoshard.errors import AutoshardError, ConstraintError
from autoshard.sharding import (
    Mesh,
    Sharding,
    canonicalize,
    format_dim_sharding,
    format_mesh_name,
    format_sharding,
)
from autoshard.sharding.sharding import DEFAULT_MESH_NAME
from autoshard.wishes.other_meshes import misfit, on_mesh


@dataclass(frozen=True, slots=True)
class Asked:
    """One thing the user asked for, as a plan remembers it.

    Args:
        text: The term and its sharding.
        paths: The values, uses, arguments and results it is about.
    """

    text: str
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Alike:
    """Tensors that must end the same, by path, and the groups that say so."""

    said: str
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What was asked of every tensor of a program, contradictions ruled out.

    Args:
        arguments: Per flat argument, `in_shardings` and pins as one; None is free.
        results: Per flat result, likewise with `out_shardings`.
        values: Pins of other values, by path.
        uses: Shardings of single reads, by use path.
        groups: What must end the same.
        hosted: By path of an argument or a result that is to lie in host memory, what says so.
        asked: Term by term.
    """

    arguments: tuple[Sharding | None, ...]
    results: tuple[Sharding | None, ...]
    values: Mapping[str, Sharding] = field(default_factory=dict)
    uses: Mapping[str, Sharding] = field(default_factory=dict)
    groups: tuple[Alike, ...] = ()
    hosted: Mapping[str, str] = field(default_factory=dict)
    asked: tuple[Asked, ...] = ()


def resolve(
    terms: Sequence[Term],
    program: Program,
    mesh: Mesh,
    in_shardings: Sequence[Sharding | None],
    out_shardings: Sequence[Sharding | None],
) -> Resolved:
    """Put every term onto the tensors it selects.

    Args:
        terms: What the user said.
        program: What selectors pick from.
        mesh: The plan's.
        in_shardings: Per flat argument, what is asked of it already.
        out_shardings: Likewise per flat result.

    Raises:
        ConstraintError: Selectors that pick nothing, shardings that do not fit their tensors, or
            terms that contradict one another or the shardings given; names every one of them.
    """
    resolver = _Resolver(Chooser(program), mesh)
    for number, sharding in enumerate(in_shardings):
        tensor = _argument(program, number)
        if sharding is not None:
            resolver.ask(tensor.path, tensor, sharding, "in_shardings")
    for number, sharding in enumerate(out_shardings):
        tensor = _result(program, number)
        if sharding is not None:
            resolver.ask(tensor.path, tensor, sharding, "out_shardings")
    for term in terms:
        resolver.take(term)
    resolver.check_groups()
    resolver.refuse_problems()
    resolver.spread_other_meshes()
    resolver.refuse_problems()
    asked = resolver.merged
    return Resolved(
        arguments=tuple(asked.pop(f"in.{n}", None) for n in range(len(program.arguments))),
        results=tuple(asked.pop(f"out<{n}", None) for n in range(len(program.results))),
        values={place: asked[place] for place in asked if not place.startswith(_READ)},
        uses={
            place.removeprefix(_READ): asked[place] for place in asked if place.startswith(_READ)
        },
        groups=resolver.groups(),
        hosted=resolver.hosted,
        asked=tuple(resolver.asked),
    )


_READ = "read "
"""Before the path of a use, which may be called like the result it is: `out<2`."""


@dataclass(frozen=True, slots=True)
class _Said:
    sharding: Sharding
    said: str


@dataclass(slots=True, eq=False)
class _Resolver:
    chooser: Chooser
    mesh: Mesh
    merged: dict[str, Sharding] = field(default_factory=dict)
    said: dict[str, list[_Said]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    hosted: dict[str, str] = field(default_factory=dict)
    problems: list[ConstraintError] = field(default_factory=list)
    _groups: list[tuple[list[str], dict[str, Selected]]] = field(default_factory=list)
    _group_by_id: dict[str | int, int] = field(default_factory=dict)

    def take(self, term: Term) -> None:
        """Put one term onto what it selects; what is wrong with it becomes a problem."""
        try:
            if isinstance(term, ResidualTerm):  # of no tensor's sharding
                self._take_residual_term(term)
            elif isinstance(term, Group):
                self._take_group(term)
            elif isinstance(term, Pin):
                tensors = self.chooser.tensors(term.selector, str(term))
                for tensor in tensors:
                    self._take_sharding(tensor.path, tensor, term)
                self._remember(term, [tensor.path for tensor in tensors])
            else:
                self._take_uses(term)
        except ConstraintError as error:
            self.problems.append(error)

    def ask(self, place: str, tensor: Selected, sharding: Sharding, said: str) -> None:
        """Ask for a sharding at a place, together with what was asked of it before."""
        if sharding.memory_kind:
            self._bring_to_host(place, tensor, said)
        before = self.merged.get(place)
        self.said.setdefault(place, []).append(_Said(sharding, said))
        if before is None:
            self.merged[place] = sharding
            return
        merged = merge_shardings(before, sharding, self.mesh)
        if isinstance(merged, Sharding):
            self.merged[place] = merged
            return
        against, reason = self._clash(place, sharding, merged)
        self.problems.append(
            ConstraintError(
                f"{tensor} cannot be both {_short(against.sharding)} and {_short(sharding)}:"
                f" {reason}",
                where=f"{against.said}; {said}",
                fix="ask for one of them, or open a dimension of the other: {?} or P.UNCONSTRAINED",
            )
        )

    def _bring_to_host(self, place: str, tensor: Selected, said: str) -> None:
        if place.startswith(("in.", "out<")):
            self.hosted.setdefault(place, said)
            return
        self.problems.append(
            ConstraintError(
                f"{tensor} cannot be pinned in host memory",
                where=said,
                fix="pin arguments there, or ask for `Offload` of what a layer under scan makes",
            )
        )

    def _take_residual_term(self, term: ResidualTerm) -> None:
        """Remember the arguments that a term sends to host memory; the search finds residuals."""
        paths: list[str] = []
        if isinstance(term, Offload) and not isinstance(term.selector, NameSelector):
            paths = [tensor.path for tensor in self.chooser.tensors(term.selector, str(term))]
        is_of_boundary = all(path.startswith(("in.", "out<")) for path in paths)
        paths = [path for path in paths if is_of_boundary and path.startswith("in.")]
        self.hosted.update((path, str(term)) for path in paths)
        self.asked.append(Asked(str(term), tuple(paths)))

    def _clash(self, place: str, sharding: Sharding, reason: str) -> tuple[_Said, str]:
        """Which of the sides before contradicts this one by itself, else all of them as one."""
        before = self.said[place][:-1]
        for other in before:
            alone = merge_shardings(other.sharding, sharding, self.mesh)
            if not isinstance(alone, Sharding):
                return other, alone
        return _Said(self.merged[place], "; ".join(other.said for other in before)), reason

    def _take_sharding(self, place: str, tensor: Selected, term: Pin | Uses) -> None:
        said = sharding_of(term)
        rank = len(tensor.type.shape)
        try:
            sharding = said if isinstance(said, Sharding) else said.for_rank(rank)
            self._check_mesh_name(sharding, str(term))
            if sharding.rank != rank:
                raise ConstraintError(
                    f"{format_said(said)} has {_counted(sharding.rank, 'dimension')}, {tensor}"
                    f" has {rank}",
                    where=str(term),
                    fix="write one dimension for each of the tensor's, or select it apart",
                )
            sharding = on_mesh(sharding, self.mesh, str(term))
            wrong = self._manual(sharding, tensor) or misfit(sharding, self.mesh, tensor.type.shape)
            if wrong is not None:
                raise ConstraintError(f"{tensor}: {wrong[0]}", where=str(term), fix=wrong[1])
        except AutoshardError as error:
            what = error.what if str(tensor) in error.what else f"{tensor}: {error.what}"
            self.problems.append(ConstraintError(what, where=str(term), fix=error.fix))
            return
        self.ask(place, tensor, canonicalize(sharding, self.mesh), str(term))

    def _manual(self, sharding: Sharding, tensor: Selected) -> tuple[str, str] | None:
        """What is wrong with axes that a `shard_map` around the tensor maps over, and the fix."""
        manual = self.chooser.program.manual.get(tensor.path, frozenset())
        taken = [str(ref) for ref in sharding.axis_refs() if ref.name in manual]
        if not taken:
            return None
        return (
            f"{', '.join(taken)} is manual inside this shard_map body, where tensors are local"
            " to it",
            "use axes that the shard_map does not map over",
        )

    def _check_mesh_name(self, sharding: Sharding, said: str) -> None:
        if sharding.inlined_mesh is None and sharding.mesh_name != DEFAULT_MESH_NAME:
            name = format_mesh_name(sharding.mesh_name)
            raise ConstraintError(
                f"no mesh is called {name} here",
                where=said,
                fix=f"write the plan's mesh as @{DEFAULT_MESH_NAME}, or define {name} under"
                " `meshes:` in a constraints file, or write it into the sharding:"
                ' <mesh<["a"=2]>, ...>',
            )

    def _take_uses(self, term: Uses) -> None:
        said = str(term)
        tensors = self.chooser.tensors(term.selector, said)
        if term.reader is not None:
            self.chooser.check_reader(term.reader, said)
        places: list[str] = []
        for tensor in tensors:
            if tensor.is_result:
                raise ConstraintError(
                    f"{tensor} is a result, which nothing in the program reads",
                    where=said,
                    fix="pin it instead",
                )
            reads = self.chooser.reads(tensor, term.reader)
            for read in reads:
                self._take_sharding(_READ + read, tensor, term)
            places += reads
        if not places:
            raise self._nothing_reads(term, tensors)
        self._remember(term, places)

    def _nothing_reads(self, term: Uses, tensors: Sequence[Selected]) -> ConstraintError:
        by = "nothing" if term.by is None else f"nothing at `{term.by}`"
        others = f" or the {len(tensors) - 1} others selected" if len(tensors) > 1 else ""
        return ConstraintError(
            f"{by} reads {tensors[0]}{others}",
            where=str(term),
            fix=self.chooser.reading_lines(tensors),
        )

    def _take_group(self, term: Group) -> None:
        number = len(self._groups) if term.id is None else self._group_by_id.get(term.id)
        if number is None or number == len(self._groups):
            number = len(self._groups)
            self._groups.append(([], {}))
            if term.id is not None:
                self._group_by_id[term.id] = number
        said, members = self._groups[number]
        said.append(str(term))
        paths = []
        for selector in term.selectors:
            try:
                for tensor in self.chooser.tensors(selector, str(term)):
                    members[tensor.path] = tensor
                    paths.append(tensor.path)
            except ConstraintError as error:
                self.problems.append(error)
        members_said = ", ".join(f"`{select}`" for select in term.selects)
        text = str(term) if term.id is None else f"{term}: {members_said}"
        self.asked.append(Asked(text, tuple(paths)))

    def check_groups(self) -> None:
        """Members have as many dimensions as one another, and their pins go together."""
        for said, members in self._groups:
            where = "; ".join(dict.fromkeys(said))
            tensors = list(members.values())
            for other in tensors[1:]:
                if len(other.type.shape) != len(tensors[0].type.shape):
                    self.problems.append(
                        ConstraintError(
                            f"{tensors[0]} and {other} have different numbers of dimensions, so"
                            " they cannot be sharded the same",
                            where=where,
                            fix="group tensors of one rank",
                        )
                    )
            self._check_pins_of_group(members, where)

    def _check_pins_of_group(self, members: Mapping[str, Selected], where: str) -> None:
        pinned = [
            (tensor, self.merged[path]) for path, tensor in members.items() if path in self.merged
        ]
        for tensor, sharding in pinned[1:]:
            asked = pinned[0][1]
            if asked.rank != sharding.rank:
                continue
            merged = merge_shardings(asked, sharding, self.mesh)
            if isinstance(merged, Sharding):
                continue
            sides = [
                f"{one} is asked to be {_short(wanted)} by"
                f" {'; '.join(s.said for s in self.said[one.path])}"
                for one, wanted in (pinned[0], (tensor, sharding))
            ]
            self.problems.append(
                ConstraintError(
                    f"members of a group are asked to differ: {sides[0]}, and {sides[1]}: {merged}",
                    where=where,
                    fix="ask for one sharding for all of them, or take one out of the group",
                )
            )

    def spread_other_meshes(self) -> None:
        """Ask the same of all members of a group of which one is on another mesh.

        No op makes a tensor there by itself, so none would come there by being alike.
        """
        for said, members in self._groups:
            asked = [self.merged[path] for path in members if path in self.merged]
            there = next((s for s in asked if s.inlined_mesh is not None), None)
            if there is None:
                continue
            for path, tensor in members.items():
                self.merged.setdefault(path, there)
                wrong = misfit(there, self.mesh, tensor.type.shape)
                if wrong is not None:
                    where = "; ".join(dict.fromkeys(said))
                    self.problems.append(
                        ConstraintError(f"{tensor}: {wrong[0]}", where=where, fix=wrong[1])
                    )

    def groups(self) -> tuple[Alike, ...]:
        return tuple(
            Alike("; ".join(dict.fromkeys(said)), tuple(members))
            for said, members in self._groups
            if len(members) > 1
        )

    def _remember(self, term: Pin | Uses, paths: Sequence[str]) -> None:
        sharding = sharding_of(term)
        shown = _short(sharding) if isinstance(sharding, Sharding) else str(sharding)
        self.asked.append(Asked(f"{term}: {shown}", tuple(paths)))

    def refuse_problems(self) -> None:
        if self.problems:
            where = f"constraints, {self.mesh}"
            raise joined(self.problems, "things asked for cannot be had", where)


def _argument(program: Program, number: int) -> Selected:
    return Selected(
        f"in.{number}", f"`{program.arguments[number]}`", program.argument_types[number]
    )


def _result(program: Program, number: int) -> Selected:
    return Selected(f"out<{number}", f"`{program.results[number]}`", program.result_types[number])


def _short(sharding: Sharding) -> str:
    """A sharding without the name of the plan's own mesh."""
    if sharding.inlined_mesh is not None or sharding.replicated or sharding.unreduced:
        return format_sharding(sharding)
    return f"[{', '.join(map(format_dim_sharding, sharding.dims))}]"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
