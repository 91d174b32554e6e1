"""The registry of issued secrets: who was given which key, and whose key does this image carry."""

from diffmark.registry.answers import Candidate, Identification, Verdict
from diffmark.registry.errors import NotPermitted, RegistryError
from diffmark.registry.registry import Key, Registry

__all__ = ["Candidate", "Identification", "Key", "NotPermitted", "Registry", "RegistryError", "Verdict"]
