"""A field for any JSON, kept as ASCII text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

if TYPE_CHECKING:
    _TextField = models.TextField[Any, Any]
else:
    _TextField = models.TextField


class JsonTextField(_TextField):
    """A value of JSON as Python has it; text in the column, with everything beyond ASCII escaped, and NULL for None.

    Unlike a column of type `jsonb` it takes all of JSON: U+0000, halves of surrogate pairs, and the NaN of Python.
    """

    if TYPE_CHECKING:
        _pyi_private_set_type: Any
        _pyi_private_get_type: Any

    def get_prep_value(self, value: Any) -> Any:
        """The text. TypeError or ValueError for what is no JSON."""
        return None if value is None else json.dumps(value)

    def from_db_value(self, value: Any, expression: object, connection: BaseDatabaseWrapper) -> Any:
        """The value; ValueError for text that is no JSON."""
        return None if value is None else json.loads(value)
