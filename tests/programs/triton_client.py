"""Asks a Triton server for marks: `triton_client.py ADDRESS`; prints a JSON line. Needs tritonclient."""

import json
import sys

import numpy as np
import tritonclient.http as triton
from PIL import Image

import diffmark

SECRET = "0123456789abcdef"

client = triton.InferenceServerClient(sys.argv[1], network_timeout=120)
noise = np.random.default_rng(0).integers(0, 256, (2, 96, 96, 3), np.uint8)
images = np.stack([np.asarray(Image.fromarray(one).resize((256, 256))) for one in noise])


def ask(*secrets: bytes) -> triton.InferResult:
    """The step's answer for both images."""
    given = np.array(secrets, np.object_)
    inputs = [
        triton.InferInput("IMAGE", images.shape, "UINT8"),
        triton.InferInput("SECRET", given.shape, "BYTES"),
    ]
    for tensor, values in zip(inputs, (images, given), strict=True):
        tensor.set_data_from_numpy(values)
    return client.infer("diffmark_mark", inputs)


answer = ask(SECRET.encode())
marked = answer.as_numpy("IMAGE")
try:
    ask(b"0" * 16, b"f" * 16, b"1" * 16)
    refused = ""
except triton.InferenceServerException as error:
    refused = str(error)
print(json.dumps({
    "server": client.get_server_metadata()["version"],
    "shape": list(marked.shape),
    "bits": answer.as_numpy("BITS_READ").tolist(),
    "verdicts": [diffmark.detect(image, SECRET, fpr=1e-6).verdict for image in marked],
    "refused": refused,
}))  # fmt: skip
