"""Expressions with bodies: loops, branches, gradients, remat, maps, manual regions."""

from __future__ import annotations

from contextlib import suppress

from tests.soak.op_texts import Write, write_op
from tests.soak.program import AXES, Body, Type
from tests.soak.writer import NothingFitsError, Writer


def write_steps(w: Writer, count: int) -> None:
    """Add up to so many steps; what does not fit is left out."""
    for _ in range(3 * count):
        if len(w.steps) >= count:
            return
        with suppress(NothingFitsError):
            write_any(w)


def write_any(w: Writer) -> str:
    """A step with or without bodies.

    Raises:
        NothingFitsError: What was drawn reads what is not there.
    """
    share = (0.2, 0.12, 0.0)[min(w.depth, 2)]
    if w.rng.random() < share:
        return w.rng.choice(_WITH_BODIES)(w)
    return write_op(w)


def _ending_in(w: Writer, carry: str, kind: Type) -> str:
    """A value of a type, from what was written last and a value of that type."""
    last = next(reversed(w.known))
    if last != carry and w.known[last] == kind:
        return last
    with suppress(NothingFitsError):
        of_last = f"jnp.mean(jnp.tanh({last}.astype(t.float32))).astype({carry}.dtype)"
        if last != carry:
            return w.add(f"jnp.tanh({carry} + {of_last})", carry, last)
    return w.add(f"jnp.tanh({carry} * 0.5)", carry)


def _body_of(w: Writer, parameters: list[tuple[str, Type]], carry: str, captured: str = "") -> Body:
    """A function of parameters that ends in the type of one of them."""
    inner = w.inside(*parameters)
    if captured:
        inner.known[captured] = w.known[captured]
    write_steps(inner, w.rng.randint(1, 4))
    end = _ending_in(inner, carry, dict(parameters)[carry])
    return inner.body([end], parameters)


def _captured(w: Writer) -> str:
    return w.plain(1) if w.rng.random() < 0.5 else ""


def _reads(x: str, *more: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in (x, *more) if name))


def _scan(w: Writer) -> str:
    """A scan over rows, with a carry and what it stacks; the carry or the stack is kept."""
    x = w.plain(1)
    rows = w.pick(
        lambda of: of.dtype == "float32" and len(of.shape) >= 2 and 1 <= of.shape[0] <= 24
    )
    carry, row = w.name("c"), w.name("r")
    kind, of_rows = w.known[x], w.known[rows]
    captured = _captured(w)
    parameters = [(carry, kind), (row, Type(of_rows.shape[1:], of_rows.dtype))]
    body = _body_of(w, parameters, carry, captured)
    stacked = w.rng.choice([body.results[0], row, carry])
    body = Body(body.name, body.parameters, body.steps, (body.results[0], stacked))
    options = w.rng.choice(["", ", reverse=True", ", unroll=2"])
    called = w.rng.choice([body.name, f"jax.checkpoint({body.name})"])
    place = w.rng.randrange(2)
    text = f"lax.scan({called}, {x}, {rows}{options})[{place}]"
    return w.add(text, *_reads(x, rows, captured), bodies=(body,))


def _scan_gradient(w: Writer) -> str:
    """The gradient of a scan over weights, some with remat."""
    x, rows = w.plain(1), w.pick(lambda of: of.dtype == "float32" and len(of.shape) == 3)
    carry, row = w.name("c"), w.name("r")
    kind, of_rows = w.known[x], w.known[rows]
    body = _body_of(w, [(carry, kind), (row, Type(of_rows.shape[1:], of_rows.dtype))], carry)
    body = Body(body.name, body.parameters, body.steps, (body.results[0], "None"))
    called = w.rng.choice([body.name, f"jax.checkpoint({body.name})"])
    text = f"jax.grad(lambda y, z: jnp.sum(lax.scan({called}, y, z)[0] ** 2), 1)({x}, {rows})"
    return w.add(text, *_reads(x, rows), bodies=(body,))


