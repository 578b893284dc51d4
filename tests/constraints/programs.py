"""A small program as selectors see it: a loop over layers, a head, and a gradient."""

from __future__ import annotations

from autoshard.constraints import Equation, Program, TensorType
from autoshard.source_place import SourcePlace

F32 = "float32"
W = TensorType((16, 16), F32)
X = TensorType((8, 16), F32)
B = TensorType((16,), F32)

# net.py
# 10  def layer(x, w):
# 11      h = name(x @ w, "hidden")
# 12      return tanh(h)
# 20      x = scan(layer, x, stack)
# 21      y = x @ head
# 22      return y * 2, <gradient of line 21>
PROGRAM = Program(
    arguments=("params['stack']", "params['head']", "bias", "x"),
    argument_types=(TensorType((3, 16, 16), F32), W, B, X),
    results=("result[0]", "result[1]['head']"),
    result_types=(X, W),
    returned=("2.0", "3.0"),
    equations={
        "0": Equation(
            primitive="scan",
            place=SourcePlace(line="src/net.py:20", function="model"),
            operands=("in.1", "in.3", "in.0"),
            results=("0.0", "0.1"),
            bodies={"jaxpr": ("0.jaxpr/2.0", "0.jaxpr/0.0")},
            carried=1,
        ),
        "0.jaxpr/0": Equation(
            primitive="dot_general",
            place=SourcePlace(line="src/net.py:11", function="layer"),
            operands=("0.jaxpr/in.1", "0.jaxpr/in.2"),
            results=("0.jaxpr/0.0",),
        ),
        "0.jaxpr/1": Equation(
            primitive="name",
            place=SourcePlace(line="src/net.py:11", function="layer"),
            name="hidden",
            operands=("0.jaxpr/0.0",),
            results=("0.jaxpr/1.0",),
        ),
        "0.jaxpr/2": Equation(
            primitive="tanh",
            place=SourcePlace(line="src/net.py:12", function="layer"),
            operands=("0.jaxpr/1.0",),
            results=("0.jaxpr/2.0",),
        ),
        "0.jaxpr/3": Equation(
            primitive="mul",
            place=SourcePlace(line="src/net.py:12", function="layer"),
            operands=("0.jaxpr/in.0", "0.jaxpr/in.0"),
            results=(None,),
        ),
        "1": Equation(
            primitive="dot_general",
            place=SourcePlace(line="src/net.py:21", function="model"),
            operands=("0.0", "in.1"),
            results=("1.0",),
        ),
        "2": Equation(
            primitive="mul",
            place=SourcePlace(line="src/net.py:22", function="model"),
            operands=("1.0", None),
            results=("2.0",),
        ),
        "3": Equation(
            primitive="dot_general",
            place=SourcePlace(line="src/net.py:21", function="model", is_backward=True),
            operands=("0.1", "1.0"),
            results=("3.0",),
        ),
    },
    types={
        "in.0": TensorType((3, 16, 16), F32),
        "in.1": W,
        "in.3": X,
        "0.0": X,
        "0.1": TensorType((3, 8, 16), F32),
        "0.jaxpr/in.0": W,
        "0.jaxpr/in.1": X,
        "0.jaxpr/in.2": W,
        "0.jaxpr/0.0": X,
        "0.jaxpr/1.0": X,
        "0.jaxpr/2.0": X,
        "1.0": X,
        "2.0": X,
        "3.0": W,
    },
    passed={"0.jaxpr/in.0": "in.1"},
)
