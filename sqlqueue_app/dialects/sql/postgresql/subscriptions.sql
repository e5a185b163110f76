-- Statements of the subscription table on PostgreSQL.

-- name: subscribe
-- An existing row with the same address is not rewritten.
INSERT INTO {table} AS held (queueaddress, topic, endpoint)
VALUES (:address, :topic, :endpoint)
ON CONFLICT (endpoint, topic) DO UPDATE SET queueaddress = EXCLUDED.queueaddress
WHERE held.queueaddress <> EXCLUDED.queueaddress;

-- name: unsubscribe
DELETE FROM {table} WHERE endpoint = :endpoint AND topic = :topic;

-- name: subscribers
-- {topics} is one value per topic.
SELECT endpoint, topic, queueaddress FROM {table} WHERE topic IN ({topics}) ORDER BY endpoint, topic;

-- name: subscriptions
SELECT endpoint, topic, queueaddress FROM {table} ORDER BY endpoint, topic;
