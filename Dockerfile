# One image for every makegood process: `makegood worker`, `makegood monitor`, `makegood doctor`, …
# Your agents are added by a volume on /app (docker-compose.yml does so) or by an image FROM this one.

FROM python:3.11-slim AS build
WORKDIR /build
COPY requirements/lock.txt requirements/
RUN pip install --no-cache-dir -c requirements/lock.txt build hatchling
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN python -m build --no-isolation --wheel --outdir /dist

FROM python:3.11-slim
RUN useradd --create-home --uid 10001 makegood
COPY requirements/lock.txt /tmp/lock.txt
COPY --from=build /dist /tmp/dist
RUN pip install --no-cache-dir -c /tmp/lock.txt "$(echo /tmp/dist/makegood-*.whl)[worker,server]" \
    && rm -r /tmp/dist /tmp/lock.txt
ENV PYTHONUNBUFFERED=1
WORKDIR /app
USER makegood
ENTRYPOINT ["makegood"]
CMD ["worker"]
