"""A worker that calls a provider no faster than the provider allows."""

import os
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from celery import Celery
from sluicegate import Check, CheckError, Client, Pacer, backoff

PROVIDER = os.environ.get("PROVIDER", "http://127.0.0.1:9000/")

app = Celery("tasks", broker=os.environ.get("REDIS", "redis://127.0.0.1:6379/0"))
# A worker that waits for its turn should not hold jobs that others could do.
app.conf.worker_prefetch_multiplier = 1

# The client connects with the first call, which is after Celery has forked its workers.
client = Client(
    os.environ.get("SLUICEGATE", "127.0.0.1:8081"),
    timeout=float(os.environ.get("SLUICEGATE_TIMEOUT", "0.1")),
)
pacer = Pacer(client, Check("celery_example", [{"provider": "mail"}]))


def deliver(number: int) -> None:
    """Calls the provider."""
    with urlopen(Request(PROVIDER, data=str(number).encode()), timeout=60):
        pass


@app.task(bind=True, max_retries=10)
def send(self: Any, number: int) -> None:
    """Sends a mail as soon as the rate allows."""
    try:
        pacer.run(lambda: deliver(number))
    except (CheckError, HTTPError) as error:
        # Without a verdict the job does not run, so the provider's limit holds.
        header = error.headers.get("retry-after", "") if isinstance(error, HTTPError) else ""
        retry_after = float(header) if header.isdigit() else None
        raise self.retry(exc=error, countdown=backoff(retry_after, self.request.retries)) from error