def _count(w: Writer) -> str:
    """A loop that counts."""
    x = w.plain(1)
    at, carry = w.name("i"), w.name("c")
    captured = _captured(w)
    parameters = [(at, Type((), "int32")), (carry, w.known[x])]
    body = _body_of(w, parameters, carry, captured)
    times = w.rng.choice([0, 1, 2, 3, 5])
    return w.add(
        f"lax.fori_loop(0, {times}, {body.name}, {x})", *_reads(x, captured), bodies=(body,)
    )


def _count_to(w: Writer) -> str:
    """A loop over a number of runs that only the arguments tell, and two values carried."""
    x = w.plain(1)
    carry = w.name("c")
    body = _body_of(w, [(carry, w.known[x])], carry)
    runs = w.rng.choice([f"(jnp.sum({x}) > 0).astype(t.int32) + 1", f"jnp.int32({x}.ndim)"])
    step = f"lambda i, s: ({body.name}(s[0]), s[1] + jnp.sum(s[0]))"
    text = f"lax.fori_loop(0, {runs}, {step}, ({x}, jnp.zeros((), t.float32)))[0]"
    return w.add(text, x, bodies=(body,))


def _while_tensor(w: Writer) -> str:
    """A loop whose condition reduces a tensor, and whose body branches."""
    x = w.plain(1)
    first, second = w.name("c"), w.name("c")
    bodies = tuple(_body_of(w, [(name, w.known[x])], name) for name in (first, second))
    one, other = (body.name for body in bodies)
    text = (
        "lax.while_loop(lambda s: (s[0] < 3) & jnp.all(jnp.isfinite(s[1])),"
        f" lambda s: (s[0] + 1, lax.cond(s[0] % 2 == 0, {one}, {other}, s[1])), (0, {x}))[1]"
    )
    return w.add(text, x, bodies=bodies)


def _while(w: Writer) -> str:
    """A loop that ends by what it computes."""
    x = w.plain(1)
    carry = w.name("c")
    body = _body_of(w, [(carry, w.known[x])], carry)
    text = (
        f"lax.while_loop(lambda s: s[0] < 3 + (s[1].size > 0),"
        f" lambda s: (s[0] + 1, {body.name}(s[1])), (0, {x}))[1]"
    )
    return w.add(text, x, bodies=(body,))


def _branches(w: Writer) -> str:
    """One of two or three functions."""
    x = w.plain(1)
    captured = _captured(w)
    bodies = []
    for _ in range(w.rng.choice([2, 3])):
        parameter = w.name("b")
        bodies.append(_body_of(w, [(parameter, w.known[x])], parameter, captured))
    names = ", ".join(body.name for body in bodies)
    which = w.rng.choice([f"jnp.sum({x}).astype(t.int32)", "1", f"{x}.ravel()[0].astype(t.int32)"])
    text = f"lax.switch({which}, [{names}], {x})"
    if len(bodies) == 2:
        text = f"lax.cond(jnp.sum({x}) > 0, {names}, {x})"
    return w.add(text, *_reads(x, captured), bodies=tuple(bodies))


def _called(w: Writer) -> str:
    """A function under a transformation: jit, remat, vmap, map."""
    x = w.plain(2)
    parameter = w.name("p")
    kind = w.known[x]
    form = w.rng.choice(["jax.jit({f})({x})", "jax.checkpoint({f})({x})", "{f}({x})"])
    if w.rng.random() < 0.4:
        kind = Type(kind.shape[1:], kind.dtype)
        form = w.rng.choice(["jax.vmap({f})({x})", "lax.map({f}, {x})"])
    body = _body_of(w, [(parameter, kind)], parameter)
    return w.add(form.format(f=body.name, x=x), x, bodies=(body,))


