# Builds the image of a driver in this repository: docker build --build-arg DRIVER=drivers/pci -t pci .
# If the driver needs more packages than the framework, `make lock` pins them in its image/requirements.txt. A driver outside of this
# repository has its own Dockerfile.
# For a release, set the base image by digest; `docker buildx imagetools inspect python:3.13-slim` prints it:
# --build-arg BASE=python:3.13-slim@sha256:...
ARG BASE=python:3.13-slim

FROM ${BASE} AS build
ARG BASE
ARG DRIVER=drivers/pci
# Debian's package with the names of PCI vendors and devices; PCI_IDS=pci.ids=VERSION selects a version.
ARG PCI_IDS=pci.ids
# Compiles without column numbers, which saves 0.3 MiB of resident memory. Tracebacks still contain line numbers.
ENV PYTHONNODEBUGRANGES=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
RUN apt-get update && apt-get install -y --no-install-recommends ${PCI_IDS}
WORKDIR /src
# Everything from a package index is pinned by hash (`make lock`). Build tools and pip stay in this stage.
COPY image image
RUN pip install --require-hashes --only-binary :all: -r image/build-requirements.txt \
 && python -m venv --without-pip /opt/dra \
 && pip --python /opt/dra/bin/python install --require-hashes --only-binary :all: -r image/requirements.txt
COPY pyproject.toml README.md LICENSE ./
COPY src src
COPY ${DRIVER} /driver
RUN if [ -f /driver/image/requirements.txt ]; then \
      pip --python /opt/dra/bin/python install --require-hashes --only-binary :all: -r /driver/image/requirements.txt; \
    fi
RUN pip wheel --no-build-isolation --no-deps --no-index -w /wheels . /driver \
 && pip --python /opt/dra/bin/python install --no-deps --no-index /wheels/*.whl \
 && pip --python /opt/dra/bin/python check
RUN sh /driver/image/sbom.sh /driver/pyproject.toml /opt/dra /usr/share/sbom "${BASE}"

# The base must contain libudev (Debian's libudev1), through which the plugin receives the kernel's events about devices. Debian's slim images have it.
FROM ${BASE}
COPY --from=build /usr/share/misc/pci.ids /usr/share/misc/pci.ids
COPY --from=build /usr/share/sbom /usr/share/sbom
COPY --from=build /opt/dra /opt/dra
ENV PATH=/opt/dra/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONNODEBUGRANGES=1
# Removes pip, which the driver does not need. Compiles the standard library, because each start would compile it for seconds and with 0.8 MiB.
RUN cd /usr/local && rm -rf bin/pip* lib/python3.13/ensurepip lib/python3.13/site-packages/pip* \
 && python -m compileall -q -x '/(site-packages|test|idlelib|turtledemo|tkinter|lib2to3)/' lib/python3.13
# The DaemonSet runs the image as root without capabilities: the plugin creates sockets and CDI files in folders that only root can write.
# Other uses do not need root.
USER 65532:65532
ENTRYPOINT ["dra"]
