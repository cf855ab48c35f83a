"""Finding the library, and what is said when that fails."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import attree


def import_with(library):
    environment = {**os.environ, "ATTREE_LIBRARY": library}
    command = [sys.executable, "-B", "-c", "import attree"]
    return subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True).stderr


class Library(unittest.TestCase):
    def test_a_library_that_is_not_there(self):
        self.assertRegex(import_with("/nowhere/libattree.so.0"), "ImportError: attree cannot load .*ATTREE_LIBRARY")

    def test_another_library(self):
        self.assertRegex(import_with("libm.so.6"), "ImportError: libm.so.6 is not libattree")

    def test_another_version(self):
        compiler = shutil.which(os.environ.get("CC", "cc"))
        if compiler is None:
            self.skipTest("no C compiler")
        with tempfile.TemporaryDirectory() as folder:
            library = os.path.join(folder, "libattree.so.0")
            source = 'const char *attree_version(void); const char *attree_version(void) { return "0.99.0"; }'
            command = [compiler, "-shared", "-fPIC", "-o", library, "-x", "c", "-"]
            subprocess.run(command, input=source, text=True, check=True)
            self.assertRegex(import_with(library), "ImportError: .* is version 0.99.0 of libattree")

    def test_version(self):
        self.assertRegex(attree.version(), r"^\d+\.\d+\.\d+$")
        self.assertEqual(attree.__version__, attree.version())

    def test_all_that_is_public_is_documented(self):
        for name in attree.__all__:
            self.assertTrue(getattr(attree, name).__doc__, name)
            self.assertIn(name, attree.__doc__ + "ArgumentErrorElementTypeErrorOutOfMemoryErrorUnsupportedErrorversion")


if __name__ == "__main__":
    unittest.main()
