-- name: meta
SELECT value FROM meta WHERE key = :key;

-- name: set_meta
INSERT INTO meta (key, value) VALUES (:key, :value);

-- name: note_recovery
INSERT INTO meta (key, value) VALUES ('recoveries', 1) ON CONFLICT (key) DO UPDATE SET value = value + 1;

-- name: timeline
SELECT max(timeline) FROM timelines;

-- name: add_timeline
INSERT INTO timelines (timeline, after_position, started) VALUES (:timeline, :after_position, :started);

-- name: head
SELECT position + count - 1 FROM records ORDER BY position DESC LIMIT 1;

-- name: last_stream_id
SELECT max(id) FROM streams;

-- name: last_context_id
SELECT max(id) FROM contexts;

-- name: context_state
SELECT id, events, commits, streams, bytes, top, block FROM contexts WHERE name = :name;

-- name: context_id
SELECT id FROM contexts WHERE name = :name;

-- name: save_context
INSERT INTO contexts (id, name, events, commits, streams, bytes, top, block) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET
    events = excluded.events, commits = excluded.commits, streams = excluded.streams,
    bytes = excluded.bytes, top = excluded.top, block = excluded.block;

-- name: add_stream
INSERT INTO streams (id, context_id, name) VALUES (?, ?, ?);

-- name: stream_id
SELECT id FROM streams WHERE context_id = :context_id AND name = :name;

-- name: stream_head
SELECT last FROM commits WHERE stream_id = :stream_id ORDER BY last DESC LIMIT 1;

-- name: add_record
INSERT INTO records (position, count, context_id, stream_id, data) VALUES (?, ?, ?, ?, ?);

-- name: add_commit
INSERT INTO commits (stream_id, last, position) VALUES (?, ?, ?);

-- name: add_block
INSERT INTO blocks (context_id, block, top_before) VALUES (?, ?, ?);

-- name: record_at
SELECT position, data FROM records WHERE position <= :position ORDER BY position DESC LIMIT 1;

-- name: record_start
SELECT position FROM records WHERE position <= :position ORDER BY position DESC LIMIT 1;

-- name: records_between
SELECT position, data FROM records WHERE position BETWEEN :low AND :high ORDER BY position;

-- name: records_of_context
SELECT position, data FROM records
WHERE position BETWEEN :low AND :high AND (context_id = :context_id OR context_id IS NULL)
ORDER BY position;

-- name: records_of_streams
SELECT position, data FROM records
WHERE position BETWEEN :low AND :high
  AND (:context_id IS NULL OR context_id = :context_id OR context_id IS NULL)
  AND (stream_id IS NULL OR stream_id IN (
        SELECT id FROM streams WHERE id = stream_id AND name >= :prefix AND name < :upper))
ORDER BY position;

-- name: next_block
SELECT block FROM blocks WHERE context_id = :context_id AND block >= :block ORDER BY block LIMIT 1;

-- name: block_before_ticks
SELECT block FROM blocks
WHERE context_id = :context_id AND top_before < :ticks
ORDER BY top_before DESC, block DESC LIMIT 1;

-- name: commits_forward
SELECT last, position FROM commits WHERE stream_id = :stream_id AND last >= :sequence ORDER BY last LIMIT :limit;

-- name: commits_backward
SELECT last, position FROM commits WHERE stream_id = :stream_id AND last <= :sequence ORDER BY last DESC LIMIT :limit;

-- name: contexts
SELECT name, events, commits, streams, bytes FROM contexts WHERE name > :after ORDER BY name LIMIT :limit;

-- name: streams
SELECT name, (SELECT last FROM commits WHERE stream_id = streams.id ORDER BY last DESC LIMIT 1)
FROM streams
WHERE context_id = :context_id AND name >= :low AND name < :upper AND name <> :after
ORDER BY name LIMIT :limit;

-- name: add_subscription
INSERT INTO subscriptions (subscriber, context, filter, position) VALUES (:subscriber, :context, :filter, :position)
ON CONFLICT DO NOTHING;

-- name: find_subscription
SELECT id, subscriber, context, filter, position, last_ticks FROM subscriptions
WHERE subscriber = :subscriber AND context = :context AND filter = :filter;

-- name: subscription
SELECT id, subscriber, context, filter, position, last_ticks FROM subscriptions WHERE id = :id;

-- name: subscriptions
SELECT id, subscriber, context, filter, position, last_ticks FROM subscriptions
WHERE id > :after ORDER BY id LIMIT :limit;

-- name: progress_subscription
UPDATE subscriptions SET position = :next, last_ticks = coalesce(:last_ticks, last_ticks)
WHERE id = :id AND position = :start;

-- name: set_subscription
UPDATE subscriptions SET position = :position, last_ticks = NULL
WHERE subscriber = :subscriber AND context = :context AND filter = :filter;

-- name: add_queue
INSERT INTO queues (name, context, filter, position) VALUES (:name, :context, :filter, :position)
ON CONFLICT DO NOTHING;

-- name: queue
SELECT id, context, name, filter, position FROM queues WHERE name = :name AND context = :context;

