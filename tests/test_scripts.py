"""Tests of scripts/report.py and scripts/bench_compare.py on small files of results.

Usage: python3 -B tests/test_scripts.py [Report|Compare] ...
"""

from __future__ import annotations

import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
from types import ModuleType
from typing import Any

TESTS = pathlib.Path(__file__).resolve().parent
SCRIPTS = TESTS.parent / "scripts"
DATA = TESTS / "data" / "bench"
PLOTS = ("decode", "prefill", "threads", "unfused", "memory")
STUB = """
import json, sys
names = [b for a, b in zip(sys.argv, sys.argv[1:]) if a == "--shape"] or ["roofline/read/T1"]
rows = [{"name": name, "real_time": 10.0, "time_unit": "us", "GBs": 5.0, "of_bandwidth": 0.5} for name in names]
output = next(a.split("=", 1)[1] for a in sys.argv if a.startswith("--benchmark_out="))
with open(output, "w") as file:
    json.dump({"context": {"host_name": "secret", "executable": "secret", "load_avg": []}, "benchmarks": rows}, file)
"""


def run(script: str, *arguments: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-B", str(SCRIPTS / script), *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def load(script: str) -> ModuleType:
    sys.dont_write_bytecode = True
    spec = importlib.util.spec_from_file_location(script, SCRIPTS / f"{script}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[script] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def has_matplotlib() -> bool:
    return subprocess.run([sys.executable, "-c", "import matplotlib"], check=False, capture_output=True).returncode == 0


class Report(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = pathlib.Path(folder.name) / "new" / "report"

    def report(self, source: str) -> tuple[subprocess.CompletedProcess[str], str]:
        done = run("report.py", "--from", DATA / source, "--out", self.out)
        return done, (self.out / "report.md").read_text(encoding="utf-8")

    def test_table_and_plots(self) -> None:
        done, text = self.report("report.json")
        self.assertEqual(done.returncode, 0, done.stderr)
        row = next(line for line in text.splitlines() if "`decode/f32/H8/G2/D64/Q1/K4000/full/T2`" in line)
        cells = [cell.strip() for cell in row.split("|")]
        self.assertEqual(cells[2:6], ["281.6 us", "18 %", "14.55", "81 %"])  # medians of three
        self.assertIn("| `ragged/f16/H8/G2/D64/1x3000+30x100/T2` | 300.0 us |", text)
        self.assertIn("- kernels: avx2", text)
        self.assertNotIn("_median", text)
        self.check_plots(text)

    def check_plots(self, text: str) -> None:
        if not has_matplotlib():
            self.assertEqual(list(self.out.glob("*.svg")), [])
            self.assertNotIn(".svg", text)
            return
        for plot in PLOTS:
            self.assertIn(f"({plot}.svg)", text)
            self.assertLess((self.out / f"{plot}.svg").stat().st_size, 60000)

    def test_failed_case(self) -> None:
        done, text = self.report("failed.json")
        self.assertEqual(done.returncode, 1)
        self.assertIn("ERROR: max error 1 exceeds 2e-06", text)

    def test_run(self) -> None:
        program = self.out.parent.parent / "bench"
        program.write_text(f"#!{sys.executable}\n{STUB}", encoding="ascii")
        program.chmod(0o755)
        done = run("report.py", "--quick", "--bench", program, "--out", self.out)
        self.assertEqual(done.returncode, 0, done.stderr)
        text = (self.out / "report.md").read_text(encoding="utf-8")
        self.assertIn("| `roofline/read/T1` |", text)
        self.assertRegex(text, r"`decode/q4_0/H32/G8/D128/Q1/K512/full/T\d+` \| 10\.0 us")
        self.assertNotIn("secret", (self.out / "report.json").read_text(encoding="utf-8"))
        again = run("report.py", "--from", self.out / "report.json", "--out", self.out)
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertEqual((self.out / "report.md").read_text(encoding="utf-8"), text)

    def test_no_program(self) -> None:
        done = run("report.py", "--bench", self.out / "nothing", "--out", self.out)
        self.assertEqual(done.returncode, 1)
        self.assertIn("there is no", done.stderr)


class Compare(unittest.TestCase):
    def verdicts(self, *arguments: Any) -> tuple[int, list[str]]:
        done = run("bench_compare.py", *arguments)
        self.assertIn(done.returncode, (0, 1), done.stderr)
        lines = done.stdout.splitlines()
        return done.returncode, [line for line in lines if line.endswith(("SLOWER", "faster", "FAILED"))]

    def test_finds_the_slower(self) -> None:
        status, found = self.verdicts(DATA / "before.json", DATA / "after.json")
        self.assertEqual(status, 1)
        self.assertEqual(len(found), 2, found)
        self.assertRegex(found[0], r"^decode/f32/\S+/K4000/\S+ .* 1\.109x +0\.0051 +SLOWER$")
        self.assertRegex(found[1], r"^decode/q8_0/\S+/K1000/\S+ .* faster$")

    def test_thresholds(self) -> None:
        files = (DATA / "before.json", DATA / "after.json")
        self.assertEqual(self.verdicts("--threshold", 15, *files)[0], 0)
        self.assertEqual(len(self.verdicts("--threshold", 0.5, *files)[1]), 3)  # 1 % slower, but surely
        self.assertEqual(self.verdicts("--alpha", 0.001, *files), (0, []))

    def test_counter(self) -> None:
        status, found = self.verdicts("--counter", "GBs", DATA / "before.json", DATA / "after.json")
        self.assertEqual((status, len(found)), (1, 2))
        self.assertRegex(found[0], r"K4000.* 1\.109x .*SLOWER$")

    def test_same(self) -> None:
        self.assertEqual(self.verdicts(DATA / "before.json", DATA / "before.json"), (0, []))

    def test_failed(self) -> None:
        rows = json.loads((DATA / "failed.json").read_text(encoding="utf-8"))
        good = {**rows, "benchmarks": [{**row, "error_occurred": False} for row in rows["benchmarks"]]}
        with tempfile.TemporaryDirectory() as folder:
            before = pathlib.Path(folder) / "good.json"
            before.write_text(json.dumps(good), encoding="utf-8")
            status, found = self.verdicts(before, DATA / "failed.json")
        self.assertEqual((status, len(found)), (1, 1))

    def test_bad_input(self) -> None:
        before = DATA / "before.json"
        self.assertEqual(run("bench_compare.py", before, DATA / "nothing.json").returncode, 2)
        self.assertEqual(run("bench_compare.py", before, TESTS / "CMakeLists.txt").returncode, 2)
        self.assertEqual(run("bench_compare.py", "--counter", "nothing", before, before).returncode, 2)
        with tempfile.TemporaryDirectory() as folder:
            other = pathlib.Path(folder) / "other.json"
            other.write_text(before.read_text(encoding="utf-8").replace("/H8/", "/H16/"), encoding="utf-8")
            done = run("bench_compare.py", before, other)
        self.assertEqual((done.returncode, done.stderr), (2, "bench_compare.py: no case is in both files\n"))
        self.assertEqual(run("bench_compare.py", before).returncode, 2)

    def test_mann_whitney(self) -> None:
        p = load("bench_compare").mann_whitney
        self.assertAlmostEqual(p([1, 2, 3, 4, 5], [6, 7, 8, 9, 10]), 0.01219, places=5)
        self.assertAlmostEqual(p([1, 2, 2, 3], [2, 3, 4, 4]), 0.1342, places=4)  # ties
        self.assertEqual(p([2, 3, 4, 4], [1, 2, 2, 3]), p([1, 2, 2, 3], [2, 3, 4, 4]))
        self.assertEqual(p([1, 1, 1], [1, 1, 1]), 1.0)
        self.assertEqual(p([1, 4], [2, 3]), 1.0)
        self.assertGreater(p([1, 2, 3], [4, 5, 6]), 0.05)


if __name__ == "__main__":
    unittest.main()
