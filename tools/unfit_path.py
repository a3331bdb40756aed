"""Print why Python cannot have an environment in this folder, or nothing if it can."""

import os
import sys

REASONS = {
    ":": "a colon, which ends a path in PATH",
    "\n": "a newline, which ends a path in Python's .pth files",
    "\r": "a carriage return, which ends a path in Python's .pth files",
}

path = os.getcwd()
found = [why for character, why in REASONS.items() if character in path]
if path[-1].isspace():
    found.append("white space at its end, which Python's .pth files lose")
try:
    path.encode()
except UnicodeEncodeError:
    found.append("a name that is not UTF-8")
if found:
    name = path.encode(errors="surrogateescape").decode(errors="backslashreplace")
    text = f"no Python environment can be in {name!r}: the path has {'; '.join(found)}. Use another folder"
    sys.stdout.buffer.write(text.encode())
