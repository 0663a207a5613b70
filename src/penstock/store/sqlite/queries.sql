-- name: meta
SELECT value FROM meta WHERE key = :key;

-- name: set_meta
INSERT INTO meta (key, value) VALUES (:key, :value) ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- name: note_recovery
INSERT INTO meta (key, value) VALUES ('recoveries', 1) ON CONFLICT (key) DO UPDATE SET value = value + 1;

-- name: identity
SELECT (SELECT value FROM meta WHERE key = 'store_id'), (SELECT max(timeline) FROM timelines);

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

-- name: find_stream
SELECT s.id FROM contexts c JOIN streams s ON s.context_id = c.id WHERE c.name = :context AND s.name = :stream;

-- name: stream_head
SELECT last FROM commits
WHERE stream_id = (SELECT id FROM streams
    WHERE context_id = (SELECT id FROM contexts WHERE name = :context) AND name = :stream)
ORDER BY last DESC LIMIT 1;

-- name: last_of_stream
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

-- name: record_place
SELECT position, count FROM records WHERE position <= :position ORDER BY position DESC LIMIT 1;

-- name: records_between
SELECT position, data FROM records WHERE position BETWEEN :low AND :high ORDER BY position;

-- name: page_start
SELECT coalesce((SELECT position + count - 1 FROM records ORDER BY position DESC LIMIT 1), 0),
    (SELECT position FROM records WHERE position <= :position ORDER BY position DESC LIMIT 1),
    (SELECT id FROM contexts WHERE name = :context),
    EXISTS (SELECT 1 FROM erasures WHERE finished IS NULL AND done < last);

-- name: page_of_records
SELECT position, data FROM records WHERE position BETWEEN :low AND :high ORDER BY position;

-- name: page_of_context
SELECT position, data FROM records
WHERE position BETWEEN :low AND :high AND (context_id = :context_id OR context_id IS NULL)
ORDER BY position;

-- name: page_of_streams
SELECT position, data FROM records
WHERE position BETWEEN :low AND :high
  AND (:context_id IS NULL OR context_id = :context_id OR context_id IS NULL)
  AND (stream_id IS NULL OR stream_id IN (
        SELECT id FROM streams WHERE id = stream_id AND name >= :prefix AND name < :upper))
ORDER BY position;

-- name: next_block
SELECT block FROM blocks WHERE context_id = :context_id AND block >= :block ORDER BY block LIMIT 1;

-- name: next_blocks
SELECT block FROM blocks WHERE context_id = :context_id AND block >= :block ORDER BY block LIMIT :limit;

-- How many events the records of a filter have, and whether all of them pass; otherwise the record tells.

-- name: counts_of_context
SELECT position, count, context_id IS NOT NULL FROM records
WHERE position BETWEEN :low AND :high AND (context_id = :context_id OR context_id IS NULL)
ORDER BY position LIMIT :limit;

-- name: counts_of_streams
SELECT position, count, stream_id IS NOT NULL FROM records
WHERE position BETWEEN :low AND :high AND (context_id = :context_id OR context_id IS NULL)
  AND (stream_id IS NULL OR stream_id IN (
        SELECT id FROM streams WHERE id = stream_id AND name >= :prefix AND name < :upper))
ORDER BY position LIMIT :limit;

-- Whether events from a position on may be tombstones: some were erased, or a restore brought the history up to there.

-- name: may_have_tombstones
SELECT EXISTS (SELECT 1 FROM erasures) OR :position <= (SELECT max(after_position) FROM timelines);

-- name: block_before_ticks
SELECT block FROM blocks
WHERE context_id = (SELECT id FROM contexts WHERE name = :context) AND top_before < :ticks
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
WHERE context_id = (SELECT id FROM contexts WHERE name = :context)
  AND name >= :low AND name < :upper AND name <> :after
ORDER BY name LIMIT :limit;

-- name: add_subscription
INSERT INTO subscriptions (subscriber, context, filter, position, selection)
VALUES (:subscriber, :context, :filter, :position, :selection)
ON CONFLICT DO NOTHING;

-- name: find_subscription
SELECT id, subscriber, context, filter, position, last_ticks, selection FROM subscriptions
WHERE subscriber = :subscriber AND context = :context AND filter = :filter;

