-- name: set_up
SELECT set_config('search_path', %(schema)s, false), set_config('lock_timeout', %(lock_ms)s, false),
    set_config('idle_in_transaction_session_timeout', %(idle_ms)s, false),
    -- All that is asked for is found by an index. A plan that was made while a table was small must not stay otherwise.
    set_config('enable_seqscan', 'off', false), set_config('enable_bitmapscan', 'off', false),
    set_config('jit', 'off', false),
    -- Pinned as it was found, so that a reload of the configuration does not loosen what commits of this session mean.
    set_config('synchronous_commit', current_setting('synchronous_commit'), false);

-- name: switched_off
SELECT concat_ws(' ', CASE current_setting('fsync') WHEN 'off' THEN 'fsync' END,
    CASE current_setting('full_page_writes') WHEN 'off' THEN 'full_page_writes' END,
    CASE current_setting('synchronous_commit') WHEN 'off' THEN 'synchronous_commit' END);

-- name: wal_timeline
SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8);

-- name: transaction_status
SELECT pg_xact_status(%(transaction)s::text::xid8);

-- name: end_transaction
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE pid = %(process)s AND backend_xid = %(transaction)s::text::xid8::xid;

-- name: lock
SELECT pg_advisory_xact_lock(%(lock_class)s::int, %(lock_key)s::int);

-- PostgreSQL ends by itself whoever stands still, but only between the parts of a conversation.

-- name: end_stalled
SELECT pg_terminate_backend(pid) FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND classid = %(lock_class)s::bigint::oid AND objid = (%(lock_key)s & 4294967295)::oid
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND granted
  AND wait_event = 'ClientRead' AND query_start < clock_timestamp() - %(stalled_ms)s * interval '1 ms';

-- name: schema_tables
SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = %(schema)s),
    EXISTS (SELECT FROM pg_class WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = %(schema)s));

-- name: has_version
SELECT to_regclass(%(schema)s || '.penstock_version') IS NOT NULL;

-- name: schema_version
SELECT max(version) FROM penstock_version;

-- name: make_version
INSERT INTO penstock_version (version) VALUES (%(version)s);

-- name: set_version
UPDATE penstock_version SET version = %(version)s;

-- name: importing
SELECT value FROM meta WHERE key = 'importing';

-- name: meta
SELECT value FROM meta WHERE key = %(key)s;

-- name: recorded
SELECT recorded FROM state;

-- name: set_meta
INSERT INTO meta (key, value) VALUES (%(key)s, %(value)s) ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- name: delete_meta
DELETE FROM meta WHERE key = %(key)s;

-- name: now
SELECT (extract(epoch FROM clock_timestamp()) * 10000000)::bigint + 621355968000000000;

-- name: identity
SELECT (SELECT value FROM meta WHERE key = 'store_id'), (SELECT max(timeline) FROM timelines);

-- name: add_timeline
INSERT INTO timelines (timeline, after_position, started) VALUES (%(timeline)s, %(after_position)s, %(started)s);

-- name: note_recovery
UPDATE state SET recoveries = recoveries + 1;

-- A batch: what it begins from, what it needs to know, what it writes.

-- name: batch_start
SELECT head, recorded, writer, stream_id, context_id, pg_current_xact_id()::text, pg_backend_pid(),
    (extract(epoch FROM clock_timestamp()) * 10000000)::bigint + 621355968000000000,
    -- Anybody may switch these off while we are connected: every batch looks.
    concat_ws(' ', CASE current_setting('fsync') WHEN 'off' THEN 'fsync' END,
        CASE current_setting('full_page_writes') WHEN 'off' THEN 'full_page_writes' END,
        CASE current_setting('synchronous_commit') WHEN 'off' THEN 'synchronous_commit' END)
FROM state;

-- name: batch_streams
SELECT c.name, s.name, s.id, (SELECT last FROM commits WHERE stream_id = s.id ORDER BY last DESC LIMIT 1)
FROM unnest(%(contexts)s::text[], %(streams)s::text[]) AS wanted (context, stream)
CROSS JOIN LATERAL (SELECT id, name FROM contexts WHERE name = wanted.context COLLATE "C" LIMIT 1) AS c
CROSS JOIN LATERAL (SELECT id, name FROM streams
    WHERE context_id = c.id AND name = wanted.stream COLLATE "C" LIMIT 1) AS s;

-- name: batch_contexts
SELECT name, id, events, commits, streams, bytes, top, block FROM contexts WHERE name = ANY (%(names)s::text[]);

-- name: batch_logs
SELECT name FROM logs WHERE name = ANY (%(names)s::text[]);

-- name: batch_producers
SELECT name, number, result FROM producers WHERE name = ANY (%(names)s::text[]);

-- name: batch_end
WITH ended AS (
    UPDATE state SET head = %(head)s,
        recorded = CASE WHEN %(head)s > head THEN greatest(recorded, %(recorded)s) ELSE recorded END,
        writer = %(writer)s, stream_id = %(stream_id)s, context_id = %(context_id)s
)
SELECT pg_notify(%(channel)s, %(payload)s);

-- name: notify
SELECT pg_notify(%(channel)s, %(payload)s);

-- name: add_streams
INSERT INTO streams (id, context_id, name)
SELECT * FROM unnest(%(ids)s::bigint[], %(contexts)s::bigint[], %(names)s::text[]);

-- name: add_blocks
INSERT INTO blocks (context_id, block, top_before)
SELECT * FROM unnest(%(contexts)s::bigint[], %(blocks)s::bigint[], %(tops)s::bigint[]);

-- name: grow_logs
UPDATE logs SET bytes = bytes + grown.size
FROM unnest(%(names)s::text[], %(sizes)s::bigint[]) AS grown (name, size)
WHERE logs.name = grown.name;

-- Records, the index of their streams, and the counters of their contexts.

-- name: add_commits
WITH new_records AS (
    INSERT INTO records (position, count, context_id, stream_id, data)
    SELECT * FROM unnest(%(positions)s::bigint[], %(counts)s::bigint[], %(record_contexts)s::bigint[],
        %(record_streams)s::bigint[], %(data)s::bytea[])
), new_commits AS (
    INSERT INTO commits (stream_id, last, position)
    SELECT * FROM unnest(%(record_streams)s::bigint[], %(lasts)s::bigint[], %(positions)s::bigint[])
)
INSERT INTO contexts (id, name, events, commits, streams, bytes, top, block)
SELECT * FROM unnest(%(ids)s::bigint[], %(names)s::text[], %(events)s::bigint[], %(commits)s::bigint[],
    %(streams)s::bigint[], %(bytes)s::bigint[], %(tops)s::bigint[], %(blocks)s::bigint[])
ON CONFLICT (id) DO UPDATE SET
    events = excluded.events, commits = excluded.commits, streams = excluded.streams,
    bytes = excluded.bytes, top = excluded.top, block = excluded.block;

-- name: save_producers
INSERT INTO producers (name, number, result, used)
SELECT *, %(used)s FROM unnest(%(names)s::text[], %(numbers)s::bigint[], %(results)s::bytea[])
ON CONFLICT (name) DO UPDATE SET number = excluded.number, result = excluded.result, used = excluded.used;

-- name: expire_producers
DELETE FROM producers WHERE name IN (
    SELECT name FROM producers
    WHERE used < %(before)s AND starts_with(name, 'idempotency:') = %(keys)s LIMIT %(limit)s
)
RETURNING name;

-- The history.

