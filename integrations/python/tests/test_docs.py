"""The examples in docstrings."""
import doctest
import unittest

from attree import _paged, _plan, _quantise, _states


class Docs(unittest.TestCase):
    def test_examples(self):
        for module in (_paged, _plan, _quantise, _states):
            result = doctest.testmod(module)
            self.assertEqual(result.failed, 0)
            self.assertGreater(result.attempted, 0)


if __name__ == "__main__":
    unittest.main()
