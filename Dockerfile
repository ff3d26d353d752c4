# The images of a cluster, all from this file; docker-compose.yml builds them.
#   --target services   the four services, the monitor, the command line: no torch
#   --target bus        the same with nats-server in front
#   --target machine    a machine of a job, with torch for the CPU
#
# Build arguments:
#   PYTHON_IMAGE   any image with Python 3.11 or newer and its venv module (`make compose-test` makes one of
#                  Debian's packages where no registry of images is reached)
#   TORCH_INDEX    an index of CPU wheels; the default one brings CUDA, some gigabytes
#   WHEELS_ONLY    1: take packages from the folder wheels/ beside this file, and from no index

ARG PYTHON_IMAGE=python:3.13-slim

# -- environments: what the images below copy -------------------------------------------------------

FROM ${PYTHON_IMAGE} AS environment
ARG WHEELS_ONLY=
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_CONSTRAINT=/context/constraints.txt \
    PIP_FIND_LINKS=/context/wheels PIP_NO_INDEX=${WHEELS_ONLY:+1} PATH=/opt/trainmover/bin:$PATH
COPY tools/requirements.py /build/requirements.py
# What others wrote first: it changes seldom, and stays in the cache of layers.
RUN --mount=type=bind,target=/context \
    python3 -m venv /opt/trainmover \
    && python /build/requirements.py /context/pyproject.toml monitor otel local tls >/build/requirements \
    && pip install hatchling -r /build/requirements

FROM environment AS environment-torch
ARG TORCH_INDEX=
RUN --mount=type=bind,target=/context \
    pip install --no-deps ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch \
    && python /build/requirements.py /context/pyproject.toml train >/build/requirements \
    && pip install -r /build/requirements

FROM environment AS package
RUN --mount=type=bind,target=/context \
    cp -r /context/src /context/pyproject.toml /context/README.md /context/LICENSE /build/ \
    && pip wheel --no-deps --no-build-isolation --wheel-dir /build/wheel /build

FROM environment AS services-installed
RUN --mount=type=bind,from=package,source=/build/wheel,target=/wheel \
    PIP_CONSTRAINT= pip install --no-deps --no-index /wheel/*.whl

FROM environment-torch AS machine-installed
RUN --mount=type=bind,from=package,source=/build/wheel,target=/wheel \
    PIP_CONSTRAINT= pip install --no-deps --no-index /wheel/*.whl

# -- images -------------------------------------------------------------------------------------------

FROM ${PYTHON_IMAGE} AS base
# A fixed id, so that a volume has one owner in all images. Folders at which volumes are mounted are made
# beforehand: a new volume takes their owner over.
RUN useradd --uid 10001 --create-home trainmover \
    && for folder in /data /run/trainmover /credentials \
        /credentials/bus /credentials/health /credentials/standby /credentials/planner /credentials/switcher \
        /credentials/machine /credentials/operator /credentials/monitor /credentials/reader; do \
        install -d -o trainmover -g trainmover -m 0700 "$folder"; done
ENV PATH=/opt/trainmover/bin:$PATH PYTHONUNBUFFERED=1
WORKDIR /app
USER trainmover
ENTRYPOINT ["trainmover"]

FROM base AS services
COPY --from=services-installed /opt/trainmover /opt/trainmover

FROM services AS bus
ENTRYPOINT ["nats-server"]
CMD ["--config", "/credentials/bus/nats.conf"]

FROM base AS machine
COPY --from=machine-installed /opt/trainmover /opt/trainmover
COPY examples examples
