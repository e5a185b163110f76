"""What is made of rows: the transforms of Spark, and where the figures go."""

from __future__ import annotations

from typing import Final

from sqlqueue_app.pipeline.tools import Transforms
from sqlqueue_app.spark.transforms.failures import parse_failures
from sqlqueue_app.spark.transforms.messages import parse_messages

TRANSFORMS: Final = Transforms(parse_messages, parse_failures, lambda *_: {}, lambda *_: None)
