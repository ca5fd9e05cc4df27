"""Put into the environment of CI, beside coverage: torch is imported without being traced.

Most processes of the tests import it. Coverage's tracer is called at each call of a function, also
of code that it does not measure, and that makes the import take 1.4 times as long.
"""

import sys
from importlib.machinery import SourceFileLoader

WHOLE = ("torch", "torch._dynamo", "torch._inductor", "numpy", "sympy", "scipy.stats")

traced_exec_module = SourceFileLoader.exec_module


def exec_module(loader, module):
    """As before, and as fast as without a tracer."""
    tracer = sys.gettrace() if module.__name__ in WHOLE else None
    if tracer is None:
        return traced_exec_module(loader, module)
    sys.settrace(None)
    try:
        return traced_exec_module(loader, module)
    finally:
        sys.settrace(tracer)


SourceFileLoader.exec_module = exec_module
