"""Signed verdicts: what they say, that they hold offline, and that every change of them is found."""

from __future__ import annotations

import base64
import html
import json
import re

import pytest
from PIL import Image
from pixel_vectors import SECRET, scene
from typer.testing import CliRunner

from diffmark.cli import app
from diffmark.detection.joint import open_detector
from diffmark.pixel.codec import PixelCodec
from diffmark.secret import from_hex
from diffmark.server.words import LANGUAGES
from diffmark.verdict import BadSignature, PublicKeys, SigningKey, check, statement_of
from diffmark.verdict.jws import flattened, sign
from diffmark.verdict.sheet import languages, qr, sheet

run = CliRunner().invoke


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A marked picture, its signed verdict and the keys."""
    folder = tmp_path_factory.mktemp("verdict")
    PixelCodec().embed(scene(1, (512, 384)), from_hex(SECRET, 64)).image.save(folder / "marked.png")
    done = run(app, ["verdict", "key", str(folder / "key.pem"), "--public", str(folder / "jwks.json")])
    assert done.exit_code == 0, done.output
    arguments = ["verdict", "sign", str(folder / "marked.png"), "--sign-key", str(folder / "key.pem")]
    arguments += [
        "--codec",
        "pixel",
        "--secret",
        SECRET,
        "--issuer",
        "Example",
        "--out",
        str(folder / "v.json"),
    ]
    done = run(app, [*arguments, "--page", str(folder / "v.html")])
    assert done.exit_code == 0, done.output
    return folder


def verify(files, *arguments):
    return run(app, ["verdict", "verify", *map(str, arguments), "--key", str(files / "jwks.json"), "--json"])


def test_it_holds_offline_for_its_image_and_no_other(files):
    done = verify(files, files / "v.json", files / "marked.png")
    row = json.loads(done.output)
    assert (done.exit_code, row["holds"], row["image_checked"]) == (0, True, True)
    assert (row["verdict"], row["basis"], row["issuer"]) == ("marked", ["watermark"], "Example")
    found = open_detector("pixel").detect(files / "marked.png", SECRET)
    assert row["error_probability"] == found.p_value
    assert row["detector"]["operator_key"] == found.key_id
    (files / "other.png").write_bytes((files / "marked.png").read_bytes() + b"\0")
    done = verify(files, files / "v.json", files / "other.png")
    assert (done.exit_code, json.loads(done.output)["holds"]) == (1, False)
    assert "another file" in done.output


def test_it_takes_the_options_of_detect(files, tmp_path):
    with Image.open(files / "marked.png") as marked:
        marked.rotate(20).save(tmp_path / "turned.png")
    said = {}
    for name, options in (("searched", []), ("plain", ["--plain"]), ("vae", ["--vae", "nowhere"])):
        arguments = ["verdict", "sign", tmp_path / "turned.png", "--sign-key", files / "key.pem"]
        arguments += ["--codec", "pixel", "--secret", SECRET, "--out", tmp_path / f"{name}.json", *options]
        said[name] = run(app, list(map(str, arguments)))
    assert "  marked  " in said["searched"].output
    assert "  not marked  " in said["plain"].output
    assert "reads without an autoencoder" in str(said["vae"].exception) + said["vae"].output


def test_it_holds_neither_secret_nor_margins(files):
    claims, _ = check((files / "v.json").read_text(), PublicKeys.from_file(files / "jwks.json"))
    text = json.dumps(claims.to_dict()) + (files / "v.html").read_text()
    assert SECRET not in text
    assert "margin" not in json.dumps(claims.to_dict())
    assert "secret" not in claims.to_dict()


def test_every_changed_byte_is_found(files):
    document = json.loads((files / "v.json").read_text())
    keys = PublicKeys.from_file(files / "jwks.json")
    for name, text in document.items():
        for place in range(len(text)):
            other = "A" if text[place] != "A" else "B"
            changed = {**document, name: text[:place] + other + text[place + 1 :]}
            with pytest.raises(BadSignature):
                check(json.dumps(changed), keys)


def test_keys_of_others_headers_of_others_and_nonsense_are_refused(files):
    document, keys = (files / "v.json").read_text(), PublicKeys.from_file(files / "jwks.json")
    stranger = SigningKey.create(files / "stranger.pem")
    with pytest.raises(BadSignature, match="not among those given"):
        check(document, PublicKeys(stranger.public))
    unsigned = json.loads(document)
    unsigned["protected"] = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()
    for text in (json.dumps(unsigned), "", "a.b", "{}", "[1]", '{"protected": 1}', "x" * 70_000, "é.é.é"):
        with pytest.raises(BadSignature):
            check(text, keys)
    own = SigningKey.from_file(files / "key.pem")
    for claims in ({"version": 2}, {"version": 1}, {"version": 1, "basis": []}):
        with pytest.raises(BadSignature):
            check(sign(claims, own), keys)


def test_a_signing_key_that_others_can_read_is_refused_before_any_work(files):
    assert (files / "key.pem").stat().st_mode & 0o777 == 0o600
    loose = files / "loose.pem"
    loose.write_bytes((files / "key.pem").read_bytes())
    loose.chmod(0o644)
    with pytest.raises(PermissionError, match="chmod 600"):
        SigningKey.from_file(loose)
    with pytest.raises(FileExistsError):
        SigningKey.create(loose)


def test_the_page_has_the_whole_signature_in_its_code(files):
    text = (files / "v.html").read_text()
    document = json.loads((files / "v.json").read_text())
    signature = ".".join(document[name] for name in ("protected", "payload", "signature"))
    assert qr(signature) in text
    assert "The file carries a mark." in text
    path = files / "compact.txt"
    path.write_text(signature)
    assert verify(files, path, files / "marked.png").exit_code == 0
    assert flattened(signature) == document


def test_a_bound_is_stated_where_no_p_value_may_be(files):
    data = (files / "marked.png").read_bytes()
    found = open_detector("pixel").detect(data)
    statement = statement_of(data, found, exact=False)
    assert (statement.error_probability, statement.error_is) == (found.fpr, "bound")
    own = SigningKey.from_file(files / "key.pem")
    assert "at most 0.001" in sheet(statement.signed(own), statement, own.id)
    with pytest.raises(ValueError, match="basis"):
        statement_of(data, found, ("guess",))


def test_the_page_is_there_in_every_language_of_the_public_verifier(files):
    text = (files / "v.json").read_text()
    statement, key = check(text, PublicKeys.from_file(files / "jwks.json"))
    assert languages().keys() == LANGUAGES.keys()
    places = {name: re.findall(r"{\w+}", said) for name, said in languages()["en"].items()}
    for language, words in languages().items():
        assert {name: re.findall(r"{\w+}", said) for name, said in words.items()} == places
        page = sheet(text, statement, key, language)
        assert f'<html lang="{language}">' in page
        assert html.escape(words["marked"]) in page
        assert html.escape(words["footer"]) in page
