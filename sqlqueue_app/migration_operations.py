"""Migration operations for queue tables, for use in the migrations of a project::

    from sqlqueue_app.migration_operations import CreateQueue

    class Migration(migrations.Migration):
        operations = [CreateQueue("Sales"), CreateQueue("error")]

They act only on the database of `SQLQUEUE["DATABASE"]`. A table that already exists, created by the installer, by NServiceBus or
by another app's migration, is left unchanged. Reversing an operation drops the table with its content, even if it was there
before.
"""

from __future__ import annotations

from typing import Any

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dialects.schema import TableKind, create_statements, drop_statement
from sqlqueue_app.messages.addresses import AddressBook, QueueAddress
from sqlqueue_app.tables.connections import dialect_of_connection, table_exists
from sqlqueue_app.tables.installation import DELAYED_SUFFIX, SUBSCRIPTION_TABLE, check_address, delayed_address
from sqlqueue_app.tables.listing import current_catalog
from sqlqueue_app.tables.queue import forget_tables


class _TableOperation(Operation):
    """One table with a literal name; schema and catalog come from the settings unless they are given."""

    reduces_to_sql = True
    reversible = True
    kind = TableKind.QUEUE

    def __init__(self, name: str, *, schema: str | None = None, catalog: str | None = None, layout: str | None = None) -> None:
        self.name = name
        self.schema = schema
        self.catalog = catalog
        self.layout = layout

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        given = {"schema": self.schema, "catalog": self.catalog, "layout": self.layout}
        return type(self).__name__, [self.name], {key: value for key, value in given.items() if value is not None}

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Do nothing: queue tables are not part of Django's model state."""

    def _address(self, schema_editor: BaseDatabaseSchemaEditor) -> QueueAddress:
        connection = schema_editor.connection
        dialect = dialect_of_connection(connection)
        resolved = self.resolve(get_settings().address_book(dialect.name, current_catalog(connection)), self.name)
        address = QueueAddress(resolved.table, self.schema or resolved.schema, self.catalog or resolved.catalog, form=resolved.form)
        # PostgreSQL truncates longer names without an error.
        check_address(address, dialect.name)
        return address

    @staticmethod
    def resolve(book: AddressBook, name: str) -> QueueAddress:
        """The address of the table with this name, according to the settings."""
        return book.of_queue(name)

    def _create(self, schema_editor: BaseDatabaseSchemaEditor) -> None:
        settings = get_settings()
        if schema_editor.connection.alias != settings.database:
            return
        address = self._address(schema_editor)
        dialect = dialect_of_connection(schema_editor.connection)
        if not schema_editor.collect_sql and table_exists(schema_editor.connection, dialect, address):
            return
        for statement in create_statements(dialect, self.kind, address, self.layout or settings.table_layout):
            schema_editor.execute(statement, params=None)
        forget_tables()

    def _drop(self, schema_editor: BaseDatabaseSchemaEditor) -> None:
        if schema_editor.connection.alias != get_settings().database:
            return
        address = self._address(schema_editor)
        dialect = dialect_of_connection(schema_editor.connection)
        if not schema_editor.collect_sql and not table_exists(schema_editor.connection, dialect, address):
            return
        schema_editor.execute(drop_statement(dialect, address), params=None)
        forget_tables()


class CreateQueue(_TableOperation):
    """Create the table of a queue with its indexes, in `layout` or else the layout of the settings."""

    def database_forwards(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: Any, to_state: Any) -> None:
        self._create(schema_editor)

    def database_backwards(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: Any, to_state: Any) -> None:
        self._drop(schema_editor)

    def describe(self) -> str:
        return f"Create {self.kind.value} table {self.name!r}"

    @property
    def migration_name_fragment(self) -> str:
        return f"create_{self.kind.value}_{self.name.lower()}"


class CreateDelayedTable(CreateQueue):
    """Create the delayed table of an endpoint: `CreateDelayedTable("Sales.Delayed")`."""

    kind = TableKind.DELAYED

    @staticmethod
    def resolve(book: AddressBook, name: str) -> QueueAddress:
        """The address in the schema and catalog of the endpoint's queue."""
        return delayed_address(book, name.removesuffix(DELAYED_SUFFIX)) if name.endswith(DELAYED_SUFFIX) else book.of_queue(name)


class CreateSubscriptionTable(CreateQueue):
    """Create the subscription table that all endpoints share."""

    kind = TableKind.SUBSCRIPTIONS

    def __init__(self, name: str = SUBSCRIPTION_TABLE, *, schema: str | None = None, catalog: str | None = None) -> None:
        super().__init__(name, schema=schema, catalog=catalog)


class DropQueue(_TableOperation):
    """Drop a table with every message in it; reversing creates an empty one.

    `Sales.Delayed` is the delayed table of the endpoint `Sales`, `SubscriptionRouting` the subscription table.
    """

    resolve = staticmethod(CreateDelayedTable.resolve)

    def __init__(self, name: str, *, schema: str | None = None, catalog: str | None = None, layout: str | None = None) -> None:
        super().__init__(name, schema=schema, catalog=catalog, layout=layout)
        if name == SUBSCRIPTION_TABLE:
            self.kind = TableKind.SUBSCRIPTIONS
        elif name.endswith(DELAYED_SUFFIX):
            self.kind = TableKind.DELAYED

    def database_forwards(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: Any, to_state: Any) -> None:
        self._drop(schema_editor)

    def database_backwards(self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: Any, to_state: Any) -> None:
        self._create(schema_editor)

    def describe(self) -> str:
        return f"Drop {self.kind.value} table {self.name!r}"

    @property
    def migration_name_fragment(self) -> str:
        return f"drop_queue_{self.name.lower()}"
