"""Signed verdicts: what was found in a file, as a statement that anybody can check offline with a public key."""

from diffmark.verdict.jws import BadSignature
from diffmark.verdict.keys import PublicKeys, SigningKey
from diffmark.verdict.statement import Statement, check, statement_of

__all__ = ["BadSignature", "PublicKeys", "SigningKey", "Statement", "check", "statement_of"]
