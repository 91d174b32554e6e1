"""A chain for tests, as `diffmark c2pa test-chain` makes it."""

from diffmark.disclosure.chain import Certificates, make

__all__ = ["Certificates", "make"]
