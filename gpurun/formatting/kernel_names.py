"""Short names of device kernels: C++ signatures of some hundred characters are not read by anyone.

`void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<float>, …>(int, …)`
becomes `vectorized_elementwise_kernel<CUDAFunctor_add>`.
"""

from __future__ import annotations

import re

from gpurun.formatting.one_line import one_line

MOST_CHARACTERS = 64
MOST_READ = 4096
"""Characters of a signature that are looked at: those of CUTLASS have 3,000."""
MOST_ARGUMENTS = 2
_RETURNS = re.compile(r"^(?:std::)?enable_if<[^>]*>::type |^void ")
_NAMESPACE = re.compile(r"(?:\w+|\(anonymous namespace\)|\{anonymous\}|<unnamed>)::")
_WORD = re.compile(r"[A-Za-z_]\w{3,}")
_TELLS_NOTHING = frozenset(
    {"void", "bool", "char", "short", "long", "float", "double", "true", "false", "unsigned"}
    | {"signed", "const", "lambda", "array", "instance", "operator", "Half", "BFloat16"}
    | {"TensorIterator", "TensorIteratorBase", "TensorListMetadata", "TensorListScalarListMetadata"}
    | {"ReduceOp", "func_wrapper_t", "gpu_kernel_impl", "gpu_kernel_impl_nocast"}
    | {"AUnaryFunctor", "BUnaryFunctor", "BinaryFunctor"}
)
"""Types, and wrappers of torch around what is computed."""


def short_kernel_name(signature: str) -> str:
    """The kernel's own name, and those template arguments that say what it computes.

    A name that is no C++ signature stays as it is; all are cut off with "…" after
    `MOST_CHARACTERS`.
    """
    signature = signature[:MOST_READ]
    plain = _NAMESPACE.sub("", _RETURNS.sub("", signature))
    name = re.match(r"[\w.]*", plain)
    base = name.group() if name else ""
    if not base:
        return one_line(signature, MOST_CHARACTERS)
    rest = plain[len(base) :]
    if not rest.startswith("<"):
        return one_line(base if rest.startswith("(") else plain, MOST_CHARACTERS)
    words = dict.fromkeys(w for w in _WORD.findall(_inside(rest)) if w not in _TELLS_NOTHING)
    told = ", ".join([*words][:MOST_ARGUMENTS])
    return one_line(f"{base}<{told}>" if told else base, MOST_CHARACTERS)


def _inside(text: str) -> str:
    """What stands between the first `<` and its `>`; all that follows it where none closes it."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character == "<") - (character == ">" and text[place - 1] != "-")
        if depth == 0:
            return text[1:place]
    return text[1:]