-- name: queues_named
SELECT id, context, name, filter, position FROM queues WHERE name = :name LIMIT :limit;

-- name: queue_position
SELECT position FROM queues WHERE id = :id;

-- name: queue_name
SELECT name FROM queues WHERE id = :id;

-- name: set_dead_rule
UPDATE queues SET dead_after = :dead_after WHERE id = :id;

-- name: move_queue
UPDATE queues SET position = :position WHERE id = :id;

-- name: queues
SELECT id, context, name, filter, position, coalesce(sum(count), 0), count(first), coalesce(max(deliveries), 0),
    coalesce(sum(expires <= :now AND deliveries >= dead_after), 0), dead_after
FROM queues LEFT JOIN allocations ON queue_id = id
WHERE id > :after GROUP BY id ORDER BY id LIMIT :limit;

-- name: own_allocation
SELECT first, last, count, subscriber, expires, deliveries FROM allocations
WHERE queue_id = :queue_id AND subscriber = :subscriber AND expires > :now AND first IS NOT :except_first
ORDER BY first LIMIT 1;

-- name: expired_allocation
SELECT first, last, count, subscriber, expires, deliveries FROM allocations
WHERE queue_id = :queue_id AND expires <= :now AND first IS NOT :except_first
  AND deliveries < coalesce((SELECT dead_after FROM queues WHERE id = :queue_id), deliveries + 1)
ORDER BY first LIMIT 1;

-- name: dead_letters
SELECT first, last, count, subscriber, expires, deliveries FROM allocations
WHERE queue_id = :queue_id AND first > :after AND expires <= :now
  AND deliveries >= (SELECT dead_after FROM queues WHERE id = :queue_id)
ORDER BY first LIMIT :limit;

-- name: put_back
UPDATE allocations SET deliveries = 0
WHERE queue_id = :queue_id AND first = :first AND expires <= :now
  AND deliveries >= (SELECT dead_after FROM queues WHERE id = :queue_id);

-- name: allocations
SELECT first, last, count, subscriber, expires, deliveries FROM allocations
WHERE queue_id = :queue_id AND first > :after ORDER BY first LIMIT :limit;

-- name: next_expiry
SELECT min(expires) FROM allocations WHERE queue_id = :queue_id AND expires > :after;

-- name: allocation_count
SELECT count(*) FROM allocations WHERE queue_id = :queue_id;

-- name: add_allocation
INSERT INTO allocations (queue_id, first, last, count, subscriber, expires, deliveries)
VALUES (:queue_id, :first, :last, :count, :subscriber, :expires, 1);

-- name: take_over
UPDATE allocations SET subscriber = :subscriber, expires = :expires, deliveries = deliveries + 1
WHERE queue_id = :queue_id AND first = :first;

-- name: acknowledge
DELETE FROM allocations
WHERE queue_id = :queue_id AND first = :first AND last = coalesce(:last, last) AND subscriber = :subscriber;

-- name: release
UPDATE allocations SET expires = min(expires, :now)
WHERE queue_id = :queue_id AND first = :first AND last = :last AND subscriber = :subscriber;

-- name: drop_allocations
DELETE FROM allocations WHERE queue_id = :queue_id;

-- name: producer
SELECT number, result FROM producers WHERE name = :name;

-- name: save_producer
INSERT INTO producers (name, number, result, used) VALUES (:name, :number, :result, :used)
ON CONFLICT (name) DO UPDATE SET number = excluded.number, result = excluded.result, used = excluded.used;

-- name: expire_producers
DELETE FROM producers WHERE name IN (SELECT name FROM producers WHERE used < :before LIMIT :limit);

-- name: add_log
INSERT INTO logs (name, created, base, bytes) VALUES (:name, :created, :base, 0);

-- name: grow_log
UPDATE logs SET bytes = bytes + ? WHERE name = ?;

-- name: log
SELECT name, created, base, bytes FROM logs WHERE name = :name;

-- name: logs
SELECT name, created, base, bytes FROM logs WHERE name > :after ORDER BY name LIMIT :limit;

-- name: log_count
SELECT count(*) FROM logs;

-- name: delete_log
DELETE FROM logs WHERE name = :name;

-- name: add_iterator
INSERT INTO iterators (name, log, over, kind, function, indexed, created, base, source, outputs)
VALUES (:name, :log, :over, :kind, :function, :indexed, :created, :base, :base, 0);

-- name: iterator
SELECT id, name, log, over, kind, function, indexed, created, base, source, outputs,
    (SELECT state FROM outputs WHERE iterator_id = iterators.id ORDER BY ordinal DESC LIMIT 1)
FROM iterators WHERE name = :name;

-- name: iterators
SELECT id, name, log, over, kind, '', indexed, created, base, source, outputs, NULL FROM iterators
WHERE name > :after ORDER BY name LIMIT :limit;

-- name: iterators_of_log
SELECT id, name, log, over, kind, '', indexed, created, base, source, outputs, NULL FROM iterators
WHERE log = :log AND name > :after ORDER BY name LIMIT :limit;

