# Build: docker build --build-arg DRIVER=drivers/pci -t pci .
# For a release give the base by its digest, as `docker buildx imagetools inspect python:3.13-slim` tells it:
# --build-arg BASE=python:3.13-slim@sha256:...
ARG BASE=python:3.13-slim

FROM ${BASE} AS build
ARG DRIVER=drivers/pci
# Compiled without column numbers: 0.3 MiB less resident; tracebacks have lines all the same.
ENV PYTHONNODEBUGRANGES=1
# Human names of PCI ids.
RUN apt-get update && apt-get install -y --no-install-recommends pci.ids
WORKDIR /src
# The environment has no pip: what builds stays in this stage.
RUN python -m venv --without-pip /opt/dra
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip --python /opt/dra/bin/python install --no-cache-dir .
COPY ${DRIVER} /driver
# What the driver itself needs.
RUN if [ -f /driver/requirements.txt ]; then pip --python /opt/dra/bin/python install --no-cache-dir -r /driver/requirements.txt; fi
RUN python -m compileall -q /driver

FROM ${BASE}
COPY --from=build /usr/share/misc/pci.ids /usr/share/misc/pci.ids
COPY --from=build /opt/dra /opt/dra
COPY --from=build /driver /driver
ENV PATH=/opt/dra/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONNODEBUGRANGES=1
# The base image ships its library as source only: compiled at each start, that takes seconds and 0.8 MiB.
RUN python -m compileall -q -x '/(site-packages|test|idlelib|ensurepip|turtledemo|tkinter|lib2to3)/' /usr/local/lib/python3.13
# A plugin makes sockets in the kubelet's folders and CDI files, which belong to root with mode 0750 and less: as another user it could
# not, so the DaemonSet runs this as root, without capabilities. Alone the image does not.
USER 65532:65532
ENTRYPOINT ["dra"]
CMD ["run", "/driver/driver.py"]
