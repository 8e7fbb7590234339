# The image of everything that Pavane runs. `make image` collects the wheels that it installs, so a build needs no network.
ARG BASE_IMAGE=python:3.11-slim

FROM ${BASE_IMAGE} AS build
# What the processes of one role import: see [project.optional-dependencies] of pyproject.toml.
ARG EXTRAS=operator,api,dataflow,otel
COPY build/wheels /wheels
# Python compiles at each start what stands nowhere compiled, for the file system is read-only: so all is compiled here.
# Of the Kubernetes client we use kubeconfig and transport; its thousands of generated classes stay out.
RUN python3 -m venv --without-pip /opt/pavane \
  && python3 $(echo /wheels/pip-*.whl)/pip --python /opt/pavane/bin/python install --quiet --no-compile --no-cache-dir \
       --no-index --find-links /wheels "pavane[${EXTRAS}]" \
  && cd /opt/pavane/lib/python3*/site-packages \
  && find . -path './kubernetes/*' \( -path '*/client/api/*_api.py' -o -path '*/client/models/v[0-9]*.py' \) -delete \
  && find . -type d \( -name tests -o -name test \) -prune -exec rm -rf {} + \
  && python3 -m compileall -q .

# For the edit loop: the sources of the checkout come before the installed ones, and may be replaced while it runs.
FROM build AS dev
RUN python3 $(echo /wheels/pip-*.whl)/pip --python /opt/pavane/bin/python install --quiet --no-cache-dir \
       --no-index --find-links /wheels watchfiles
COPY --chown=10001:10001 services /app/services
COPY --chown=10001:10001 operator /app/operator
COPY --chown=10001:10001 api /app/api
ENV PATH=/opt/pavane/bin:$PATH LOGNAME=pavane HOME=/tmp PYTHONPATH=/app/services:/app/operator:/app/api PYTHONUNBUFFERED=1
USER 10001:10001
ENTRYPOINT ["pavane"]

FROM ${BASE_IMAGE} AS pavane
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Pavane" \
  org.opencontainers.image.description="Stateful coordination services, rolled out by fenced generations" \
  org.opencontainers.image.licenses="Apache-2.0" \
  org.opencontainers.image.version="${VERSION}" \
  org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/pavane /opt/pavane
# Libraries ask for the name and the home of the user, and a uid has neither.
ENV PATH=/opt/pavane/bin:$PATH LOGNAME=pavane HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# A number, so that a cluster sees that it is not root; nobody's on a node.
USER 10001:10001
ENTRYPOINT ["pavane"]

# Spark for ComputeClusters, which evaluate SQL over rows that they bring: no Spark Connect, no shell, no machine learning,
# no Hive, no YARN, no state of Spark's own, no machine but a Linux one. That is half of it.
FROM ${BASE_IMAGE} AS spark-build
COPY build/wheels/pip-*.whl /
COPY build/spark /spark
RUN python3 $(echo /pip-*.whl)/pip install --quiet --no-compile --no-cache-dir --no-index --no-deps \
       --root-user-action ignore --target /opt/spark /spark/*.whl \
  && cd /opt/spark/pyspark/jars \
  && rm -r connect-repl spark-connect_* spark-pipelines_* spark-repl_* scala-compiler-* jline-* \
       spark-mllib* spark-graphx_* breeze* spire* cats-kernel_* algebra_* arpack* lapack-* JTransforms-* JLargeArrays-* \
       spark-hive* hive-* derby* datanucleus-* spark-yarn_* rocksdbjni-* leveldbjni-* *-osx-* *-windows-* *-riscv64.jar \
  && rm -r ../examples ../data ../python/lib/pyspark.zip ../pandas ../ml ../mllib \
  && python3 -m compileall -q /opt/spark

# Spark needs a user that has a name.
FROM pavane AS spark
COPY --from=spark-build /opt/spark /opt/spark
USER 0
RUN echo pavane:x:10001:10001::/tmp:/usr/sbin/nologin >>/etc/passwd
ENV PYTHONPATH=/opt/spark
USER 10001:10001
