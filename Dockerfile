# not built here: the image has not been tried; continuous integration uses scripts/setup.sh as is.
# docker build -t spillway . && docker run --rm -it spillway

# The devel image has the compiler of the CUDA kernels that are to come.
FROM nvidia/cuda:13.0.0-devel-ubuntu24.04 AS build
WORKDIR /spillway
# Alone first: the packages stay cached until the list of them changes.
COPY scripts/setup.sh scripts/setup.sh
RUN scripts/setup.sh
COPY . .
RUN cmake --preset cpu && cmake --build --preset cpu

FROM nvidia/cuda:13.0.0-devel-ubuntu24.04
WORKDIR /spillway
COPY scripts/setup.sh scripts/setup.sh
RUN scripts/setup.sh && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home spillway && chown spillway:spillway /spillway
COPY --from=build --chown=spillway:spillway /spillway /spillway
# Never root: mpirun warns for a reason, and files in mounted folders keep an owner.
USER spillway
CMD ["bash"]
