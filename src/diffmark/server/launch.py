"""From options to a running service, in this process or in several workers that share their limits."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI

from diffmark.parallel import cores
from diffmark.private import data_folder
from diffmark.server.limits import Limits
from diffmark.server.starting import Starting

if TYPE_CHECKING:
    from diffmark.server.public import Public
    from diffmark.server.service import Service

VARIABLE = "DIFFMARK_SERVE"  # the options of workers
COUNTING = "PROMETHEUS_MULTIPROC_DIR"  # of the Prometheus client: a folder that processes count in
KEEP_ALIVE = (
    75  # seconds: longer than proxies keep connections, so that the service closes none under a request
)
GRACE = 30  # seconds that requests under way have when the service stops
WORKER_TIMEOUT = 30  # seconds without a sign of life until a worker is replaced; a busy one is no dead one
LOGGING = {  # one JSON line a request on stdout; uvicorn's own on stderr
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(message)s"}, "own": {"format": "%(levelname)s %(message)s"}},
    "handlers": {
        "lines": {"class": "logging.StreamHandler", "stream": "ext://sys.stdout", "formatter": "plain"},
        "errors": {"class": "logging.StreamHandler", "stream": "ext://sys.stderr", "formatter": "own"},
    },
    "loggers": {
        "diffmark.server": {"handlers": ["lines"], "level": "INFO", "propagate": False},
        "uvicorn.error": {"handlers": ["errors"], "level": "INFO", "propagate": False},
    },
}


@dataclass(frozen=True)
class Options:
    """What `diffmark serve` was asked for."""

    url: str
    actor: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    codec: str = "auto"
    key: str | None = None  # file of the operator key
    search: bool = True
    vae: str | None = None
    batch_size: int = 8
    device: str | None = None
    fpr: float = 1e-3
    model: str | None = None
    public: bool = False
    fingerprints: bool = False
    sign_key: str | None = None
    issuer: str | None = None
    feedback: str | None = None
    trust: str | None = None
    workers: int = 1
    shared: str | None = None  # file of the limits that workers share


def run(options: Options) -> None:
    """Serve until a signal; with several workers this process watches them and starts those again that end."""
    import uvicorn

    shared: dict[str, Any] = {
        "host": options.host,
        "port": options.port,
        "log_config": LOGGING,
        "access_log": False,
        "timeout_keep_alive": KEEP_ALIVE,
        "timeout_graceful_shutdown": GRACE,
    }
    if options.workers == 1:
        failures: list[Exception] = []
        server: uvicorn.Server

        def failed(error: Exception) -> None:
            failures.append(error)
            server.should_exit = True

        server = uvicorn.Server(uvicorn.Config(Starting(lambda: build(options), failed), **shared))
        server.run()
        if failures:
            raise failures[0]
        return
    with tempfile.TemporaryDirectory(prefix="diffmark-") as folder:
        os.environ[COUNTING] = f"{folder}/metrics"  # before the client of Prometheus is imported
        os.mkdir(os.environ[COUNTING])
        os.environ[VARIABLE] = json.dumps(asdict(replace(options, shared=f"{folder}/limits.db")))
        uvicorn.run(
            "diffmark.server.launch:worker",
            factory=True,
            workers=options.workers,
            timeout_worker_healthcheck=WORKER_TIMEOUT,
            **shared,
        )


def worker() -> Starting:
    """The application of one worker process."""
    options = Options(**json.loads(os.environ[VARIABLE]))
    parent = os.getppid()
    forget_the_dead(Path(os.environ[COUNTING]))

    def failed(error: Exception) -> None:
        print(f"error: {error}", file=sys.stderr, flush=True)
        os.kill(parent, signal.SIGTERM)  # the next one would fail as well

    return Starting(lambda: build(options), failed)


def forget_the_dead(folder: Path) -> None:
    """Leave out what workers that ended had in their queues; what they counted stays."""
    for file in folder.glob("gauge_live*_*.db"):
        try:
            os.kill(int(file.stem.rpartition("_")[2]), 0)  # asks whether it is there
        except ProcessLookupError:
            file.unlink(missing_ok=True)


def build(options: Options) -> FastAPI:
    """The application with all that it needs; slow, for models are loaded."""
    from diffmark.detection.joint import open_detector
    from diffmark.registry import Registry
    from diffmark.registry.operator_key import registry_ring
    from diffmark.server.app import create_app
    from diffmark.server.oracle import addresses_of, pictures_of
    from diffmark.server.service import Service
    from diffmark.verdict import SigningKey

    signing = SigningKey.from_file(options.sign_key) if options.sign_key else None
    registry = Registry.open(options.url, actor=options.actor, index=True)
    try:
        ring = registry_ring(registry, options.key)
        if options.shared is None:
            print(ring, file=sys.stderr, flush=True)
        detector = open_detector(
            options.codec,
            options.vae,
            ring,
            search=options.search,
            fpr=options.fpr,
            device=options.device,
            batch_size=options.batch_size,
        )
        limits = Limits()
        threads = max(1, cores() // options.workers)
        service = Service(detector, registry, limits, threads=threads, signing=signing)
        service.reading.warm_up()
        if options.shared is not None:
            from diffmark.server.shared_limits import SharedLimiter

            place = Path(options.shared)
            service.limiter = SharedLimiter(limits, place, "tokens")
            service.pictures = SharedLimiter(pictures_of(limits), place, "pictures")
            service.addresses = SharedLimiter(addresses_of(limits), place, "addresses")
        if options.fingerprints:
            from diffmark.registry.fingerprints import Fingerprints

            service.fingerprints = Fingerprints(registry)
        service.painter = _painter(service, options.model)
        return create_app(service, _public(service, options) if options.public else None)
    except BaseException:
        registry.close()
        raise


def _public(service: Service, options: Options) -> Public:
    from diffmark.server.public import Public

    feedback = Path(options.feedback or default_feedback())
    feedback.parent.mkdir(parents=True, exist_ok=True)
    made = Public(
        service, feedback, service.signing, options.issuer, Path(options.trust) if options.trust else None
    )
    if options.shared is not None:
        from diffmark.server.shared_limits import SharedLimiter

        made.limiter = SharedLimiter(service.limits.of_the_public(), Path(options.shared), "networks")
    return made


def default_feedback() -> Path:
    """The file of feedback where none is named."""
    return data_folder() / "feedback.jsonl"


def _painter(service: Service, model: str | None) -> Any:
    """What makes images: a model that was asked for, or Vista beside a codec of its family."""
    latent = service.reading.latent
    if model is None and (latent is None or latent.codec.config.family != "vista"):
        return None
    from diffmark.server.painting import Painter

    codec = latent.codec if latent else None  # it writes under the key that the detector reads with
    pixel = None if service.reading.detector is latent else service.reading.pixel.codec
    painter = Painter.load(model or "vista", codec, pixel)
    if codec and painter.codec is None:
        print(f"no latent codec for {model}: its images are marked in the pixel layer alone", file=sys.stderr)
    return painter
