"""Runs the pieces of Python in README.md, whose path is the argument."""
import re
import sys
from pathlib import Path

pieces = re.findall(r"^```python\n(.*?)^```", Path(sys.argv[1]).read_text(encoding="utf-8"), flags=re.S | re.M)
if not pieces:
    sys.exit(f"{sys.argv[1]} has no Python")
for piece in pieces:
    print(piece)
    exec(compile(piece, sys.argv[1], "exec"), {})
