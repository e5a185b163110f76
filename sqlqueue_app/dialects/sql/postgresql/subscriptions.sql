-- Statements of the subscription table on PostgreSQL.

-- name: subscribe
-- A row that says so already is not written again.
INSERT INTO {table} AS held (queueaddress, topic, endpoint)
VALUES (:address, :topic, :endpoint)
ON CONFLICT (endpoint, topic) DO UPDATE SET queueaddress = EXCLUDED.queueaddress
WHERE held.queueaddress <> EXCLUDED.queueaddress;

-- name: unsubscribe
DELETE FROM {table} WHERE endpoint = :endpoint AND topic = :topic;

-- name: subscribers
-- {topics} is one value for each topic.
SELECT endpoint, topic, queueaddress FROM {table} WHERE topic IN ({topics}) ORDER BY endpoint, topic;

-- name: subscriptions
SELECT endpoint, topic, queueaddress FROM {table} ORDER BY endpoint, topic;
