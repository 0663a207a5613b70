-- Queues: ordered says what the key of an event is, of which one consumer at a time has events: '' (no keys), 'stream',
-- or 'prefix:' and a separator. selection narrows the filter, as a JSON object. retry is a JSON object: how long a failed
-- event waits. outstanding is the number of allocations. version counts changes of what the queue hands out, so that none
-- is carried out that a consumer was to get before one.
ALTER TABLE queues ADD COLUMN ordered TEXT NOT NULL DEFAULT '';
ALTER TABLE queues ADD COLUMN selection TEXT NOT NULL DEFAULT '';
ALTER TABLE queues ADD COLUMN retry TEXT NOT NULL DEFAULT '';
ALTER TABLE queues ADD COLUMN paused INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queues ADD COLUMN outstanding INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queues ADD COLUMN version INTEGER NOT NULL DEFAULT 0;
UPDATE queues SET outstanding = (SELECT count(*) FROM allocations WHERE queue_id = id);

-- An allocation with a key has the events of that key between its two positions. One of a key can be handed out; the
-- others wait for it, and their expires is 1 << 62. due is a time before which nobody gets it.
ALTER TABLE allocations ADD COLUMN key TEXT NOT NULL DEFAULT '';
ALTER TABLE allocations ADD COLUMN due INTEGER NOT NULL DEFAULT 0;
CREATE INDEX allocations_by_key ON allocations (queue_id, key, expires, first) WHERE key <> '';
CREATE INDEX allocations_by_subscriber ON allocations (queue_id, subscriber, first) WHERE subscriber <> '';
CREATE TRIGGER allocation_added AFTER INSERT ON allocations BEGIN
    UPDATE queues SET outstanding = outstanding + 1 WHERE id = NEW.queue_id;
END;
CREATE TRIGGER allocation_gone AFTER DELETE ON allocations BEGIN
    UPDATE queues SET outstanding = outstanding - 1 WHERE id = OLD.queue_id;
END;

-- Events that a queue hands out no more: how often they were delivered, to whom at last, why they are here, since when.
CREATE TABLE dead_letters (
    queue_id INTEGER NOT NULL,
    position INTEGER NOT NULL,
    stream TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    deliveries INTEGER NOT NULL,
    subscriber TEXT NOT NULL,
    reason TEXT NOT NULL,
    died INTEGER NOT NULL,
    PRIMARY KEY (queue_id, position)
) WITHOUT ROWID;
CREATE INDEX dead_letters_by_stream ON dead_letters (stream);
CREATE INDEX dead_letters_by_position ON dead_letters (position);

-- Subscriptions: one of all contexts has an empty one. selection is as that of queues.
ALTER TABLE subscriptions ADD COLUMN selection TEXT NOT NULL DEFAULT '';
