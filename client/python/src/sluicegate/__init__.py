"""Client of the Sluicegate rate limit service, and of every service with Envoy's rate limit API.

`Client` and `AsyncClient` ask. `sluicegate.asgi` and `sluicegate.wsgi` have middleware for applications, `Pacer` and
`AsyncPacer` run jobs at a sustainable rate.
"""

from ._async_client import AsyncClient, AsyncPacer
from ._check import Check, Descriptor, Entries, LimitOverride, Unit
from ._client import Client, Pacer
from ._connection import ChannelOptions, Tls
from ._errors import (
    CallFailed,
    CheckError,
    DeadlineExceeded,
    ErrorKind,
    OverrideNotApplied,
    PacerClosed,
    SluicegateError,
    Unavailable,
    WaitExceeded,
)
from ._pacing import backoff
from ._verdict import Code, Header, Limit, Status, Verdict

__all__ = [
    "AsyncClient",
    "AsyncPacer",
    "CallFailed",
    "ChannelOptions",
    "Check",
    "CheckError",
    "Client",
    "Code",
    "DeadlineExceeded",
    "Descriptor",
    "Entries",
    "ErrorKind",
    "Header",
    "Limit",
    "LimitOverride",
    "OverrideNotApplied",
    "Pacer",
    "PacerClosed",
    "SluicegateError",
    "Status",
    "Tls",
    "Unavailable",
    "Unit",
    "Verdict",
    "WaitExceeded",
    "backoff",
]
