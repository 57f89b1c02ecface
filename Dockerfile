# A driver of this tree with the framework of this tree: docker build --build-arg DRIVER=drivers/pci -t pci .
# Elsewhere, and for a driver that needs more than the framework, there is the driver's own Dockerfile.
# For a release give the base by its digest, as `docker buildx imagetools inspect python:3.13-slim` tells it:
# --build-arg BASE=python:3.13-slim@sha256:...
ARG BASE=python:3.13-slim

FROM ${BASE} AS build
ARG BASE
ARG DRIVER=drivers/pci
# Debian's package of the human names of PCI ids; PCI_IDS=pci.ids=VERSION for one version.
ARG PCI_IDS=pci.ids
# Compiled without column numbers: 0.3 MiB less resident; tracebacks have lines all the same.
ENV PYTHONNODEBUGRANGES=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
RUN apt-get update && apt-get install -y --no-install-recommends ${PCI_IDS}
WORKDIR /src
# All that comes from an index is pinned by hash: `make lock`. What builds and lists stays in this stage: the environment has no pip.
COPY image image
RUN pip install --require-hashes --only-binary :all: -r image/build-requirements.txt \
 && python -m venv --without-pip /opt/dra \
 && pip --python /opt/dra/bin/python install --require-hashes --only-binary :all: -r image/requirements.txt
COPY pyproject.toml README.md LICENSE ./
COPY src src
COPY ${DRIVER} /driver
RUN pip wheel --no-build-isolation --no-deps --no-index -w /wheels . /driver \
 && pip --python /opt/dra/bin/python install --no-deps --no-index /wheels/*.whl \
 && pip --python /opt/dra/bin/python check
RUN sh /driver/image/sbom.sh /driver/pyproject.toml /opt/dra /usr/share/sbom "${BASE}"

FROM ${BASE}
COPY --from=build /usr/share/misc/pci.ids /usr/share/misc/pci.ids
COPY --from=build /usr/share/sbom /usr/share/sbom
COPY --from=build /opt/dra /opt/dra
ENV PATH=/opt/dra/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONNODEBUGRANGES=1
# The base has pip, which nothing here calls. It ships its library as source only: compiled at each start, that takes seconds and 0.8 MiB.
RUN cd /usr/local && rm -rf bin/pip* lib/python3.13/ensurepip lib/python3.13/site-packages/pip* \
 && python -m compileall -q -x '/(site-packages|test|idlelib|turtledemo|tkinter|lib2to3)/' lib/python3.13
# A plugin makes sockets in the kubelet's folders and CDI files, which belong to root with mode 0750 and less: as another user it could
# not, so the DaemonSet runs this as root, without capabilities. Alone the image does not.
USER 65532:65532
ENTRYPOINT ["dra"]
