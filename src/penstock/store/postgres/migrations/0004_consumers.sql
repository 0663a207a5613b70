-- Queues: ordered says what the key of an event is, of which one consumer at a time has events: '' (no keys), 'stream',
-- or 'prefix:' and a separator. selection narrows the filter, as a JSON object. retry is a JSON object: how long a failed
-- event waits. outstanding is the number of allocations. version counts changes of what the queue hands out, so that none
-- is carried out that a consumer was to get before one.
ALTER TABLE queues ADD COLUMN ordered text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE queues ADD COLUMN selection text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE queues ADD COLUMN retry text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE queues ADD COLUMN paused bigint NOT NULL DEFAULT 0;
ALTER TABLE queues ADD COLUMN outstanding bigint NOT NULL DEFAULT 0;
ALTER TABLE queues ADD COLUMN version bigint NOT NULL DEFAULT 0;
UPDATE queues SET outstanding = (SELECT count(*) FROM allocations WHERE queue_id = id);

-- An allocation with a key has the events of that key between its two positions. One of a key can be handed out; the
-- others wait for it, and their expires is 1 << 62. due is a time before which nobody gets it.
ALTER TABLE allocations ADD COLUMN key text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE allocations ADD COLUMN due bigint NOT NULL DEFAULT 0;
CREATE INDEX allocations_by_key ON allocations (queue_id, key, expires, first) WHERE key <> '';
CREATE INDEX allocations_by_subscriber ON allocations (queue_id, subscriber, first) WHERE subscriber <> '';

-- Events that a queue hands out no more: how often they were delivered, to whom at last, why they are here, since when.
CREATE TABLE dead_letters (
    queue_id bigint NOT NULL,
    position bigint NOT NULL,
    stream text COLLATE "C" NOT NULL,
    sequence bigint NOT NULL,
    deliveries bigint NOT NULL,
    subscriber text COLLATE "C" NOT NULL,
    reason text COLLATE "C" NOT NULL,
    died bigint NOT NULL,
    PRIMARY KEY (queue_id, position)
);
CREATE INDEX dead_letters_by_stream ON dead_letters (stream);
CREATE INDEX dead_letters_by_position ON dead_letters (position);

-- Subscriptions: one of all contexts has an empty one. selection is as that of queues.
ALTER TABLE subscriptions ADD COLUMN selection text COLLATE "C" NOT NULL DEFAULT '';
