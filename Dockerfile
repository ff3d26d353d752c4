# Two images from one file.
#   docker build --target services .   health, standby, planner, switcher, the command line: no torch
#   docker build --target machine .    a machine of a job, with torch for the CPU
# Not tested yet: this is a first version.

FROM python:3.13-slim AS services
WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir --constraint constraints.txt .
COPY tools/submit.py tools/submit.py
# The run folder is shared by all containers of a job: recordings, facts of the ranks.
RUN useradd --create-home trainmover && install -d -o trainmover /run/trainmover
USER trainmover
ENTRYPOINT ["trainmover"]

FROM services AS machine
USER root
# Name an index of CPU wheels (--build-arg TORCH_INDEX=URL), or the default one brings CUDA.
ARG TORCH_INDEX=
RUN pip install --no-cache-dir --constraint constraints.txt --no-deps ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch \
    && pip install --no-cache-dir --constraint constraints.txt ".[train]"
COPY examples examples
USER trainmover