-- name: subscription
SELECT id, subscriber, context, filter, position, last_ticks, selection FROM subscriptions WHERE id = :id;

-- name: subscriptions
SELECT id, subscriber, context, filter, position, last_ticks, selection FROM subscriptions
WHERE id > :after ORDER BY id LIMIT :limit;

-- name: progress_subscription
UPDATE subscriptions SET position = :next, last_ticks = coalesce(:last_ticks, last_ticks)
WHERE id = :id AND position = :start
RETURNING id;

-- name: set_subscription
UPDATE subscriptions SET position = :position, last_ticks = NULL
WHERE subscriber = :subscriber AND context = :context AND filter = :filter
RETURNING id;

-- name: delete_subscription
DELETE FROM subscriptions WHERE id = :id RETURNING id;

-- name: add_queue
INSERT INTO queues (name, context, filter, position, ordered, selection, retry, dead_after)
VALUES (:name, :context, :filter, :position, :ordered, :selection, :retry, :dead_after)
ON CONFLICT DO NOTHING;

-- name: queue
SELECT id, context, name, filter, position, ordered, selection, retry, paused, dead_after, version
FROM queues WHERE name = :name AND context = :context;

-- name: queues_named
SELECT id, context, name, filter, position, ordered, selection, retry, paused, dead_after, version
FROM queues WHERE name = :name LIMIT :limit;

-- name: queue_name
SELECT name FROM queues WHERE id = :id;

-- name: set_dead_rule
UPDATE queues SET dead_after = :dead_after WHERE id = :id RETURNING id;

-- name: change_queue
UPDATE queues SET name = coalesce(:name, name), paused = coalesce(:paused, paused), retry = coalesce(:retry, retry),
    filter = coalesce(:filter, filter), selection = coalesce(:selection, selection),
    version = version + 1
WHERE id = :id RETURNING id;

-- name: delete_queue
DELETE FROM queues WHERE id = :id RETURNING id;

-- name: queue_state
SELECT name, context, position, outstanding, version FROM queues WHERE id = :id;

-- name: move_queue
UPDATE queues SET position = :position WHERE id = :id RETURNING id;

-- name: queues
SELECT id, context, name, filter, position,
    coalesce(sum(count) FILTER (WHERE (expires <= :now OR subscriber = '' AND due <= :now)
        AND NOT (expires <= :now AND deliveries >= coalesce(dead_after, deliveries + 1))), 0),
    coalesce(sum(count) FILTER (WHERE expires > :now AND subscriber <> ''), 0), count(first), coalesce(max(deliveries), 0),
    coalesce(sum(expires <= :now AND deliveries >= dead_after), 0)
        + (SELECT count(*) FROM dead_letters WHERE dead_letters.queue_id = id), dead_after,
    ordered, selection, retry, paused,
    coalesce(sum(count) FILTER (WHERE expires > :now AND subscriber = '' AND due > :now), 0)
FROM queues LEFT JOIN allocations ON queue_id = id
WHERE id > :after GROUP BY id ORDER BY id LIMIT :limit;

-- The live allocation of a subscriber, else the oldest one that has expired and is no dead letter.

-- Without the indexes that are named, they would look at every allocation of the queue.

-- name: claim
SELECT * FROM (
    SELECT first, last, count, subscriber, expires, deliveries FROM allocations INDEXED BY allocations_by_subscriber
    WHERE queue_id = :queue_id AND subscriber = :subscriber AND subscriber <> '' AND expires > :now
      AND first IS NOT :except_first
    ORDER BY first LIMIT 1)
UNION ALL
SELECT * FROM (
    SELECT first, last, count, subscriber, expires, deliveries FROM allocations INDEXED BY allocations_by_expiry
    WHERE queue_id = :queue_id AND expires <= :now AND first IS NOT :except_first
      AND deliveries < coalesce((SELECT dead_after FROM queues WHERE id = :queue_id), deliveries + 1)
    ORDER BY first LIMIT 1)
LIMIT 1;

-- What a proposal is compared with: the marker, the number of allocations, and the claim.

