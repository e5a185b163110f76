-- How long this server waits for the other side of this very session, on PostgreSQL.

-- name: server_keepalives
-- The client's address (NULL: a socket of the machine), idle, interval and count of keepalives, milliseconds of the user timeout; of a
-- session over TCP these are what the kernel has.
SELECT
    host(inet_client_addr()),
    CAST(current_setting('tcp_keepalives_idle') AS integer),
    CAST(current_setting('tcp_keepalives_interval') AS integer),
    CAST(current_setting('tcp_keepalives_count') AS integer),
    CAST(current_setting('tcp_user_timeout') AS integer);
