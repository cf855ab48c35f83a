"""The struct layouts are those of the header: generated from it, and where a C compiler puts them."""
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from attree import _structs

HERE = Path(__file__).resolve().parent
INCLUDE = HERE.parent.parent.parent / "include"


def python_layout():
    lines = []
    for struct in _structs.STRUCTS:
        lines.append(f"{struct.__name__} {ctypes.sizeof(struct)}")
        for name, _ in struct._fields_:
            field = getattr(struct, name)
            lines.append(f"{struct.__name__}.{name} {field.offset} {field.size}")
    return lines


def c_program():
    lines = ["#include <attree/attree.h>", "#include <stdio.h>", "int main(void)", "{"]
    for struct in _structs.STRUCTS:
        kind = struct.__name__
        lines.append(f'printf("{kind} %zu\\n", sizeof({kind}));')
        for name, _ in struct._fields_:
            place = f"offsetof({kind}, {name}), sizeof((({kind} *)0)->{name})"
            lines.append(f'printf("{kind}.{name} %zu %zu\\n", {place});')
    return "\n".join([*lines, "return 0;", "}", ""])


class Structs(unittest.TestCase):
    def test_the_generated_file_is_up_to_date(self):
        subprocess.run([sys.executable, HERE.parent / "generate.py", "--check"], check=True)

    def test_layouts_are_those_of_the_compiler(self):
        compiler = shutil.which(os.environ.get("CC", "cc"))
        if compiler is None:
            self.skipTest("no C compiler")
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "layout.c")
            source.write_text(c_program(), encoding="utf-8")
            program = Path(folder, "layout")
            subprocess.run([compiler, "-I", INCLUDE, "-o", program, source], check=True)
            output = subprocess.run([program], check=True, stdout=subprocess.PIPE, text=True).stdout
        self.assertEqual(output.splitlines(), python_layout())


if __name__ == "__main__":
    unittest.main()
