"""Connections to a service."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc

METHOD = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
"""Envoy's path. The messages are those of Envoy under names of our own."""

HEALTH_METHOD = "/grpc.health.v1.Health/Check"
"""The path of the standard health check."""

DEFAULT_TIMEOUT = 0.1
"""Seconds to wait for an answer."""

ChannelOptions: TypeAlias = Sequence[tuple[str, Any]]
"""gRPC channel arguments."""

_OPTIONS: list[tuple[str, Any]] = [
    # A failed call may have been counted.
    ("grpc.enable_retries", 0),
    # gRPC's default of up to two minutes would apply the failure mode long after the service is back.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 2000),
]


def channel_options(target: str, options: ChannelOptions) -> list[tuple[str, Any]]:
    """The options of a channel: ours, then those of the application."""
    # gRPC would send the path of the socket, escaped in a way that HTTP/2 libraries reject.
    authority = [("grpc.default_authority", "localhost")] if target.startswith("unix:") else []
    return [*_OPTIONS, *authority, *options]


@dataclass(frozen=True, kw_only=True)
class Tls:
    """TLS settings of a client. All are PEM."""

    ca: bytes | None = None
    """CA certificates that the service is verified with; `None` for those of the system."""
    certificate: bytes | None = None
    """Certificate chain of the client, for a service that asks for one."""
    key: bytes | None = None
    """Private key of that certificate."""


def credentials(tls: Tls) -> grpc.ChannelCredentials:
    """The settings as gRPC has them."""
    return grpc.ssl_channel_credentials(tls.ca or _system_cas(), tls.key, tls.certificate)


def _system_cas() -> bytes | None:
    # gRPC does not read the system's certificates; without any here it uses a list of its own.
    certificates = ssl.create_default_context().get_ca_certs(binary_form=True)
    return "".join(map(ssl.DER_cert_to_PEM_cert, certificates)).encode() or None
