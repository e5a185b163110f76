-- Statements of the subscription table on SQLite.

-- name: subscribe
-- An existing row with the same address is not rewritten.
INSERT INTO {table} AS held (QueueAddress, Topic, Endpoint)
VALUES (:address, :topic, :endpoint)
ON CONFLICT (Endpoint, Topic) DO UPDATE SET QueueAddress = excluded.QueueAddress
WHERE held.QueueAddress <> excluded.QueueAddress;

-- name: unsubscribe
DELETE FROM {table} WHERE Endpoint = :endpoint AND Topic = :topic;

-- name: subscribers
-- {topics} is one value per topic.
SELECT Endpoint, Topic, QueueAddress FROM {table} WHERE Topic IN ({topics}) ORDER BY Endpoint, Topic;

-- name: subscriptions
SELECT Endpoint, Topic, QueueAddress FROM {table} ORDER BY Endpoint, Topic;
