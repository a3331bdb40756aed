# hipgemm in an image with ROCm 7, compiled by the pinned toolchain and not by ROCm's. docs/use/rocm.md says more.
#
#   docker build -f docker/rocm7.Dockerfile -t hipgemm-rocm7 .
#   docker run --rm --device /dev/kfd --device /dev/dri hipgemm-rocm7
ARG ROCM_IMAGE=rocm/dev-ubuntu-24.04:7.2
FROM ${ROCM_IMAGE}

# Any version of these will do.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends make python3-venv \
 && rm -rf /var/lib/apt/lists/*

RUN python3 -m venv /opt/hipgemm/venv
ENV PATH=/opt/hipgemm/venv/bin:$PATH

# hip-python 7, which goes with ROCm 7.0 to 7.2, whatever pip installs in this image, by `make` too.
COPY docker/rocm7.constraints.txt /opt/hipgemm/constraints.txt
ENV PIP_CONSTRAINT=/opt/hipgemm/constraints.txt

COPY . /opt/hipgemm/src
RUN pip install --no-cache-dir /opt/hipgemm/src

# A build has no GPU: the emulator shows that what was installed can be imported and has its kernels.
WORKDIR /opt/hipgemm
RUN HIPGEMM_RUNTIME=emulator python -m hipgemm info

# Without a GPU this is an error, never a fall back to the emulator.
ENV HIPGEMM_RUNTIME=rocm
CMD ["python", "-m", "hipgemm", "info"]