def _gradient(w: Writer) -> str:
    """The gradient of a function, with remat of all of it or by a policy."""
    x = w.plain(1)
    captured = _captured(w)
    parameter = w.name("p")
    body = _body_of(w, [(parameter, w.known[x])], parameter, captured)
    called = w.rng.choice(
        [
            body.name,
            body.name,
            f"jax.checkpoint({body.name})",
            f"jax.checkpoint({body.name}, policy=jax.checkpoint_policies.dots_saveable)",
            f"jax.checkpoint({body.name}, policy=jax.checkpoint_policies.nothing_saveable)",
            f"(lambda q: jax.checkpoint({body.name})(q) + jax.jit({body.name})(q))",
        ]
    )
    text = f"jax.grad(lambda y: jnp.sum(jnp.sin({called}(y))))({x})"
    if w.rng.random() < 0.2:
        text = f"jax.jvp({called}, ({x},), ({x},))[1]"
    return w.add(text, *_reads(x, captured), bodies=(body,))


def _custom_gradient(w: Writer) -> str:
    """The gradient of a function that has one of its own."""
    x = w.plain(1)
    parameter = w.name("p")
    body = _body_of(w, [(parameter, w.known[x])], parameter)
    rule = f"lambda y: ({body.name}(y), y), lambda kept, given: (jnp.cos(kept) * given,)"
    text = (
        f"jax.grad(lambda z: jnp.sum((lambda f: (f.defvjp({rule}), f)[1])"
        f"(jax.custom_vjp({body.name}))(z)))({x})"
    )
    return w.add(text, x, bodies=(body,))


_MANUAL = (
    "jnp.sin(p) + lax.psum(jnp.mean(p), {a}).astype(p.dtype)",
    "lax.ppermute(p, {a}, [(i, (i + 1) % {n}) for i in range({n})])",
    "p - lax.pmax(p, {a})",
    "p * lax.axis_index({a}).astype(p.dtype)",
    "lax.psum(p, {a}) @ jnp.ones((p.shape[-1], p.shape[-1]), p.dtype)",
    "lax.psum_scatter(lax.all_gather(p, {a}, axis=0, tiled=True), {a}, tiled=True)",
    "lax.all_to_all(jnp.tile(p, ({n},) + (1,) * (p.ndim - 1)), {a}, 0, 0, tiled=True)[:p.shape[0]]",
    "lax.pmean(p, {a}) + lax.pmin(p, {a})",
    "lax.scan(lambda c, _: (lax.psum(jnp.tanh(c), {a}) / {n}, None), p, None, 3)[0]",
    "jax.grad(lambda q: jnp.sum(lax.all_gather(jnp.sin(q), {a}) ** 2))(p)",
    "lax.cond(lax.axis_index({a}) > 0, jnp.sin, jnp.cos, p)",
)


def _manual(w: Writer) -> str:
    """A shard_map over one axis, whose body sends."""
    x = w.plain(1)
    place = w.rng.randrange(len(w.mesh))
    size, axis = w.mesh[place], AXES[place]
    if w.shape(x)[0] % size or w.depth:
        raise NothingFitsError
    body = w.rng.choice(_MANUAL).format(a=repr(axis), n=size)
    other = (place + 1) % len(w.mesh)
    if w.rng.random() < 0.3 and w.shape(x)[0] % (size * w.mesh[other]) == 0 and other != place:
        axes = (axis, AXES[other])
        spec = f"P({axes!r})"
        body = f"p + lax.psum(jnp.sum(p), {axes!r}).astype(p.dtype)"
        return w.add(f"mapped(lambda p: {body}, {spec}, {spec}, {axes!r})({x})", x)
    return w.add(f"mapped(lambda p: {body}, P({axis!r}), P({axis!r}), ({axis!r},))({x})", x)


_WITH_BODIES: tuple[Write, ...] = (
    _scan,
    _scan,
    _scan_gradient,
    _count,
    _count_to,
    _while,
    _while_tensor,
    _branches,
    _called,
    _gradient,
    _gradient,
    _custom_gradient,
    _manual,
    _manual,
)
