#!/usr/bin/env python3
"""Writes attree/_structs.py: the structs, enumerators and flags of include/attree/attree.h, for ctypes.

    ./generate.py           writes the file
    ./generate.py --check   exit status 1 when the file is not what the header says
"""
from __future__ import annotations

import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
HEADER = HERE.parent.parent / "include" / "attree" / "attree.h"
TARGET = HERE / "attree" / "_structs.py"

TYPES = {
    "size_t": "c_size_t",
    "int64_t": "c_int64",
    "int32_t": "c_int32",
    "uint32_t": "c_uint32",
    "float": "c_float",
    "attree_score_function": "c_void_p",
    "attree_block_function": "c_void_p",
}


def read_header(path: Path) -> str:
    """The header without comments and without attributes."""
    text = re.sub(r"/\*.*?\*/", " ", path.read_text(encoding="utf-8"), flags=re.S)
    return re.sub(r"__attribute__\(\(.*?\)\)\)?", " ", text)


def fields_of(body: str, structs: list[str]) -> list[tuple[str, str]]:
    """(name, ctypes type) of each member of a struct; pointers are addresses."""
    fields = []
    for declaration in filter(None, (part.strip() for part in body.split(";"))):
        match = re.fullmatch(r"(?:const\s+)?(\w+)\s*((?:const|[\s\w,*])+)", declaration)
        if not match:
            raise ValueError(f"{HEADER}: cannot read the member {declaration!r}")
        kind, names = match.groups()
        for name in names.split(","):
            if "*" in name:
                fields.append((name.split("*")[-1].split()[-1], "c_void_p"))
            elif kind in structs:
                fields.append((name.strip(), kind))
            else:
                fields.append((name.strip(), TYPES[kind]))
    return fields


def constants_of(text: str) -> list[tuple[str, int]]:
    """(name, value) of all numbers that the header defines."""
    found = re.findall(r"#define (ATTREE_\w+) (\d+)u?\b", text)
    for body in re.findall(r"typedef enum \w+ \{(.*?)\}", text, flags=re.S):
        members = re.findall(r"(\w+)\s*=\s*(\d+)", body)
        if len(members) != len([part for part in body.split(",") if part.strip()]):
            raise ValueError(f"{HEADER}: an enumerator without a value in {body!r}")
        found += members
    return [(name, int(value)) for name, value in found]


def generate() -> str:
    text = read_header(HEADER)
    lines = [
        '"""Made from include/attree/attree.h by generate.py. Do not edit."""',
        "from ctypes import Structure, c_float, c_int32, c_int64, c_size_t, c_uint32, c_void_p",
        "",
    ]
    lines += [f"{name.removeprefix('ATTREE_')} = {value}" for name, value in constants_of(text)]
    structs: list[str] = []
    for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\} \1;", text, flags=re.S):
        lines += ["", "", f"class {name}(Structure):", "    _fields_ = ["]
        lines += [f'        ("{field}", {kind}),' for field, kind in fields_of(body, structs)]
        lines += ["    ]"]
        structs.append(name)
    return "\n".join([*lines, "", "", f"STRUCTS = ({', '.join(structs)})", ""])


def main() -> int:
    text = generate()
    if sys.argv[1:] == ["--check"]:
        if TARGET.read_text(encoding="utf-8") != text:
            print(f"{TARGET} is not what {HEADER} says; run {Path(__file__).resolve()}", file=sys.stderr)
            return 1
        return 0
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
