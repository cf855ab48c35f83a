"""Finds and loads libattree, declares its functions, and turns its errors into exceptions."""
from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, c_char_p, c_float, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path

from . import _structs as s

SONAME = f"libattree.so.{s.VERSION_MAJOR}"


class Error(Exception):
    """What libattree refused. `status` is the name of its status, such as "ATTREE_ERROR_SHAPE"; the message is its
    sentence about the argument."""

    status: str = ""


class ArgumentError(Error, ValueError):
    """A shape, a stride, a value, an overlap of arrays."""


class ElementTypeError(Error, TypeError):
    """An element type that cannot be in this place."""


class OutOfMemoryError(Error, MemoryError):
    """An allocation failed, or would have more bytes than there are addresses."""


class UnsupportedError(Error, RuntimeError):
    """This machine lacks an instruction set."""


_KINDS = {
    s.ERROR_TYPE: ElementTypeError,
    s.ERROR_OVERFLOW: OutOfMemoryError,
    s.ERROR_MEMORY: OutOfMemoryError,
    s.ERROR_ISA: UnsupportedError,
}


def _load() -> ctypes.CDLL:
    """The library that ATTREE_LIBRARY names; else the one beside this file; else the one that the loader finds."""
    beside = Path(__file__).with_name(SONAME)
    name = os.environ.get("ATTREE_LIBRARY") or (str(beside) if beside.exists() else SONAME)
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        raise ImportError(
            f"attree cannot load its library, {name}: {error}. Install libattree{s.VERSION_MAJOR}, or set the"
            f" environment variable ATTREE_LIBRARY to the path of {SONAME}."
        ) from None
    try:
        library.attree_version.restype = c_char_p
        version = library.attree_version().decode()
    except AttributeError:
        raise ImportError(f"{name} is not libattree: it has no attree_version") from None
    # Before 1.0 a minor version may change the interface.
    if version.split(".")[:2] != [str(s.VERSION_MAJOR), str(s.VERSION_MINOR)]:
        raise ImportError(
            f"{name} is version {version} of libattree; this package is for {s.VERSION_MAJOR}.{s.VERSION_MINOR}."
            " Install the two from the same release, or set ATTREE_LIBRARY."
        )
    return library


_DESC, _ARGS, _TOKENS = POINTER(s.attree_desc), POINTER(s.attree_args), POINTER(s.attree_new_tokens)

# Name: result, arguments. Addresses of numbers are void pointers.
_FUNCTIONS = {
    "attree_status_name": (c_char_p, [c_int32]),
    "attree_last_error": (c_char_p, []),
    "attree_plan_create": (c_int32, [POINTER(c_void_p), _DESC]),
    "attree_plan_update": (c_int32, [c_void_p, _DESC]),
    "attree_plan_destroy": (None, [c_void_p]),
    "attree_plan_workspace": (c_size_t, [c_void_p]),
    "attree_plan_tasks": (c_int64, [c_void_p]),
    "attree_plan_describe": (c_int32, [c_void_p, c_char_p, c_size_t]),
    "attree_run": (c_int32, [c_void_p, _ARGS]),
    "attree_attention": (c_int32, [_DESC, _ARGS]),
    "attree_weights": (c_int32, [c_void_p, _ARGS, c_int64, c_int64, c_int64, c_void_p]),
    "attree_append": (c_int32, [c_void_p, _TOKENS]),
    "attree_row_bytes": (c_size_t, [c_int32, c_int64]),
    "attree_quantize": (c_int32, [c_int32, c_int64, c_void_p, c_void_p, c_void_p]),
    "attree_dequantize": (c_int32, [c_int32, c_int64, c_void_p, c_float, c_void_p]),
    "attree_tree_split": (c_int64, [c_int64]),
    "attree_states_merge": (c_int32, [c_void_p, c_void_p, c_void_p, c_int64, c_int64]),
    "attree_finish": (c_int32, [c_void_p, _ARGS]),
    "attree_merge_outputs": (c_int32, [c_void_p, c_void_p, c_void_p, c_void_p, c_int32, c_int64, c_int64]),
}

lib = _load()
try:
    for _name, (_result, _arguments) in _FUNCTIONS.items():
        _function = getattr(lib, _name)
        _function.restype, _function.argtypes = _result, _arguments
except AttributeError as error:
    raise ImportError(f"the libattree that was loaded is older than this package: {error}") from None


def version() -> str:
    """The version of the library that is running, such as "0.1.0"."""
    return lib.attree_version().decode()


def check(status: int) -> None:
    """Raises the exception for a status other than ATTREE_OK. To be called by the thread that got the status."""
    if status == s.OK:
        return
    error = _KINDS.get(status, ArgumentError)(lib.attree_last_error().decode())
    error.status = lib.attree_status_name(status).decode()
    raise error
