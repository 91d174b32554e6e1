"""What an image says of itself: who made it with which system, in XMP (IPTC, AIGC) and in a signed manifest."""

from diffmark.disclosure.declared import Declared, declared_in
from diffmark.disclosure.provider import Provider

__all__ = ["Declared", "Provider", "declared_in"]
