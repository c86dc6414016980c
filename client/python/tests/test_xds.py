"""Our messages beside Envoy's published ones."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("first", ["ours", "envoys"])
def test_ours_and_envoys_messages_load_in_one_process(first: str) -> None:
    imports = [
        "from sluicegate._generated.rls_pb2 import RateLimitRequest as Ours",
        "from envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest as Envoys",
    ]
    program = """
ours = Ours(domain="api", hits_addend=2)
ours.descriptors.add(is_negative_hits=True).entries.add(key="user", value="bob")
ours.descriptors[0].hits_addend.value = 3
ours.descriptors[0].limit.requests_per_unit = 5
ours.descriptors[0].limit.unit = 2
envoys = Envoys.FromString(ours.SerializeToString())
assert envoys.domain == "api" and envoys.descriptors[0].entries[0].value == "bob"
assert envoys.descriptors[0].limit.requests_per_unit == 5
assert Ours.FromString(envoys.SerializeToString()) == ours
"""
    order = imports if first == "ours" else imports[::-1]
    subprocess.run([sys.executable, "-c", "\n".join(order) + program], check=True, timeout=60)
