from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping

# The longest time in seconds from sending a request until the service counts it. Our window is
# longer than the service's window by this time.
_LEEWAY = 1.0


class Pace:
    """Keeps this program within the service's rate limit, which is a sliding window.

    The window contains the requests of this program. It also contains the requests of other
    programs with the same key. The response headers show how many these are.
    """

    def __init__(self) -> None:
        self._quota = 100
        self._window = 60.0
        self._sent: list[float] = []
        self._lock = threading.Lock()

    def pause(self) -> float:
        """Counts a request that is sent now, and returns 0.

        If the rate limit allows none now, it returns the seconds until then.
        """
        with self._lock:
            now = time.monotonic()
            window = self._window + _LEEWAY
            self._sent = [at for at in self._sent if at > now - window]
            if len(self._sent) < self._quota:
                self._sent.append(now)
                return 0
            return min(self._sent, default=now) + window - now

    def heed(self, headers: Mapping[str, str], sent_at: float) -> None:
        """Updates the window from the rate limit headers of a response.

        The service computes these headers when the request arrives, so they are older than the
        response if the service held the request.
        """
        policy = re.search(r";q=([0-9]{1,6});w=([0-9]{1,6})", headers.get("ratelimit-policy", ""))
        state = re.search(r";r=([0-9]{1,6})", headers.get("ratelimit", ""))
        if not policy or not state:
            return
        with self._lock:
            self._quota = int(policy[1])
            self._window = float(policy[2])
            ours = sum(at <= sent_at for at in self._sent)
            others = self._quota - int(state[1]) - ours
            self._sent.extend([sent_at] * others)
