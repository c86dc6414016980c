# Where the toolchain comes from: give the name of a mirror here.
ARG RUST_IMAGE=rust:1.95-slim-bookworm

FROM ${RUST_IMAGE} AS build
WORKDIR /build
COPY . .
ARG TARGETARCH
# What is downloaded and compiled stays with the builder, so that a change of the sources compiles only them. What is
# compiled is kept for each architecture: they would take turns in replacing the two programs.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,id=target-$TARGETARCH,target=/build/target \
    cargo build --release --locked --package sluicegate --package sluicectl \
    && image/assemble /image target/release/sluicegate target/release/sluicectl

# No shell, no package manager: two programs and the four libraries that they load.
FROM scratch
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Sluicegate" \
      org.opencontainers.image.description="Rate limit service for Envoy, Istio and other clients" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /image /
USER 65532:65532
# On every address of the container; the admin listener stays on its loopback.
ENV SLUICEGATE_GRPC_LISTEN=0.0.0.0:8081 \
    SLUICEGATE_HTTP_LISTEN=0.0.0.0:8080 \
    SLUICEGATE_LIMITS=/etc/sluicegate/limits
EXPOSE 8080 8081
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["/usr/local/bin/sluicectl", "health"]
ENTRYPOINT ["/usr/local/bin/sluicegate"]
CMD ["serve"]