-- name: allocate
SELECT position, outstanding, version, claim.*
FROM queues LEFT JOIN (
    SELECT * FROM (
        SELECT first, last, count, subscriber, expires, deliveries FROM allocations INDEXED BY allocations_by_subscriber
        WHERE queue_id = :queue_id AND subscriber = :subscriber AND subscriber <> '' AND expires > :now
        ORDER BY first LIMIT 1)
    UNION ALL
    SELECT * FROM (
        SELECT first, last, count, subscriber, expires, deliveries FROM allocations INDEXED BY allocations_by_expiry
        WHERE queue_id = :queue_id AND expires <= :now
          AND deliveries < coalesce((SELECT dead_after FROM queues WHERE id = :queue_id), deliveries + 1)
        ORDER BY first LIMIT 1)
    LIMIT 1) AS claim ON true
WHERE id = :queue_id;

-- name: reoffer_state
SELECT name, outstanding,
    EXISTS (SELECT 1 FROM json_each(:runs) AS run
        WHERE value ->> 1 >= position OR EXISTS (SELECT 1 FROM allocations
            WHERE queue_id = :queue_id AND key = '' AND first <= value ->> 1 AND last >= value ->> 0))
FROM queues WHERE id = :queue_id;

-- name: reoffer
INSERT INTO allocations (queue_id, first, last, count, subscriber, expires, deliveries) VALUES (?1, ?2, ?3, ?4, '', ?5, 0);

-- name: dead_letters
SELECT first, last, count, subscriber, expires, deliveries FROM allocations
WHERE queue_id = :queue_id AND first > :after AND expires <= :now
  AND deliveries >= (SELECT dead_after FROM queues WHERE id = :queue_id)
ORDER BY first LIMIT :limit;

-- name: put_back
UPDATE allocations SET deliveries = 0
WHERE queue_id = :queue_id AND first = :first AND expires <= :now
  AND deliveries >= (SELECT dead_after FROM queues WHERE id = :queue_id)
RETURNING first;

-- name: allocations
SELECT first, last, count, subscriber, expires, deliveries FROM allocations
WHERE queue_id = :queue_id AND first > :after ORDER BY first LIMIT :limit;

-- name: next_expiry
SELECT min(expires) FROM allocations WHERE queue_id = :queue_id AND expires > :after AND expires < 1 << 62;

-- name: add_allocation
INSERT INTO allocations (queue_id, first, last, count, subscriber, expires, deliveries)
VALUES (:queue_id, :first, :last, :count, :subscriber, :expires, 1);

-- name: shared_allocations
SELECT first, last, count, subscriber, expires, deliveries FROM allocations
WHERE queue_id = :queue_id AND first <= :last AND last >= :first ORDER BY first LIMIT :limit;

-- name: waiting
SELECT count(*), coalesce(sum(count), 0) FROM allocations
WHERE queue_id = :queue_id AND expires <= :now
  AND deliveries < coalesce((SELECT dead_after FROM queues WHERE id = :queue_id), deliveries + 1);

-- name: oldest_waiting
SELECT first, last FROM allocations
WHERE queue_id = :queue_id AND (expires <= :now OR subscriber = '' AND due <= :now)
  AND deliveries < coalesce((SELECT dead_after FROM queues WHERE id = :queue_id), deliveries + 1)
ORDER BY first LIMIT 1;

-- name: take_over
UPDATE allocations SET subscriber = :subscriber, expires = :expires, deliveries = deliveries + 1
WHERE queue_id = :queue_id AND first = :first;

-- name: acknowledge
DELETE FROM allocations
WHERE queue_id = :queue_id AND first = :first AND last = coalesce(:last, last) AND subscriber = :subscriber
RETURNING first;

-- name: release
UPDATE allocations SET expires = min(expires, :now), deliveries = deliveries - (expires > :now AND NOT :counts)
WHERE queue_id = :queue_id AND first = :first AND last = :last AND subscriber = :subscriber
RETURNING first;

-- name: drop_allocations
DELETE FROM allocations WHERE queue_id = :id;

-- Allocations by key, several at a time. What waits for another of its key expires at 1 << 62.

-- name: held
SELECT first, last, count, subscriber, expires, deliveries, key FROM allocations INDEXED BY allocations_by_subscriber
WHERE queue_id = :queue_id AND subscriber = :subscriber AND subscriber <> '' AND expires > :now ORDER BY first;

