"""Images of OpenAI-compatible servers, Triton and HF Endpoints come out marked for the account of the request.

The engines are not installed here: each is a stub with its documented interface, before which the real code runs.
"""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import sys
import types
import zipfile
from pathlib import Path

import httpx
import numpy as np
import pytest
from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response, StreamingResponse
from fastapi.testclient import TestClient
from PIL import Image

import diffmark
from diffmark.images import ImageError
from diffmark.integrations.accounts import ANONYMOUS, Marker, principal_of_token
from diffmark.integrations.gateway import create
from diffmark.integrations.openai import MarkImages
from diffmark.integrations.pictures import mark_values
from diffmark.registry import Registry

ROOT = Path(__file__).parents[1]
TOKEN = {"authorization": "Bearer sk-user-42"}


def picture(form="PNG", seed=0):
    noise = np.random.default_rng(seed).integers(0, 256, (96, 96, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).resize((192, 192)).save(buffer, form)
    return buffer.getvalue()


def encoded(data):
    return base64.b64encode(data).decode()


def engine():
    """The images and chat endpoints of vLLM-Omni and SGLang, with pictures of noise."""
    app = FastAPI()

    @app.post("/v1/images/generations")
    def generations(request: dict):
        if request.get("response_format") == "url":
            return {"created": 1, "data": [{"url": "https://pictures.example/1.png"}]}
        return {
            "created": 1,
            "data": [{"b64_json": encoded(picture(seed=n))} for n in range(request.get("n", 1))],
        }

    @app.get("/v1/images/{number}/content")
    def content(number: str):  # SGLang's pictures that stay on disk
        return Response(picture("JPEG"), media_type="image/jpeg")

    @app.post("/files/v1/images/generations")
    def files():  # vLLM-Omni with response_format=file and n=2
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for n in range(2):
                archive.writestr(f"image_{n}.png", picture(seed=n))
        return Response(buffer.getvalue(), media_type="application/zip")

    @app.get("/v1/videos/{number}/content")
    def video(number: str):
        return Response(b"frames", media_type="video/mp4")

    @app.get("/v1/videos/{number}")
    def job(number: str):
        return {"id": number, "status": "completed"}

    @app.post("/v1/chat/completions/batch")
    def batch(request: dict):
        return {"choices": [chat({})["choices"][0]]}

    @app.post("/v1/images/edits")
    def edits():
        return {"data": [{"url": f"data:image/jpeg;base64,{encoded(picture('JPEG'))}"}]}

    @app.post("/v1/chat/completions")
    def chat(request: dict):
        address = f"data:image/png;base64,{encoded(picture())}"
        content = [{"type": "text", "text": "here"}, {"type": "image_url", "image_url": {"url": address}}]
        if not request.get("stream"):
            text = {"role": "assistant", "content": f"drawn: ![it]({address})"}
            return {"choices": [{"message": {"role": "assistant", "content": content}}, {"message": text}]}

        def events():
            for part in content:
                event = f"data: {json.dumps({'choices': [{'delta': {'content': [part]}}]})}\n\n".encode()
                yield event[:50]
                yield event[50:]
            yield b"data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    @app.post("/v1/responses")
    def responses(request: dict):
        citation = {"type": "url_citation", "url": "https://pages.example/1", "title": "a page"}
        text = {"type": "output_text", "text": "here", "annotations": [citation]}
        call = {"type": "image_generation_call", "status": "completed", "result": encoded(picture())}
        output = [{"type": "message", "content": [text]}, call]
        if not request.get("stream"):
            return {"object": "response", "output": output, "result": "of something else"}

        def events():
            part = {
                "type": "response.image_generation_call.partial_image",
                "partial_image_b64": encoded(picture()),
            }
            for event in (part, {"type": "response.completed", "response": {"output": output}}):
                yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()

        return StreamingResponse(events(), media_type="text/event-stream")

    @app.post("/raw/v1/images/generations")
    def raw():
        return Response(picture("WEBP"), media_type="image/webp")

    @app.post("/broken/v1/images/generations")
    def broken():
        return {"data": [{"b64_json": "not a picture"}]}

    @app.post("/refused/v1/images/generations")
    def refused():
        return JSONResponse({"error": {"message": "no"}}, 400)

    @app.get("/health")
    def health():
        return {"picture": encoded(picture()), "b64_json": "as it is"}

    return app


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    with Registry.open(f"sqlite:///{tmp_path_factory.mktemp('registry') / 'r.db'}", actor="test") as registry:
        yield registry


@pytest.fixture(scope="module", params=["middleware", "gateway"])
def client(request, registry):
    """The engine with the middleware in it, and behind the gateway."""
    marker = Marker(registry)
    if request.param == "middleware":
        app = engine()
        app.add_middleware(MarkImages, marker=marker)
    else:
        app = create("http://engine", marker, httpx.ASGITransport(engine()))
    with TestClient(app) as client:
        yield client


def owner(registry, data):
    return registry.identify(diffmark.detect(data)).verdict.principal


def bytes_of(address):
    kind, _, data = address.partition(";base64,")
    data = base64.b64decode(data)
    with Image.open(io.BytesIO(data)) as image:
        assert f"data:{image.get_format_mimetype()}" == kind
    return data


def test_every_generated_image_is_the_accounts(client, registry):
    answer = client.post("/v1/images/generations", json={"n": 2}, headers=TOKEN)
    images = [base64.b64decode(one["b64_json"]) for one in answer.json()["data"]]
    assert answer.json()["created"] == 1
    assert [owner(registry, image) for image in images] == [principal_of_token(TOKEN)] * 2
    assert diffmark.detect(images[0]).secret != diffmark.detect(images[1]).secret  # a key an image


def test_without_a_token_images_are_anonymous(client, registry):
    answer = client.post("/v1/images/edits")
    image = bytes_of(answer.json()["data"][0]["url"])
    assert owner(registry, image) == ANONYMOUS


def test_images_in_chat_messages_are_marked(client, registry):
    first, second = client.post("/v1/chat/completions", json={}, headers=TOKEN).json()["choices"]
    text, image = first["message"]["content"]
    assert text == {"type": "text", "text": "here"}
    assert owner(registry, bytes_of(image["image_url"]["url"])) == principal_of_token(TOKEN)
    inline = second["message"]["content"]
    assert inline.startswith("drawn: ![it](")
    assert owner(registry, bytes_of(inline[len("drawn: ![it](") : -1])) == principal_of_token(TOKEN)


def test_images_in_streams_of_events_are_marked(client, registry):
    answer = client.post("/v1/chat/completions", json={"stream": True}, headers=TOKEN)
    events = [line[6:] for line in answer.text.split("\n\n") if line]
    assert events[-1] == "[DONE]"
    image = json.loads(events[1])["choices"][0]["delta"]["content"][0]["image_url"]["url"]
    assert owner(registry, bytes_of(image)) == principal_of_token(TOKEN)


def test_image_calls_of_the_responses_api_are_marked(client, registry):
    principal = principal_of_token(TOKEN)
    answer = client.post("/v1/responses", json={}, headers=TOKEN).json()
    message, call = answer["output"]
    assert owner(registry, base64.b64decode(call["result"])) == principal
    assert message["content"][0]["annotations"][0]["url"] == "https://pages.example/1"
    assert answer["result"] == "of something else"
    answer = client.post("/v1/responses", json={"stream": True}, headers=TOKEN)
    partial, whole = (
        json.loads(event.partition("data: ")[2]) for event in answer.text.split("\n\n") if event
    )
    assert owner(registry, base64.b64decode(partial["partial_image_b64"])) == principal
    assert owner(registry, base64.b64decode(whole["response"]["output"][1]["result"])) == principal


def test_a_cited_page_is_no_image():
    cited = {"annotations": [{"type": "url_citation", "url_citation": {"url": "https://pages.example/1"}}]}
    assert mark_values(cited, bytes) == cited
    with pytest.raises(ImageError, match="behind an address"):
        mark_values({"image_url": {"url": "https://pages.example/1"}}, bytes)


def test_raw_images_are_marked_in_their_format(client, registry):
    answer = client.post("/raw/v1/images/generations", headers=TOKEN)
    assert answer.headers["content-type"] == "image/webp"
    assert int(answer.headers["content-length"]) == len(answer.content)
    with Image.open(io.BytesIO(answer.content)) as image:
        assert image.format == "WEBP"
    assert owner(registry, answer.content) == principal_of_token(TOKEN)


def test_no_other_way_to_a_picture_is_open(client, registry):
    """Files of pictures, archives, what is fetched later, batches; videos are refused."""
    principal = principal_of_token(TOKEN)
    assert owner(registry, client.get("/v1/images/abc/content", headers=TOKEN).content) == principal
    answer = client.post("/files/v1/images/generations", headers=TOKEN)
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert archive.namelist() == ["image_0.png", "image_1.png"]
        assert [owner(registry, archive.read(name)) for name in archive.namelist()] == [principal] * 2
    (choice,) = client.post("/v1/chat/completions/batch", json={}, headers=TOKEN).json()["choices"]
    assert owner(registry, bytes_of(choice["message"]["content"][1]["image_url"]["url"])) == principal
    answer = client.get("/v1/videos/abc/content", headers=TOKEN)
    assert answer.status_code == 502
    assert "type video/mp4" in answer.json()["error"]["message"]
    assert client.get("/v1/videos/abc", headers=TOKEN).json() == {"id": "abc", "status": "completed"}


def test_what_cannot_be_marked_is_not_passed_on(client, registry):
    answer = client.post("/broken/v1/images/generations", headers=TOKEN)
    assert answer.status_code == 502
    assert answer.json()["error"]["type"] == "unmarked_image"
    answer = client.post("/v1/images/generations", json={"response_format": "url"}, headers=TOKEN)
    assert answer.status_code == 502
    assert "ask for response_format b64_json" in answer.json()["error"]["message"]


def test_everything_else_is_passed_on_as_it_is(client):
    assert client.post("/refused/v1/images/generations").json() == {"error": {"message": "no"}}
    assert client.post("/refused/v1/images/generations").status_code == 400
    assert client.get("/health").json() == {"picture": encoded(picture()), "b64_json": "as it is"}


def test_middleware_finds_its_registry_in_the_environment(monkeypatch, tmp_path):
    """As `vllm serve --middleware diffmark.integrations.openai.MarkImages` adds it: with the app alone."""
    monkeypatch.delenv("DIFFMARK_REGISTRY", raising=False)
    with pytest.raises(ValueError, match="DIFFMARK_REGISTRY"):
        MarkImages(engine())
    with pytest.raises(ValueError, match="DIFFMARK_UPSTREAM"):
        create()
    url = f"sqlite:///{tmp_path / 'r.db'}"
    monkeypatch.setenv("DIFFMARK_REGISTRY", url)
    app = engine()
    app.add_middleware(MarkImages)
    image = TestClient(app).post("/v1/images/edits", headers=TOKEN).json()["data"][0]["url"]
    with Registry.open(url) as registry:
        assert owner(registry, bytes_of(image)) == principal_of_token(TOKEN)


def load(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_triton_step(monkeypatch):
    """With the interface of triton_python_backend_utils."""

    class Tensor:
        def __init__(self, name, values):
            self.name, self.values = name, values

        def as_numpy(self):
            return self.values

    backend = types.ModuleType("triton_python_backend_utils")
    backend.Tensor = Tensor
    backend.TritonError = lambda message: message
    backend.InferenceResponse = lambda output_tensors, error=None: types.SimpleNamespace(
        output_tensors=output_tensors, error=error
    )
    backend.get_input_tensor_by_name = lambda request, name: request.get(name)
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", backend)
    model = load(ROOT / "integrations/triton/diffmark_mark/1/model.py", "triton_model").TritonPythonModel()
    model.initialize({})
    images = np.random.default_rng(0).integers(0, 256, (2, 128, 128, 3), np.uint8)
    one = np.array([b"0123456789abcdef"], np.object_)
    many = np.array([b"0" * 16, b"f" * 16, b"1" * 16], np.object_)
    good, bad = model.execute(
        [
            {"IMAGE": Tensor("IMAGE", images), "SECRET": Tensor("SECRET", one)},
            {"IMAGE": Tensor("IMAGE", images), "SECRET": Tensor("SECRET", many)},
        ]
    )
    marked, bits = good.output_tensors
    assert (marked.name, marked.values.shape, marked.values.dtype) == ("IMAGE", images.shape, np.uint8)
    assert (bits.values >= 60).all()
    assert all(diffmark.detect(image, "0123456789abcdef", fpr=1e-6).marked for image in marked.values)
    assert "3 secrets for 2 images" in bad.error
    config = (ROOT / "integrations/triton/diffmark_mark/config.pbtxt").read_text()
    assert all(f'name: "{name}"' in config for name in ("IMAGE", "SECRET", "BITS_READ", "diffmark_mark"))


def test_the_endpoint_of_hugging_face(monkeypatch, model_folder, tmp_path):
    """The handler as the toolkit calls it: with the model's folder, then with requests."""
    url = f"sqlite:///{tmp_path / 'r.db'}"
    monkeypatch.setenv("DIFFMARK_REGISTRY", url)
    handler = load(ROOT / "integrations/huggingface/handler.py", "handler").EndpointHandler(str(model_folder))
    handler.pipe.set_progress_bar_config(disable=True)
    parameters = {"num_inference_steps": 1, "num_images_per_prompt": 2, "height": 256, "width": 256}
    answer = handler({"inputs": "a hill", "parameters": parameters, "principal": "user-42"})
    images = [base64.b64decode(image) for image in answer["images"]]
    with Registry.open(url) as registry:
        assert [owner(registry, image) for image in images] == ["user-42"] * 2
