"""Hugging Face Inference Endpoints: put this file and requirements.txt beside a diffusers pipeline.

Request:  {"inputs": "a prompt", "parameters": {"num_inference_steps": 30, ...}, "principal": "user-42"}
Answer:   {"images": [PNG as base64, ...]}
Each image carries a fresh key of the registry that DIFFMARK_REGISTRY names, issued to the principal.
"""

import base64
import io
import threading
from typing import Any

import diffmark
from diffmark.integrations.accounts import ANONYMOUS, Marker
from diffmark.mark.loading import load_pipeline
from diffmark.secret import to_hex


class EndpointHandler:
    """Loads the pipeline of its folder; raises where it cannot be marked."""

    def __init__(self, path: str = "") -> None:
        self.pipe = load_pipeline(path)
        self.registry, self.lock = Marker().registry, threading.Lock()
        with diffmark.watermark(self.pipe, 0):
            pass

    def __call__(self, data: dict[str, Any]) -> dict[str, list[str]]:
        principal = data.get("principal") or ANONYMOUS
        parameters = data.get("parameters") or {}
        count = int(parameters.get("num_images_per_prompt", 1))
        secrets = [key.secret for key in self.registry.issue_many([principal] * count, reason="endpoint")]
        try:
            # The toolkit calls from several threads, and a pipeline marks one run at a time.
            with self.lock, diffmark.watermark(self.pipe, secrets, verify="raise"):
                images = self.pipe(data["inputs"], **parameters).images
        except Exception:
            for secret in secrets:
                self.registry.revoke(key=to_hex(secret), reason="its image was not marked")
            raise
        return {"images": [_png(image) for image in images]}


def _png(image: Any) -> str:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()