-- name: iterator_count
SELECT count(*) FROM iterators;

-- name: iterators_upward
WITH RECURSIVE upward (name, log, over) AS (
    SELECT name, log, over FROM iterators WHERE name = :name AND indexed
    UNION
    SELECT i.name, i.log, i.over FROM iterators i JOIN upward u ON u.over = 'iterator' AND i.name = u.log
)
SELECT name FROM upward;

-- name: iterators_below
WITH RECURSIVE below (id, name) AS (
    SELECT id, name FROM iterators WHERE log = :log AND over = :over
    UNION
    SELECT i.id, i.name FROM iterators i JOIN below b ON i.log = b.name AND i.over = 'iterator'
)
SELECT id FROM below;

-- name: delete_iterator
DELETE FROM iterators WHERE id = :id;

-- name: iterator_place
SELECT source, outputs FROM iterators WHERE id = :id;

-- name: move_iterator
UPDATE iterators SET source = :source, outputs = :outputs WHERE id = :id;

-- name: forget_state
UPDATE outputs SET state = NULL
WHERE iterator_id = :id AND state IS NOT NULL
  AND ordinal = (SELECT max(ordinal) FROM outputs WHERE iterator_id = :id);

-- name: add_output
INSERT INTO outputs (iterator_id, ordinal, count, data, state) VALUES (:id, :ordinal, :count, :data, :state);

-- name: outputs_from
SELECT ordinal, count, data FROM outputs
WHERE iterator_id = :id AND EXISTS (SELECT 1 FROM iterators WHERE id = :id) AND ordinal >= coalesce(
    (SELECT max(ordinal) FROM outputs WHERE iterator_id = :id AND ordinal <= :ordinal), 0)
ORDER BY ordinal;

-- name: add_erasure
INSERT INTO erasures (context, stream, iterator_id, last, done, requested)
VALUES (:context, :stream, :iterator_id, :last, :done, :requested);

-- name: hidden
SELECT context, stream, max(last) FROM erasures
WHERE finished IS NULL AND done < last AND context IS NOT NULL AND context = coalesce(:context, context)
GROUP BY context, stream;

-- name: hidden_of_stream
SELECT max(last) FROM erasures WHERE finished IS NULL AND done < last AND context = :context AND stream = :stream;

-- name: unerased
SELECT id, context, stream, iterator_id, last, done FROM erasures INDEXED BY erasures_open
WHERE finished IS NULL AND done < last ORDER BY id LIMIT :limit;

-- name: open_erasures
SELECT count(*) FROM erasures WHERE finished IS NULL;

-- name: cleared_erasures
SELECT id FROM erasures WHERE finished IS NULL AND done >= last;

-- name: advance_erasure
UPDATE erasures SET done = :done WHERE id = :id;

-- name: finish_erasure
UPDATE erasures SET finished = ? WHERE id = ?;

-- name: clear_output
UPDATE outputs SET count = 0, data = x'', state = NULL WHERE iterator_id = :id AND ordinal = :ordinal;

-- name: outputs_to_clear
SELECT ordinal, length(data) FROM outputs WHERE iterator_id = :id AND ordinal >= :ordinal ORDER BY ordinal LIMIT :limit;

-- name: replace_record
UPDATE records SET data = :data WHERE position = :position;

-- name: stats
SELECT
    (SELECT coalesce(sum(commits), 0) FROM contexts),
    (SELECT count(*) FROM contexts),
    (SELECT coalesce(sum(streams), 0) FROM contexts),
    (SELECT count(*) FROM subscriptions),
    (SELECT count(*) FROM queues),
    (SELECT count(*) FROM logs),
    (SELECT count(*) FROM iterators),
    (SELECT coalesce(sum(bytes), 0) FROM contexts);

-- name: records_after
SELECT position, count, context_id, stream_id, data FROM records WHERE position > :position ORDER BY position LIMIT :limit;

-- name: commit_at
SELECT position FROM commits WHERE stream_id = :stream_id AND last = :last;

-- name: commits_after
SELECT stream_id, last, position FROM commits
WHERE (stream_id, last) > (:stream_id, :last) ORDER BY stream_id, last LIMIT :limit;

-- name: counted_events
SELECT coalesce(sum(events), 0) FROM contexts;

-- name: stray_allocations
SELECT queue_id, first, last FROM allocations a
WHERE first > last OR count < 1 OR last >= (SELECT position FROM queues WHERE id = queue_id)
   OR queue_id NOT IN (SELECT id FROM queues)
   OR EXISTS (SELECT 1 FROM allocations b WHERE b.queue_id = a.queue_id AND b.first > a.first AND b.first <= a.last);

-- name: stray_queues
SELECT id, context, name, position FROM queues WHERE position < 1 OR position > :head + 1;

-- name: stray_subscriptions
SELECT id, subscriber, position FROM subscriptions WHERE position < 1 OR position > :head + 1;

-- name: stray_iterators
SELECT name, outputs FROM iterators i
WHERE outputs <> (SELECT coalesce(sum(count), 0) FROM outputs WHERE iterator_id = i.id) AND indexed;
