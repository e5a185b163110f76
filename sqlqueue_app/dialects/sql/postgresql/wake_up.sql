-- Waking receivers by notifications. A channel is named after its table (dialects/schema.py); payloads are empty, so that the server
-- keeps one notification of each transaction, however many rows and statements it has.

-- name: notify
SELECT pg_catalog.pg_notify({channel}, '');

-- name: send_and_notify
-- One round trip and one transaction with the rows, also where the sender has none open.
WITH sent AS ({send})
SELECT pg_catalog.pg_notify({channel}, '');

-- name: create_wake_up_function
-- It needs no right that every sender has not: whoever may insert fires it, and pg_notify is everybody's.
CREATE FUNCTION {function}() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $sqlqueue$
BEGIN
    PERFORM pg_catalog.pg_notify(TG_ARGV[0], '');
    RETURN NULL;
END
$sqlqueue$;

-- name: create_wake_up_trigger
-- Once for each statement, a COPY included.
CREATE OR REPLACE TRIGGER {trigger} AFTER INSERT ON {table}
FOR EACH STATEMENT EXECUTE FUNCTION {function}({channel});

-- name: drop_wake_up_trigger
DROP TRIGGER IF EXISTS {trigger} ON {table};

-- name: wake_up_function_exists
SELECT CASE WHEN to_regprocedure(CAST(:function AS text)) IS NULL THEN 0 ELSE 1 END;

-- name: wake_up_trigger_exists
-- Of this name, enabled, and for this channel: one that came with a renamed table announces on the channel of the old name.
SELECT count(*)
FROM pg_trigger
WHERE
    tgrelid = to_regclass(CAST(:table AS text))
    AND tgname = CAST(:trigger AS text)
    AND tgenabled IN ('O', 'A')
    AND tgargs = convert_to(CAST(:channel AS text), 'UTF8') || decode('00', 'hex');

-- name: limit_lock_wait
SET LOCAL lock_timeout = {milliseconds};

-- name: listen
LISTEN {channel};

-- name: wake_up_triggers
-- Of many tables at once, a JSON object of quoted names by channel: who has the trigger, and which session answers.
SELECT wanted.key, CASE WHEN pg_trigger.oid IS NULL THEN 0 ELSE 1 END, pg_backend_pid()
FROM json_each_text(CAST(:tables AS json)) AS wanted
LEFT JOIN pg_trigger
    ON pg_trigger.tgrelid = to_regclass(wanted.value)
    AND pg_trigger.tgname = {trigger}
    AND pg_trigger.tgenabled IN ('O', 'A')
    AND pg_trigger.tgargs = convert_to(wanted.key, 'UTF8') || decode('00', 'hex');
