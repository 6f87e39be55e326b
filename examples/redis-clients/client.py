"""Limits of Tollgate from redis-py or valkey-py.

    python3 client.py redis|valkey PORT PROTOCOL [TOKEN]

Prints one line of JSON for each step.
"""

import importlib
import json
import sys

library, port, protocol = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
token = sys.argv[4] if len(sys.argv) > 4 else None
package = importlib.import_module(library)
client = package.Redis(port=port, protocol=protocol, password=token, decode_responses=True, socket_timeout=20)


def show(step, value):
    print(json.dumps({"step": step, "value": value}), flush=True)


def throttle(key, quantity=1):
    """Two at once, then one every half hour."""
    limited, capacity, remaining, retry_after, reset_after = client.execute_command(
        "CL.THROTTLE", key, 1, 2, 3600, quantity
    )
    return {"limited": bool(limited), "remaining": remaining, "retry_after": retry_after}


def check(*attributes):
    limited, rule, limit, remaining, retry_after_ms, reset_after_ms = client.execute_command("TOLLGATE.CHECK", *attributes)
    return {"limited": bool(limited), "rule": rule, "remaining": remaining, "retry": retry_after_ms > 0}


show("ping", client.ping())
show("throttle", [throttle("upload:42") for _ in range(3)])
show("check", [check("method", "POST", "path", "/login", "user", "42") for _ in range(2)])

with client.pipeline(transaction=False) as pipeline:
    for quantity in (2, 1, 0):
        pipeline.execute_command("CL.THROTTLE", "batch", 9, 10, 3600, quantity)
    show("pipeline", [reply[:3] for reply in pipeline.execute()])

try:
    client.execute_command("CL.THROTTLE", "upload:42", "many", 2, 3600)
except package.ResponseError as error:
    show("error", str(error))

show("delete", client.delete("upload:42", "batch", "none"))
show("throttle", [throttle("upload:42")])
show("reset", client.execute_command("RESET"))
