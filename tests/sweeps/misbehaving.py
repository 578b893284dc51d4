"""Stands in for the process that plans a point, and does what its workload is called."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

ask = json.loads(sys.stdin.readline())["workload"]
if ask == "answers":
    print("some library says hello")
    print(json.dumps({"status": "optimal", "gap": 0.25}))
elif ask == "is killed":
    os.kill(os.getpid(), signal.SIGKILL)
elif ask == "sleeps":
    time.sleep(60)
elif ask == "gives up":
    sys.exit("no such thing as a plan")