-- name: available
SELECT first, last, count, subscriber, expires, deliveries, key FROM allocations INDEXED BY allocations_by_expiry
WHERE queue_id = :queue_id AND expires <= :now
ORDER BY expires, first LIMIT :limit;

-- name: exhausted
SELECT first, last, count, subscriber, expires, deliveries, key FROM allocations INDEXED BY allocations_by_expiry
WHERE queue_id = :queue_id AND expires <= :now
  AND deliveries >= (SELECT dead_after FROM queues WHERE id = :queue_id)
ORDER BY expires, first LIMIT :limit;

-- name: runs
SELECT first, last, count, a.subscriber, expires, deliveries, a.key
FROM json_each(:runs) AS run CROSS JOIN allocations a
ON queue_id = :queue_id AND first = run.value ->> 0 AND last = run.value ->> 1;

-- name: keys_in_use
SELECT value FROM json_each(:keys)
WHERE EXISTS (SELECT 1 FROM allocations WHERE queue_id = :queue_id AND key <> '' AND key = value);

-- name: of_keys
SELECT first, last, count, subscriber, expires, deliveries, key FROM allocations
WHERE queue_id = :queue_id AND key <> '' AND key IN (SELECT value FROM json_each(:keys));

-- name: add_parts
INSERT INTO allocations (queue_id, first, last, count, subscriber, expires, deliveries, key, due)
SELECT :queue_id, value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7
FROM json_each(:parts) WHERE true
ON CONFLICT DO NOTHING;

-- name: take_runs
UPDATE allocations SET subscriber = :subscriber, expires = :expires, deliveries = deliveries + 1
WHERE queue_id = :queue_id AND first IN (SELECT value ->> 0 FROM json_each(:runs));

-- name: extend_runs
UPDATE allocations SET expires = :expires
WHERE queue_id = :queue_id AND first IN (SELECT value ->> 0 FROM json_each(:runs)) AND subscriber = :subscriber
RETURNING first;

-- name: end_runs
DELETE FROM allocations WHERE queue_id = :queue_id AND first IN (SELECT value ->> 0 FROM json_each(:runs));

-- The first of each key that has nothing to hand out becomes available when it is due.

-- name: promote
UPDATE allocations SET expires = max(due, :now)
WHERE queue_id = :queue_id AND expires = 1 << 62 AND first IN (
    SELECT (SELECT first FROM allocations WHERE queue_id = :queue_id AND key <> '' AND key = value
        ORDER BY expires, first LIMIT 1)
    FROM json_each(:keys));

-- name: add_letters
INSERT INTO dead_letters (queue_id, position, stream, sequence, deliveries, subscriber, reason, died)
SELECT :queue_id, value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, :now FROM json_each(:letters) WHERE true
ON CONFLICT (queue_id, position) DO UPDATE
SET deliveries = excluded.deliveries, subscriber = excluded.subscriber, reason = excluded.reason, died = excluded.died;

-- name: letters
SELECT position, stream, sequence, deliveries, subscriber, reason, died FROM dead_letters
WHERE queue_id = :queue_id AND position > :after ORDER BY position LIMIT :limit;

-- name: count_letters
SELECT count(*) FROM dead_letters WHERE queue_id = :queue_id;

-- name: streams_of_letters
SELECT DISTINCT stream FROM dead_letters WHERE queue_id = :queue_id;

-- name: letters_at
SELECT position, stream, sequence, deliveries, subscriber, reason, died FROM dead_letters
WHERE queue_id = :queue_id AND position IN (SELECT value FROM json_each(:positions)) ORDER BY position;

-- name: take_letters
DELETE FROM dead_letters WHERE queue_id = :queue_id AND position IN (SELECT value FROM json_each(:positions))
RETURNING position;

-- name: erase_letters_of_stream
DELETE FROM dead_letters
WHERE stream = :stream AND sequence <= :last AND queue_id IN (SELECT id FROM queues WHERE context = :context);

-- name: erase_letters
DELETE FROM dead_letters WHERE position BETWEEN :first AND :last;

-- name: drop_letters
DELETE FROM dead_letters WHERE queue_id = :id;

