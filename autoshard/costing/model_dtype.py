"""Element types as cost models name them."""

_DTYPE_NAMES = {
    "f64": "float64",
    "f32": "float32",
    "tf32": "float32",
    "bf16": "bfloat16",
    "f16": "float16",
    "i8": "int8",
    "ui8": "int8",
    "i4": "int8",
    "ui4": "int8",
    "complex<f32>": "float32",
    "complex<f64>": "float64",
}


def model_dtype(dtype: str) -> str:
    """StableHLO's name of an element type as cost models name its family."""
    if dtype.startswith(("f8", "f4")):
        return "float8"
    return _DTYPE_NAMES.get(dtype, "float32")
