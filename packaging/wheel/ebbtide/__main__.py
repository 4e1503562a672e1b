"""Becomes the program ebbtide."""

import os
import sys

from ebbtide import program

path = program()
os.execv(path, [path, *sys.argv[1:]])