-- name: producer
SELECT number, result FROM producers WHERE name = :name;

-- name: save_producer
INSERT INTO producers (name, number, result, used) VALUES (?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET number = excluded.number, result = excluded.result, used = excluded.used;

-- name: expire_producers
DELETE FROM producers WHERE name IN (
    SELECT name FROM producers WHERE used < :before AND (name GLOB 'idempotency:*') = :keys LIMIT :limit
)
RETURNING name;

-- name: add_log
INSERT INTO logs (name, created, base, bytes) VALUES (:name, :created, :base, 0);

-- name: grow_log
UPDATE logs SET bytes = bytes + ? WHERE name = ?;

-- name: log
SELECT name, created, base, bytes FROM logs WHERE name = :name;

-- name: logs
SELECT name, created, base, bytes FROM logs WHERE name > :after ORDER BY name LIMIT :limit;

-- name: last_log
SELECT max(created) FROM logs;

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

-- name: iterator_numbered
SELECT id, name, log, over, kind, function, indexed, created, base, source, outputs, NULL FROM iterators WHERE id = :id;

-- name: last_output
SELECT rowid, length(data), length(state) FROM outputs WHERE iterator_id = :id ORDER BY ordinal DESC LIMIT 1;

-- name: forget_state
UPDATE outputs SET state = NULL WHERE rowid = :row;

-- name: add_output
INSERT INTO outputs (iterator_id, ordinal, count, data, state) VALUES (:id, :ordinal, :count, :data, :state);

-- name: outputs_from
SELECT ordinal, count, data FROM outputs
WHERE iterator_id = :id AND EXISTS (SELECT 1 FROM iterators WHERE id = :id) AND ordinal >= coalesce(
    (SELECT max(ordinal) FROM outputs WHERE iterator_id = :id AND ordinal <= :ordinal), 0)
ORDER BY ordinal;

-- name: add_erasure
INSERT INTO erasures (context, stream, iterator_id, ranges, last, done, events, timeline, requested)
VALUES (:context, :stream, :iterator_id, :ranges, :last, :done, :events, (SELECT max(timeline) FROM timelines),
    :requested);

-- name: hidden
SELECT context, stream, max(last) FROM erasures
WHERE finished IS NULL AND done < last AND context IS NOT NULL AND context = coalesce(:context, context)
GROUP BY context, stream;

-- name: hidden_of_stream
SELECT max(last) FROM erasures WHERE finished IS NULL AND done < last AND context = :context AND stream = :stream;

-- name: hidden_ranges
SELECT done, ranges FROM erasures INDEXED BY erasures_open_of_ranges
WHERE finished IS NULL AND ranges IS NOT NULL AND done < last;

-- name: erased_up_to
SELECT max(last) FROM erasures INDEXED BY erasures_of_streams
WHERE context = :context AND stream = :stream AND damaged = 0
  AND timeline = (SELECT max(timeline) FROM timelines);

-- name: erasures
SELECT id, context, stream, last, ranges, iterator_id, timeline, events, requested, finished, damaged FROM erasures
WHERE id > :after ORDER BY id LIMIT :limit;

-- name: ledger
SELECT (SELECT value FROM meta WHERE key = 'sealed'), (SELECT coalesce(max(id), 0) FROM erasures),
    (SELECT value FROM meta WHERE key = 'rewrites');

-- name: unerased
SELECT id, context, stream, iterator_id, ranges, last, done FROM erasures INDEXED BY erasures_open
WHERE finished IS NULL AND done < last ORDER BY id LIMIT :limit;

-- name: open_erasures
SELECT count(*) FROM erasures WHERE finished IS NULL;

-- name: cleared_erasures
SELECT id FROM erasures WHERE finished IS NULL AND done >= last;

-- name: advance_erasure
UPDATE erasures SET done = :done, damaged = damaged + :damaged WHERE id = :id;

-- name: finish_erasure
UPDATE erasures SET finished = :now WHERE id = :id;

-- name: output_to_erase
SELECT rowid FROM outputs WHERE iterator_id = :id AND ordinal >= :ordinal ORDER BY ordinal LIMIT 1;

-- name: outputs_from_row
SELECT iterator_id, ordinal, rowid, length(data), length(state) FROM outputs WHERE rowid >= :row ORDER BY rowid;

-- name: blank_output
UPDATE outputs SET data = zeroblob(length(data)), state = zeroblob(length(state)) WHERE rowid = ?;

-- name: delete_output
DELETE FROM outputs WHERE rowid = ?;

-- name: outputs_before_row
SELECT rowid, length(data), length(state) FROM outputs WHERE rowid < :row ORDER BY rowid DESC;

-- name: outputs_after_row
SELECT rowid, length(data), length(state) FROM outputs WHERE rowid > :row ORDER BY rowid;

-- name: records_before_row
SELECT position, length(data) FROM records WHERE position < :row AND typeof(data) = 'blob' ORDER BY position DESC;

-- name: records_after_row
SELECT position, length(data) FROM records WHERE position > :row AND typeof(data) = 'blob' ORDER BY position;

-- name: replace_record
UPDATE records SET data = :data WHERE position = :position;

-- name: blank_record
UPDATE records SET data = zeroblob(:size) WHERE position = :position;

-- name: next_record_start
SELECT position FROM records WHERE position > :position ORDER BY position LIMIT 1;

-- name: rewritten
UPDATE meta SET value = value + 1 WHERE key = 'rewrites';

-- name: move_mark
UPDATE meta SET value = :position WHERE key = 'sealed';

-- name: sealed
SELECT value FROM meta WHERE key = 'sealed';

-- name: unsealed_start
SELECT (SELECT position FROM records WHERE position >= CAST((SELECT value FROM meta WHERE key = 'sealed') AS INTEGER)
        ORDER BY position LIMIT 1),
    coalesce((SELECT position + count - 1 FROM records ORDER BY position DESC LIMIT 1), 0),
    (SELECT coalesce(max(id), 0) FROM erasures), (SELECT value FROM meta WHERE key = 'rewrites');

-- name: unsealed_rows
SELECT position, count, length(data) FROM records WHERE position BETWEEN :low AND :high ORDER BY position;

-- name: unsealed_records
SELECT position, count, data FROM records WHERE position BETWEEN :low AND :high ORDER BY position;

-- name: seal_place
SELECT min(position), coalesce(sum(count), 0),
    CASE WHEN min(context_id) = max(context_id) AND count(context_id) = count(*) THEN min(context_id) END,
    CASE WHEN min(stream_id) = max(stream_id) AND count(stream_id) = count(*) THEN min(stream_id) END
FROM records WHERE position BETWEEN :first AND :last;

-- name: blank_records
UPDATE records SET data = zeroblob(length(data)) WHERE position BETWEEN :first AND :last;

-- name: delete_records
DELETE FROM records WHERE position BETWEEN :first AND :last;

-- name: add_blank_record
INSERT INTO records (position, count, context_id, stream_id, data)
VALUES (:position, :count, :context_id, :stream_id, zeroblob(:size));

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
   OR EXISTS (SELECT 1 FROM allocations b
       WHERE b.queue_id = a.queue_id AND b.key = a.key AND b.first > a.first AND b.first <= a.last);

-- name: stray_letters
SELECT queue_id, position FROM dead_letters
WHERE queue_id NOT IN (SELECT id FROM queues) OR position < 1 OR position > :head;

-- name: stray_queues
SELECT id, context, name, position FROM queues WHERE position < 1 OR position > :head + 1;

-- name: miscounted_queues
SELECT id, context, name, outstanding FROM queues
WHERE outstanding <> (SELECT count(*) FROM allocations WHERE queue_id = id);

-- name: stray_subscriptions
SELECT id, subscriber, position FROM subscriptions WHERE position < 1 OR position > :head + 1;

-- name: stray_credentials
SELECT id, principal FROM credentials WHERE NOT EXISTS (SELECT 1 FROM principals WHERE name = principal);

-- name: stray_iterators
SELECT name, outputs FROM iterators i
WHERE outputs <> (SELECT coalesce(sum(count), 0) FROM outputs WHERE iterator_id = i.id) AND indexed;

-- The whole state, out and in; columns as in STATE_TABLES.

-- name: state_timelines
SELECT timeline, after_position, started FROM timelines ORDER BY timeline;

-- name: state_contexts
SELECT name, events, commits, streams, bytes, top FROM contexts ORDER BY name;

-- name: state_subscriptions
SELECT id, subscriber, context, filter, position, last_ticks, selection FROM subscriptions ORDER BY id;

-- name: state_queues
SELECT id, name, context, filter, position, dead_after, ordered, selection, retry, paused FROM queues ORDER BY id;

-- name: state_allocations
SELECT queue_id, first, last, count, subscriber, expires, deliveries, key, due
FROM allocations ORDER BY queue_id, first;

-- name: state_dead_letters
SELECT queue_id, position, stream, sequence, deliveries, subscriber, reason, died
FROM dead_letters ORDER BY queue_id, position;

-- name: state_producers
SELECT name, number, result, used FROM producers ORDER BY name;

-- name: state_logs
SELECT name, created, base, bytes FROM logs ORDER BY name;

-- name: state_iterators
SELECT id, name, log, over, kind, function, indexed, created, base FROM iterators ORDER BY id;

-- name: state_erasures
SELECT id, context, stream, last, ranges, timeline, events, requested, finished, damaged FROM erasures
WHERE iterator_id IS NULL ORDER BY id;

-- name: state_access
SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'access' AND value <> '0';

-- name: state_principals
SELECT name, grants, limits, created, changed FROM principals ORDER BY name;

-- name: state_credentials
SELECT id, principal, kind, proof, label, created, expires FROM credentials ORDER BY id;

-- name: import_timelines
INSERT INTO timelines (timeline, after_position, started) VALUES (?, ?, ?);

-- name: import_contexts
UPDATE contexts SET events = ?2, commits = ?3, streams = ?4, bytes = ?5, top = ?6 WHERE name = ?1;

-- name: import_subscriptions
INSERT INTO subscriptions (id, subscriber, context, filter, position, last_ticks, selection)
VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: import_queues
INSERT INTO queues (id, name, context, filter, position, dead_after, ordered, selection, retry, paused)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: import_allocations
INSERT INTO allocations (queue_id, first, last, count, subscriber, expires, deliveries, key, due)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: import_dead_letters
INSERT INTO dead_letters (queue_id, position, stream, sequence, deliveries, subscriber, reason, died)
VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: import_producers
INSERT INTO producers (name, number, result, used) VALUES (?, ?, ?, ?);

-- name: import_logs
INSERT INTO logs (name, created, base, bytes) VALUES (?, ?, ?, ?);

-- name: import_iterators
INSERT INTO iterators (id, name, log, over, kind, function, indexed, created, base, source, outputs)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?9, 0);

