"""A picture that is marked in its noise alone: every way to read it finds the mark and names the reader."""

from __future__ import annotations

import json

import pytest
from fastapi.testclient import TestClient
from PIL import Image, ImageOps
from typer.testing import CliRunner

from diffmark.cli import app
from diffmark.detection.joint import open_detector
from diffmark.disclosure.chain import make
from diffmark.keys.ring import new_ring
from diffmark.registry import Registry
from diffmark.server.app import create_app
from diffmark.server.service import Service
from diffmark.server.tokens import grant_token

PROMPT = "snowy mountains at dawn above a lake"


def run(*arguments, code=0):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output
    return done


def rows(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the marked picture, stripped of metadata, one without a mark, and the registry of its key."""
    folder = tmp_path_factory.mktemp("readers")
    chain = make(folder)
    new_ring(folder / "operator.keys")
    signing = ["--c2pa-cert", chain.chain, "--c2pa-key", chain.key]
    order = ["generate", PROMPT, "--steps", 20, "--layers", "generation", "--principal", "user-42", "--json"]
    made = run(*order, "--out", folder / "made", *registry(folder), *signing)
    (record,) = rows(made)
    assert (record["principal"], record["layers"], record["notes"]) == ("user-42", "generation", [])
    assert json.loads((folder / "made" / "images.jsonl").read_text()) == record
    (folder / "record.json").write_text(json.dumps(record))
    (folder / "pictures").mkdir()
    with Image.open(folder / "made" / record["file"]) as image:
        image.convert("RGB").save(folder / "pictures" / "marked.png")
        ImageOps.flip(image.convert("RGB")).save(folder / "pictures" / "unmarked.png")
    return folder


def key(folder):
    return ["--key", folder / "operator.keys"]


def registry(folder):
    return [*key(folder), "--registry", f"sqlite:///{folder / 'registry.db'}", "--actor", "root"]


def test_detect_counts_the_tries(place):
    secret = json.loads((place / "record.json").read_text())["secret"]
    pictures, asked = sorted((place / "pictures").iterdir()), ["--secret", secret, "--json", *key(place)]
    marked, unmarked = rows(run("detect", *pictures, *asked, code=1))
    assert (marked["verdict"], marked["reader"], marked["tries"]) == ("marked", "vista", 2)
    (alone,) = rows(run("detect", pictures[0], "--codec", "vista", *asked))
    assert marked["p_value"] == pytest.approx(2 * alone["p_value"], rel=1e-6)
    assert unmarked["verdict"] == "not marked"
    (blind,) = rows(run("detect", pictures[0], "--json", *key(place)))
    assert (blind["verdict"], blind["test"], blind["reader"]) == ("marked", "blind", "vista")


def test_identify(place):
    pictures = sorted((place / "pictures").iterdir())
    marked, unmarked = rows(
        run("identify", *pictures, "--reason", "test", "--json", *registry(place), code=1)
    )
    assert (marked["verdict"]["principal"], marked["reader"]) == ("user-42", "vista")
    assert unmarked["verdict"]["principal"] is None


def test_bulk(place):
    from pyarrow import parquet

    out = place / "rows"
    run("bulk", place / "pictures", "--out", out, "--reason", "test", *registry(place))
    found = {row["source"].rsplit("/", 1)[1]: row for row in parquet.read_table(out).to_pylist()}
    marked, unmarked = found["marked.png"], found["unmarked.png"]
    assert (marked["verdict"], marked["reader"], marked["principal"]) == ("marked", "vista", "user-42")
    assert (unmarked["verdict"], unmarked["principal"]) == ("not marked", None)


def test_recovery_of_credentials(place):
    out = place / "found.c2pa"
    done = run("c2pa", "recover", place / "pictures" / "marked.png", "--out", out, *registry(place))
    assert out.stat().st_size > 1000
    assert "vista" in done.output
    done = run(
        "c2pa", "recover", place / "pictures" / "unmarked.png", "--out", place / "x", *registry(place), code=1
    )
    assert "no manifest" in done.output


def test_the_service_and_its_page(place):
    """The page shows what /v1/examine says."""
    with Registry.open(f"sqlite:///{place / 'registry.db'}", actor="root") as keys:
        headers = {"Authorization": f"Bearer {grant_token(keys, 'auditor', 'auditor', 1)[1]}"}
        service = Service(open_detector(key=place / "operator.keys"), keys)
        with TestClient(create_app(service)) as client:
            for name, principal, reader in (("marked", "user-42", "vista"), ("unmarked", None, None)):
                data = (place / "pictures" / f"{name}.png").read_bytes()
                ask = {"headers": headers, "data": {"reason": "test"}}
                (detected,) = client.post("/v1/detect", files={"images": data}, headers=headers).json()
                (answer,) = client.post("/v1/identify", files={"images": data}, **ask).json()
                seen = client.post("/v1/examine", files={"image": data}, **ask).json()
                assert answer["principal"] == seen["answer"]["principal"] == principal
                assert detected["verdict"] == ("marked" if principal else "not marked")
                assert detected["tries"] == 2
                if reader:
                    assert detected["reader"] == seen["found"]["reader"] == reader
                    assert answer["readers"] == [reader]
