"""How long a receiver that is woken by new messages may leave a queue alone."""

from __future__ import annotations

# Once nothing but a notification can bring a message early, a poll is there for what no notification tells of: a message that came
# back because its worker was killed, or a trigger that was dropped.
REST_SECONDS = 10.0