-- name: import_erasures
INSERT INTO erasures (id, context, stream, last, done, ranges, timeline, events, requested, finished, damaged)
VALUES (?1, ?2, ?3, ?4, ?4, ?5, ?6, ?7, ?8, ?9, ?10);

-- name: import_access
UPDATE meta SET value = CAST(? AS TEXT) WHERE key = 'access';

-- name: import_principals
INSERT INTO principals (name, grants, limits, created, changed) VALUES (?, ?, ?, ?, ?);

-- name: import_credentials
INSERT INTO credentials (id, principal, kind, proof, label, created, expires) VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: forget_timelines
DELETE FROM timelines;

-- name: import_sealed
UPDATE meta SET value = :sealed WHERE key = 'sealed';

-- name: delete_meta
DELETE FROM meta WHERE key = :key;

-- name: import_tops
SELECT id, name, top, block FROM contexts;

-- name: import_top
INSERT INTO contexts (id, name, events, commits, streams, bytes, top, block) VALUES (?1, ?2, 0, 0, 0, 0, ?3, ?4)
ON CONFLICT (id) DO UPDATE SET top = ?3, block = ?4;

-- name: is_used
SELECT EXISTS (SELECT 1 FROM records) OR EXISTS (SELECT 1 FROM subscriptions) OR EXISTS (SELECT 1 FROM queues)
    OR EXISTS (SELECT 1 FROM producers) OR EXISTS (SELECT 1 FROM logs) OR EXISTS (SELECT 1 FROM iterators)
    OR EXISTS (SELECT 1 FROM erasures) OR EXISTS (SELECT 1 FROM meta WHERE key = 'access' AND value <> '0');

