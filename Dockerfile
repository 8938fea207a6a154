# A broker: docker build -t pybroker . (docs/container.md). The first stage compiles, the second has only what runs.
FROM python:3.13-slim AS build
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/pybroker
COPY . /src
# Bytecode is compiled here, because the root file system is read-only where the image runs.
RUN /opt/pybroker/bin/pip install --no-cache-dir --compile /src \
    && /opt/pybroker/bin/pip uninstall --yes pip

FROM python:3.13-slim
COPY --from=build /opt/pybroker /opt/pybroker
ENV PATH=/opt/pybroker/bin:$PATH PYTHONDONTWRITEBYTECODE=1
# A number, by which Kubernetes sees that it is not root; the volume is the only place that a broker writes to.
RUN install -d -o 10001 -g 10001 -m 700 /var/lib/pybroker
USER 10001:10001
VOLUME /var/lib/pybroker
EXPOSE 9092 9404
HEALTHCHECK --start-period=600s --start-interval=2s --interval=10s --timeout=6s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:9404/healthz', timeout=5)"]
ENTRYPOINT ["pybroker", "serve", "--data-dir", "/var/lib/pybroker/data", "--host", "0.0.0.0", "--metrics-port", "9404"]
