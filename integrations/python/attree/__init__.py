"""Exact attention on CPUs."""
from ._library import Error, version