-- name: stage
SELECT id, units FROM stages WHERE job = :job AND part = :part AND attempt = :attempt;

-- name: staged_size
SELECT coalesce(sum(bytes), 0), coalesce(sum(units), 0) FROM stages WHERE job = :job;

-- name: grow_stage
INSERT INTO stages (job, part, attempt, used, units, bytes) VALUES (:job, :part, :attempt, :used, :units, :bytes)
ON CONFLICT (job, part, attempt) DO UPDATE SET
    used = excluded.used, units = units + excluded.units, bytes = bytes + excluded.bytes
RETURNING id;

-- name: add_staged
INSERT INTO staged (stage_id, number, context, stream, expected, low, keys, data) VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: stages_of_job
SELECT id, part, attempt, units FROM stages WHERE job = :job;

-- name: staged_expected
SELECT context, stream, min(expected), max(expected) FROM staged
WHERE stage_id IN (SELECT id FROM stages WHERE job = :job) AND expected <> -1
GROUP BY context, stream ORDER BY context, stream;

-- name: staged_order
SELECT staged.id, length(data) + length(keys) FROM staged JOIN stages ON stages.id = stage_id
WHERE job = :job ORDER BY context, stream, low, part, number;

-- name: staged_unit
SELECT context, stream, part, number, low, keys, data FROM staged JOIN stages ON stages.id = stage_id
WHERE staged.id = :id;

