# Turnstile for servers of your own (docs/deployment.md): worker, bridge, gateway, migrate and the example tools in one image,
# without the embedded servers of `turnstile up`.
FROM python:3.13.14-slim-bookworm AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
RUN python -m venv /opt/turnstile
COPY pyproject.toml requirements-dev.lock ./
# The base install and four of the extras, in the versions and with the hashes of the lock that has all of them.
RUN python -c "import tomllib; \
project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
extras = project['optional-dependencies']; \
print(*project['dependencies'], *extras['server'], *(each for each in extras['gateway'] if 'turnstile' not in each), *extras['codec'], *extras['otel'], sep='\n')" > wanted.txt \
    && /opt/turnstile/bin/pip install --require-hashes --only-binary=:all: -c requirements-dev.lock -r wanted.txt
# hatchling stays in this stage: it is needed to install the project, and not to run it.
RUN pip install --require-hashes --only-binary=:all: -c requirements-dev.lock hatchling
COPY README.md LICENSE ./
COPY schema schema
COPY runtime runtime
COPY rules rules
COPY ledger ledger
COPY transport transport
COPY sdk sdk
COPY activities activities
COPY workflows workflows
COPY bridge bridge
COPY gateway gateway
COPY docs docs
COPY turnstile turnstile
RUN pip wheel --no-deps --no-build-isolation --wheel-dir dist . \
    && /opt/turnstile/bin/pip install --no-deps dist/*.whl

FROM python:3.13.14-slim-bookworm
LABEL org.opencontainers.image.title="turnstile" \
      org.opencontainers.image.description="A durable kernel for LLM agent turns" \
      org.opencontainers.image.licenses="Apache-2.0"
# litellm reads the prices that it ships, and asks nobody for newer ones.
ENV PATH=/opt/turnstile/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    LITELLM_LOCAL_MODEL_COST_MAP=True \
    TURNSTILE__OBSERVABILITY__METRICS_HOST=0.0.0.0 \
    TURNSTILE__OBSERVABILITY__METRICS_PORT=9464
RUN useradd --uid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin turnstile
COPY --from=build /opt/turnstile /opt/turnstile
COPY examples /opt/turnstile/examples
# config.toml, profiles and scripts of yours are read from here, if you mount them.
WORKDIR /etc/turnstile
USER 10001:10001
EXPOSE 9464
STOPSIGNAL SIGTERM
# Of a worker, a bridge or a gateway; compose turns it off for what is neither.
HEALTHCHECK --interval=30s --timeout=6s --start-period=60s --start-interval=2s --retries=3 CMD ["turnstile", "health"]
ENTRYPOINT ["turnstile"]
CMD ["--help"]
