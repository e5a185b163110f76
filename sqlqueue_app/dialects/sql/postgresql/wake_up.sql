-- Wakes receivers with LISTEN and NOTIFY. Each table has its own channel (dialects/schema.py). Payloads are empty, so that the
-- server keeps one notification per transaction, however many rows and statements it has.

-- name: create_wake_up_function
-- Created once per schema. It needs no extra privilege: any role that may insert fires it, and any role may call pg_notify.
DO $sqlqueue_do$ BEGIN
IF pg_catalog.to_regprocedure({literal}) IS NULL THEN
CREATE FUNCTION {function}() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $sqlqueue_function$
BEGIN
    PERFORM pg_catalog.pg_notify(TG_ARGV[0], '');
    RETURN NULL;
END
$sqlqueue_function$;
END IF;
-- Another installer has created it.
EXCEPTION WHEN duplicate_function OR unique_violation THEN NULL;
END $sqlqueue_do$

-- name: create_wake_up_trigger
-- Fires once per statement, COPY included, but only while a receiver requests it, because commits that notify wait for each other.
-- The sender holds {sending} until its transaction ends: by this lock, a receiver detects a sender that has missed its request.
CREATE OR REPLACE TRIGGER {trigger} AFTER INSERT ON {table}
FOR EACH STATEMENT
WHEN (
    CASE WHEN pg_catalog.pg_try_advisory_xact_lock_shared({sending}) THEN
        CASE WHEN pg_catalog.pg_try_advisory_lock({requested}) THEN NOT pg_catalog.pg_advisory_unlock({requested}) ELSE true END
    ELSE true END
)
EXECUTE FUNCTION {function}({channel});

-- name: limit_lock_wait
SET LOCAL lock_timeout = {milliseconds};

-- name: listen
LISTEN {channel};

-- name: wake_up_triggers
-- Which of many tables (a JSON object of quoted names by channel) have the trigger, and which session replies. Counts only an
-- enabled trigger of this name, with a condition and for this channel: a renamed table keeps one that notifies the old channel.
SELECT wanted.key, CASE WHEN pg_trigger.oid IS NULL THEN 0 ELSE 1 END, pg_backend_pid()
FROM json_each_text(CAST(:tables AS json)) AS wanted
LEFT JOIN pg_trigger
    ON pg_trigger.tgrelid = to_regclass(wanted.value)
    AND pg_trigger.tgname = {trigger}
    AND pg_trigger.tgenabled IN ('O', 'A')
    AND pg_trigger.tgqual IS NOT NULL
    AND pg_trigger.tgargs = convert_to(wanted.key, 'UTF8') || decode('00', 'hex');

-- name: request_announcements
-- The session holds the lock until it withdraws the request or ends; a sender holds it only for a moment.
SELECT count(pg_advisory_lock_shared(CAST(key AS bigint))) FROM json_array_elements_text(CAST(:keys AS json)) AS key;

-- name: announcing_channels
-- The channels whose `sending` lock is held by no transaction.
SELECT wanted.key FROM json_each_text(CAST(:keys AS json)) AS wanted WHERE pg_try_advisory_xact_lock(CAST(wanted.value AS bigint));

-- name: withdraw_request
SELECT pg_advisory_unlock_shared(CAST(:key AS bigint));