-- name: units_of_stage
SELECT id FROM staged WHERE stage_id = :id;

-- name: staged_from_row
SELECT stage_id, id, length(low), length(keys), length(data) FROM staged WHERE id >= :row ORDER BY id;

-- name: staged_before_row
SELECT id, length(low), length(keys), length(data) FROM staged WHERE id < :row ORDER BY id DESC;

-- name: staged_after_row
SELECT id, length(low), length(keys), length(data) FROM staged WHERE id > :row ORDER BY id;

-- name: blank_staged
UPDATE staged SET low = zeroblob(length(low)), keys = zeroblob(length(keys)), data = zeroblob(length(data)) WHERE id = ?;

-- name: delete_staged
DELETE FROM staged WHERE id = ?;

-- name: delete_stage
DELETE FROM stages WHERE id = ?;

-- name: idle_stages
SELECT id FROM stages WHERE used < :before ORDER BY used LIMIT :limit;

-- Staged output of iterators that are gone; its job is 'penstock:output:' and the iterator's id.

-- name: orphan_stages
SELECT id FROM stages
WHERE job >= 'penstock:output:' AND job < 'penstock:output;'
    AND NOT EXISTS (SELECT 1 FROM iterators WHERE iterators.id = CAST(substr(job, 17) AS INTEGER));

-- name: staged_by_owner
SELECT coalesce(sum(bytes), 0) FROM stages WHERE substr(job, 1, length(:jobs)) = :jobs;

-- Principals and credentials.

-- name: principal
SELECT grants FROM principals WHERE name = :name;

-- name: principal_count
SELECT count(*) FROM principals;

-- name: put_principal
INSERT INTO principals (name, grants, limits, created, changed) VALUES (:name, :grants, :limits, :created, :changed)
ON CONFLICT (name) DO UPDATE SET grants = excluded.grants, limits = excluded.limits, changed = excluded.changed;

-- name: delete_principal
DELETE FROM principals WHERE name = :name;

-- name: credential
SELECT principal, proof, expires FROM credentials WHERE id = :id;

-- name: credential_count
SELECT count(*) FROM credentials;

-- name: put_credential
INSERT INTO credentials (id, principal, kind, proof, label, created, expires)
VALUES (:id, :principal, :kind, :proof, :label, :created, :expires)
ON CONFLICT (id) DO UPDATE SET kind = excluded.kind, proof = excluded.proof, label = excluded.label,
    created = excluded.created, expires = excluded.expires;

-- name: delete_credential
DELETE FROM credentials WHERE id = :id;

-- name: delete_credentials
DELETE FROM credentials WHERE principal = :principal;

-- name: expire_credentials
UPDATE credentials SET expires = :until
WHERE principal = :principal AND kind = :kind AND id <> :except_id AND (expires IS NULL OR expires > :until);
