-- Statements of the subscription table on SQL Server.

-- name: subscribe
-- With the locks of the transport, so that concurrent subscribers wait for each other. MERGE must end with a semicolon.
DECLARE @NOCOUNT VARCHAR(3) = 'OFF';
IF ( (512 & @@OPTIONS) = 512 ) SET @NOCOUNT = 'ON';
SET NOCOUNT ON;
MERGE {table} WITH (HOLDLOCK, TABLOCK) AS held
USING (SELECT :endpoint AS Endpoint, :topic AS Topic, :address AS QueueAddress) AS wanted
ON held.Endpoint = wanted.Endpoint AND held.Topic = wanted.Topic
WHEN MATCHED AND held.QueueAddress <> wanted.QueueAddress THEN
    UPDATE SET QueueAddress = wanted.QueueAddress
WHEN NOT MATCHED THEN
    INSERT (QueueAddress, Topic, Endpoint) VALUES (wanted.QueueAddress, wanted.Topic, wanted.Endpoint);
IF (@NOCOUNT = 'ON') SET NOCOUNT ON;
IF (@NOCOUNT = 'OFF') SET NOCOUNT OFF;

-- name: unsubscribe
DELETE FROM {table} WHERE Endpoint = :endpoint AND Topic = :topic;

-- name: subscribers
-- {topics} is one value per topic.
SELECT Endpoint, Topic, QueueAddress FROM {table} WHERE Topic IN ({topics}) ORDER BY Endpoint, Topic;

-- name: subscriptions
SELECT Endpoint, Topic, QueueAddress FROM {table} ORDER BY Endpoint, Topic;
