"""NVTX ranges without a library: the protocol by which a tool takes them, in ctypes.

A tool such as Nsight Systems names its library in `NVTX_INJECTION64_PATH`. NVTX is a header: its
client hands that library a table of functions (see `nvtxInit.h` of NVIDIA/NVTX), and the library
fills in its own. torch's `torch.cuda.nvtx` does the same, but only in builds for CUDA.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

VARIABLE = "NVTX_INJECTION64_PATH"
VERSION = 3
CALLBACKS, VERSION_INFO = 1, 3
"""Numbers of the tables that the tool asks for."""
CORE = 1
"""The module of functions for marks and ranges, numbered from 1."""
SIZE = 64
"""Places in a table; no module has as many functions."""
MARK, START, END, PUSH, POP = 2, 5, 7, 9, 11

_MODULE_TABLE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_uint)
)
_SET_VERSION = ctypes.CFUNCTYPE(None, ctypes.c_uint32)
_EXPORT_TABLE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)


class _Table:
    """Functions that the tool fills in, and the pointers to their places that it is handed."""

    def __init__(self) -> None:
        self.functions = (ctypes.c_void_p * SIZE)()
        begin, width = ctypes.addressof(self.functions), ctypes.sizeof(ctypes.c_void_p)
        self.slots = (ctypes.c_void_p * SIZE)(*(begin + i * width for i in range(SIZE)))


class _Callbacks(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("module_table", _MODULE_TABLE))


class _VersionInfo(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("version", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("set_version", _SET_VERSION),
    )


class Nvtx:
    """Ranges for the tool that watches this process; `attached` is False where none does."""

    def __init__(self) -> None:
        self.attached = False
        path = os.environ.get(VARIABLE)
        if path and os.path.exists(path):
            self._attach(path)

    def _attach(self, path: str) -> None:
        self._tables: dict[int, _Table] = {}
        self._module_table = _MODULE_TABLE(self._give_functions)
        self._callbacks = _Callbacks(ctypes.sizeof(_Callbacks), self._module_table)
        self._version = _VersionInfo(
            ctypes.sizeof(_VersionInfo), VERSION, 0, _SET_VERSION(lambda version: None)
        )
        self._export_table = _EXPORT_TABLE(self._give_table)
        initialize = ctypes.CDLL(path).InitializeInjectionNvtx2
        initialize.argtypes, initialize.restype = (_EXPORT_TABLE,), ctypes.c_int
        core = self._tables.get(CORE) if initialize(self._export_table) else None
        self._functions = None if core is None else core.functions
        self.attached = self._functions is not None and bool(self._functions[PUSH])
        text, number = ctypes.c_char_p, ctypes.c_uint64
        self._mark: Any = self._function(MARK, None, text)
        self._start: Any = self._function(START, number, text)
        self._finish: Any = self._function(END, None, number)
        self._push: Any = self._function(PUSH, ctypes.c_int, text)
        self._pop: Any = self._function(POP, ctypes.c_int)

    def mark(self, name: str) -> None:
        """A moment."""
        if self.attached:
            self._mark(name.encode())

    def push(self, name: str) -> None:
        """Open a range inside the one that is open."""
        if self.attached:
            self._push(name.encode())

    def pop(self) -> None:
        """Close the range opened last."""
        if self.attached:
            self._pop()

    def begin(self, name: str) -> int | None:
        """Open a range that may overlap others; what `end` takes."""
        return int(self._start(name.encode())) if self.attached else None

    def end(self, token: int | None) -> None:
        """Close the range that `begin` opened."""
        if self.attached and token is not None:
            self._finish(token)

    def _function(self, number: int, result: Any, *arguments: Any) -> Any:
        address = self._functions[number] if self._functions is not None else None
        if not address:
            return lambda *_: None
        return ctypes.CFUNCTYPE(result, *arguments)(address)

    def _give_table(self, number: int) -> int | None:
        table = {CALLBACKS: self._callbacks, VERSION_INFO: self._version}.get(number)
        return None if table is None else ctypes.addressof(table)

    def _give_functions(self, module: int, table: Any, size: Any) -> int:
        slots = self._tables.setdefault(module, _Table()).slots
        table[0] = ctypes.addressof(slots)
        if size:
            size[0] = SIZE
        return 1
