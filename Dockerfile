# syntax=docker/dockerfile:1
# The HTTP service. Build: docker build -t diffmark .   See docs/operators.md.
FROM python:3.11-slim-bookworm AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/diffmark
ENV PATH=/opt/diffmark/bin:$PATH
WORKDIR /build
COPY constraints.txt pyproject.toml README.md LICENSE ./
# torch comes first: its CPU build counts as the newer one, and the packages that depend on it then keep it.
RUN pip install --extra-index-url https://download.pytorch.org/whl/cpu -c constraints.txt torch
COPY src src
RUN pip install -c constraints.txt '.[diffusion,serve,postgres,heif,c2pa]' \
    && python -c "import torch; assert torch.version.cuda is None, torch.__version__"

FROM python:3.11-slim-bookworm
RUN useradd --system --uid 10001 --home-dir /data --shell /usr/sbin/nologin diffmark \
    && install --directory --owner=diffmark /data
COPY --from=build /opt/diffmark /opt/diffmark
# numba compiles the search once and keeps it where NUMBA_CACHE_DIR says; everything else is read-only.
ENV PATH=/opt/diffmark/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    NUMBA_CACHE_DIR=/tmp/numba \
    HF_HOME=/tmp/huggingface \
    XDG_CACHE_HOME=/data/cache \
    XDG_DATA_HOME=/data
USER 10001
WORKDIR /data
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/ready', timeout=4)"]
ENTRYPOINT ["diffmark"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8000"]
