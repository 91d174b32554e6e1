"""Triton Inference Server, Python backend: marks a batch of pictures, each with its secret.

IMAGE   uint8 (B, H, W, 3)
SECRET  strings (B,) or (1,), hex
The operator key is found as everywhere (DIFFMARK_KEY, DIFFMARK_KEY_FILE, ...).
"""

import numpy as np
import triton_python_backend_utils as pb_utils

from diffmark.keys.ring import as_ring
from diffmark.pixel.codec import PixelCodec
from diffmark.secret import as_secrets


class TritonPythonModel:
    """One instance a process."""

    def initialize(self, args):
        self.codec = PixelCodec(as_ring().current)

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        try:
            images = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy()
            given = pb_utils.get_input_tensor_by_name(request, "SECRET").as_numpy().ravel()
            secrets = [as_secrets(secret.decode(), self.codec.length)[0] for secret in given]
            if len(secrets) not in (1, len(images)):
                raise ValueError(
                    f"{len(secrets)} secrets for {len(images)} images: give one for all, or one an image"
                )
            secrets = secrets * len(images) if len(secrets) == 1 else secrets
            marked = [self.codec.embed(image, secret) for image, secret in zip(images, secrets, strict=True)]
        except Exception as error:  # one request must not take the others with it
            return pb_utils.InferenceResponse(output_tensors=[], error=pb_utils.TritonError(str(error)))
        pictures = pb_utils.Tensor("IMAGE", np.stack([np.asarray(found.image) for found in marked]))
        bits = pb_utils.Tensor("BITS_READ", np.array([found.bits_read for found in marked], np.int32))
        return pb_utils.InferenceResponse(output_tensors=[pictures, bits])
