-- Waking receivers by notifications. A channel is named after its table (dialects/schema.py); payloads are empty, so that the server
-- keeps one notification of each transaction, however many rows and statements it has.

-- name: create_wake_up_function
-- One for each schema, unless it is there. It needs no right that every sender has not: whoever may insert fires it, and pg_notify is
-- everybody's.
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
-- Another installer was first.
EXCEPTION WHEN duplicate_function OR unique_violation THEN NULL;
END $sqlqueue_do$

-- name: create_wake_up_trigger
-- Once for each statement, a COPY included, and only while a receiver asks for it: commits that notify wait for each other. Until its
-- commit the sender holds the lock that tells an asking receiver that somebody has not been asked.
CREATE OR REPLACE TRIGGER {trigger} AFTER INSERT ON {table}
FOR EACH STATEMENT
WHEN (
    CASE WHEN pg_catalog.pg_try_advisory_xact_lock_shared({sending}) THEN
        CASE WHEN pg_catalog.pg_try_advisory_lock({asking}) THEN NOT pg_catalog.pg_advisory_unlock({asking}) ELSE true END
    ELSE true END
)
EXECUTE FUNCTION {function}({channel});

-- name: limit_lock_wait
SET LOCAL lock_timeout = {milliseconds};

-- name: listen
LISTEN {channel};

-- name: wake_up_triggers
-- Of many tables at once, a JSON object of quoted names by channel: who has the trigger, and which session answers. It counts of this
-- name, enabled, on condition, and for this channel: one that came with a renamed table announces on the channel of the old name.
SELECT wanted.key, CASE WHEN pg_trigger.oid IS NULL THEN 0 ELSE 1 END, pg_backend_pid()
FROM json_each_text(CAST(:tables AS json)) AS wanted
LEFT JOIN pg_trigger
    ON pg_trigger.tgrelid = to_regclass(wanted.value)
    AND pg_trigger.tgname = {trigger}
    AND pg_trigger.tgenabled IN ('O', 'A')
    AND pg_trigger.tgqual IS NOT NULL
    AND pg_trigger.tgargs = convert_to(wanted.key, 'UTF8') || decode('00', 'hex');

-- name: ask_for_announcements
-- The session holds the lock until it takes the question back or ends; a sender holds it for a moment at most.
SELECT count(pg_advisory_lock_shared(CAST(key AS bigint))) FROM json_array_elements_text(CAST(:keys AS json)) AS key;

-- name: all_senders_are_asked
-- Of locks of senders by channel, those that nobody holds.
SELECT wanted.key FROM json_each_text(CAST(:keys AS json)) AS wanted WHERE pg_try_advisory_xact_lock(CAST(wanted.value AS bigint));

-- name: stop_asking
SELECT pg_advisory_unlock_shared(CAST(:key AS bigint));
