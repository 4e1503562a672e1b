"""Ebbtide, a memory manager that returns freed memory to the system.

    python -m ebbtide run -- PROGRAM        the same as the program ebbtide
"""

import ctypes
import os
from importlib.metadata import distribution

__all__ = ["is_loaded", "library", "program", "release"]


def _installed(name):
    """The path of an installed file, wherever the installer has put it."""
    for file in distribution("ebbtide").files or ():
        if file.name == name:
            return os.path.realpath(file.locate())
    raise FileNotFoundError(f"{name} is not installed; run: pip install --force-reinstall ebbtide")


def library():
    """The path of libebbtide.so, for LD_PRELOAD."""
    return _installed("libebbtide.so")


def program():
    """The path of the program ebbtide."""
    return _installed("ebbtide")


def is_loaded():
    """Whether this process runs under Ebbtide."""
    return hasattr(ctypes.CDLL(None), "ebb_version")


def release():
    """Returns all free memory of this process to the system now; the result is its size in bytes. 0 if Ebbtide is not loaded."""
    if not is_loaded():
        return 0
    call = ctypes.CDLL(None).ebb_release
    call.restype = ctypes.c_size_t
    return call()
