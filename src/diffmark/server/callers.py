"""Who asks: the token of a request, its role and its rate, and the files that it sends."""

from collections.abc import Callable  # annotations stay unquoted here: FastAPI reads those of `check`
from typing import Annotated, Any

from fastapi import Depends, Header, HTTPException, Request, UploadFile

from diffmark.registry import Registry
from diffmark.server.public import network
from diffmark.server.service import Service
from diffmark.server.tokens import Token


class Callers:
    """The callers of a service."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def one_of(self, *roles: str) -> Any:
        """A dependency: the caller's token, live, of one of these roles, within its rate."""
        return Depends(self._check(*roles))

    def _check(self, *roles: str) -> Callable[..., Token]:
        service = self.service

        def check(request: Request, authorization: Annotated[str, Header()] = "") -> Token:
            asking = network(request.client.host if request.client else "unknown")
            slow_down(service.addresses.wait(f"network {asking}"))
            kind, _, text = authorization.partition(" ")
            token = service.tokens.find(text) if kind.lower() == "bearer" else None
            if token is None:
                raise HTTPException(401, "a live token is needed", {"WWW-Authenticate": "Bearer"})
            if token.role not in roles:
                raise HTTPException(
                    403, f"this needs the role {' or '.join(roles)}, the token has {token.role}"
                )
            slow_down(service.limiter.wait(token.id))
            return token

        return check

    def registry(self, token: Token) -> Registry:
        """The registry in the caller's name."""
        return self.service.registry_of(token.name)

    def uploads(self, files: list[UploadFile], token: Token | None = None) -> list[tuple[str, bytes]]:
        """Names and contents; too many or too large ones are refused before they are decoded.

        With a token they are questions, and go off its budget.
        """
        limits = self.service.limits
        if len(files) > limits.images:
            raise HTTPException(413, f"at most {limits.images} images a request, got {len(files)}")
        contents = [(file.filename or "image", file.file.read(limits.upload_bytes + 1)) for file in files]
        if sum(len(data) for _, data in contents) > limits.upload_bytes:
            raise HTTPException(413, f"at most {limits.upload_bytes:,} bytes a request")
        if token is not None:
            wait = self.service.spend(token, len(contents))
            slow_down(wait, "the token has asked about too many pictures today")
        return contents


def slow_down(wait: float, what: str = "too many requests") -> None:
    """Refuse a caller that has to wait so many seconds."""
    if wait:
        raise HTTPException(429, what, {"Retry-After": str(int(wait) + 1)})