-- name: head
SELECT head FROM state;

-- name: stream_head
SELECT last FROM commits
WHERE stream_id = (SELECT id FROM streams
    WHERE context_id = (SELECT id FROM contexts WHERE name = %(context)s) AND name = %(stream)s)
ORDER BY last DESC LIMIT 1;

-- name: find_stream
SELECT id FROM streams WHERE context_id = (SELECT id FROM contexts WHERE name = %(context)s) AND name = %(stream)s;

-- name: context_id
SELECT id FROM contexts WHERE name = %(name)s;

-- name: context_state
SELECT id, events, commits, streams, bytes, top, block FROM contexts WHERE name = %(name)s;

-- name: last_of_stream
SELECT last FROM commits WHERE stream_id = %(stream_id)s ORDER BY last DESC LIMIT 1;

-- name: record_at
SELECT position, data FROM records WHERE position <= %(position)s ORDER BY position DESC LIMIT 1;

-- The first records of a page, in one statement, which is a snapshot by itself. It is the whole page unless too little
-- was found, or something is being erased. `low` is where the record begins that holds the position.

-- name: first_page
WITH place AS (
    SELECT head, coalesce((SELECT position FROM records WHERE position <= %(position)s ORDER BY position DESC LIMIT 1),
        %(position)s) AS low, EXISTS (SELECT FROM erasures WHERE finished IS NULL AND done < last) AS has_erasures
    FROM state
)
SELECT head, low + %(span)s - 1, has_erasures, position, data FROM place LEFT JOIN LATERAL (
    SELECT position, data, sum(count) OVER before AS events, sum(octet_length(data)) OVER before AS bytes
    FROM (SELECT position, count, data FROM records
        WHERE position BETWEEN low AND least(low + %(span)s - 1, %(end)s) AND position <= head
        ORDER BY position LIMIT %(events_max)s) AS found
    WINDOW before AS (ORDER BY position ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
) AS measured ON coalesce(events, 0) < %(events_max)s AND coalesce(bytes, 0) < %(bytes_max)s
ORDER BY position;

-- name: first_page_of_context
WITH place AS (
    SELECT head, coalesce((SELECT position FROM records WHERE position <= %(position)s ORDER BY position DESC LIMIT 1),
        %(position)s) AS start, EXISTS (SELECT FROM erasures WHERE finished IS NULL AND done < last) AS has_erasures
    FROM state
), context_range AS (
    SELECT head, has_erasures, c.id, greatest(start, b.block << %(block_bits)s::int) AS low FROM place
    LEFT JOIN contexts c ON c.name = %(context)s
    LEFT JOIN LATERAL (SELECT block FROM blocks WHERE context_id = c.id AND block >= start >> %(block_bits)s::int
        ORDER BY block LIMIT 1) AS b ON true
)
SELECT head, low + %(span)s - 1, has_erasures, position, data FROM context_range LEFT JOIN LATERAL (
    SELECT position, data, sum(count) OVER before AS events, sum(octet_length(data)) OVER before AS bytes
    FROM (SELECT position, count, data FROM records
        WHERE position BETWEEN low AND least(low + %(span)s - 1, %(end)s) AND position <= head
          AND (context_id = context_range.id OR context_id IS NULL)
          AND (%(prefix)s = '' OR stream_id IS NULL OR EXISTS (
                SELECT FROM streams WHERE id = stream_id AND name >= %(prefix)s AND name < %(upper)s))
        ORDER BY position LIMIT %(events_max)s) AS found
    WINDOW before AS (ORDER BY position ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
) AS measured ON coalesce(events, 0) < %(events_max)s AND coalesce(bytes, 0) < %(bytes_max)s
ORDER BY position;

-- The same for a stream: its next commits, and each record that holds some of them once.

-- name: first_page_of_stream
WITH place AS (
    SELECT (SELECT id FROM streams WHERE context_id = (SELECT id FROM contexts WHERE name = %(context)s)
            AND name = %(stream)s) AS id,
        EXISTS (SELECT FROM erasures WHERE finished IS NULL AND done < last) AS has_erasures
)
SELECT id, has_erasures, last, place, start, CASE WHEN nth = 1 THEN data END FROM place LEFT JOIN LATERAL (
    SELECT last, place, start, data, nth, sum(octet_length(data)) FILTER (WHERE nth = 1) OVER (
        ORDER BY last ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes
    FROM (SELECT c.last, c.position AS place, r.position AS start, r.data,
            row_number() OVER (PARTITION BY r.position ORDER BY c.last) AS nth
        FROM (SELECT last, position FROM commits
            WHERE stream_id = place.id AND last >= %(sequence)s ORDER BY last LIMIT %(limit)s) AS c
        CROSS JOIN LATERAL (SELECT position, data FROM records
            WHERE position <= c.position ORDER BY position DESC LIMIT 1) AS r) AS held
) AS measured ON coalesce(bytes, 0) < %(bytes_max)s
ORDER BY last;

-- name: page_start
SELECT head, (SELECT position FROM records WHERE position <= %(position)s ORDER BY position DESC LIMIT 1),
    (SELECT id FROM contexts WHERE name = %(context)s),
    EXISTS (SELECT FROM erasures WHERE finished IS NULL AND done < last)
FROM state;

-- Records until there are enough of them: the window says how much lies before each. octet_length does not read what is
-- stored outside of the row.

-- name: page_of_records
SELECT position, data FROM (
    SELECT position, data, sum(count) OVER before AS events, sum(octet_length(data)) OVER before AS bytes
    FROM (SELECT position, count, data FROM records WHERE position BETWEEN %(low)s AND %(high)s
        ORDER BY position LIMIT %(limit)s) AS found
    WINDOW before AS (ORDER BY position ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
) AS measured
WHERE coalesce(events, 0) < %(events_max)s AND coalesce(bytes, 0) < %(bytes_max)s
ORDER BY position;

-- name: page_of_context
SELECT position, data FROM (
    SELECT position, data, sum(count) OVER before AS events, sum(octet_length(data)) OVER before AS bytes
    FROM (SELECT position, count, data FROM records
        WHERE position BETWEEN %(low)s AND %(high)s AND (context_id = %(context_id)s OR context_id IS NULL)
        ORDER BY position LIMIT %(limit)s) AS found
    WINDOW before AS (ORDER BY position ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
) AS measured
WHERE coalesce(events, 0) < %(events_max)s AND coalesce(bytes, 0) < %(bytes_max)s
ORDER BY position;

-- name: page_of_streams
SELECT position, data FROM (
    SELECT position, data, sum(count) OVER before AS events, sum(octet_length(data)) OVER before AS bytes
    FROM (SELECT position, count, data FROM records
        WHERE position BETWEEN %(low)s AND %(high)s
          AND (%(context_id)s::bigint IS NULL OR context_id = %(context_id)s OR context_id IS NULL)
          AND (stream_id IS NULL OR EXISTS (
                SELECT FROM streams WHERE id = stream_id AND name >= %(prefix)s AND name < %(upper)s))
        ORDER BY position LIMIT %(limit)s) AS found
    WINDOW before AS (ORDER BY position ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
) AS measured
WHERE coalesce(events, 0) < %(events_max)s AND coalesce(bytes, 0) < %(bytes_max)s
ORDER BY position;

-- name: next_blocks
SELECT block FROM blocks WHERE context_id = %(context_id)s AND block >= %(block)s ORDER BY block LIMIT %(limit)s;

-- How many events the records of a filter have, and whether all of them pass; otherwise the record tells.

-- name: counts_of_context
SELECT position, count, context_id IS NOT NULL FROM records
WHERE position BETWEEN %(low)s AND %(high)s AND (context_id = %(context_id)s OR context_id IS NULL)
ORDER BY position LIMIT %(limit)s;

-- name: counts_of_streams
SELECT position, count, stream_id IS NOT NULL FROM records
WHERE position BETWEEN %(low)s AND %(high)s AND (context_id = %(context_id)s OR context_id IS NULL)
  AND (stream_id IS NULL OR EXISTS (
        SELECT FROM streams WHERE id = stream_id AND name >= %(prefix)s AND name < %(upper)s))
ORDER BY position LIMIT %(limit)s;

-- Whether events from a position on may be tombstones: some were erased, or a restore brought the history up to there.

-- name: may_have_tombstones
SELECT EXISTS (SELECT FROM erasures) OR %(position)s <= (SELECT max(after_position) FROM timelines);

-- name: block_before_ticks
SELECT block FROM blocks
WHERE context_id = (SELECT id FROM contexts WHERE name = %(context)s) AND top_before < %(ticks)s
ORDER BY top_before DESC, block DESC LIMIT 1;

-- A stream's commits with the records that hold them, some at a time; a record that holds several comes once.

-- name: commits_forward
SELECT last, position FROM commits
WHERE stream_id = %(stream_id)s AND last >= %(sequence)s ORDER BY last LIMIT %(limit)s;

-- name: commits_backward
SELECT last, position FROM commits
WHERE stream_id = %(stream_id)s AND last <= %(sequence)s ORDER BY last DESC LIMIT %(limit)s;

-- name: records_holding
SELECT position, data FROM (
    SELECT position, data, sum(octet_length(data)) OVER before AS bytes
    FROM (SELECT DISTINCT ON (r.position) r.position, r.data
        FROM unnest(%(positions)s::bigint[]) AS wanted (position)
        CROSS JOIN LATERAL (SELECT position, data FROM records
            WHERE position <= wanted.position ORDER BY position DESC LIMIT 1) AS r
        ORDER BY r.position) AS found
    WINDOW before AS (ORDER BY %(sign)s::bigint * position ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
) AS measured
WHERE coalesce(bytes, 0) < %(bytes_max)s
ORDER BY %(sign)s::bigint * position;

-- name: contexts
SELECT name, events, commits, streams, bytes FROM contexts WHERE name > %(after)s ORDER BY name LIMIT %(limit)s;

-- name: streams
SELECT name, (SELECT last FROM commits WHERE stream_id = streams.id ORDER BY last DESC LIMIT 1)
FROM streams
WHERE context_id = (SELECT id FROM contexts WHERE name = %(context)s)
  AND name >= %(low)s AND name < %(upper)s AND name <> %(after)s
ORDER BY name LIMIT %(limit)s;

-- Subscriptions.

-- name: add_subscription
INSERT INTO subscriptions (subscriber, context, filter, position, selection)
SELECT %(subscriber)s, %(context)s, %(filter)s, %(position)s, %(selection)s
WHERE NOT EXISTS (SELECT FROM subscriptions
    WHERE subscriber = %(subscriber)s AND context = %(context)s AND filter = %(filter)s);

-- name: find_subscription
SELECT id, subscriber, context, filter, position, last_ticks, selection FROM subscriptions
WHERE subscriber = %(subscriber)s AND context = %(context)s AND filter = %(filter)s;

-- name: subscription
SELECT id, subscriber, context, filter, position, last_ticks, selection FROM subscriptions WHERE id = %(id)s;

-- name: subscriptions
SELECT id, subscriber, context, filter, position, last_ticks, selection FROM subscriptions
WHERE id > %(after)s ORDER BY id LIMIT %(limit)s;

-- name: progress_subscription
UPDATE subscriptions SET position = %(next)s, last_ticks = coalesce(%(last_ticks)s::bigint, last_ticks)
WHERE id = %(id)s AND position = %(start)s
RETURNING id;

-- name: set_subscription
UPDATE subscriptions SET position = %(position)s, last_ticks = NULL
WHERE subscriber = %(subscriber)s AND context = %(context)s AND filter = %(filter)s
RETURNING id;

-- name: delete_subscription
DELETE FROM subscriptions WHERE id = %(id)s RETURNING id;

-- Queues.

-- name: add_queue
INSERT INTO queues (name, context, filter, position, ordered, selection, retry, dead_after)
SELECT %(name)s, %(context)s, %(filter)s, %(position)s, %(ordered)s, %(selection)s, %(retry)s, %(dead_after)s::bigint
WHERE NOT EXISTS (SELECT FROM queues WHERE name = %(name)s AND context = %(context)s);

-- name: queue
SELECT id, context, name, filter, position, ordered, selection, retry, paused, dead_after, version
FROM queues WHERE name = %(name)s AND context = %(context)s;

-- name: queues_named
SELECT id, context, name, filter, position, ordered, selection, retry, paused, dead_after, version
FROM queues WHERE name = %(name)s LIMIT %(limit)s;

-- name: set_dead_rule
UPDATE queues SET dead_after = %(dead_after)s::bigint WHERE id = %(id)s RETURNING id;

-- name: change_queue
UPDATE queues SET name = coalesce(%(name)s::text, name), paused = coalesce(%(paused)s::bigint, paused),
    retry = coalesce(%(retry)s::text, retry), filter = coalesce(%(filter)s::text, filter),
    selection = coalesce(%(selection)s::text, selection), version = version + 1
WHERE id = %(id)s RETURNING id;

-- name: delete_queue
DELETE FROM queues WHERE id = %(id)s RETURNING id;

-- name: queue_state
SELECT name, context, position, outstanding, version FROM queues WHERE id = %(id)s;

-- name: move_queue
UPDATE queues SET position = %(position)s WHERE id = %(id)s RETURNING id;

-- name: drop_allocations
WITH gone AS (
    DELETE FROM allocations WHERE queue_id = %(id)s
)
UPDATE queues SET outstanding = 0 WHERE id = %(id)s;

-- name: queues
SELECT id, context, name, filter, position,
    coalesce(sum(count) FILTER (WHERE (expires <= %(now)s OR subscriber = '' AND due <= %(now)s)
        AND NOT (expires <= %(now)s AND deliveries >= coalesce(dead_after, deliveries + 1))), 0)::bigint,
    coalesce(sum(count) FILTER (WHERE expires > %(now)s AND subscriber <> ''), 0)::bigint, count(first),
    coalesce(max(deliveries), 0), count(*) FILTER (WHERE expires <= %(now)s AND deliveries >= dead_after)
        + (SELECT count(*) FROM dead_letters WHERE dead_letters.queue_id = id), dead_after,
    ordered, selection, retry, paused,
    coalesce(sum(count) FILTER (WHERE expires > %(now)s AND subscriber = '' AND due > %(now)s), 0)::bigint
FROM queues LEFT JOIN allocations ON queue_id = id
WHERE id > %(after)s GROUP BY id ORDER BY id LIMIT %(limit)s;

-- The live allocation of a subscriber, else the oldest one that has expired and is no dead letter.

-- Of what expired, the first one of those that did so first. Without that limit PostgreSQL plans to look at every allocation.

-- name: claim
(SELECT first, last, count, subscriber, expires, deliveries FROM allocations
WHERE queue_id = %(queue_id)s AND subscriber = %(subscriber)s AND subscriber <> '' AND expires > %(now)s
  AND first IS DISTINCT FROM %(except_first)s::bigint
ORDER BY first LIMIT 1)
UNION ALL
(SELECT * FROM (
    SELECT first, last, count, subscriber, expires, deliveries FROM allocations
    WHERE queue_id = %(queue_id)s AND expires <= %(now)s AND first IS DISTINCT FROM %(except_first)s::bigint
      AND deliveries < coalesce((SELECT dead_after FROM queues WHERE id = %(queue_id)s), deliveries + 1)
    ORDER BY expires LIMIT 1000) AS expired
ORDER BY first LIMIT 1)
LIMIT 1;

-- Carrying out a proposal, with what it was compared with: where the queue stands, what it would hand out again, how many
-- allocations it has. Whoever asked sees from these what was done; see `consumers.allocate`.

-- name: allocate
WITH queue AS (
    SELECT id, position, dead_after, outstanding AS number, version FROM queues WHERE id = %(queue_id)s
), own AS (
    SELECT first, last, count, subscriber, expires, deliveries FROM allocations
    WHERE queue_id = %(queue_id)s AND subscriber = %(subscriber)s AND subscriber <> '' AND expires > %(now)s
    ORDER BY first LIMIT 1
), again AS MATERIALIZED (
    SELECT first, last, count, subscriber, expires, deliveries FROM allocations
    WHERE queue_id = %(queue_id)s AND expires <= %(now)s
      AND deliveries < coalesce((SELECT dead_after FROM queue), deliveries + 1)
    ORDER BY expires LIMIT 1000
), expired AS (
    SELECT * FROM again ORDER BY first LIMIT 1
), claim AS (
    SELECT * FROM own UNION ALL SELECT * FROM expired WHERE NOT EXISTS (SELECT FROM own)
), taken_over AS (
    UPDATE allocations SET subscriber = %(subscriber)s, expires = %(expires)s, deliveries = allocations.deliveries + 1
    FROM claim, queue
    WHERE queue_id = %(queue_id)s AND queue.version = %(version)s AND allocations.first = %(first)s AND claim.expires <= %(now)s
      AND %(kind)s = 'expired'
      AND (claim.first, claim.last, claim.count) = (%(first)s, %(last)s, %(count)s)
), fresh AS (
    INSERT INTO allocations (queue_id, first, last, count, subscriber, expires, deliveries)
    SELECT id, %(first)s, %(last)s, %(count)s, %(subscriber)s, %(expires)s, 1 FROM queue
    WHERE %(kind)s = 'fresh' AND position = %(marker)s AND number < %(allocations_max)s
      AND version = %(version)s AND NOT EXISTS (SELECT FROM claim)
    RETURNING queue_id
), moved AS (
    UPDATE queues SET position = %(next)s, outstanding = outstanding + (SELECT count(*) FROM fresh)
    WHERE id = %(queue_id)s AND position = %(marker)s AND position <> %(next)s AND NOT EXISTS (SELECT FROM claim)
      AND version = %(version)s
      AND (%(kind)s = 'nothing' OR EXISTS (SELECT FROM fresh))
)
SELECT queue.position, queue.number, queue.version, claim.first, claim.last, claim.count, claim.subscriber, claim.expires, claim.deliveries
FROM queue LEFT JOIN claim ON true;

-- name: dead_letters
SELECT first, last, count, subscriber, expires, deliveries FROM allocations
WHERE queue_id = %(queue_id)s AND first > %(after)s AND expires <= %(now)s
  AND deliveries >= (SELECT dead_after FROM queues WHERE id = %(queue_id)s)
ORDER BY first LIMIT %(limit)s;

-- name: put_back
UPDATE allocations SET deliveries = 0
WHERE queue_id = %(queue_id)s AND first = %(first)s AND expires <= %(now)s
  AND deliveries >= (SELECT dead_after FROM queues WHERE id = %(queue_id)s)
RETURNING first;

-- name: reoffer
WITH queue AS (
    SELECT id, name, position, outstanding AS number FROM queues WHERE id = %(queue_id)s
), wanted AS (
    SELECT * FROM unnest(%(firsts)s::bigint[], %(lasts)s::bigint[], %(counts)s::bigint[]) AS run (first, last, count)
), shared AS (
    SELECT FROM allocations a JOIN wanted w ON a.first <= w.last AND a.last >= w.first
    WHERE a.queue_id = %(queue_id)s AND a.key = '' LIMIT 1
), added AS (
    INSERT INTO allocations (queue_id, first, last, count, subscriber, expires, deliveries)
    SELECT id, first, last, count, '', %(now)s, 0 FROM queue, wanted
    WHERE NOT EXISTS (SELECT FROM shared) AND (SELECT max(last) FROM wanted) < position
      AND number + (SELECT count(*) FROM wanted) <= %(allocations_max)s
    RETURNING queue_id
), counted AS (
    UPDATE queues SET outstanding = outstanding + (SELECT count(*) FROM added) WHERE id IN (SELECT queue_id FROM added)
)
SELECT name, number, EXISTS (SELECT FROM shared) OR (SELECT max(last) FROM wanted) >= position FROM queue;

-- name: shared_allocations
SELECT first, last, count, subscriber, expires, deliveries FROM allocations
WHERE queue_id = %(queue_id)s AND first <= %(last)s AND last >= %(first)s ORDER BY first LIMIT %(limit)s;

-- name: waiting
SELECT count(*), coalesce(sum(count), 0)::bigint FROM allocations
WHERE queue_id = %(queue_id)s AND expires <= %(now)s
  AND deliveries < coalesce((SELECT dead_after FROM queues WHERE id = %(queue_id)s), deliveries + 1);

-- name: oldest_waiting
SELECT first, last FROM allocations
WHERE queue_id = %(queue_id)s AND (expires <= %(now)s OR subscriber = '' AND due <= %(now)s)
  AND deliveries < coalesce((SELECT dead_after FROM queues WHERE id = %(queue_id)s), deliveries + 1)
ORDER BY first LIMIT 1;

-- name: allocations
SELECT first, last, count, subscriber, expires, deliveries FROM allocations
WHERE queue_id = %(queue_id)s AND first > %(after)s ORDER BY first LIMIT %(limit)s;

-- name: next_expiry
SELECT expires FROM allocations WHERE queue_id = %(queue_id)s AND expires > %(after)s AND expires < 4611686018427387904
ORDER BY expires LIMIT 1;

-- name: queue_name
SELECT name FROM queues WHERE id = %(id)s;

-- name: acknowledge
WITH gone AS (
    DELETE FROM allocations
    WHERE queue_id = %(queue_id)s AND first = %(first)s AND last = coalesce(%(last)s::bigint, last)
      AND subscriber = %(subscriber)s
    RETURNING queue_id
)
UPDATE queues SET outstanding = outstanding - 1 WHERE id IN (SELECT queue_id FROM gone) RETURNING id;

-- name: release
UPDATE allocations SET expires = least(expires, %(now)s),
    deliveries = deliveries - (expires > %(now)s AND NOT %(counts)s)::int
WHERE queue_id = %(queue_id)s AND first = %(first)s AND last = %(last)s AND subscriber = %(subscriber)s
RETURNING first;

-- Allocations by key, several at a time. What waits for another of its key expires at 1 << 62.

-- name: held
SELECT first, last, count, subscriber, expires, deliveries, key FROM allocations
WHERE queue_id = %(queue_id)s AND subscriber = %(subscriber)s AND subscriber <> '' AND expires > %(now)s ORDER BY first;

-- name: available
SELECT first, last, count, subscriber, expires, deliveries, key FROM allocations
WHERE queue_id = %(queue_id)s AND expires <= %(now)s
ORDER BY expires, first LIMIT %(limit)s;

-- name: exhausted
SELECT first, last, count, subscriber, expires, deliveries, key FROM allocations
WHERE queue_id = %(queue_id)s AND expires <= %(now)s
  AND deliveries >= (SELECT dead_after FROM queues WHERE id = %(queue_id)s)
ORDER BY expires, first LIMIT %(limit)s;

-- name: runs
SELECT first, last, count, a.subscriber, expires, deliveries, a.key
FROM jsonb_array_elements(%(runs)s::jsonb) AS run (value)
JOIN allocations a ON queue_id = %(queue_id)s AND first = (value ->> 0)::bigint AND last = (value ->> 1)::bigint;

-- name: keys_in_use
SELECT wanted FROM jsonb_array_elements_text(%(keys)s::jsonb) AS wanted
WHERE EXISTS (SELECT FROM allocations WHERE queue_id = %(queue_id)s AND key <> '' AND key = wanted);

-- name: of_keys
SELECT first, last, count, subscriber, expires, deliveries, key FROM allocations
WHERE queue_id = %(queue_id)s AND key <> '' AND key IN (SELECT jsonb_array_elements_text(%(keys)s::jsonb));

-- name: add_parts
WITH added AS (
    INSERT INTO allocations (queue_id, first, last, count, subscriber, expires, deliveries, key, due)
    SELECT %(queue_id)s, (value ->> 0)::bigint, (value ->> 1)::bigint, (value ->> 2)::bigint, value ->> 3,
        (value ->> 4)::bigint, (value ->> 5)::bigint, value ->> 6, (value ->> 7)::bigint
    FROM jsonb_array_elements(%(parts)s::jsonb) AS part (value)
    ON CONFLICT DO NOTHING
    RETURNING queue_id
)
UPDATE queues SET outstanding = outstanding + (SELECT count(*) FROM added) WHERE id IN (SELECT queue_id FROM added);

-- name: take_runs
UPDATE allocations SET subscriber = %(subscriber)s, expires = %(expires)s, deliveries = deliveries + 1
WHERE queue_id = %(queue_id)s
  AND first IN (SELECT (value ->> 0)::bigint FROM jsonb_array_elements(%(runs)s::jsonb) AS run (value));

-- name: extend_runs
UPDATE allocations SET expires = %(expires)s
WHERE queue_id = %(queue_id)s AND subscriber = %(subscriber)s
  AND first IN (SELECT (value ->> 0)::bigint FROM jsonb_array_elements(%(runs)s::jsonb) AS run (value))
RETURNING first;

-- name: end_runs
WITH gone AS (
    DELETE FROM allocations WHERE queue_id = %(queue_id)s
      AND first IN (SELECT (value ->> 0)::bigint FROM jsonb_array_elements(%(runs)s::jsonb) AS run (value))
    RETURNING queue_id
)
UPDATE queues SET outstanding = outstanding - (SELECT count(*) FROM gone) WHERE id IN (SELECT queue_id FROM gone);

-- The first of each key that has nothing to hand out becomes available when it is due.

-- name: promote
UPDATE allocations SET expires = greatest(due, %(now)s)
WHERE queue_id = %(queue_id)s AND expires = 4611686018427387904 AND first IN (
    SELECT (SELECT first FROM allocations WHERE queue_id = %(queue_id)s AND key <> '' AND key = begun
        ORDER BY expires, first LIMIT 1)
    FROM jsonb_array_elements_text(%(keys)s::jsonb) AS begun);

-- name: add_letters
INSERT INTO dead_letters (queue_id, position, stream, sequence, deliveries, subscriber, reason, died)
SELECT %(queue_id)s, (value ->> 0)::bigint, value ->> 1, (value ->> 2)::bigint, (value ->> 3)::bigint, value ->> 4,
    value ->> 5, %(now)s
FROM jsonb_array_elements(%(letters)s::jsonb) AS letter (value)
ON CONFLICT (queue_id, position) DO UPDATE
SET deliveries = excluded.deliveries, subscriber = excluded.subscriber, reason = excluded.reason, died = excluded.died;

-- name: letters
SELECT position, stream, sequence, deliveries, subscriber, reason, died FROM dead_letters
WHERE queue_id = %(queue_id)s AND position > %(after)s ORDER BY position LIMIT %(limit)s;

-- name: count_letters
SELECT count(*) FROM dead_letters WHERE queue_id = %(queue_id)s;

-- name: streams_of_letters
SELECT DISTINCT stream FROM dead_letters WHERE queue_id = %(queue_id)s;

-- name: letters_at
SELECT position, stream, sequence, deliveries, subscriber, reason, died FROM dead_letters
WHERE queue_id = %(queue_id)s AND position IN (SELECT jsonb_array_elements_text(%(positions)s::jsonb)::bigint)
ORDER BY position;

-- name: take_letters
DELETE FROM dead_letters
WHERE queue_id = %(queue_id)s AND position IN (SELECT jsonb_array_elements_text(%(positions)s::jsonb)::bigint)
RETURNING position;

-- name: erase_letters_of_stream
DELETE FROM dead_letters
WHERE stream = %(stream)s AND sequence <= %(last)s AND queue_id IN (SELECT id FROM queues WHERE context = %(context)s);

-- name: erase_letters
DELETE FROM dead_letters WHERE position BETWEEN %(first)s AND %(last)s;

-- name: drop_letters
DELETE FROM dead_letters WHERE queue_id = %(id)s;

-- Logs and iterators.

-- name: add_log
INSERT INTO logs (name, created, base, bytes) VALUES (%(name)s, %(created)s, %(base)s, 0);

-- name: log
SELECT name, created, base, bytes FROM logs WHERE name = %(name)s;

-- name: logs
SELECT name, created, base, bytes FROM logs WHERE name > %(after)s ORDER BY name LIMIT %(limit)s;

-- name: last_log
SELECT max(created) FROM logs;

-- name: log_count
SELECT count(*) FROM logs;

-- name: delete_log
DELETE FROM logs WHERE name = %(name)s;

-- name: add_iterator
INSERT INTO iterators (name, log, "over", kind, function, indexed, created, base, source, outputs)
VALUES (%(name)s, %(log)s, %(over)s, %(kind)s, %(function)s, %(indexed)s, %(created)s, %(base)s, %(base)s, 0);

-- name: iterator
SELECT id, name, log, "over", kind, function, indexed, created, base, source, outputs,
    (SELECT state FROM outputs WHERE iterator_id = iterators.id ORDER BY ordinal DESC LIMIT 1)
FROM iterators WHERE name = %(name)s;

-- name: iterators
SELECT id, name, log, "over", kind, '', indexed, created, base, source, outputs, NULL::bytea FROM iterators
WHERE name > %(after)s ORDER BY name LIMIT %(limit)s;

-- name: iterators_of_log
SELECT id, name, log, "over", kind, '', indexed, created, base, source, outputs, NULL::bytea FROM iterators
WHERE log = %(log)s AND name > %(after)s ORDER BY name LIMIT %(limit)s;

-- name: iterator_count
SELECT count(*) FROM iterators;

-- name: iterators_upward
WITH RECURSIVE upward (name, log, "over") AS (
    SELECT name, log, "over" FROM iterators WHERE name = %(name)s AND indexed
    UNION
    SELECT i.name, i.log, i."over" FROM iterators i JOIN upward u ON u."over" = 'iterator' AND i.name = u.log
)
SELECT name FROM upward;

-- name: iterators_below
WITH RECURSIVE below (id, name) AS (
    SELECT id, name FROM iterators WHERE log = %(log)s AND "over" = %(over)s
    UNION
    SELECT i.id, i.name FROM iterators i JOIN below b ON i.log = b.name AND i."over" = 'iterator'
)
SELECT id FROM below;

-- name: iterator_numbered
SELECT id, name, log, "over", kind, function, indexed, created, base, source, outputs, NULL::bytea FROM iterators
WHERE id = %(id)s;

-- name: delete_iterator
DELETE FROM iterators WHERE id = %(id)s;

-- name: iterator_place
SELECT source, outputs FROM iterators WHERE id = %(id)s;

-- name: move_iterator
UPDATE iterators SET source = %(source)s, outputs = %(outputs)s WHERE id = %(id)s;

-- name: forget_state
UPDATE outputs SET state = NULL
WHERE iterator_id = %(id)s AND state IS NOT NULL
  AND ordinal = (SELECT max(ordinal) FROM outputs WHERE iterator_id = %(id)s);

-- name: add_output
INSERT INTO outputs (iterator_id, ordinal, count, data, state)
VALUES (%(id)s, %(ordinal)s, %(count)s, %(data)s, %(state)s);

-- name: output_start
SELECT ordinal FROM outputs WHERE iterator_id = %(id)s AND ordinal <= %(ordinal)s ORDER BY ordinal DESC LIMIT 1;

-- name: outputs_from
SELECT ordinal, count, data FROM (
    SELECT ordinal, count, data, sum(octet_length(data)) OVER before AS bytes
    FROM (SELECT ordinal, count, data FROM outputs
        WHERE iterator_id = %(id)s AND EXISTS (SELECT FROM iterators WHERE id = %(id)s) AND ordinal >= %(ordinal)s
        ORDER BY ordinal LIMIT %(limit)s) AS found
    WINDOW before AS (ORDER BY ordinal ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
) AS measured
WHERE coalesce(bytes, 0) < %(bytes_max)s
ORDER BY ordinal;

-- Erasing.

-- name: add_erasure
INSERT INTO erasures (context, stream, iterator_id, last, done, ranges, timeline, events, requested)
VALUES (%(context)s, %(stream)s, %(iterator_id)s, %(last)s, %(done)s, %(ranges)s,
    (SELECT max(timeline) FROM timelines), %(events)s, %(requested)s);

-- name: hidden
SELECT context, stream, max(last) FROM erasures
WHERE finished IS NULL AND done < last AND context IS NOT NULL AND context = coalesce(%(context)s::text, context)
GROUP BY context, stream;

-- name: hidden_of_stream
SELECT max(last) FROM erasures
WHERE finished IS NULL AND done < last AND context = %(context)s AND stream = %(stream)s;

-- name: hidden_ranges
SELECT done, ranges FROM erasures WHERE finished IS NULL AND ranges IS NOT NULL AND done < last;

-- name: erased_up_to
SELECT max(last) FROM erasures WHERE context = %(context)s AND stream = %(stream)s AND damaged = 0;

-- name: erasures
SELECT id, context, stream, last, ranges, iterator_id, timeline, events, requested, finished, damaged FROM erasures
WHERE id > %(after)s ORDER BY id LIMIT %(limit)s;

-- name: unerased
SELECT id, context, stream, iterator_id, ranges, last, done FROM erasures
WHERE finished IS NULL AND done < last ORDER BY id LIMIT %(limit)s;

-- name: advance_erasure
UPDATE erasures SET done = %(done)s, damaged = damaged + %(damaged)s, rewritten = pg_current_xact_id()
WHERE id = %(id)s;

-- name: finish_erasure
UPDATE erasures SET finished = %(now)s WHERE id = %(id)s AND finished IS NULL;

-- name: rewritten
UPDATE state SET rewrites = rewrites + 1;

-- name: replace_record
UPDATE records SET data = %(data)s WHERE position = %(position)s;

-- name: next_record_start
SELECT position FROM records WHERE position > %(position)s ORDER BY position LIMIT 1;

-- name: remove_outputs
DELETE FROM outputs
WHERE iterator_id = %(id)s AND ordinal IN (
    SELECT ordinal FROM (
        SELECT ordinal, sum(size) OVER (ORDER BY ordinal ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes
        FROM (SELECT ordinal, octet_length(data) + coalesce(octet_length(state), 0) AS size FROM outputs
            WHERE iterator_id = %(id)s AND ordinal >= %(ordinal)s ORDER BY ordinal LIMIT %(limit)s) AS found
    ) AS measured WHERE coalesce(bytes, 0) < %(bytes_max)s)
RETURNING ordinal, octet_length(data) + coalesce(octet_length(state), 0);

-- Erasures of which only old versions of rows may hold something, and nobody reads from before they were rewritten. What
-- replication and prepared transactions hold on to counts like a reader.

-- name: cleared_erasures
SELECT id FROM erasures
WHERE finished IS NULL AND done >= last AND NOT EXISTS (
    SELECT FROM (
        SELECT backend_xmin AS oldest FROM pg_stat_activity WHERE pid <> pg_backend_pid()
        UNION ALL SELECT backend_xid FROM pg_stat_activity WHERE pid <> pg_backend_pid()
        UNION ALL SELECT xmin FROM pg_replication_slots
        UNION ALL SELECT transaction FROM pg_prepared_xacts
    ) AS held
    WHERE oldest IS NOT NULL AND age(oldest) >= age(rewritten::xid));

-- name: vacuum_records
VACUUM (INDEX_CLEANUP on) records;

-- name: vacuum_outputs
VACUUM (INDEX_CLEANUP on) outputs;

-- name: vacuum_staged
VACUUM (INDEX_CLEANUP on) staged;

-- Seals.

-- name: sealed
SELECT sealed FROM state;

-- name: unsealed_start
SELECT (SELECT position FROM records WHERE position >= state.sealed ORDER BY position LIMIT 1), head,
    (SELECT coalesce(max(id), 0) FROM erasures), rewrites
FROM state;

-- name: unsealed_rows
SELECT position, count, octet_length(data) FROM records
WHERE position BETWEEN %(low)s AND %(high)s ORDER BY position;

-- name: unsealed_records
SELECT position, count, data FROM records WHERE position BETWEEN %(low)s AND %(high)s ORDER BY position;

-- name: ledger
SELECT sealed, (SELECT coalesce(max(id), 0) FROM erasures), rewrites FROM state;

-- name: seal_place
SELECT min(position), coalesce(sum(count), 0)::bigint,
    CASE WHEN min(context_id) = max(context_id) AND count(context_id) = count(*) THEN min(context_id) END,
    CASE WHEN min(stream_id) = max(stream_id) AND count(stream_id) = count(*) THEN min(stream_id) END
FROM records WHERE position BETWEEN %(first)s AND %(last)s;

-- name: delete_records
DELETE FROM records WHERE position BETWEEN %(first)s AND %(last)s;

-- name: add_record
INSERT INTO records (position, count, context_id, stream_id, data)
VALUES (%(position)s, %(count)s, %(context_id)s, %(stream_id)s, %(data)s);

-- name: move_mark
UPDATE state SET sealed = %(position)s;

-- name: open_erasures
SELECT count(*) FROM erasures WHERE finished IS NULL;

-- Looking after it.

-- name: stats
SELECT (SELECT head FROM state),
    (SELECT coalesce(sum(commits), 0)::bigint FROM contexts),
    (SELECT count(*) FROM contexts),
    (SELECT coalesce(sum(streams), 0)::bigint FROM contexts),
    (SELECT count(*) FROM subscriptions),
    (SELECT count(*) FROM queues),
    (SELECT count(*) FROM logs),
    (SELECT count(*) FROM iterators),
    (SELECT coalesce(sum(bytes), 0)::bigint FROM contexts),
    (SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class
        WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'),
    (SELECT sealed - 1 FROM state);

-- name: records_after
SELECT position, count, context_id, stream_id, data FROM (
    SELECT *, sum(octet_length(data)) OVER (ORDER BY position ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes
    FROM (SELECT position, count, context_id, stream_id, data FROM records
        WHERE position > %(position)s ORDER BY position LIMIT %(limit)s) AS found
) AS measured
WHERE coalesce(bytes, 0) < 8388608
ORDER BY position;

-- name: records_between
SELECT position, data FROM records WHERE position BETWEEN %(low)s AND %(high)s ORDER BY position;

-- name: record_place
SELECT position, count FROM records WHERE position <= %(position)s ORDER BY position DESC LIMIT 1;

-- name: record_start
SELECT position FROM records WHERE position <= %(position)s ORDER BY position DESC LIMIT 1;

-- name: next_block
SELECT block FROM blocks WHERE context_id = %(context_id)s AND block >= %(block)s ORDER BY block LIMIT 1;

-- name: commit_at
SELECT position FROM commits WHERE stream_id = %(stream_id)s AND last = %(last)s;

-- name: commits_after
SELECT stream_id, last, position FROM commits
WHERE (stream_id, last) > (%(stream_id)s, %(last)s) ORDER BY stream_id, last LIMIT %(limit)s;

-- name: counted_events
SELECT coalesce(sum(events), 0)::bigint FROM contexts;

-- name: stray_allocations
SELECT queue_id, first, last FROM allocations a
WHERE first > last OR count < 1 OR last >= (SELECT position FROM queues WHERE id = queue_id)
   OR queue_id NOT IN (SELECT id FROM queues)
   OR EXISTS (SELECT FROM allocations b
       WHERE b.queue_id = a.queue_id AND b.key = a.key AND b.first > a.first AND b.first <= a.last);

-- name: stray_letters
SELECT queue_id, position FROM dead_letters
WHERE queue_id NOT IN (SELECT id FROM queues) OR position < 1 OR position > %(head)s;

-- name: stray_queues
SELECT id, context, name, position FROM queues WHERE position < 1 OR position > %(head)s + 1;

-- name: miscounted_queues
SELECT id, context, name, outstanding FROM queues
WHERE outstanding <> (SELECT count(*) FROM allocations WHERE queue_id = id);

-- name: stray_subscriptions
SELECT id, subscriber, position FROM subscriptions WHERE position < 1 OR position > %(head)s + 1;

-- name: stray_credentials
SELECT id, principal FROM credentials WHERE NOT EXISTS (SELECT 1 FROM principals WHERE name = principal);

-- name: stray_iterators
SELECT name, outputs FROM iterators i
WHERE outputs <> (SELECT coalesce(sum(count), 0) FROM outputs WHERE iterator_id = i.id) AND indexed;

-- Leases, by the database's clock.

-- name: take_lease
INSERT INTO leases (name, holder, until)
SELECT %(name)s, %(holder)s, now + %(ms)s * 10000
FROM (SELECT (extract(epoch FROM clock_timestamp()) * 10000000)::bigint + 621355968000000000 AS now) AS clock
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until = excluded.until
WHERE leases.holder = excluded.holder OR leases.until <= excluded.until - %(ms)s * 10000
RETURNING name;

-- name: end_lease
DELETE FROM leases WHERE name = %(name)s AND holder = %(holder)s RETURNING name;

-- name: end_leases
DELETE FROM leases
WHERE holder = %(holder)s
   OR until <= (extract(epoch FROM clock_timestamp()) * 10000000)::bigint + 621355968000000000
RETURNING name;

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
SELECT id, name, log, "over", kind, function, indexed, created, base FROM iterators ORDER BY id;

-- name: state_erasures
SELECT id, context, stream, last, ranges, timeline, events, requested, finished, damaged FROM erasures
WHERE iterator_id IS NULL ORDER BY id;

-- name: state_access
SELECT value::bigint FROM meta WHERE key = 'access' AND value <> '0';

-- name: state_principals
SELECT name, grants, limits, created, changed FROM principals ORDER BY name;

-- name: state_credentials
SELECT id, principal, kind, proof, label, created, expires FROM credentials ORDER BY id;

-- name: copy_streams
COPY streams (id, context_id, name) FROM STDIN (FORMAT binary);

-- name: copy_records
COPY records (position, count, context_id, stream_id, data) FROM STDIN (FORMAT binary);

-- name: copy_commits
COPY commits (stream_id, last, position) FROM STDIN (FORMAT binary);

-- name: copy_blocks
COPY blocks (context_id, block, top_before) FROM STDIN (FORMAT binary);

-- name: import_tops
SELECT id, name, top, block FROM contexts;

-- name: last_stream_id
SELECT stream_id FROM state;

-- name: stream_id
SELECT id FROM streams WHERE context_id = %(context_id)s AND name = %(name)s;

-- name: import_top
INSERT INTO contexts (id, name, events, commits, streams, bytes, top, block)
VALUES (%s, %s, 0, 0, 0, 0, %s, %s)
ON CONFLICT (id) DO UPDATE SET top = excluded.top, block = excluded.block;

-- name: import_head
UPDATE state SET head = %(head)s, recorded = %(recorded)s, stream_id = %(stream_id)s, context_id = %(context_id)s;

-- name: import_sealed
UPDATE state SET sealed = %(sealed)s;

-- name: forget_timelines
DELETE FROM timelines;

-- name: import_timelines
INSERT INTO timelines (timeline, after_position, started) VALUES (%s, %s, %s);

-- name: import_contexts
UPDATE contexts SET events = given.events, commits = given.commits, streams = given.streams, bytes = given.bytes,
    top = given.top
FROM (SELECT %s::text AS name, %s::bigint AS events, %s::bigint AS commits, %s::bigint AS streams, %s::bigint AS bytes,
    %s::bigint AS top) AS given
WHERE contexts.name = given.name;

-- name: import_subscriptions
INSERT INTO subscriptions (id, subscriber, context, filter, position, last_ticks, selection)
VALUES (%s, %s, %s, %s, %s, %s, %s);

-- name: import_queues
INSERT INTO queues (id, name, context, filter, position, dead_after, ordered, selection, retry, paused)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s);

-- name: import_allocations
INSERT INTO allocations (queue_id, first, last, count, subscriber, expires, deliveries, key, due)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s);

-- name: import_dead_letters
INSERT INTO dead_letters (queue_id, position, stream, sequence, deliveries, subscriber, reason, died)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s);

-- name: import_producers
INSERT INTO producers (name, number, result, used) VALUES (%s, %s, %s, %s);

-- name: import_logs
INSERT INTO logs (name, created, base, bytes) VALUES (%s, %s, %s, %s);

-- name: import_iterators
INSERT INTO iterators (id, name, log, "over", kind, function, indexed, created, base, source, outputs)
SELECT id, name, log, "over", kind, function, indexed, created, base, base, 0
FROM (SELECT %s::bigint AS id, %s::text AS name, %s::text AS log, %s::text AS "over", %s::text AS kind,
    %s::text AS function, %s::boolean AS indexed, %s::bigint AS created, %s::bigint AS base) AS given;

-- name: import_erasures
INSERT INTO erasures (id, context, stream, last, done, ranges, timeline, events, requested, finished, damaged)
SELECT id, context, stream, last, last, ranges, timeline, events, requested, finished, damaged
FROM (SELECT %s::bigint AS id, %s::text AS context, %s::text AS stream, %s::bigint AS last, %s::bytea AS ranges,
    %s::bigint AS timeline, %s::bigint AS events, %s::bigint AS requested, %s::bigint AS finished,
    %s::bigint AS damaged) AS given;

-- name: import_access
UPDATE meta SET value = (%s::bigint)::text WHERE key = 'access';

-- name: import_principals
INSERT INTO principals (name, grants, limits, created, changed) VALUES (%s, %s, %s, %s, %s);

-- name: import_credentials
INSERT INTO credentials (id, principal, kind, proof, label, created, expires) VALUES (%s, %s, %s, %s, %s, %s, %s);

-- name: next_numbers
SELECT setval(pg_get_serial_sequence('subscriptions', 'id'), (SELECT coalesce(max(id), 0) + 1 FROM subscriptions), false),
    setval(pg_get_serial_sequence('queues', 'id'), (SELECT coalesce(max(id), 0) + 1 FROM queues), false),
    setval(pg_get_serial_sequence('iterators', 'id'), (SELECT coalesce(max(id), 0) + 1 FROM iterators), false),
    setval(pg_get_serial_sequence('erasures', 'id'), (SELECT coalesce(max(id), 0) + 1 FROM erasures), false);

-- name: count_allocations
UPDATE queues SET outstanding = (SELECT count(*) FROM allocations WHERE queue_id = id);

-- name: is_used
SELECT EXISTS (SELECT FROM records) OR EXISTS (SELECT FROM subscriptions) OR EXISTS (SELECT FROM queues)
    OR EXISTS (SELECT FROM producers) OR EXISTS (SELECT FROM logs) OR EXISTS (SELECT FROM iterators)
    OR EXISTS (SELECT FROM erasures) OR EXISTS (SELECT FROM meta WHERE key = 'access' AND value <> '0');

-- name: stage
SELECT id, units FROM stages WHERE job = %(job)s AND part = %(part)s AND attempt = %(attempt)s;

-- name: staged_size
SELECT coalesce(sum(bytes), 0)::bigint, coalesce(sum(units), 0)::bigint FROM stages WHERE job = %(job)s;

-- name: grow_stage
INSERT INTO stages (job, part, attempt, used, units, bytes)
VALUES (%(job)s, %(part)s, %(attempt)s, %(used)s, %(units)s, %(bytes)s)
ON CONFLICT (job, part, attempt) DO UPDATE SET
    used = excluded.used, units = stages.units + excluded.units, bytes = stages.bytes + excluded.bytes
RETURNING id;

-- name: add_staged
INSERT INTO staged (stage_id, number, context, stream, expected, low, keys, data)
SELECT %(id)s, * FROM unnest(%(numbers)s::bigint[], %(contexts)s::text[], %(streams)s::text[], %(expected)s::bigint[],
    %(lows)s::bytea[], %(keys)s::bytea[], %(data)s::bytea[]);

-- name: stages_of_job
SELECT id, part, attempt, units FROM stages WHERE job = %(job)s;

-- name: staged_expected
SELECT context, stream, min(expected), max(expected) FROM staged
WHERE stage_id IN (SELECT id FROM stages WHERE job = %(job)s) AND expected <> -1
GROUP BY context, stream ORDER BY context, stream;

-- name: staged_order
SELECT staged.id, (octet_length(data) + octet_length(keys))::bigint FROM staged JOIN stages ON stages.id = stage_id
WHERE job = %(job)s ORDER BY context, stream, low, part, number;

-- name: staged_units
SELECT staged.id, context, stream, part, number, low, keys, data FROM staged JOIN stages ON stages.id = stage_id
WHERE staged.id = ANY (%(ids)s::bigint[]);

-- name: delete_staged
DELETE FROM staged WHERE stage_id = ANY (%(ids)s::bigint[]);

-- name: delete_stages
DELETE FROM stages WHERE id = ANY (%(ids)s::bigint[]);

-- name: idle_stages
SELECT id FROM stages WHERE used < %(before)s ORDER BY used LIMIT %(limit)s;

-- Staged output of iterators that are gone; its job is 'penstock:output:' and the iterator's id.

-- name: orphan_stages
SELECT id FROM stages
WHERE job >= 'penstock:output:' AND job < 'penstock:output;'
  AND NOT EXISTS (SELECT FROM iterators WHERE iterators.id = substr(job, 17)::bigint);

-- Having a schema to oneself, and putting a new store into it.

-- Whoever serves the store, or one beside it in the same database, has the same name as we unless its URL says otherwise.

-- name: others
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND application_name = current_setting('application_name')
    AND application_name <> '' AND pid <> pg_backend_pid()
ORDER BY pid;

-- name: own
SELECT pg_try_advisory_lock(%(lock_class)s::int, %(lock_key)s::int);

-- name: give_up
SELECT pg_advisory_unlock(%(lock_class)s::int, %(lock_key)s::int);

-- name: beat
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();

-- name: may_create_schemas
SELECT has_database_privilege(current_database(), 'CREATE');

-- name: schema_exists
SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = %(schema)s);

-- name: tables
SELECT relname FROM pg_class
WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = %(schema)s) AND relkind IN ('r', 'p', 'v', 'm', 'f')
ORDER BY relname;

-- name: staged_by_owner
SELECT coalesce(sum(bytes), 0)::bigint FROM stages WHERE starts_with(job, %(jobs)s);

-- Principals and credentials.

-- name: principal
SELECT grants FROM principals WHERE name = %(name)s;

-- name: principal_count
SELECT count(*) FROM principals;

-- name: put_principal
INSERT INTO principals (name, grants, limits, created, changed) VALUES (%(name)s, %(grants)s, %(limits)s, %(created)s, %(changed)s)
ON CONFLICT (name) DO UPDATE SET grants = excluded.grants, limits = excluded.limits, changed = excluded.changed;

-- name: delete_principal
DELETE FROM principals WHERE name = %(name)s;

-- name: credential
SELECT principal, proof, expires FROM credentials WHERE id = %(id)s;

-- name: credential_count
SELECT count(*) FROM credentials;

-- name: put_credential
INSERT INTO credentials (id, principal, kind, proof, label, created, expires)
VALUES (%(id)s, %(principal)s, %(kind)s, %(proof)s, %(label)s, %(created)s, %(expires)s)
ON CONFLICT (id) DO UPDATE SET kind = excluded.kind, proof = excluded.proof, label = excluded.label,
    created = excluded.created, expires = excluded.expires;

-- name: delete_credential
DELETE FROM credentials WHERE id = %(id)s;

-- name: delete_credentials
DELETE FROM credentials WHERE principal = %(principal)s;

-- name: expire_credentials
UPDATE credentials SET expires = %(until)s
WHERE principal = %(principal)s AND kind = %(kind)s AND id <> %(except_id)s AND (expires IS NULL OR expires > %(until)s);
