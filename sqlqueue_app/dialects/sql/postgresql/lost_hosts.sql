-- How long the PostgreSQL server keeps this session if the client host vanishes.

-- name: server_keepalives
-- The client's address (NULL for a Unix socket), keepalive idle time, interval and count, and the user timeout in milliseconds.
-- In a session over TCP these are the values in the kernel.
SELECT
    host(inet_client_addr()),
    CAST(current_setting('tcp_keepalives_idle') AS integer),
    CAST(current_setting('tcp_keepalives_interval') AS integer),
    CAST(current_setting('tcp_keepalives_count') AS integer),
    CAST(current_setting('tcp_user_timeout') AS integer);
